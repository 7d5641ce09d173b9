"""The batched form of a call: what torch.vmap makes of it, recorded once and written out as Python.

`torch.vmap` finds a batched form anew at every call, some 0.1 ms each. Definitions.

(1) A call runs under vmap on two and on three rows, and a dispatch mode sees the operators below. Where both runs
    consist of the same ones, whose integers are equal or `a n + b` of the number n of rows, the form for any n is those
    operators, `(n, *shape)` in and out. Autograd can follow it, and every operator's result stays what it is of rows
    alone, but that the form is a guess: it is held against rows alone before it is believed
    (`edbc.cells.rows.rowfunction`).
(2) Operators that only give another shape become one `reshape` of what they began with, or nothing. A product of
    matrices that are one for all rows is a product with that one.
(3) Some functions have *forms of their own* (`_FORMS`), for operands as the call's views show them: where vmap takes
    operators apart that take rows as their batch, or runs them row by row. What they are not written for, they leave
    to definition (1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch

from edbc.capture.record.table import Hole, SharedRef, fill
from edbc.capture.semantics.modes import DispatchMode
from edbc.capture.semantics.rules import name_of
from edbc.capture.semantics.shapes import pick, split_outputs
from edbc.cells.rows.convolution import convolve

Shared = Callable[[SharedRef], torch.Tensor]
Tensors = Sequence[torch.Tensor]
Form = Callable[[Tensors, int, Shared], list[torch.Tensor]]
"""The results for operands of so many rows; parameters come last."""
OfRow = Callable[..., Sequence[torch.Tensor]]
"""Of parameters and a row's operands, what is computed of them alone."""
COUNTS = (2, 3)
"""Definition (1)."""
MOST_PRODUCTS = 2**20
"""Numbers between the two products of a bilinear function, at most: 4 MB of float32."""
_SHAPES = frozenset("view _unsafe_view reshape _reshape_alias unsqueeze squeeze squeeze_ alias".split())
"""Definition (2)."""


_FUNCTORCH: Any = torch._C._functorch
_PRIMITIVES = ("_vmap_increment_nesting", "_add_batch_dim", "_remove_batch_dim", "_vmap_decrement_nesting")


@cache
def _has_primitives() -> bool:
    """Whether this torch has what vmap is made of; the first call of vmap loads the rules of many functions."""
    torch.vmap(torch.neg)(torch.zeros(1))
    return all(hasattr(_FUNCTORCH, name) for name in _PRIMITIVES)


