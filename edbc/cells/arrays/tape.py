"""What a function of tensors consists of at fixed lengths, as loops over arrays.

Definitions.

(1) The function runs under a dispatch mode on tensors with data. A *buffer* is the memory of a tensor, in elements:
    those of the arguments, then those of the results, then what is made on the way. An *access* sees a buffer with a
    stride for each size, as torch does; so an operator that only gives another shape makes no line.
(2) A *line* writes an access: `Map` an element-wise formula, `Fold` a sum or an extreme along some sizes, `Scan` sums
    of all elements up to each, `Product` products of matrices. Every operator that changes a tensor in place is the
    same line on the same buffer.
(3) Any other operator is taken apart by a formula of ours (`edbc.cells.values.formulas`) or torch's own decomposition;
    where there is none the function stays torch's: NotInLoops.
(4) All elements are of one dtype; bools are 1 and 0, and integers are numbers, as far as a float holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from edbc.base.operations import FORMULAS, Formula
from edbc.capture.semantics.modes import DispatchMode
from edbc.cells.kernels.elements import IS, Number, Place
from edbc.cells.values.dispatched import BY_ELEMENT, decompositions
from edbc.cells.values.formulas import FORMULAS as TAKEN_APART

Arguments = dict[str, Any]


class NotInLoops(Exception):
    """The function has something that loops do not know."""


class Access(NamedTuple):
    """Definition (1). The stride along a size of 1 is None, as nobody reads it."""

    buffer: Any
    strides: tuple[Any, ...]
    offset: Any


class Map(NamedTuple):
    """`target = formula(operands)` for all elements."""

    sizes: tuple[Any, ...]
    formula: Formula
    operands: tuple[Access | Number | Place, ...]
    target: Access


class Fold(NamedTuple):
    """`target = op of source` along some sizes, where the target has stride 0."""

    sizes: tuple[Any, ...]
    op: str
    along: tuple[int, ...]
    source: Access
    target: Access


class Scan(NamedTuple):
    """`target = sum of source` up to each element along a size."""

    sizes: tuple[Any, ...]
    along: int
    source: Access
    target: Access


class Product(NamedTuple):
    """`target[b, i, j] = sum over k of left[b, i, k] right[b, k, j]`; sizes are (b, i, k, j)."""

    sizes: tuple[Any, ...]
    left: Access
    right: Access
    target: Access


Line = Map | Fold | Scan | Product
_CHOSEN = Formula("y if x != 0 else z", ("x", "y", "z"))
_SCALED = Formula("x * y + z", ("x", "y", "z"))
_BELOW = Formula("x if z - y <= w else 0", ("x", "y", "z", "w"))
_ABOVE = Formula("x if z - y >= w else 0", ("x", "y", "z", "w"))


class Tape(DispatchMode):
    """Definition (1): `lines` of what runs under it, of buffers of so many elements."""

    def __init__(self, dtype: torch.dtype, given: Sequence[torch.Tensor]):
        super().__init__()
        self.dtype = dtype
        self.lines: list[Line] = []
        self.sizes: list[int] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []
        for x in given:
            self._new(x)

    def _new(self, x: torch.Tensor) -> int:
        storage = x.untyped_storage()
        self._alive.append(x)
        number = self._numbers[storage._cdata] = len(self.sizes)
        self.sizes.append(storage.nbytes() // x.element_size())
        return number

    def access(self, x: torch.Tensor, shape: Sequence[int] | None = None) -> Access:
        """Of a tensor, as large as a shape; what was not seen before is new."""
        if x.dtype not in (self.dtype, torch.bool, torch.int64) or x.layout is not torch.strided:
            raise NotInLoops(f"{x.dtype}")
        number = self._numbers.get(x.untyped_storage()._cdata)
        if number is None:
            number = self._new(x)
        if shape is not None and x.shape != tuple(shape):
            x = x.expand(tuple(shape))
        strides = [None if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
        return Access(number, tuple(strides), x.storage_offset())

    def operand(self, x: Any, shape: Sequence[int]) -> Access | Number | Place:
        """What a map reads: of a tensor that nobody has written, its number."""
        if isinstance(x, Number | Place | Access):
            return x
        if not isinstance(x, torch.Tensor):
            return Number(x)
        if x.untyped_storage()._cdata not in self._numbers:
            if x.numel() != 1:
                raise NotInLoops("a tensor from elsewhere")
            return Number(x.item())
        return self.access(x, shape)

    def map(self, formula: Formula, target: torch.Tensor, *operands: Any) -> None:
        """A line."""
        read = tuple([self.operand(x, target.shape) for x in operands])
        self.lines.append(Map(tuple(target.shape), formula, read, self.access(target)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if func.is_view or name in _VIEWS:
            seen = func(*args, **kwargs)
            return seen if _shares(seen, args[0]) else self._apart(func, name, args, kwargs)
        is_in_place = func._schema.is_mutable
        if is_in_place and not name.endswith("_"):
            raise NotInLoops(name)
        rule = _RULES.get(name.removesuffix("_") if is_in_place else name)
        if rule is None:
            return self._apart(func, name, args, kwargs)
        given = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
        given["name"] = name.removesuffix("_") if is_in_place else name
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or not result.numel() or rule(self, given, result) is NotImplemented:
            return self._apart(func, name, args, kwargs)
        return result

    def _apart(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Definition (3)."""
        before = len(self.lines)
        for form in (TAKEN_APART.get(name), decompositions().get(func), func.decompose):
            with self:
                found = NotImplemented if form is None else form(*args, **kwargs)
            is_whole = form is not TAKEN_APART.get(name) or not isinstance(found, tuple) or None not in found
            if found is not NotImplemented and is_whole:
                return found
            del self.lines[before:]
        raise NotInLoops(name)


