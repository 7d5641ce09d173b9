"""Values of two ragged dimensions as rows by pairs: (n, m, 64) as n m rows of 64.

Message passing over all pairs of nodes, relation networks and scores of spans compute something of every two rows, with
weights. Expressions of runs (`ragged.whole.runs`) have what such weights see: broadcast sums, products, masks. From a
function of the last dimensions on (`linear`) each pair is a row, a node of the same type whatever n and m are, and its
products are those of a batch. A `whole.runs.Pairs` knows its rows by pairs (`cells`), if there are any.

An expression that computes something of each pair alone is *replayed* on rows by pairs: what it only shows of a leaf is
rows by other names, so nothing is copied; of any other (a masked score) a node gives them.

(1) *Row-wise* functions of cells are calls on these rows, where other operands have none of the ragged dimensions.
(2) What is seen of cells in another shape stays cells while the ragged dimensions are side by side, and is rows where
    they are one: `view(n, n, heads, -1)`, `view(n * n, 64)`.
(3) Anything else reads them as leaves of an expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from edbc.capture.ragged.call import Call
from edbc.capture.ragged.program import triple
from edbc.capture.ragged.rows import is_tensor
from edbc.capture.ragged.symbols import Amount, Size
from edbc.capture.ragged.value import Ragged, each_row
from edbc.capture.ragged.whole.function import Apply, evaluated, only
from edbc.capture.ragged.whole.runs import Pairs, Unfit, cells_of, pairs_of_cells, read_by, size_of_rows
from edbc.capture.record.table import Hole
from edbc.capture.semantics import rules
from edbc.capture.standins.standin import Lazy, Shared, Value

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

_MAKES_CELLS = frozenset(("linear", "layer_norm", "rms_norm"))
"""Functions of each pair that expressions leave to rows."""
_SHAPES = frozenset("view reshape flatten squeeze unsqueeze".split())


def call_of_cells(call: Call) -> Any:
    """A call on values of two ragged dimensions; NotImplemented where it is none of rows by pairs."""
    first = call.args[0] if call.args else None
    if type(first) is Pairs and first.cells is None and _wants_cells(call):
        cells = _replayed(first)
        if cells is not None:
            first.become(pairs_of_cells(cells, first.sizes()))
        else:
            try:
                cells_of(first)
            except Unfit:
                return NotImplemented
    every = [x for x in (*call.args, *call.kwargs.values()) if type(x) is Pairs]
    if not every or any(x.cells is None or not _are_alike(x, every[0]) for x in every):
        return NotImplemented
    if call.name in _SHAPES:
        return _seen(call, every[0])
    at, behind = _place(every[0])
    if call.name in _OVER_ALL and _is_over_both(call, at):
        return call.rec.function(call.func, (every[0].cells, at), {})
    others = [x for x in (*call.args, *call.kwargs.values()) if is_tensor(x) and type(x) is not Pairs]
    is_of_last = call.name in _MAKES_CELLS
    if any(type(x) not in (Value, Shared, torch.Tensor) or (x.ndim > behind and not is_of_last) for x in others):
        return NotImplemented
    if not (is_of_last or rules.is_pointwise(call.name) or call.name in rules.DROPOUTS | rules.CASTS):
        along = rules.ALONG.get(call.name)
        dim = None if along is None else call.given(along.position, along.keyword, along.default)
        if len(every) > 1 or type(dim) is not int or not -behind <= dim < 0:
            return NotImplemented
    args = [x.cells if type(x) is Pairs else x for x in call.args]
    kwargs = {name: x.cells if type(x) is Pairs else x for name, x in call.kwargs.items()}
    return _of_rows(call.rec, call.rec.function(call.func, tuple(args), kwargs), every[0], at)


_OVER_ALL = frozenset("sum mean amax amin".split())


def _is_over_both(call: Call, at: int) -> bool:
    """Whether it reduces along the ragged dimensions, and those alone."""
    dims = call.given(1, "dim", None)
    ndim = len(call.args[0].dims)
    is_all = type(dims) in (tuple, list) and {dim % ndim for dim in dims} == {at, at + 1}
    return is_all and len(call.args) + len(call.kwargs) == 2


def _wants_cells(call: Call) -> bool:
    """Whether a call is of each pair, and does more than an expression does as well."""
    if call.name not in _MAKES_CELLS or any(type(x) is Pairs for x in call.args[1:]):
        return False
    weight = call.given(1, "weight", None) if call.name == "linear" else None
    return weight is None or weight.shape[0] > _FEW


_FEW = 4
"""Numbers of a pair that an expression computes as fast by `linear` as products of rows do: scores of heads."""


def _replayed(pairs: Pairs) -> Ragged | None:
    """Rows by pairs of an expression that is of each pair alone: what it computes is recorded of rows, and what it only
    shows (`h.unsqueeze(0).expand(n, n, -1)`) is rows by other names. None for others."""
    begin = pairs.rec.place()
    try:
        found = _Replay(pairs).of(pairs.root)
    except _NotOfEach:
        found = None
    if type(found) is Ragged and found.at == _place(pairs)[0] and len(found.refs) > 1:
        return found
    if pairs.rec.place() != begin and not pairs.rec.keeping:
        pairs.rec.forget_since(*begin)
    return None


_SHOWS = rules.VIEWS - {"detach"} | {"repeat", "tile", "repeat_interleave", "length"}
"""Functions that give elements of their argument as they are, and their gradients."""


def _only_shows(item: Any) -> bool:
    """Whether an expression computes nothing: numbers do not tell, as some are what functions leave alone."""
    if type(item) is Apply:
        return item.name in _SHOWS and all(map(_only_shows, (*item.args, *item.kwargs.values())))
    return all(map(_only_shows, item)) if type(item) in (list, tuple) else True


class _NotOfEach(Exception):
    """An expression mixes pairs, or loops do it as well."""


class _Replay:
    """Calls the functions of an expression on rows by pairs."""

    def __init__(self, pairs: Pairs):
        self.pairs, self.rec, self.leaves = pairs, pairs.rec, pairs.leaves
        self.at, _ = _place(pairs)
        self.lengths = self.leaves.lengths(0)
        self.shape = tuple([self.lengths[d] if d >= 0 else -1 - d for d in pairs.dims[: self.at + 2]])
        """Up to the ragged dimensions, at some lengths."""

    def of(self, item: Any) -> Any:
        """Rows of an expression; what is no part of one as it is. Raises _NotOfEach."""
        if type(item) in (list, tuple):
            return type(item)([self.of(x) for x in item])
        if type(item) is not Apply and type(item) is not Hole:
            return item
        if type(item) is Apply and item.function is only:
            return self.leaves.rows[item.args[0].index].value(0)
        shown = self.shown(item)
        if shown is not None:
            return shown
        if type(item) is not Apply or not self.is_of_each(item):
            raise _NotOfEach
        return self.rec.function(item.function, self.of(item.args), {k: self.of(x) for k, x in item.kwargs.items()})

    def is_of_each(self, item: Apply) -> bool:
        """Whether a function computes something of each pair alone: of elements, or along a dimension behind both."""
        if rules.is_pointwise(item.name):
            return not any(type(x) is torch.Tensor for x in (*item.args, *item.kwargs.values()))
        if item.name in ("squeeze", "unsqueeze"):
            dim = item.args[1] if len(item.args) > 1 else item.kwargs.get("dim")
            ndim = evaluated(item.args[0], self.metas()).ndim + (item.name == "unsqueeze")
            return type(dim) is int and -(ndim - self.at - 2) <= dim < 0
        is_join = item.name in ("cat", "concat", "stack")
        where = rules.ALONG.get(item.name)
        if where is None and not is_join:
            return False
        position, keyword = (1, "dim") if where is None else (where.position, where.keyword)
        dim = item.args[position] if len(item.args) > position else item.kwargs.get(keyword)
        first = item.args[0][0] if is_join else item.args[0]
        behind = evaluated(first, self.metas()).ndim - self.at - 2 + (item.name == "stack")
        return type(dim) is int and -behind <= dim < 0

    def metas(self) -> list[torch.Tensor]:
        """See `Leaves.metas`."""
        return self.leaves.metas(0)

    def shown(self, item: Any) -> Ragged | None:
        """The rows that an expression shows of one leaf: of each pair those of its first, of its second, or its own.
        None where it computes something, or shows them otherwise. Told at some lengths by numbers."""
        read = {k for k in read_by(item) if self.leaves.rows[k].row.shape or self.leaves.rows[k].row.floats}
        if len(read) != 1 or not _only_shows(item):
            return None
        (number,) = read
        rows = self.leaves.rows[number]
        count, size = self.lengths[self.leaves.symbols[number]], rows.row.shape.numel()
        if size == 0:
            return None
        ids, elements = torch.arange(count).view(count, 1).expand(count, size), torch.arange(size).expand(count, size)
        seen = [self.numbers(item, number, of.reshape(count, *rows.row.shape)) for of in (ids, elements)]
        if any(x is None for x in seen):
            return None
        of_row, of_element = seen
        assert of_row is not None and of_element is not None  # noqa: PT018
        rest = of_row.shape[len(self.shape) :]
        if rest.numel() != size or not bool((of_element.reshape(-1, size) == torch.arange(size)).all()):
            return None
        n, m = self.shape[-2:]
        places = of_row.reshape(n, m, size)
        one, other = self.pairs.sizes()
        whole = rows.like_at(self.at)
        if bool((places == torch.arange(n)[:, None, None]).all()) and count == n:
            found = whole.tiled(other.like, True)
        elif bool((places == torch.arange(m)[None, :, None]).all()) and count == m:
            found = whole.tiled(one.like, False)
        elif bool((places == torch.arange(n * m).view(n, m, 1)).all()):
            found = whole
        else:
            return None
        shape = (*self.shape[: self.at], *rest)
        is_same = shape == tuple(found.row.shape)
        return found if is_same else each_row(self.rec, [found], lambda row: row.reshape(shape), self.at)

    def numbers(self, item: Any, number: int, leaf: torch.Tensor) -> torch.Tensor | None:
        """What an expression gives of a leaf with these numbers, of all pairs; None where it fails or computes."""
        place = self.leaves.rows[number].at
        leaves: list[Any] = [torch.zeros(x.shape, dtype=torch.int64) for x in self.metas()]
        leaves[number] = leaf.movedim(0, place)
        try:
            found = evaluated(item, leaves)
            return found.expand(*self.shape, *found.shape[len(self.shape) :]) if found.dtype is torch.int64 else None
        except Exception:  # whatever it is: functions that are of other numbers
            return None


def _of_rows(rec: Recorder, result: Any, like: Pairs, at: int) -> Any:
    """Rows by pairs as a value of two ragged dimensions."""
    if type(result) is not Ragged or result.at != at:
        return NotImplemented
    found = pairs_of_cells(result, like.sizes())
    found.is_own = result.is_own
    return found


def _place(pairs: Pairs) -> tuple[int, int]:
    """The first of the ragged dimensions, and how many are behind both."""
    at = next(d for d, dim in enumerate(pairs.dims) if dim >= 0)
    return at, len(pairs.dims) - at - 2


def _are_alike(one: Pairs, other: Pairs) -> bool:
    """Whether two have the same rows and columns, in the same place from the right."""
    return _place(one) == _place(other) and [(s.value, s.like) for s in one.sizes()] == [
        (s.value, s.like) for s in other.sizes()
    ]


def _seen(call: Call, pairs: Pairs) -> Any:
    """Definition (2)."""
    rows, (at, behind) = pairs.cells, _place(pairs)
    assert rows is not None
    args = call.args[1:]
    if call.name in ("squeeze", "unsqueeze"):
        dim = call.given(1, "dim", None)
        least = -behind - (call.name == "unsqueeze")
        if type(dim) is not int or not least <= dim < 0:
            return NotImplemented
        return _of_rows(call.rec, call.rec.function(call.func, (rows, dim), {}), pairs, at)
    if call.name == "flatten":
        is_of_both = tuple(args) == (at, at + 1) and not call.kwargs
        return rows.another() if is_of_both else NotImplemented
    shape, row = _sizes(args), rows.row.shape
    if at or call.kwargs or shape is None:
        return NotImplemented
    if _are_pairs(pairs, shape[:1]) and (rest := _filled(shape[1:], row.numel())) is not None:
        return each_row(call.rec, [rows], lambda one: one.reshape(rest), 0) if rest != tuple(row) else rows.another()
    if not _are_sizes(pairs, shape[:2]) or (rest := _filled(shape[2:], row.numel())) is None:
        return NotImplemented
    return _of_rows(call.rec, each_row(call.rec, [rows], lambda one: one.reshape(rest), 0), pairs, 0)


def _sizes(args: Sequence[Any]) -> tuple[Any, ...] | None:
    sizes = tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else tuple(args)
    return sizes if len(sizes) > 1 and all(type(x) in (int, Size, Amount) for x in sizes) else None


def _filled(sizes: Sequence[Any], count: int) -> tuple[int, ...] | None:
    """The shape of a row of so many elements, of sizes one of which may be -1; None where it is no shape of one."""
    if any(type(size) is not int for size in sizes) or count == 0:
        return None
    try:
        return tuple(torch.empty(count, device="meta").view(tuple(sizes)).shape)
    except RuntimeError:
        return None


def _are_pairs(pairs: Pairs, size: Sequence[Any]) -> bool:
    """Whether a size is how many pairs there are."""
    sizes = pairs.sizes()
    if type(size[0]) is Amount:
        return size[0].factors is not None and _equal(size[0].factors, sizes)
    return type(size[0]) is int and size[0] == -1


def _are_sizes(pairs: Pairs, given: Sequence[Any]) -> bool:
    sizes = pairs.sizes()
    known = [own if type(size) is int and size == -1 else size for size, own in zip(given, sizes, strict=False)]
    return len(given) == 2 and all(type(size) is Size for size in known) and _equal(known, sizes)


def _equal(given: Sequence[Size], own: Sequence[Size]) -> bool:
    """Whether sizes are those of others, as they have to be then."""
    if [size.value for size in given] != [size.value for size in own]:
        return False
    own[0].rec.equal_sizes += [(a.like, b.like) for a, b in zip(given, own, strict=True) if a.like != b.like]
    return True


class SideBySide(Lazy):
    """`h.repeat(1, n)` of rows: each as often as a symbol says, side by side. Seen as rows of their size it is rows by
    pairs; anything else asks for the size."""

    __slots__ = ("of", "rec", "times")

    def __init__(self, of: Ragged, times: Size):
        self.rec, self.of, self.times, self.whole = of.rec, of, times, None

    dtype = property(lambda self: self.of.dtype)
    ndim = property(lambda self: 2)

    def view(self, *shape: Any) -> Any:
        """In another shape."""
        cells = pairs_of_cells(self.of.tiled(self.times.like, True), [size_of_rows(self.of), self.times])
        return self.rec.function(torch.Tensor.view, (cells, *shape), {})

    reshape = view

    def _meta(self) -> torch.Tensor:
        return self.materialise()._meta()

    def make(self) -> Value:
        """See Lazy."""
        self.rec.asked_size = True
        return self.rec.function(torch.Tensor.repeat, (self.of.materialise(), 1, self.times.value), {})


def seen_by(rows: Ragged, args: Sequence[Any]) -> Pairs | None:
    """`rows.view(n, m, ...)`, or with -1 for the second of two equal ones: as many rows as pairs."""
    shape = _sizes(args)
    if shape is None or rows.at or type(shape[0]) is not Size or not rows.rec.keeping:
        return None
    one, other = shape[0], shape[1] if type(shape[1]) is Size else shape[0]
    is_told = type(shape[1]) is Size or (type(shape[1]) is int and shape[1] == -1)
    if not is_told or one.value * other.value != len(rows.refs):
        return None
    rest = _filled(shape[2:], rows.row.shape.numel())
    if rest is None:
        return None
    rows.rec.equal_sizes.append((triple(rows.refs), (one.like, other.like)))
    seen = rows if rest == tuple(rows.row.shape) else each_row(rows.rec, [rows], lambda row: row.reshape(rest), 0)
    return pairs_of_cells(seen, [one, other])