def vmapped(function: Callable[..., Sequence[torch.Tensor]], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`torch.vmap(function)(*values)`. By what it is made of: nests of arguments are taken apart for each of its calls,
    which takes 75 of the 80 microseconds that an outer product of 32 rows takes."""
    if not _has_primitives():
        return list(torch.vmap(function)(*values))
    count = len(values[0])
    level = _FUNCTORCH._vmap_increment_nesting(count, "error")
    try:
        results = function(*[_FUNCTORCH._add_batch_dim(value, 0, level) for value in values])
        return [_FUNCTORCH._remove_batch_dim(result, level, count, 0) for result in results]
    finally:
        _FUNCTORCH._vmap_decrement_nesting()


class _NoFormError(Exception):
    """The runs differ in more than a number of rows, or a form of its own is not for this call."""


class Step(NamedTuple):
    """An operator that ran. Shapes are kept, as some operators change them in place."""

    function: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: Sequence[Any]
    before: torch.Size | None
    """The first argument's shape."""
    after: torch.Size | None
    """The first result's shape."""

    @property
    def name(self) -> str:
        """Of the operator, without its overload."""
        name: str = self.function.overloadpacket.__name__
        return name

    @property
    def is_mutable(self) -> bool:
        """Whether it writes on what others may read."""
        return bool(self.function._schema.is_mutable) and self.name not in _SHAPES


class Seen(DispatchMode):
    """Sees the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = args[0].shape if args and isinstance(args[0], torch.Tensor) else None
        found = func(*args, **(kwargs or {}))
        results = found if isinstance(found, tuple | list) else (found,)
        after = results[0].shape if results and isinstance(results[0], torch.Tensor) else None
        self.steps.append(Step(func, args, kwargs or {}, results, before, after))
        return found


class Run:
    """A function of a row under vmap: the operators that it consists of, what it read and gave."""

    def __init__(self, of_row: OfRow, values: Tensors, shared: Shared):
        self.values, self.read = values, dict[SharedRef, torch.Tensor]()
        with torch.no_grad():
            vmapped(lambda *row: of_row(lambda ref: self.read.setdefault(ref, shared(ref)), *row), values)
            with Seen() as seen:  # not of parameters
                self.results = vmapped(lambda *row: of_row(self.read.__getitem__, *row), values)
        self.steps = seen.steps


def batched_form(call: Callable[..., Any], template: Any, seen: OfRow,
                 values: Tensors, shared: Shared) -> Form | None:  # fmt: skip
    """The form of a call of torch's on what `seen` shows of operands of rows; None where there is none.

    Time: that of ten rows under vmap."""
    is_torchs = (getattr(call, "__module__", None) or "torch").partition(".")[0] == "torch"
    if not (is_torchs or call is pick) or "out" in template[1]:
        return None

    def called(shared: Shared, *row: torch.Tensor) -> Sequence[torch.Tensor]:
        args, kwargs = fill(template, seen(shared, *row), shared)
        return split_outputs(function(*args, **kwargs), "a generic operation")[1]

    name = name_of(call)
    function, own = _OF_ROW.get(name, call), _FORMS.get(name)
    with suppress(_NoFormError):
        if own is not None:
            showing = _recorded(seen, values, shared)
            own(call, template, showing(values, len(values[0]), shared), shared)
            return lambda values, n, shared: own(call, template, showing(values, n, shared), shared)
    with suppress(_NoFormError):
        return _recorded(called, values, shared)
    return None


def _recorded(of_row: OfRow, values: Tensors, shared: Shared) -> Form:
    return _Writer(*(Run(of_row, [_rows(x, n) for x in values], shared) for n in COUNTS)).form()


def _rows(x: torch.Tensor, n: int) -> torch.Tensor:
    """So many rows, in memory of their own: some functions warn of strides."""
    return x[torch.arange(n, device=x.device) % len(x)]


class _Writer:
    """Two runs as the lines of one function."""

    def __init__(self, first: Run, second: Run):
        self.runs = first, second
        self.scope: dict[str, Any] = {}
        self.names: dict[tuple[int, int], str] = {}
        """By the identities of tensors of both runs, which keep them."""
        self.reshaped: dict[str, str] = {}
        """What a name has the elements of, in another shape."""
        self.permuted: dict[str, tuple[str, Sequence[int]]] = {}
        """The same with dimensions in another order, and which."""
        copies = () if any(step.is_mutable for step in first.steps) else ("clone",)
        self.shapes = _SHAPES.union(copies)
        self.lines: list[tuple[str, str]] = []
        """A name, or none, and what it stands for."""

    def form(self) -> Form:
        """The function."""
        first, second = self.runs
        if len(first.steps) != len(second.steps) or len(first.results) != len(second.results):
            raise _NoFormError
        for ref, parameter in first.read.items():
            self._name((parameter, second.read[ref]), self._said(f"shared({self._constant(ref)})"))
        for k, values in enumerate(zip(first.values, second.values, strict=True)):
            self._name(values, f"x{k}")
        for step, other in zip(first.steps, second.steps, strict=True):
            self._step(step, other)
        results = ", ".join(self._text(*pair) for pair in zip(first.results, second.results, strict=True))
        return self._compiled(f"return [{results}]")

    def _compiled(self, last: str) -> Form:
        """Of the lines that something reads."""
        needed, kept = set(_NAMES.findall(last)), [last]
        for name, text in reversed(self.lines):
            if not name or name in needed:
                kept.append(f"{name} = {text}" if name else text)
                needed.update(_NAMES.findall(text))
        operands = "".join(f"x{k}, " for k in range(len(self.runs[0].values)))
        body = "\n    ".join([f"{operands}= values", *reversed(kept)])
        exec(compile(f"def form(values, n, shared):\n    {body}\n", "<batched form>", "exec"), self.scope)
        form: Form = self.scope["form"]
        return form

    def _step(self, step: Step, other: Step) -> None:
        if step.function is not other.function or len(step.results) != len(other.results):
            raise _NoFormError
        moved = self._moved(step, other)
        if moved is not None:
            self._name((step.results[0], other.results[0]), moved)
            return
        if step.name in ("split", "split_with_sizes"):
            self._parts(step, other)
            return
        found = self._said(self._product(step, other) or self._operator(step, other))
        if step.is_mutable:  # it stays, whoever reads what it wrote
            self.lines.append(("", found))
        is_one = not isinstance(step.function._schema.returns[0].type, torch.ListType) and len(step.results) == 1
        for k, pair in enumerate(zip(step.results, other.results, strict=True)):
            if isinstance(pair[0], torch.Tensor):
                self._name(pair, found if is_one else self._said(f"{found}[{k}]"))

    def _moved(self, step: Step, other: Step) -> str | None:
        """Definition (2): a name for elements of another name."""
        is_same = step.before == step.after and other.before == other.after
        if step.name in self.shapes or (step.name == "expand" and is_same):
            name = self._text(step.args[0], other.args[0])
            return name if is_same else self._reshaped(name, self._text(step.after, other.after))
        order = _order(step)
        if order is None or order != _order(other):
            return None
        name = self._text(step.args[0], other.args[0])
        source, before = self.permuted.get(name, (name, range(len(order))))
        total = tuple(before[d] for d in order)
        if total == tuple(range(len(total))):
            return source
        found = self._said(f"{source}.permute({total})")
        self.permuted[found] = source, total
        return found

    def _reshaped(self, name: str, shape: str) -> str:
        source = self.reshaped.get(name, name)
        found = self._said(f"{source}.reshape({shape})")
        self.reshaped[found] = source
        return found

    def _parts(self, step: Step, other: Step) -> None:
        """Each for itself: mostly one is read."""
        name, dim, at = self._text(step.args[0], other.args[0]), (*step.args, 0)[2], 0
        for pair in zip(step.results, other.results, strict=True):
            size = pair[0].shape[dim]
            self._name(pair, self._said(f"{name}.narrow({dim}, {at}, {size})"))
            at += size

    def _product(self, step: Step, other: Step) -> str | None:
        """Definition (2)."""
        is_one = [step.name == "bmm" and x.stride(0) == 0 for x in step.args]
        if not any(is_one):
            return None
        names = [self._text(*pair) for pair in zip(step.args, other.args, strict=True)]
        a, b = (f"{name}[0]" if one else name for name, one in zip(names, is_one, strict=True))
        product = f"{self._constant(torch.matmul)}({a}, {b})"
        return f"{product}.expand(n, -1, -1)" if all(is_one) else product

    def _operator(self, step: Step, other: Step) -> str:
        args = [self._text(*pair) for pair in zip(step.args, other.args, strict=True)]
        if step.name == "searchsorted":  # which warns of strides
            args[:2] = [f"{name}.contiguous()" for name in args[:2]]
        args += [f"{key}={self._text(x, other.kwargs[key])}" for key, x in step.kwargs.items()]
        return f"{self._constant(step.function._op)}({', '.join(args)})"

    def _text(self, x: Any, y: Any) -> str:
        """An argument of both runs."""
        if isinstance(x, torch.Tensor):
            known = self.names.get((id(x), id(y)))
            if known is None and not (x.shape == y.shape and x.dtype is y.dtype and torch.equal(x, y)):
                raise _NoFormError
            return known or self._constant(x)
        if isinstance(x, tuple | list):
            items = [self._text(*pair) for pair in zip(x, y, strict=True)]
            return f"[{', '.join(items)}]"
        if type(x) is int and x != y:
            slope = (y - x) // (COUNTS[1] - COUNTS[0])
            return "n" if (slope, x) == (1, COUNTS[0]) else f"{slope} * n + {x - slope * COUNTS[0]}"
        if x is not y and x != y:
            raise _NoFormError
        return repr(x) if x is None or type(x) in (int, bool) else self._constant(x)

    def _name(self, pair: tuple[Any, Any], name: str) -> None:
        self.names[id(pair[0]), id(pair[1])] = name

    def _said(self, text: str) -> str:
        """A name for what a text computes."""
        self.lines.append((f"v{len(self.lines)}", text))
        return self.lines[-1][0]

    def _constant(self, item: Any) -> str:
        name = f"k{len(self.scope)}"
        self.scope[name] = item
        return name


def _order(step: Step) -> tuple[int, ...] | None:
    """The dimensions of what an operator moves, by those of the result."""
    rank = len(step.before or ())
    dims = list(range(rank))
    if step.name == "permute":
        return tuple(d % rank for d in step.args[1]) if rank else ()
    if step.name in ("transpose", "t") and rank:
        a, b = step.args[1:] if step.name == "transpose" else (0, rank - 1)
        dims[a], dims[b] = dims[b], dims[a]
        return tuple(dims)
    return None


_NAMES = re.compile(r"\bv\d+")


# --- definition (3) --------------------------------------------------------------------------------------------------

Own = Callable[[Callable[..., Any], Any, Tensors, Shared], list[torch.Tensor]]
"""Of a call, its template, what it sees of every row of its operands, and parameters. Raises _NoFormError."""


def _convolution(call: Callable[..., Any], template: Any, seen: Tensors, shared: Shared) -> list[torch.Tensor]:
    """Of maps with shared weights: rows are their batch, or are n x m maps of one; on the CPU by
    `edbc.cells.rows.convolution`."""
    maps, *weights = seen
    if weights or type(template[0][0]) is not Hole or maps.ndim not in (4, 5) or maps.device.type != "cpu":
        raise _NoFormError
    args, kwargs = fill(template, [maps.reshape(-1, *maps.shape[-3:])], shared)
    found = convolve(*args, **kwargs)
    return [found.reshape(*maps.shape[:-3], *found.shape[1:])]


def _linear(call: Callable[..., Any], template: Any, seen: Tensors, shared: Shared) -> list[torch.Tensor]:
    """Dimensions before the last one are batches to it, of one weight and one bias."""
    if len(seen) > 1 or type(template[0][0]) is not Hole:
        raise _NoFormError
    args, kwargs = fill(template, seen, shared)
    return [call(*args, **kwargs)]


def _attention(call: Callable[..., Any], template: Any, seen: Tensors, shared: Shared) -> list[torch.Tensor]:
    """Dimensions before the last two are batches to it."""
    if len({x.ndim for x in seen}) > 1 or seen[0].ndim < 3:
        raise _NoFormError
    args, kwargs = fill(template, seen, shared)
    return [call(*args, **kwargs)]


def _einsum(call: Callable[..., Any], template: Any, seen: Tensors, shared: Shared) -> list[torch.Tensor]:
    """A letter more, in front of every operand and of the result."""
    (equation, *operands), kwargs = template
    operands = operands[0] if type(operands[0]) in (list, tuple) else operands
    if not isinstance(equation, str) or "." in equation or kwargs:
        raise _NoFormError
    given, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        result = "".join(sorted(c for c in {*given} - {","} if given.count(c) == 1))
    letter = next(c for c in "zyxwvutsrqponmlkjihgfedcba" if c not in equation)
    terms = [letter + t if type(x) is Hole else t for x, t in zip(operands, given.split(","), strict=True)]
    return [call(f"{','.join(terms)}->{letter}{result}", *fill((operands, {}), seen, shared)[0])]


def _bilinear(call: Callable[..., Any], template: Any, seen: Tensors, shared: Shared) -> list[torch.Tensor]:
    """Rows of both are batches to it. As a product with all matrices at once and one for each row: torch's own takes a
    tenth of a millisecond for the least, and five to ten times as long for up to 16 rows."""
    args, kwargs = fill(template, seen, shared)
    if kwargs or len(seen) != 2 or any(type(x) is not Hole for x in template[0][:2]):
        raise _NoFormError
    left, right, weight, *rest = args
    bias = rest[0] if rest else None
    num_out, num_left, num_right = weight.shape
    most = max(1, MOST_PRODUCTS // (num_out * num_left))
    found = [
        torch.bmm(x.unsqueeze(1), (y @ weight.reshape(-1, num_right).t()).view(-1, num_out, num_left).mT).squeeze(1)
        for x, y in zip(left.reshape(-1, num_left).split(most), right.reshape(-1, num_right).split(most), strict=True)
    ]
    result = (found[0] if len(found) == 1 else torch.cat(found)).view(*left.shape[:-1], num_out)
    return [result if bias is None else result + bias]


def _pick(call: Callable[..., Any], template: Any, seen: Tensors, shared: Shared) -> list[torch.Tensor]:
    """By one number of each row, of a parameter or of what the row has."""
    (table, *numbers), kwargs = fill(template, seen, shared)
    if kwargs or len(numbers) != 1 or type(template[0][1]) is not Hole:
        raise _NoFormError
    rows = (torch.arange(len(table), device=table.device),) if type(template[0][0]) is Hole else ()
    return [table[(*rows, *numbers)]]


def _recurrent(call: Callable[..., Any], template: Any, seen: Tensors, shared: Shared) -> list[torch.Tensor]:
    """Of one sequence, `(length, 1, size)`, and its first states: `(n, length, 1, size)` is `(length, n, size)`; of
    `(1, length, size)`, which is `(n, length, size)`."""
    args, kwargs = template
    if kwargs or len(args) != 9 or (args[5] and args[6]) or type(args[0]) is not Hole:  # dropout, in training
        raise _NoFormError
    first = args[0].index if args[8] else None
    if any(x.ndim != 4 or x.shape[1 if number == first else 2] != 1 for number, x in enumerate(seen)):
        raise _NoFormError
    rows = [x.squeeze(1) if k == first else x.squeeze(2).transpose(0, 1).contiguous() for k, x in enumerate(seen)]
    (x, states, *others), _ = fill(template, rows, shared)

    def of_rows(state: torch.Tensor) -> torch.Tensor:
        return state if state.shape[1] == len(seen[0]) else state.expand(-1, len(seen[0]), -1).contiguous()

    is_one = isinstance(states, torch.Tensor)
    output, *last = call(x, of_rows(states) if is_one else tuple(map(of_rows, states)), *others)
    found = [x.transpose(0, 1).unsqueeze(2) for x in (output, *last)]
    return [output.unsqueeze(1), *found[1:]] if args[8] else found


def _recurrent_cell(call: Callable[..., Any], template: Any, seen: Tensors, shared: Shared) -> list[torch.Tensor]:
    """Rows of matrices are batches to it, of one set of weights."""
    rows = seen[0].shape[:2]
    if any(x.ndim != 3 or x.shape[:2] != rows for x in seen):
        raise _NoFormError
    args, kwargs = fill(template, [x.reshape(-1, x.shape[2]) for x in seen], shared)
    found = call(*args, **kwargs)
    return [x.reshape(*rows, -1) for x in ((found,) if isinstance(found, torch.Tensor) else found)]


_FORMS: dict[str, Own] = {
    "bilinear": _bilinear,
    "conv2d": _convolution,
    "einsum": _einsum,
    "linear": _linear,
    "pick": _pick,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _recurrent_cell),
}


def _index_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1) -> Any:
    """Of a row; vmap adds row by row itself."""
    shape = [-1 if d == dim % source.ndim else 1 for d in range(source.ndim)]
    return x.scatter_add(dim, index.reshape(shape).expand_as(source), source if alpha == 1 else source * alpha)


def _extreme(of_all: Callable[..., Any], others: Callable[..., Any]) -> Callable[..., Any]:
    """Of a row; vmap gives the gradient of all elements' to one of equal ones."""
    return lambda x, *args, **kwargs: others(x, *args, **kwargs) if args or kwargs else of_all(x)


_OF_ROW: dict[str, Callable[..., Any]] = {
    "index_add": _index_add,
    "max": _extreme(torch.amax, torch.max),
    "min": _extreme(torch.amin, torch.min),
}
"""Functions of a row that compute what others do."""
