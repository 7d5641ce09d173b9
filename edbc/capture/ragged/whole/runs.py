"""Calls that take whole runs: nodes of one type whatever n is, and values of two ragged dimensions.

A call that no row-wise rule knows is an expression (`whole.function`) of its ragged arguments. What it gives is told by
shapes: the expression is asked for those of its result at two lengths of each symbol. A result of no ragged dimension
is a node that reduces; of one, a node with as many results as there are rows; of two (scores of attention, distances)
it is no node, but goes on as an expression (`Pairs`) until something has fewer.

Rows by pairs are rows of (n m), of which a value of two ragged dimensions is a view: functions of the last dimensions
(`linear`, a norm) are of each of them (`ragged.whole.pairs`), and nodes of their own type.

Constants of the instance's that have ragged dimensions (a mask, a matrix of distances), and what is cut from buffers,
are operands too: one dimension is rows, two are packed into rows of their own length; a mask that is a triangle is a
function of n.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from edbc.capture.ragged.program import ONE, RUN, SEGMENTED, CannotKeep, RunOf, triple
from edbc.capture.ragged.rows import rows_of
from edbc.capture.ragged.symbols import Amount, Size
from edbc.capture.ragged.value import Ragged, filled, one_step
from edbc.capture.ragged.whole.function import (
    Apply,
    RunFunction,
    evaluated,
    has_numbers,
    length,
    only,
    packed,
    pick,
    renumbered,
    told,
    triangle,
    unpacked,
)
from edbc.capture.record.table import Hole, Operation
from edbc.capture.semantics.modes import WithoutData
from edbc.capture.semantics.randomness import Dispatched
from edbc.capture.standins.made import Description, Made
from edbc.capture.standins.nests import rebuilt
from edbc.capture.standins.standin import Lazy, Shared, Value, class_of, value_of
from edbc.capture.standins.unread import Returned

if TYPE_CHECKING:
    from edbc.capture.ragged.call import Call
    from edbc.capture.record.recorder import Recorder

LENGTHS = (7, 13, 19), (11, 19, 29)
"""Of three symbols, at which expressions are asked for shapes; no sizes that a model is likely to have beside them, and
of no two of them is one as much as the other times a number and so much more: `F.pad(x, (3, 3))` is as long as none."""
MARKS = len(LENGTHS[0])
_LONG = 10_000
OTHERS = (2, 3, 5), (5, 3, 2), (3, 2, 5), (_LONG + 7, _LONG + 37, _LONG + 39)
"""At which `scores[:, :n]` is not of n columns; and, of expressions with numbers, `scores[:, :3]` not of three, and
`scores[:, :14]` not of all, as they are at LENGTHS."""
ONES = len(LENGTHS) + len(OTHERS)
"""The choice of lengths at which leaves of one row, as an instance has them now, are of one: `scores[:, :2]` then has a
column."""


class Unfit(Exception):
    """A call is no expression of runs."""


class Leaves:
    """The leaves of an expression, each once, and the symbol of each."""

    def __init__(self, rec: Recorder):
        self.rec = rec
        self.rows: list[Ragged] = []
        self.symbols: list[int] = []
        self.products: dict[int, tuple[int, int]] = {}
        """By symbol the two that it is the product of."""
        self._lengths: list[int | None] = []

    def add(self, ragged: Ragged, is_packed: bool = False, of: tuple[int, int] | None = None) -> int:
        """The number of a leaf. A packed constant has a length of its own, and rows by pairs that `of` two symbols."""
        for number, known in enumerate(self.rows):
            if known.refs == ragged.refs and known.row is ragged.row and known.at == ragged.at:
                return number
        count = len(ragged.refs)
        if of is not None and count and of in self.products.values():
            self.symbols.append(next(s for s, product in self.products.items() if product == of))
            self.rows.append(ragged.another())
            return len(self.rows) - 1
        is_packed |= of is not None
        if not count or (len(self._lengths) == MARKS and (is_packed or count not in self._lengths)):
            raise Unfit
        if is_packed or count not in self._lengths:
            self._lengths.append(None if is_packed else count)
            self.symbols.append(len(self._lengths) - 1)
            if of is not None:
                self.products[self.symbols[-1]] = of
        else:
            symbol = self._lengths.index(count)
            alike = triple(self.rows[self.symbols.index(symbol)].refs)
            if self.rec.keeping and alike != triple(ragged.refs):  # it serves instances in which they are equal
                self.rec.equal_sizes.append((alike, triple(ragged.refs)))
            self.symbols.append(symbol)
        self.rows.append(ragged.another())  # which stays what it is where the other changes
        return len(self.rows) - 1

    def merge(self, pairs: Pairs) -> Any:
        """The expression of a value in terms of these leaves."""
        return renumbered(pairs.root, self.add_all(pairs.leaves))

    def add_all(self, others: Leaves) -> list[int]:
        """The numbers of the leaves of others here: of rows by pairs behind those whose lengths they are of."""
        symbol_of: dict[int, int] = {}
        numbers = [0] * len(others.rows)
        for is_product in (False, True):
            for k, (ragged, symbol) in enumerate(zip(others.rows, others.symbols, strict=True)):
                product = others.products.get(symbol)
                if (product is not None) is not is_product:
                    continue
                of = None if product is None else (symbol_of[product[0]], symbol_of[product[1]])
                numbers[k] = self.add(ragged, product is None and others._lengths[symbol] is None, of)
                symbol_of[symbol] = self.symbols[numbers[k]]
        return numbers

    def add_pairs(self, rows: Ragged, sizes: Sequence[Size]) -> tuple[int, list[Apply]]:
        """The number of a leaf of rows by pairs of these sizes, and the sizes as expressions."""
        lengths = [self.length_of(self.rec, size) for size in sizes]
        one, other = [self.symbols[of.args[0].index] for of in lengths]
        return self.add(rows, of=(one, other)), lengths

    def is_packed(self, symbol: int) -> bool:
        """Whether leaves of a symbol are packed constants."""
        return symbol < len(self._lengths) and self._lengths[symbol] is None and symbol not in self.products

    @property
    def are_one(self) -> list[bool]:
        """Of each symbol, whether its leaves are of one row now."""
        return [length == 1 for length in self._lengths]

    def lengths(self, which: int) -> list[int]:
        """How long leaves of each symbol are at one choice of lengths."""
        chosen = zip((*LENGTHS, *OTHERS, LENGTHS[0])[which], self._lengths, strict=False)
        found = [length if own or length < _LONG else _LONG**2 for length, own in chosen]  # packed: as much as two have
        if which == ONES:
            found = [1 if own == 1 else length for length, own in zip(found, self._lengths, strict=False)]
        for symbol, (one, other) in self.products.items():
            found[symbol] = found[one] * found[other]
        return found

    def length(self, symbol: int) -> tuple[int, Ragged]:
        """How long leaves of a symbol are, and one of them."""
        ragged = self.rows[self.symbols.index(symbol)]
        return len(ragged.refs), ragged

    def length_of(self, rec: Recorder, size: Size) -> Apply:
        """A symbol's size as an expression, of leaves that say nothing else."""
        described = Description(torch.zeros, torch.Size((size.value,)), (), torch.bool)
        return Apply(length, "length", (Hole(self.add(rec.rows_described(described, size.like))), 0), {})

    def of_length(self, count: int) -> Apply | int:
        """A size of a constant as an expression: that of leaves that are so long, or the number itself."""
        if count == 1 or count not in self._lengths:  # a dimension of 1 is the same for all
            return count
        number = self.symbols.index(self._lengths.index(count))
        return Apply(length, "length", (Hole(number), self.rows[number].at), {})

    def metas(self, which: int) -> list[torch.Tensor]:
        """The leaves without data, at one choice of lengths."""
        lengths = self.lengths(which)
        return [
            torch.empty((*r.row.shape[: r.at], lengths[s], *r.row.shape[r.at :]), dtype=r.dtype, device="meta")
            for r, s in zip(self.rows, self.symbols, strict=True)
        ]