def _shares(seen: Any, x: torch.Tensor) -> bool:
    """Whether all of this is memory of a tensor."""
    parts = seen if isinstance(seen, list | tuple) else [seen]
    return all(part.untyped_storage()._cdata == x.untyped_storage()._cdata for part in parts)


# --- rules ----------------------------------------------------------------------------------------------------------
# Each gets an operator's arguments by the names of its schema, and its result; NotImplemented is for arguments that it
# does not know.

Rule = Callable[[Tape, Arguments, torch.Tensor], Any]


class _Into(NamedTuple):
    """What values of calls are made by (`cells.values.dispatched`), as lines that write a result."""

    tape: Tape
    result: torch.Tensor

    def map(self, op: str, _: Any, *operands: Any) -> torch.Tensor:
        """An operation of the table."""
        self.tape.map(FORMULAS[op], self.result, *operands)
        return self.result

    def wide(self, x: Any, _: Any) -> torch.Tensor:
        """An operand as it is."""
        self.tape.map(IS, self.result, x)
        return self.result


def _by_element(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    name = given.pop("name")
    return NotImplemented if BY_ELEMENT[name](_Into(tape, result), given, result.shape, name) is None else None


def _added(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    x, y, alpha = given["self"], given["other"], given.get("alpha", 1)
    if given["name"] == "rsub":
        x, y = y, x
    sign = "-" if given["name"] in ("sub", "rsub") else "+"
    if alpha == 1 or given["name"] == "rsub":
        return tape.map(Formula(f"x {sign} y", ("x", "y")), result, x, y) if alpha == 1 else NotImplemented
    return tape.map(Formula(f"x {sign} y * z", ("x", "y", "z")), result, x, y, alpha)


def _where(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    return tape.map(_CHOSEN, result, given["condition"], given["self"], given["other"])


def _copy(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    x = given["src"] if given["name"] == "copy" else given["self"]
    if x.is_floating_point() and not result.is_floating_point():
        return NotImplemented
    return None if result is x else tape.map(IS, result, x)


def _triangle(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    d = result.ndim
    formula = _BELOW if given["name"] == "tril" else _ABOVE
    return tape.map(formula, result, given["self"], Place(d - 2), Place(d - 1), given.get("diagonal", 0))


def _folded(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    x, dim = given["self"], given.get("dim")
    name = "sum" if given["name"] == "mean" else given["name"]
    if not x.is_floating_point() and name != "sum":
        return NotImplemented
    dims = [dim] if isinstance(dim, int) else dim
    along = tuple(sorted({d % x.ndim for d in dims})) if dims and x.ndim else tuple(range(x.ndim))
    count = 1
    for d in along:
        count *= x.shape[d]
    op = {"sum": "total", "amax": "largest", "max": "largest", "amin": "smallest", "min": "smallest"}[name]
    kept = result
    if result.ndim < x.ndim:
        for d in along:
            kept = kept.unsqueeze(d)
    source, target = tape.access(x), tape.access(kept, x.shape)
    tape.lines.append(Fold(tuple(x.shape), op, along, source, target))
    if given["name"] == "mean":
        tape.map(FORMULAS["div"], result, result, count)
    return None


def _scanned(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    x = given["self"]
    if not x.ndim or x.dtype is not result.dtype:
        return NotImplemented
    tape.lines.append(Scan(tuple(x.shape), given["dim"] % x.ndim, tape.access(x), tape.access(result)))
    return None


def _product(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    x, y = given["self"], given["mat2" if "mat2" in given else "vec"]
    if y.ndim == 1:
        y, result = y.unsqueeze(1), result.unsqueeze(1)
    if x.ndim == 2:
        x, y, result = x.unsqueeze(0), y.unsqueeze(0), result.unsqueeze(0)
    if x.dtype is not tape.dtype or y.dtype is not tape.dtype:
        return NotImplemented
    sizes = (*x.shape, y.shape[2])
    tape.lines.append(Product(sizes, tape.access(x), tape.access(y), tape.access(result)))
    return None


def _joined(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    tensors = [x for x in given["tensors"] if x.shape != (0,)]
    at, dim = 0, given.get("dim", 0)
    for x in tensors:
        if x.numel():
            tape.map(IS, result.narrow(dim, at, x.shape[dim]), x)
        at += x.shape[dim]
    return None


def _padded(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    inside, x = result, given["self"]
    for i, (before, behind) in enumerate(zip(given["pad"][::2], given["pad"][1::2], strict=True)):
        d = x.ndim - 1 - i
        x = x.narrow(d, max(-before, 0), x.shape[d] + min(before, 0) + min(behind, 0))
        inside = inside.narrow(d, max(before, 0), x.shape[d])
    tape.map(IS, result, given.get("value") or 0)
    return tape.map(IS, inside, x)


def _flipped(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    x = given["self"]
    access = tape.access(x)
    strides, offset = [*access.strides], access.offset
    for d in {d % x.ndim for d in given["dims"]}:
        if strides[d] is not None:
            offset, strides[d] = offset + (x.shape[d] - 1) * strides[d], -strides[d]
    return tape.map(IS, result, Access(access.buffer, tuple(strides), offset))


def _part_of_zeros(tape: Tape, given: Arguments, result: torch.Tensor) -> Any:
    """The gradient of what a part was taken of."""
    if given["name"] == "select_backward":
        part = result.select(given["dim"], given["index"])
    else:
        part = torch.ops.aten.slice(result, *[given[key] for key in ("dim", "start", "end", "step")])
    tape.map(IS, result, 0.0)
    return tape.map(IS, part, given["grad_output"])


_VIEWS = frozenset("_unsafe_view _reshape_alias detach alias lift_fresh".split())
_RULES: dict[str, Rule] = {
    **dict.fromkeys(BY_ELEMENT, _by_element),
    **dict.fromkeys(("add", "sub", "rsub"), _added),
    "where": _where,
    "masked_fill": lambda tape, given, r: tape.map(_CHOSEN, r, given["mask"], given["value"], given["self"]),
    **dict.fromkeys("copy clone contiguous _to_copy".split(), _copy),
    **dict.fromkeys(("empty", "empty_like", "new_empty"), lambda tape, given, result: tape.access(result)),
    "arange": lambda tape, given, r: tape.map(_SCALED, r, Place(0), given.get("step", 1), given.get("start", 0)),
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys("sum mean amax amin max min".split(), _folded),
    "cumsum": _scanned,
    **dict.fromkeys(("mm", "bmm", "mv"), _product),
    "cat": _joined,
    "constant_pad_nd": _padded,
    "flip": _flipped,
    **dict.fromkeys(("select_backward", "slice_backward"), _part_of_zeros),
}  # fmt: skip
