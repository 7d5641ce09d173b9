"""Calls of torch's functions as values: torch says what a call dispatches to, in the kernel language or not.

Definitions.

(1) A call is run once on tensors without data, under a dispatch mode, which sees the operations that it consists of;
    each tensor on the way stands for a value, its elements in the order of its dimensions, whatever its strides.
(2) An operation is known when it is element-wise of operands that broadcast (bools are 1 and 0), a *movement* of
    elements, a reduction, a product of matrices, or makes a tensor of one number. Any other is taken apart, by a
    formula (6) or torch's own decomposition; where there is none, or where it changes the dtype, the call stays one
    that torch runs, on whole batches (`edbc.cells.rows.evaluation`).
(3) A movement is run on the numbers of the elements. What comes out is MOST_RUNS parts of its operands at most, or a
    matrix of such transposed, or up to MOST_SLICES of either; all of a call's together are MOST_PARTS, of a cell's four
    times as many.
(4) A reduction sees a value as (outer, n, inner) elements, and spreading is the other way round; of dimensions that are
    not next to each other it is several.
(5) Matrices multiply node by node. Products with weights that have many elements for each row that they multiply are
    torch's, with all nodes of a batch at once. (Of a vector and a parameter it is a product of the cell, for a whole
    batch.)
(6) A formula is a function in plain PyTorch (`edbc.cells.values.formulas`), for what torch has no decomposition of, or
    one whose gradients are not eager's.
(7) The number of an element, which `argmax` and its like give, is a number like any other while it stays in the cell,
    where it is what elements are picked by: those along a dimension of MOST_RUNS at most, one of which is equal to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from edbc.base.operations import BINARY, OPERATIONS, UNARY
from edbc.capture.record import functionalise
from edbc.capture.record.table import SharedRef, fill, through
from edbc.capture.semantics.modes import DispatchMode, run
from edbc.capture.semantics.rules import name_of
from edbc.capture.semantics.shapes import split_outputs
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.opgraph import NUMBERED, CellOp
from edbc.cells.program import Call, Span
from edbc.cells.values.formulas import FORMULAS, MOST_SLICES
from edbc.cells.values.value import Sizes, V, Values, in_order

MOST_WEIGHTS = 1 << 18
"""Definition (5), for each row. A quarter as many take 0.4 to 0.6 times of what they take by torch, with gradients 0.7
to 0.8; as many 0.65 and 1.2, twice as many 1.6 and 2 (2 to 16 rows of 128 to 1,024 elements, 32 to 2,048 nodes)."""
MOST_RUNS = 128
"""Definition (3)."""
MOST_PARTS = 512
"""Definition (3). Each is a loop of its own in what is compiled: a second, with gradients, for so many."""
MOST_ELEMENTS = 1 << 17
"""Of a value: more do not stay in the second-level cache with what is computed of them. Twice as many gain half of what
these do, and convolutions of 256 channels over 28 x 28 places take 1.1 to 1.2 times as long as by torch."""
_RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())
ShapeOf = Callable[[SharedRef], Sequence[int]]
Arguments = dict[str, Any]
"""Of an operation, by the names of its schema."""


class _UnknownError(Exception):
    """The call has something that is not in the kernel language."""


def value_of_call(step: Call, values: Values, read: Callable[[Span], V], shape_of: ShapeOf, dtype: str) -> V | None:
    """What a call computes in a program of that dtype; None when it is not known. O(operations that it consists of)."""
    op = step.op
    if op.sources and op.attributes == "whole":
        return values.parameter(op.template[0][0], 0, op.result.size)
    if not op.sources:
        tensor = op.call() if op.call is not None and op.attributes.startswith("constant ") else None
        return None if tensor is None or not tensor.is_floating_point() else _of_numbers(values, tensor)
    if not _is_torchs(op) or not step.result.size:
        return None
    try:
        return _Dispatch(values, torch.float64 if dtype == "f64" else torch.float32).of(step, read, shape_of)
    except _UnknownError:
        return None


def _is_torchs(op: CellOp) -> bool:
    """Or one of those of changes in place. A function of the user's may have a gradient of its own; recurrent networks
    are too long to be written out."""
    if op.call is not None and name_of(op.call) in _RECURRENT:
        return False
    module = getattr(op.call, "__module__", None) or "torch"
    return op.attributes == "view" or module.partition(".")[0] == "torch" or module == functionalise.__name__


def _of_numbers(values: Values, tensor: torch.Tensor) -> V | None:
    """A tensor with data as runs of equal numbers; `0.0` and `-0.0` are two, and the latter is not made."""
    if not tensor.numel() or (tensor.isnan() | tensor.signbit() & (tensor == 0)).any():
        return None
    runs, lengths = tensor.reshape(-1).double().unique_consecutive(return_counts=True)
    if len(runs) > MOST_RUNS:
        return None
    return values.cat(values.number(x, n) for x, n in zip(runs.tolist(), lengths.tolist(), strict=True))


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Of operators, in plain PyTorch."""
    from torch._decomp import decomposition_table  # torch loads its decompositions when they are asked for

    return decomposition_table


