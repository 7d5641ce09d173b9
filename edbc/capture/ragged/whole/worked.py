"""Tensors that follow from sizes alone and are no masks: positions, relative positions, pairs i < j, bands.

Code that is being kept computes them of `torch.arange(n)`, sizes, masks and each other (`ragged.masks` says when). They
are worked out anew for the sizes of each instance (`whole.recipes`).

Definitions.

(1) A *vector* of them, indices, is one as instances bring them: rows are taken by it, sent by it and looked up by it.
(2) Indices for every two rows are a vector for rows by pairs (`whole.pairs`).
(3) With other values they are numbers: rows, or a constant of two ragged dimensions.
(4) Of anything else code learns what they are, so what is recorded serves these sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from edbc.capture.ragged.program import CannotKeep, Numbers, Triple
from edbc.capture.ragged.symbols import Amount, Index, Size
from edbc.capture.ragged.value import Ragged
from edbc.capture.ragged.whole.function import Apply
from edbc.capture.ragged.whole.recipes import PACKED, VECTOR, Recipe
from edbc.capture.ragged.whole.runs import Pairs, cells_of, identity, pairs_of, pairs_of_cells
from edbc.capture.record.table import Hole
from edbc.capture.semantics import rules
from edbc.capture.standins.standin import Lazy, Shared, Value

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

_MOST_COLUMNS = 8
"""Of a matrix of indices with as many rows as a symbol says, looked up one by one."""
_BY_VECTOR = frozenset("index_select index_add index_reduce scatter_add scatter_reduce".split())


class Worked(Lazy):
    """A tensor by an expression of lengths, those of the registers `likes`. Of `dims` some are symbols, two whose
    product it is, or None for a size that nothing else has."""

    __slots__ = ("dims", "likes", "numbers", "rec", "root", "tensor")

    def __init__(self, rec: Recorder, root: Apply, likes: tuple[tuple[Triple, int], ...], dims: Sequence[Any],
                 tensor: torch.Tensor):  # fmt: skip
        self.rec, self.root, self.likes, self.dims, self.tensor = rec, root, likes, tuple(dims), tensor
        self.whole = None
        self.numbers: Numbers | None = None

    dtype = property(lambda self: self.tensor.dtype)
    ndim = property(lambda self: self.tensor.ndim)
    requires_grad = property(lambda self: False)
    device = property(lambda self: torch.device("cpu"))

    @property
    def shape(self) -> Any:
        """With symbols in it."""
        return tuple([self._size(place) for place in range(self.ndim)])

    def _size(self, place: int) -> Any:
        size = self.dims[place]
        if type(size) is tuple:
            return Amount(self.rec, operator.mul, size)
        if size is None:
            index = self.index()
            return self.asked().shape[place] if index is None else index.shape[0]
        return size

    def _meta(self) -> torch.Tensor:
        return self.asked().to("meta")

    def asked(self) -> torch.Tensor:
        """Definition (4)."""
        self.rec.asked_size = True
        return self.tensor

    def make(self) -> Value:
        """See Lazy."""
        return self.rec.constant(self.asked())

    def __len__(self) -> int:
        return int(self._size(0))

    def __iter__(self) -> Any:
        if type(self.dims[0]) is not int:
            return iter(self.asked())
        return iter([self[i] for i in range(self.dims[0])])

    def unbind(self, dim: int = 0) -> Any:
        """All parts along a dimension."""
        return tuple(self if dim == 0 else self.transpose(0, dim))

    def _read(self, place: int = -1) -> torch.Tensor:
        return self.asked()

    def _ragged(self) -> list[int]:
        return [place for place, size in enumerate(self.dims) if type(size) is not int]

    def _others(self) -> list[int]:
        return [size for size in self.dims if type(size) is int]

    def recipe(self, way: int) -> Recipe:
        """How it is worked out, and read in this way."""
        likes = tuple([like for like, _ in self.likes])
        holes = [
            tuple([Hole(likes.index(of.like)) for of in (size if type(size) is tuple else (size,))])
            if type(size) in (Size, tuple)
            else size
            for size in self.dims
        ]
        return Recipe(self.root, likes, tuple(holes), way)

    def _rows(self, way: int, at: int = 0) -> Ragged:
        """The rows that it is read as."""
        recipe, rec = self.recipe(way), self.rec
        rows = recipe.read(self.tensor)
        refs = rec.constant_rows(rows)
        rec.lookups[refs.start] = recipe, None
        return Ragged(rec, refs, rec.slot_of_constant(rows.shape[1:], rows.dtype)[1], at)

    def _vector(self) -> Index:
        """All its numbers as indices, in order."""
        flat = self.tensor.reshape(-1)
        if self.numbers is None:
            self.numbers = self.rec.hold(flat.numpy().copy(), False)
            self.rec.recipes[self.numbers.offset] = self.recipe(VECTOR)
        self.rec.know_numbers(flat, self.numbers)
        return Index(self.rec, flat, (self.numbers,), -1)

    def index(self) -> Index | None:
        """Definition (1); None of others."""
        is_vector = self.ndim < 2 or (len(self._ragged()) == 1 and set(self._others()) == {1})
        return self._vector() if is_vector and self.dtype is torch.int64 and self.tensor.numel() else None

    def pairs(self) -> tuple[Index, list[Size]] | None:
        """Definition (2): the vector, and the sizes of both dimensions."""
        ragged = self._ragged()
        sizes = [self.dims[place] for place in ragged]
        is_of_two = ragged == [self.ndim - 2, self.ndim - 1] and all(type(size) is Size for size in sizes)
        if self.dtype is not torch.int64 or not is_of_two or set(self._others()) - {1}:
            return None
        return self._vector(), sizes

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter by these numbers."""
        index, pairs = self.index(), self.pairs()
        if index is not None:
            found: Any = index.rows_of(table)
            (at,) = self._ragged() or (0,)
            for place in range(self.ndim):
                found = found if place == at else found.unsqueeze(place)
            return found if self.ndim else found.sum(0)
        if pairs is not None:
            found = pairs_of_cells(pairs[0].rows_of(table), pairs[1])
            for _ in range(self.ndim - 2):
                found = found.unsqueeze(0)
            return found
        if self.ndim == 2 and type(self.dims[1]) is int and 0 < self.dims[1] <= _MOST_COLUMNS:
            return torch.stack([self[:, k].rows_of(table) for k in range(self.dims[1])], 1)
        return table[self.asked()]

    def value(self) -> Any:
        """Definition (3)."""
        ragged, rec = self._ragged(), self.rec
        if len(ragged) == 1 and self.tensor.numel():
            return self._rows(*ragged, *ragged)
        sizes = [self.dims[place] for place in ragged]
        at = ragged[0] if ragged else 0
        if len(ragged) != 2 or ragged[1] != at + 1 or not all(type(size) is Size for size in sizes):
            return self.asked()
        if set(self.dims[:at]) - {1}:
            return self.asked()
        if self.ndim == 2 and self.is_identity():
            return identity(rec, sizes[0], self.dtype)
        found: Any = pairs_of(rec, self._rows(PACKED), sizes, self.dtype, self.dims[at + 2 :])
        for _ in range(at):
            found = found.unsqueeze(0)
        return found

    def is_identity(self) -> bool:
        """Whether it is `torch.eye(n)` as it was made."""
        return self.root.function is torch.eye and self.dtype is not torch.int64