class Evaluated(Returned):
    """A value of two ragged dimensions, computed of the rows of its leaves when these leave. Of each expression there
    is a class."""

    root: ClassVar[Any]
    places: ClassVar[tuple[int, ...]]

    def read(self) -> torch.Tensor:
        """See Returned."""
        leaves = [rows.movedim(0, place) for rows, place in zip(self, self.places, strict=True)]
        found: torch.Tensor = evaluated(self.root, leaves)
        return found


_EVALUATED: dict[Any, type[Evaluated]] = {}


def _evaluated_by(root: Any, places: tuple[int, ...]) -> type[Evaluated]:
    key = root.text, root.functions, places
    known = _EVALUATED.get(key)
    if known is None:
        told = {"root": root, "places": places, "__qualname__": f"Evaluated[{key[0]}; along {places}]"}
        known = _EVALUATED[key] = type("Evaluated", (Evaluated,), told)
    return known


class Pairs(Lazy):
    """A value of two ragged dimensions: an expression. `dims` has the symbol of each dimension, or its size as a
    negative number less one."""

    __slots__ = ("cells", "dims", "dtype_", "is_own", "leaves", "rec", "root")

    def __init__(self, rec: Recorder, root: Apply, leaves: Leaves, dims: tuple[int, ...], dtype: torch.dtype,
                 cells: Ragged | None = None):  # fmt: skip
        self.rec, self.root, self.leaves, self.dims, self.dtype_ = rec, root, leaves, dims, dtype
        self.whole, self.is_own = None, False
        self.cells = cells
        """The same as rows by pairs, which stand where its two ragged dimensions do; None where there are none."""

    def another(self) -> Pairs:
        """The same value by another name."""
        return Pairs(self.rec, self.root, self.leaves, self.dims, self.dtype_, self.cells)

    def is_as(self, other: Any) -> bool:
        """See Lazy."""
        if type(other) is not Pairs or other.dtype is not self.dtype or len(other.dims) != len(self.dims):
            return False
        return all(
            a == b if a < 0 or b < 0 else self.leaves.length(a)[0] == other.leaves.length(b)[0]
            for a, b in zip(self.dims, other.dims, strict=True)
        )

    def become(self, other: Pairs) -> None:
        """See `Ragged.become`."""
        self.root, self.leaves, self.dims, self.whole = other.root, other.leaves, other.dims, None
        self.cells = other.cells

    def sizes(self) -> list[Size]:
        """Of its ragged dimensions."""
        return [size_of_rows(self.leaves.length(d)[1]) for d in self.dims if d >= 0]

    @property
    def shape(self) -> Any:
        """See `Ragged.shape`."""
        found = [(-1 - d, None) if d < 0 else self.leaves.length(d) for d in self.dims]
        if self.rec.symbolic:
            return tuple(n if of is None else Size(self.rec, n, triple(of.refs)) for n, of in found)
        self.rec.asked_size = True
        return torch.Size([n for n, _ in found])

    dtype = property(lambda self: self.dtype_)
    ndim = property(lambda self: len(self.dims))

    def _meta(self) -> torch.Tensor:
        self.rec.asked_size = True
        sizes = [-1 - d if d < 0 else self.leaves.length(d)[0] for d in self.dims]
        return torch.empty(sizes, dtype=self.dtype_, device="meta")

    def returned(self) -> Evaluated:
        """What computes it of its rows, which leave in its place."""
        root = _of_others(self.root, self.leaves)
        used = sorted(_holes(root))
        numbers = [used.index(i) if i in used else -1 for i in range(len(self.leaves.rows))]
        kind = _evaluated_by(renumbered(root, numbers), tuple(self.leaves.rows[i].at for i in used))
        return kind([self.leaves.rows[i].like_at(0) for i in used])

    def make(self) -> Value:
        """The value as a node, by nodes of a type per size."""
        rec = self.rec
        rec.note_stacked(self.root.name)
        wholes = [r.materialise() for r in self.leaves.rows]
        made: Any = evaluated(self.root, wholes, lambda f, args, kwargs: _call(rec, f, args, kwargs))
        return made.materialise() if isinstance(made, Lazy) else made