class _Dispatch(DispatchMode):
    """Definition (1)."""

    def __init__(self, values: Values, dtype: torch.dtype):
        super().__init__()
        self.values, self.dtype, self.before = values, dtype, values.moved
        self.known: dict[int, tuple[torch.Tensor, V]] = {}
        """By the identity of tensors, which are kept so that it stays theirs."""

    def of(self, step: Call, read: Callable[[Span], V], shape_of: ShapeOf) -> V:
        """The value of a call's result."""
        variables = [source for source in step.op.sources if source.variable is not None]
        call = step.op.call
        assert call is not None

        def shared(ref: SharedRef) -> torch.Tensor:
            shape = tuple(shape_of(ref))
            return self._without_data(shape, self.values.parameter(ref, 0, math.prod(shape)))

        with torch.no_grad():
            row = [self._without_data(c.shape, read(span), c.dtype) for span, c in step.sources]
            with self:
                seen = [through(variable.views, x, shared) for variable, x in zip(variables, row, strict=True)]
                args, kwargs = fill(step.op.template, seen, shared)
                try:
                    results = split_outputs(call(*args, **kwargs), "a call")[1]
                except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                    raise _UnknownError from error
        result = results[step.op.output or 0]
        wanted = self._dtype(step.op.result.dtype)
        if result.dtype is not wanted or result.numel() != step.result.size:
            raise _UnknownError("another result than was recorded")
        return self.value(result)

    def _dtype(self, name: str) -> torch.dtype:
        return torch_dtype(name) if name in NUMBERED else self.dtype

    def _without_data(self, shape: Sequence[int], v: V, dtype: str = "") -> torch.Tensor:
        tensor = torch.empty(tuple(shape), dtype=self._dtype(dtype), device="meta")
        self.known[id(tensor)] = tensor, v
        return tensor

    def value(self, x: Any) -> V:
        """What a tensor or a number stands for."""
        if not isinstance(x, torch.Tensor):
            return self.values.number(x, 1)
        found = self.known.get(id(x))
        v = found[1] if found is not None else None if x.is_meta else _of_numbers(self.values, x)
        if v is None:
            raise _UnknownError("a tensor from elsewhere")
        return v

    # --- operations ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Definition (2)."""
        given = _arguments(func, args, kwargs or {})
        name = func.overloadpacket.__name__
        is_in_place = func._schema.is_mutable
        if is_in_place:
            name = name.removesuffix("_")
            if name == func.overloadpacket.__name__ or args[0]._is_view():
                raise _UnknownError(name)
            if name == "squeeze":  # as products of vectors end: the elements stay
                return run(func, args, kwargs or {})
        if name in _MOVEMENTS and not is_in_place:
            return self._move(func, given, name)
        if name == "empty":  # of no elements, beside what decompositions give
            return func(*args, **(kwargs or {}))
        if name not in _READERS:
            return self._apart(func, name, args, kwargs or {})
        result = run(func, args, kwargs or {})
        first, *others = result if isinstance(result, tuple) else (result,)
        is_known = first.dtype in (self.dtype, torch.bool) or name in _CHOICES
        most = math.inf if name in _PRODUCTS else MOST_ELEMENTS
        if not is_known or not 0 < first.numel() <= most:
            raise _UnknownError(name)
        v = _READERS[name](self, given, tuple(first.shape), name)
        if others and name in _CHOICES.values() and isinstance(given.get("dim"), int):
            number = _choice(self, given, tuple(first.shape), name)
            self.known[id(others[0])] = others[0], number
        if v is None:
            return self._apart(func, name, args, kwargs or {})
        self.known[id(first)] = first, v
        return result

    def _apart(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """By a formula or torch's own decomposition."""
        if func._schema.is_mutable:
            raise _UnknownError(name)
        with self:
            found = (FORMULAS.get(name) or decompositions().get(func) or func.decompose)(*args, **kwargs)
        if found is NotImplemented:
            raise _UnknownError(name)
        if isinstance(found, tuple) and None in found:  # what nobody reads here
            others = run(func, args, kwargs)
            return tuple(other if x is None else x for x, other in zip(found, others, strict=False))
        return found

    def _move(self, func: Any, given: Arguments, name: str) -> Any:
        """Definition (3). What is not known, as indices that nobody may read, stays so."""
        moved: list[V] = []
        moves = given.get("self")
        if isinstance(moves, torch.Tensor) and moves.is_meta and id(moves) not in self.known:
            return func(**given)

        def numbered(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return [numbered(item) for item in x] if isinstance(x, list | tuple) else x
            begin = sum(v.size for v in moved)
            moved.append(self.value(x))
            return torch.arange(begin, begin + x.numel()).reshape(x.shape)

        result, elements = run(func, (), given), func(**{key: numbered(x) for key, x in given.items()})
        source = self.values.cat(moved)
        pairs = [(result, elements)] if isinstance(result, torch.Tensor) else zip(result, elements, strict=True)
        for tensor, numbers in pairs:
            v = self._moved(source, numbers)
            self.known[id(tensor)] = tensor, self.values.map("held", [v]) if name == "detach" else v
        return result

    def _moved(self, source: V, numbers: torch.Tensor) -> V:
        """The elements of a value that stand at these numbers."""
        if not numbers.numel():
            raise _UnknownError("no elements")
        narrow = numbers
        for d in range(numbers.ndim):
            if numbers.stride(d) == 0:
                narrow = narrow.narrow(d, 0, 1)
        return self._spread(self._gathered(source, narrow), narrow.shape, numbers.shape)

    def _gathered(self, source: V, numbers: torch.Tensor) -> V:
        """Of all ways to see the elements as a matrix, and that transposed, the one with the fewest runs; where none
        has few, one after the other of the first dimension."""
        best, columns = _Runs(numbers), 1
        for d in range(1, numbers.ndim) if best.count > 1 else ():
            matrix = numbers.reshape(math.prod(numbers.shape[:d]), -1)
            if 1 not in matrix.shape and (found := _Runs(matrix.t())).count < best.count:
                best, columns = found, matrix.shape[0]
        if best.count <= MOST_RUNS:
            self.values.moved += best.count
            if self.values.moved > min(self.before + MOST_PARTS, 4 * MOST_PARTS):
                raise _UnknownError("many parts")
            v = self.values.cat(self.values.part(source, first, n) for first, n in best.each())
            return v if columns == 1 else self.values.turned(v, v.size // columns, columns)
        if numbers.ndim < 2 or not 1 < len(numbers) <= MOST_SLICES:
            raise _UnknownError("scattered elements")
        return self.values.cat(self._gathered(source, one) for one in numbers)

    # --- what readers are made of ----------------------------------------------------------------------------------

    def wide(self, x: Any, shape: Sequence[int]) -> V:
        """An operand as wide as the result."""
        if not isinstance(x, torch.Tensor):
            return self.values.number(x, math.prod(shape))
        return self._spread(self.value(x), x.shape, shape)

    def _spread(self, v: V, own: Sequence[int], shape: Sequence[int]) -> V:
        """Definition (4), a run of dimensions after the other, from the right."""
        narrow = (*[1] * (len(shape) - len(own)), *own)
        d = len(shape) - 1
        while d >= 0:
            last = d
            while d >= 0 and narrow[d] == 1:
                d -= 1
            n = math.prod(shape[d + 1 : last + 1])
            v = self.values.spread(v, (math.prod(narrow[: d + 1]), n, math.prod(shape[last + 1 :])))
            d -= d == last
        return v

    def along(self, numbers: Sequence[int], sizes: Sizes) -> V:
        """Numbers along the middle of (outer, n, inner) elements."""
        outer, n, inner = sizes
        v = self.values.spread(self.values.cat(self.values.number(x, 1) for x in numbers), (1, outer, n))
        return self.values.spread(v, (outer * n, inner, 1))

    def map(self, op: str, shape: Sequence[int], *sources: Any) -> V:
        """An element-wise operation of values, tensors and numbers."""
        full = [x if isinstance(x, V) else self.wide(x, shape) for x in sources]
        return self.values.map(op, full)


def _arguments(func: Any, args: Sequence[Any], kwargs: Arguments) -> Arguments:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


class _Runs:
    """Runs of consecutive numbers."""

    def __init__(self, numbers: torch.Tensor):
        self._flat = numbers.reshape(-1).numpy()
        self._borders = np.flatnonzero(np.diff(self._flat) != 1) + 1
        self.count = len(self._borders) + 1

    def each(self) -> Iterator[tuple[int, int]]:
        """Where each begins, and how many numbers it has."""
        begins = [0, *self._borders.tolist()]
        return ((int(self._flat[b]), e - b) for b, e in pairwise([*begins, len(self._flat)]))


def _sizes(shape: Sequence[int], dims: Collection[int]) -> Iterator[Sizes]:
    """Definition (4): of each run of dimensions, from the right; those before it are there still."""
    d = len(shape) - 1
    inner = 1
    while d >= 0:
        last = d
        while d >= 0 and (d in dims or (last > d and shape[d] == 1)):
            d -= 1
        if d < last:
            yield math.prod(shape[: d + 1]), math.prod(shape[d + 1 : last + 1]), inner
        else:
            inner *= shape[d]
            d -= 1


_Reader = Callable[[_Dispatch, Arguments, tuple[int, ...], str], V | None]
"""Of an operation's arguments, the shape of its first result and its name."""


def _table(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V | None:
    """An operation of the table whose arguments are its operands, with what they are when nothing is said."""
    operands = [given[key] for key in ("self", "other") if key in given]
    defaults = dict(OPERATIONS[op].defaults)
    others = {key: x for key, x in given.items() if key not in ("self", "other")}
    is_usual = all(key in defaults and x == defaults[key] for key, x in others.items())
    return r.map(op, shape, *operands) if is_usual else None


def _added(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    other, alpha = given["other"], given.get("alpha", 1)
    return r.map(op, shape, given["self"], other if alpha == 1 else r.map("mul", shape, other, alpha))


def _pow(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    exponent = given["exponent"]
    if isinstance(exponent, int | float) and exponent in (1, 2):
        return r.wide(given["self"], shape) if exponent == 1 else r.map("square", shape, given["self"])
    return r.map("pow", shape, given["self"], exponent)


def _clamp(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    v = r.wide(given["self"], shape)
    low, high = given.get("min"), given.get("max")
    v = v if low is None else r.map("raised", shape, v, low)
    return v if high is None else r.map("lowered", shape, v, high)


def _compared(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    name, is_turned = _COMPARISONS[op]
    operands = [given["self"], given["other"]]
    v = r.map(name, shape, *(operands[::-1] if is_turned else operands))
    return r.map("equal", shape, v, 0) if op == "ne" else v


def _of_bools(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V | None:
    operands = [given[key] for key in ("self", "other") if key in given]
    if any(not isinstance(x, torch.Tensor) or x.dtype is not torch.bool for x in operands):
        return None
    return r.map(_BOOLS[op], shape, *operands, *([0] if len(operands) == 1 else []))


def _where(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    test = r.wide(given["condition"], shape)
    otherwise = r.map("equal", shape, test, 0)
    return r.map("add", shape, r.map("chosen", shape, test, given["self"]),
                 r.map("chosen", shape, otherwise, given["other"]))  # fmt: skip


def _cast(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V | None:
    """From bools to numbers, and what changes nothing."""
    x = given["a"] if op == "convert_element_type" else given["self"]
    is_known = (given.get("dtype") or x.dtype) in (x.dtype, r.dtype) and x.dtype in (r.dtype, torch.bool)
    return r.value(x) if is_known else None


def _number(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    name = op.removeprefix("new_").removesuffix("_like")
    numbers = {"zeros": 0.0, "zero": 0.0, "ones": 1.0, "scalar_tensor": given.get("s"),
               "full": given.get("fill_value"), "fill": given.get("value")}  # fmt: skip
    return r.wide(numbers[name], shape)


def _reduced(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V | None:
    """Definition (4), from the right. `max` and `min` of one dimension have indices, too."""
    x, dim = given["self"], given.get("dim")
    if x.dtype is not r.dtype:
        return None
    v = r.value(x)
    if isinstance(dim, int) and op in ("max", "min"):
        return _first_extreme(r, v, x.shape, dim % max(x.ndim, 1), _REDUCTIONS[op])
    dims = {d % x.ndim for d in dim} if dim and x.ndim else set(range(x.ndim))
    for sizes in _sizes(x.shape, dims):
        v = r.values.reduce(_REDUCTIONS[op], v, sizes)
    return v


def _first_extreme(r: _Dispatch, v: V, shape: Sequence[int], d: int, op: str) -> V:
    """The first one that is largest or smallest along a dimension, which alone has a gradient: `max(dim)`. It is
    recognised by the greatest number of those that fall from the first to the last; a sum with one that is no number is
    none."""
    if math.prod(shape[d:]) <= 1:
        return v
    sizes = _, n, _ = math.prod(shape[:d]), shape[d], math.prod(shape[d + 1 :])
    if n > MOST_RUNS:
        raise _UnknownError(op)
    values, falling = r.values, r.along(range(n, 0, -1), sizes)
    is_it = values.map("equal", (v, values.spread(values.reduce(op, v, sizes), sizes)))
    of_it = values.map("mul", (is_it, falling))
    first = values.map("equal", (of_it, values.spread(values.reduce("largest", of_it, sizes), sizes)))
    return values.reduce("total", values.map("chosen", (first, v)), sizes)


def _choice(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    """The number of the first element that is largest or smallest along a dimension, or of all; one that is no number
    comes before all others. Definition (7)."""
    x, dim = given["self"], given.get("dim")
    v, n = r.value(x), x.shape[dim] if dim is not None and x.ndim else x.numel()
    if x.dtype is not r.dtype or not 0 < n <= MOST_RUNS:
        raise _UnknownError(op)
    d = 0 if dim is None else dim % max(x.ndim, 1)
    outer, inner = (1, 1) if dim is None else (math.prod(x.shape[:d]), math.prod(x.shape[d + 1 :]))
    sizes, values = (outer, n, inner), r.values
    largest = values.reduce(_REDUCTIONS[_CHOICES.get(op, op)], v, sizes)
    is_none = values.map("equal", (values.map("equal", (v, v)), values.number(0.0, v.size)))
    is_it = values.map("maximum", (values.map("equal", (v, values.spread(largest, sizes))), is_none))
    falling = r.along(range(n, 0, -1), sizes)
    best = values.reduce("largest", values.map("mul", (is_it, falling)), sizes)
    return values.map("sub", (values.number(n, best.size), best))


def _picked(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    """Elements along a dimension at numbers that are values: definition (7)."""
    x = given["weight" if op == "embedding" else "self"]
    if given.get("padding_idx", -1) >= 0 or given.get("scale_grad_by_freq"):  # gradients of its own
        raise _UnknownError(op)
    if op == "index":
        at = [(d, index) for d, index in enumerate(given["indices"]) if index is not None]
        if len(at) != 1:
            raise _UnknownError(op)
        [(d, index)] = at
    else:
        d, index = given.get("dim", 0) % max(x.ndim, 1), given["indices" if op == "embedding" else "index"]
    if x.dtype is not r.dtype or index.dtype is not torch.int64 or not x.ndim or not 0 < x.shape[d] <= MOST_RUNS:
        raise _UnknownError(op)
    v, numbers, values = r.value(x), r.value(index), r.values
    sizes = outer, n, _ = math.prod(x.shape[:d]), x.shape[d], math.prod(x.shape[d + 1 :])
    count = index.numel()
    if op == "gather":
        if [*index.shape] != [*x.shape[:d], 1, *x.shape[d + 1 :]]:
            raise _UnknownError(op)
        wanted = [values.spread(numbers, sizes)]
    elif count == 1 or (outer == 1 and count <= MOST_RUNS):
        wanted = [values.spread(values.part(numbers, i, 1), (1, v.size, 1)) for i in range(count)]
    else:
        raise _UnknownError(op)
    here = r.along(range(n), sizes)
    masks = [values.map("equal", (here, number)) for number in wanted]
    return values.cat(values.reduce("total", values.map("chosen", (mask, v)), sizes) for mask in masks)


def _product(r: _Dispatch, given: Arguments, shape: tuple[int, ...], op: str) -> V:
    """Definition (5), of two matrices or vectors, or several pairs of them."""
    a, b = given["self"], next(given[key] for key in ("mat2", "vec", "tensor") if key in given)
    count, k = a.shape[0] if a.ndim == 3 else 1, a.shape[-1]
    m, n = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    factors = (a, count * n), (b, count * m)
    if not k or count > MOST_RUNS or any(x.numel() > _most_elements(r.value(x), rows) for x, rows in factors):
        raise _UnknownError(op)
    if any(r.value(x).op == "number" and r.value(x).arg != 0 for x in (a, b)):  # stands nowhere
        raise _UnknownError(op)
    pairs = ([r.values.part(r.value(x), i * size, size) for i in range(count)] for x, size in ((a, m * k), (b, k * n)))
    return r.values.cat(r.values.matmul(x, y, m, k, n) for x, y in zip(*pairs, strict=True))


def _most_elements(v: V, rows: int) -> float:
    """Of a matrix that multiplies so many rows or columns: definition (5)."""
    is_own = any(u.op == "load" for u in in_order([v]))
    return math.inf if is_own else MOST_WEIGHTS * rows


_MOVEMENTS = frozenset(
    "view reshape _unsafe_view _reshape_alias permute t transpose unsqueeze squeeze expand slice select split "
    "split_with_sizes unbind cat stack clone detach alias lift_fresh lift_fresh_copy diagonal flip roll repeat unfold "
    "broadcast_in_dim collapse_view".split()
)
_REDUCTIONS = {"sum": "total", "amax": "largest", "max": "largest", "amin": "smallest", "min": "smallest"}
_CHOICES = {"argmax": "max", "argmin": "min"}
"""Which are numbers of elements, and what finds these elements."""
_COMPARISONS = {"lt": ("less", False), "gt": ("less", True), "le": ("at_most", False), "ge": ("at_most", True),
                "eq": ("equal", False), "ne": ("equal", False)}  # fmt: skip
"""Values' operations, and whether their operands are the other way round."""
_BOOLS = {"logical_not": "equal", "bitwise_not": "equal", "logical_and": "mul", "bitwise_and": "mul",
          "logical_or": "maximum", "bitwise_or": "maximum"}  # fmt: skip
_PRODUCTS = ("mm", "bmm", "mv", "dot")
_NUMBERS = "zeros zeros_like new_zeros zero ones ones_like new_ones full full_like new_full fill scalar_tensor".split()
BY_ELEMENT: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(UNARY | BINARY, _table),
    "pow": _pow,
    "special_ndtr": lambda r, given, shape, op: r.map("cdf", shape, given["self"]),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(_COMPARISONS, _compared),
    **dict.fromkeys(_BOOLS, _of_bools),
    **dict.fromkeys(_NUMBERS, _number),
}
"""Readers that ask for nothing but `map` and `wide` of who reads, and read nothing behind what they made."""
_READERS: dict[str, _Reader] = {
    **BY_ELEMENT,
    **dict.fromkeys(("add", "sub"), _added),
    "where": _where,
    **dict.fromkeys(("_to_copy", "convert_element_type"), _cast),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(_CHOICES, _choice),
    **dict.fromkeys(("index", "index_select", "gather", "embedding"), _picked),
    **dict.fromkeys(_PRODUCTS, _product),
}  # fmt: skip