def by_worked(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call on other values by indices that follow from sizes; NotImplemented of others. Raises CannotKeep where it
    changes what follows from sizes."""
    name = rules.name_of(func)
    if type(args[0]) is Worked and rules.changes_in_place(func, name, kwargs):
        raise CannotKeep
    if name.rstrip("_") in _BY_VECTOR:
        found = [x.index() if type(x) is Worked and x.dtype is torch.int64 else x for x in args]
        is_by_index = any(type(x) is Worked for x in args) and None not in found
        return rec.function(func, tuple(found), kwargs) if is_by_index else NotImplemented
    if name != "getitem" or type(args[0]) not in (Ragged, Pairs):
        return NotImplemented
    of, index = args
    items = list(index) if type(index) is tuple else [index]
    if type(of) is Pairs:
        return _of_pairs(rec, of, items)
    (place,) = [k for k, item in enumerate(items) if type(item) is Worked][:1] or (None,)
    if place is None or any(type(item) is Worked for item in items[place + 1 :]):
        return NotImplemented
    item = items[place]
    if item.dtype is torch.bool and item.ndim == 1:
        item = _places(rec, item)
    index, pairs = item.index(), item.pairs()
    if index is not None and item.ndim < 2:
        items[place] = index.tensor
        found = rec.function(func, (of, tuple(items) if len(items) > 1 else index), kwargs)
        return found if item.ndim or type(found) is not Ragged else rec.function(torch.sum, (found, found.at), {})
    if pairs is not None and item.ndim == 2 and len(items) == 1 and of.at == 0:
        return pairs_of_cells(rec.function(func, (of, pairs[0]), kwargs), pairs[1])
    return NotImplemented


def _places(rec: Recorder, mask: Worked) -> Any:
    """Where booleans are true, in order."""
    return rec.function(
        torch.reshape, (rec.function(torch.nonzero, (rec.function(torch.flatten, (mask,), {}),), {}), (-1,)), {}
    )


def _of_pairs(rec: Recorder, of: Pairs, items: Sequence[Any]) -> Any:
    """Those of every two rows that two vectors, or booleans, say: `scores[i, j]`, `scores[mask]`."""
    _, m = of.sizes()
    if of.dims[0] < 0 or of.dims[1] < 0:
        return NotImplemented
    if len(items) == 1 and type(items[0]) is Worked and items[0].dtype is torch.bool and items[0].ndim == 2:
        where = _places(rec, items[0])
    elif len(items) == 2 and all(type(x) is Worked and x.dtype is torch.int64 and x.ndim == 1 for x in items):
        where = items[0] * m + items[1]
    else:
        return NotImplemented
    index = where.index()
    return NotImplemented if index is None else rec.function(torch.Tensor.__getitem__, (cells_of(of), index), {})