def _call(rec: Recorder, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if function in (pick, only):
        return function(*args)
    if function is length:
        return args[0].shape[args[1]]
    if function is triangle:
        return function(torch.empty(0), *args[1:])
    return rec.function(function, args, kwargs)


def cut(rec: Recorder, table: Shared, index: tuple[Any, ...]) -> Pairs | None:
    """`mask[:, :, :n, :n]` of a buffer that is a triangle, and sizes that are symbols; None of anything else."""
    *others, n, m = index if len(index) == len(table.shape) > 1 else (None, None, None)
    if not (_is_first(n) and _is_first(m)) or any(type(x) is not slice or x != slice(None) for x in others):
        return None
    buffer = rec.tracer.relied_on(table.ref)
    told = None if buffer is None else triangle_of(buffer)
    if buffer is None or told is None:
        return None
    leaves, lengths = Leaves(rec), []
    for size, most in zip((n.stop, m.stop), table.shape[-2:], strict=True):
        rec.within.append((size.like, 0, most))
        if size.value > most:
            raise CannotKeep
        lengths.append(leaves.length_of(rec, size))
    root = of_triangle(lengths, told, buffer)
    dims = *[-2] * len(others), *[leaves.symbols[size.args[0].index] for size in lengths]
    return Pairs(rec, root, leaves, dims, buffer.dtype)


def size_of_rows(rows: Ragged) -> Size:
    """How many there are."""
    return Size(rows.rec, len(rows.refs), triple(rows.refs))


def pairs_of(rec: Recorder, rows: Ragged, sizes: Sequence[Ragged | Size], dtype: torch.dtype,
             rest: Sequence[int] = ()) -> Pairs:  # fmt: skip
    """A matrix of an instance's, packed in these rows, as large as others of its rows or as symbols say; or a tensor
    with further dimensions."""
    leaves = Leaves(rec)
    lengths: list[Any] = []
    for size in sizes:
        if isinstance(size, Size):
            lengths.append(leaves.length_of(rec, size))
        else:
            lengths.append(Apply(length, "length", (Hole(leaves.add(size)), size.at), {}))
    root = Apply(unpacked, "unpacked", (Hole(leaves.add(rows, True)), *lengths, *rest), {})
    dims = *[leaves.symbols[size.args[0].index] for size in lengths], *[-1 - size for size in rest]
    return Pairs(rec, root, leaves, dims, dtype)


def _is_first(which: Any) -> bool:
    """Whether a slice is of so many first ones, a symbol's size."""
    is_of_size = type(which) is slice and type(which.stop) is Size
    return is_of_size and which.start in (None, 0) and which.step in (None, 1)


def of_triangle(sizes: Sequence[Any], told: tuple[int, Any, Any], like: torch.Tensor) -> Apply:
    """A triangle in a tensor of so many dimensions, all but the last two of size 1."""
    made = Apply(triangle, "triangle", (Hole(0), *sizes[-2:], *told, like.dtype), {})
    return (
        made if like.ndim == 2 else Apply(torch.reshape, "reshape", (made, (*[1] * (like.ndim - 2), *sizes[-2:])), {})
    )


def identity(rec: Recorder, size: Size, dtype: torch.dtype) -> Pairs:
    """`torch.eye(n)`: what a triangle has more than the one below it."""
    leaves = Leaves(rec)
    lengths = [leaves.length_of(rec, size)] * 2
    one, other = (of_triangle(lengths, (d, 1, 0), torch.empty(0, 0, dtype=dtype)) for d in (0, -1))
    root = Apply(torch.ne, "ne", (one, other), {}) if dtype is torch.bool else Apply(torch.sub, "sub", (one, other), {})
    return Pairs(rec, root, leaves, (0, 0), dtype)


def run_call(call: Call) -> Any:
    """A call as an expression of its ragged arguments; NotImplemented where it is none."""
    rec, leaves = call.rec, Leaves(call.rec)
    if rec.autocast is not None or rec.books is not None or not rec.flows:
        return NotImplemented
    begin = rec.place()
    try:
        args = tuple([_met(a, leaves) for a in call.args])
        kwargs = {key: _met(value, leaves) for key, value in call.kwargs.items()}
        args = tuple([_placed(a, leaves) for a in args])
        kwargs = {key: _placed(value, leaves) for key, value in kwargs.items()}
        func, name = call.func, call.name
        if name == "view":  # rows do not lie in memory as eager's tensor does
            func, name = torch.Tensor.reshape, "reshape"
        return _result(told(Apply(func, name, args, kwargs)), leaves)
    except Unfit:
        if rec.place() != begin and not rec.keeping:
            rec.forget_since(*begin)
        return NotImplemented


def _met(item: Any, leaves: Leaves) -> Any:
    """An argument with holes for what is ragged; other tensors wait for the lengths that they may have."""
    if type(item) is Ragged:
        return Hole(leaves.add(item))
    if type(item) is Pairs:
        return leaves.merge(item)
    if type(item) in (tuple, list):
        return type(item)([_met(x, leaves) for x in item])
    return item


def _placed(item: Any, leaves: Leaves) -> Any:
    """An argument with holes for all tensors. Raises Unfit for what is no constant."""
    if type(item) is Hole or type(item) is Apply:
        return item
    if type(item) in (tuple, list):
        return type(item)([_placed(x, leaves) for x in item])
    if type(item) is Made:
        item = item.real()
    if type(item) is torch.Tensor:
        return _constant(item, leaves)
    if type(item) is Shared and tuple(item.shape) in ((), (1,)):
        buffer = leaves.rec.tracer.relied_on(item.ref)
        if buffer is not None:
            return _constant(buffer, leaves)
    if type(item) is Value or type(item) is Shared or isinstance(item, Lazy):
        value = leaves.rec.as_value(item)
        if type(value) is not Value or not leaves.rows:
            raise Unfit
        like = leaves.rows[0]
        refs = filled(leaves.rec, value.ref, len(like.refs), triple(like.refs))
        return Apply(only, "only", (Hole(leaves.add(Ragged(leaves.rec, refs, value.slot))),), {})
    if type(item) is Size:
        return _length(item, leaves)
    if type(item) is Amount and item.factors is not None:
        return Apply(operator.mul, "times", tuple([_length(size, leaves) for size in item.factors]), {})
    if type(item) is slice:
        bounds = tuple([_placed(x, leaves) for x in (item.start, item.stop, item.step)])
        return Apply(slice, "slice", bounds, {}) if Apply in map(type, bounds) else item
    if item is None or item is Ellipsis or isinstance(item, int | float | str | torch.dtype):
        return item
    raise Unfit


def _length(size: Size, leaves: Leaves) -> Apply:
    """A symbol as an expression: how long leaves are that have to be so long in other calls too."""
    found = leaves.of_length(size.value)
    if type(found) is not Apply:
        return leaves.length_of(leaves.rec, size)
    leaves.rec.equal_sizes.append((size.like, triple(leaves.rows[found.args[0].index].refs)))
    return found


def _constant(tensor: torch.Tensor, leaves: Leaves) -> Any:
    """A tensor of the instance's, or one that forward has made."""
    if tensor.requires_grad or tensor.layout is not torch.strided or not leaves.rows:
        raise Unfit
    if tensor.ndim == 0 or (tensor.shape == (1,) and tensor.dtype is torch.float32):
        number = tensor.item()
        leaves.rec.contents += 1
        return number if tensor.dtype in (torch.float32, torch.int64, torch.bool) else _unfit()
    sizes = [leaves.of_length(size) for size in tensor.shape]
    ragged = [d for d, size in enumerate(sizes) if type(size) is Apply]
    if len(ragged) == 1:
        rows = rows_of(leaves.rec, tensor, ragged[0])
        return Hole(leaves.add(rows))
    if not ragged and tensor.numel() != 1:
        raise Unfit
    shape = triangle_of(tensor) if ragged else None
    if shape is not None and all(tensor.shape[d] == 1 for d in range(tensor.ndim - 2)):
        leaves.rec.contents += 1
        return of_triangle(sizes, shape, tensor)
    leaves.rec.counted = True
    number = leaves.add(rows_of(leaves.rec, packed(tensor), 0), True)
    return Apply(unpacked, "unpacked", (Hole(number), *sizes), {})


def _unfit() -> Any:
    raise Unfit


def triangle_of(tensor: torch.Tensor) -> tuple[int, Any, Any] | None:
    """Diagonal, number up to it and number above, of a matrix that is nothing else; one number may be all."""
    matrix = tensor.reshape(tensor.shape[-2:]) if tensor.numel() == math.prod(tensor.shape[-2:]) else None
    if matrix is None or min(matrix.shape) < 2:
        return None
    inside, outside = matrix[-1, 0].item(), matrix[0, -1].item()
    first = (matrix[0] != inside).nonzero()
    diagonal = int(first[0]) - 1 if len(first) else 0
    below = torch.ones_like(matrix, dtype=torch.bool).tril(diagonal)
    is_one = bool((matrix[below] == inside).all()) and bool((matrix[~below] == outside).all())
    return (diagonal, inside, outside) if is_one else None


class Seen(NamedTuple):
    """A result without data: the symbol of each dimension, or its size as a negative number less one; and where the
    symbol is a product that no leaf has, of which two."""

    dims: tuple[int, ...]
    dtype: torch.dtype
    product: tuple[int, int] | None = None


def _result(root: Apply, leaves: Leaves) -> Any:
    """What an expression gives."""
    rec = leaves.rec
    if not leaves.rows:
        raise Unfit
    key: Any = Pairs, root.text, root.functions, tuple((r.row, r.at) for r in leaves.rows), tuple(leaves.symbols)
    key = *key, *leaves.products.items(), *leaves.are_one
    seen = rec.functions.get(key)
    if seen is None:
        seen = rec.functions[key] = _seen(root, leaves)
    if seen is Unfit:
        raise Unfit
    if type(seen) is Seen:
        return _of_shape(root, leaves, seen)
    results = [_of_shape(Apply(pick, "pick", (root, i), {}), leaves, one) for i, one in enumerate(seen)]
    return rebuilt(seen, results)


def _of_shape(root: Apply, leaves: Leaves, seen: Seen) -> Any:
    ragged = [d for d, dim in enumerate(seen.dims) if dim >= 0]
    if len(ragged) == 2:
        if any(seen.dims[d] in leaves.products for d in ragged):
            raise Unfit
        return Pairs(leaves.rec, root, leaves, seen.dims, seen.dtype)
    return _node(root, leaves, seen, ragged[0] if ragged else -1)


def _by_pairs(leaves: Leaves, product: tuple[int, int]) -> int:
    """The number of a leaf that says nothing but how many pairs there are of the rows of two symbols."""
    (size, like), (_, other) = map(leaves.length, product)
    described = Description(torch.zeros, torch.Size((size,)), (), torch.bool)
    rows = leaves.rec.rows_described(described, triple(like.refs))
    return leaves.add(rows.tiled(triple(other.refs), False), of=product)


def cells_of(pairs: Pairs) -> Ragged:
    """The rows by pairs of a value. Raises Unfit where its ragged dimensions are no neighbours."""
    if pairs.cells is None:
        at = next(d for d, dim in enumerate(pairs.dims) if dim >= 0)
        if pairs.dims[at + 1] < 0:
            raise Unfit
        leaves = Leaves(pairs.rec)
        root = Apply(torch.flatten, "flatten", (leaves.merge(pairs), at, at + 1), {})
        cells = _result(root, leaves)
        pairs.become(pairs_of_cells(cells, pairs.sizes()))
    assert pairs.cells is not None
    return pairs.cells


def pairs_of_cells(cells: Ragged, sizes: Sequence[Size]) -> Pairs:
    """The value of two ragged dimensions, of these sizes, whose rows by pairs these are."""
    rec, row, at = cells.rec, cells.row, cells.at
    leaves = Leaves(rec)
    number, lengths = leaves.add_pairs(cells, sizes)
    shape = (*row.shape[:at], *lengths, *row.shape[at:])
    dims = [leaves.symbols[of.args[0].index] for of in lengths]
    root = Apply(torch.reshape, "reshape", (Hole(number), shape), {})
    before, behind = ([-1 - size for size in part] for part in (row.shape[:at], row.shape[at:]))
    return Pairs(rec, root, leaves, (*before, *dims, *behind), row.dtype, cells.another())


def _seen(root: Apply, leaves: Leaves) -> Any:
    """A `Seen`, a nest of them, or Unfit: where the function fails, draws, gives no tensors, or more than two ragged
    dimensions."""
    found = []
    for which in range(2):
        with Dispatched() as dispatched:
            try:
                found.append(evaluated(root, leaves.metas(which)))
            except Exception:  # whatever it is, the call itself will say so
                return Unfit
        if dispatched.draws or dispatched.shape_by_value or dispatched.is_foreign:
            return Unfit
    if isinstance(found[0], tuple):
        parts = [_dims(a, b, leaves) for a, b in zip(*found, strict=True)]
        return Unfit if Unfit in parts or not _are_shapes(root, leaves, parts) else rebuilt(found[0], parts)
    seen = _dims(found[0], found[1], leaves)
    return seen if type(seen) is Seen and _are_shapes(root, leaves, [seen]) else Unfit


def _are_shapes(root: Apply, leaves: Leaves, parts: Sequence[Seen]) -> bool:
    """Whether results are of these shapes at OTHERS too, and of some elements; where a function fails there, it says so
    of such instances. What has no numbers is not asked at the large ones, which takes long."""
    asked = [*range(len(LENGTHS), ONES if has_numbers(root) else len(LENGTHS) + 2), *[ONES] * any(leaves.are_one)]
    return not any(-1 in seen.dims for seen in parts) and all(
        _are_shapes_at(root, leaves, parts, which) for which in asked
    )


def _are_shapes_at(root: Apply, leaves: Leaves, parts: Sequence[Seen], which: int) -> bool:
    try:
        with nullcontext() if leaves.lengths(which)[0] > _LONG else WithoutData():  # the large ones are no instance's
            found = evaluated(root, leaves.metas(which))
    except Exception:  # whatever it is, the call itself will say so
        return True
    lengths = leaves.lengths(which)
    for seen, one in zip(parts, found if isinstance(found, tuple) else [found], strict=True):
        product = math.prod(lengths[s] for s in seen.product or ())
        expected = [-1 - d if d < 0 else lengths[d] if d < len(lengths) else product for d in seen.dims]
        if [*one.shape] != expected:
            return False
    return True


def _dims(one: Any, other: Any, leaves: Leaves) -> Any:
    if type(one) is not torch.Tensor or one.layout is not torch.strided or one.ndim != other.ndim:
        return Unfit
    lengths = [*zip(leaves.lengths(0), leaves.lengths(1), strict=True)]
    own = [s for s, length in enumerate(leaves._lengths) if length is not None]
    products = {
        (lengths[a][0] * lengths[b][0], lengths[a][1] * lengths[b][1]): (a, b) for b in own for a in own[: b + 1]
    }
    dims, product = [], None
    for at in zip(one.shape, other.shape, strict=True):
        if at[0] == at[1]:
            dims.append(-1 - at[0])
        elif at in lengths:
            dims.append(lengths.index(at))
        elif at in products and product is None:
            dims.append(len(lengths))
            product = products[at]
        else:
            return Unfit
    ragged = [d for d in dims if d >= 0]
    if len(ragged) > (2 if product is None else 1) or any(leaves.is_packed(d) for d in ragged):
        return Unfit
    return Seen(tuple(dims), one.dtype, product)


def _node(root: Apply, leaves: Leaves, seen: Seen, at: int) -> Any:
    """A result of at most one ragged dimension as a node. Leaves that the result is as long as come first."""
    rec, first = leaves.rec, None
    if at >= 0 and (seen.product or leaves.products.get(seen.dims[at])):
        first = _by_pairs(leaves, seen.product or leaves.products[seen.dims[at]])
    root = _of_others(root, leaves)
    used = sorted(_holes(root) | ({first} if first is not None else set()))
    own = leaves.symbols[first] if first is not None else seen.dims[at] if at >= 0 else leaves.symbols[used[0]]
    order = sorted(used, key=lambda i: (leaves.symbols[i] != own, leaves.symbols[i], i))
    numbers = [0] * len(leaves.rows)
    for k, i in enumerate(order):
        numbers[i] = k
    rows = [leaves.rows[i] for i in order]
    first_of = list(dict.fromkeys(leaves.symbols[i] for i in order))
    products = {s: of for s, of in leaves.products.items() if s in first_of}
    if first_of[0] != own or not {s for of in products.values() for s in of} <= {*first_of}:
        raise Unfit
    symbols = tuple(first_of.index(leaves.symbols[i]) for i in order)
    of_two = tuple([tuple(map(first_of.index, (s, *of))) for s, of in products.items()])
    function = RunFunction(renumbered(root, numbers), tuple([r.at for r in rows]), symbols, at, of_two)  # type: ignore[arg-type]
    value_of_row = tuple(-1 - d for k, d in enumerate(seen.dims) if k != at)
    slot = rec.table.slot(class_of(torch.empty(value_of_row, dtype=seen.dtype, device="meta")))
    marks = [rec.number(bits, torch.int64) for bits in range(1, 1 << len(first_of))] if function.has_marks else []
    slots = (*[r.row for r in rows], *[m.slot for m in marks[:1]])
    operation = Operation("function", function.root.name, function, (tuple(map(Hole, range(len(slots)))), {}), slots)
    key = function.text, function.root.functions, slots
    run = RunOf(operation, slot, at >= 0, key)
    parameters = rec.note_run(run), ONE if at < 0 else SEGMENTED, len(first_of), *symbols
    made = one_step(rec, RUN, parameters, [*[triple(r.refs) for r in rows], *[(m.ref, 0, 1) for m in marks]])
    return Ragged(rec, made, slot, at) if at >= 0 else value_of(rec, made.start, slot)


def _of_others(root: Apply, leaves: Leaves) -> Apply:
    """The expression without leaves that only say how long others are: with the length of one of these."""
    if length not in root.functions and triangle not in root.functions:
        return root
    used = sorted(_holes(root))
    values = [i for i in used if leaves.rows[i].row.shape or leaves.rows[i].row.dtype is not torch.bool]
    instead = {i: next((k for k in values if leaves.symbols[k] == leaves.symbols[i]), i) for i in used}
    return _with_lengths_of(root, instead, [rows.at for rows in leaves.rows])


def _with_lengths_of(item: Any, instead: Mapping[int, int], places: Sequence[int]) -> Any:
    if type(item) is Apply:
        if item.function is length:
            leaf = instead[item.args[0].index]
            return item._replace(args=(Hole(leaf), places[leaf]))
        args = tuple([_with_lengths_of(x, instead, places) for x in item.args])
        if item.function is triangle:
            args = Hole(instead[args[0].index]), *args[1:]
        return item._replace(
            args=args, kwargs={k: _with_lengths_of(x, instead, places) for k, x in item.kwargs.items()}
        )
    return type(item)([_with_lengths_of(x, instead, places) for x in item]) if type(item) in (tuple, list) else item


def read_by(item: Any) -> set[int]:
    """The leaves of an expression, but for those of which it asks for the length alone."""
    if type(item) is Apply:
        return set() if item.function is length else set().union(*map(read_by, (*item.args, *item.kwargs.values())))
    return set().union(*map(read_by, item)) if type(item) in (tuple, list) else _holes(item)


def _holes(item: Any) -> set[int]:
    """The leaves of an expression."""
    if type(item) is Hole:
        return {item.index}
    if type(item) is Apply:
        return set().union(*map(_holes, (*item.args, *item.kwargs.values())))
    return set().union(*map(_holes, item)) if type(item) in (tuple, list) else set()
