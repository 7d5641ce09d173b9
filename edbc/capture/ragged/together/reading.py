"""What tells instances apart that bring rows and indices, read for all of a mini-batch at once.

Definitions.

(1) A *leaf* of an instance is a tensor in it, or a list of integers, which is a vector of indices, or of pairs of
    them, two vectors. A tensor of one integer is a *label*, no vector but a value, where its place has had no vector
    of another size: a vector of one index is kept for no other. An instance is keyed when it is a nest of tuples,
    lists, dicts and objects with leaves and plain constants. Its key tells everything but the leaves' numbers, and
    sizes that are symbols. A matrix whose sizes are those of other leaves, an adjacency matrix say, is a *grid*: its
    key tells which. Of an object that is what closed code may read of it (`code.closed.Closed.fields`), and which
    earlier one it is; an integer there that is a leaf's size is that size, and so is a tensor of one integer that is
    an earlier leaf's, which is then no leaf. What a dict has by names that no forward has read so far, and in an
    instance that is a tuple what no forward has asked anything (`forwards._Shown`), is no part of an instance.
(2) A *group* are instances of one key. What stands in one place of all their nests is a *column*, looked at by calls
    that loop in C. Instances are taken for one group until a column shows that they are not; then they are read anew,
    those that are equal there together. So what is found of an instance does not depend on others.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from edbc.base.frozen import frozen
from edbc.capture.ragged.kept import KeptCall
from edbc.capture.ragged.program import Numbers
from edbc.capture.ragged.symbols import COLUMNS_MET, ENDS_MET, MOST_VECTORS, Size, along_of
from edbc.capture.ragged.value import Ragged
from edbc.capture.standins.nests import is_named, is_of_texts, places_once
from edbc.capture.standins.standin import PLAIN

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

DEEPEST = 8
"""Levels of an instance that is keyed: deeper ones are structures that code recurses on."""
_KIND = operator.attrgetter("shape", "dtype", "requires_grad", "is_cpu", "layout")
_WIDTHS = frozenset(range(2, MOST_VECTORS + 1))
_NESTS, _INTEGERS = {tuple, list}, {int}
OF_ONE = frozenset((torch.Size(()), torch.Size((1,))))
"""Shapes of what may be labels."""


class Grid(NamedTuple):
    """A leaf with two neighbouring dimensions as long as leaves with rows or indices are, by the numbers of these: a
    matrix of an instance's, or numbers of every two of its rows. Dimensions before the first one, at `at`, are of size
    1."""

    tensor: torch.Tensor
    of: tuple[int, int]
    at: int

    @property
    def is_by_rows(self) -> bool:
        """Whether it is a row for every two, and not packed."""
        return self.tensor.ndim > self.at + 2 and self.tensor.is_floating_point()

    def rows(self) -> torch.Tensor:
        """These rows."""
        return self.tensor.reshape(-1, *self.tensor.shape[self.at + 2 :])


class Label(NamedTuple):
    """A leaf that is a tensor of one integer, definition (1)."""

    tensor: torch.Tensor


@frozen
class Group:
    """Definition (2)."""

    key: Any
    """None of instances that are not keyed."""
    leaves: Sequence[Sequence[Any]]
    """A column of each."""
    sizes: Sequence[Sequence[int]]
    """Of the leaves that have rows or indices, a column of each."""
    integers: Sequence[int]
    """Of each integer of an object, which size it is, -1 for none."""
    lengths: Sequence[int]
    """The same of each tensor, which is no leaf where it is a size."""


class _Differ(Exception):
    """Items of a column are not equal: what tells them apart."""

    def __init__(self, labels: Sequence[Any]):
        self.labels = labels


class _NotKeyed(Exception):
    """Items of a column are nothing that a key could tell."""


_NOT_KEYED = Group(None, (), (), (), ())


def read(rec: Recorder, is_training: bool, instances: Sequence[Any]) -> list[tuple[Group, list[int]]]:
    """The groups of instances, with their numbers. Linear in the items of their nests, for each column that differs."""
    found = []
    pending = [[*range(len(instances))]] if instances else []
    while pending:
        members = pending.pop()
        try:
            found.append((_Reader(rec, is_training).group([instances[i] for i in members]), members))
        except _NotKeyed:
            found.append((_NOT_KEYED, members))
        except _Differ as differ:
            parts: dict[Any, list[int]] = {}
            for i, label in zip(members, differ.labels, strict=True):
                parts.setdefault(label, []).append(i)
            pending += parts.values()
    return found


class _Reader:
    """Reads instances that are taken for one group. Its methods append what tells those of a column from others."""

    def __init__(self, rec: Recorder, is_training: bool):
        self.rec = rec
        self.parts: list[Any] = [KeptCall, "", is_training]
        self.leaves: list[Sequence[Any]] = []
        self.sizes: list[Sequence[int]] = []
        self.integers: list[tuple[int, Sequence[int]]] = []
        """Of objects: where they stand in the parts."""
        self.lengths: list[int] = []
        self.grids: list[tuple[int, int]] = []
        """Where what may be one stands in the parts, and the number of the leaf."""
        self.of_labels: set[int] = set()
        """Which of the sizes are those of labels."""
        self.addresses: list[Sequence[int]] = []
        """Of objects."""

    def group(self, instances: Sequence[Any]) -> Group:
        """The group. Raises _Differ and _NotKeyed."""
        self.column(instances, 0)
        parts, found = self.parts, []
        if self.addresses:
            parts += _one([places_once(of) for of in zip(*self.addresses, strict=True)])
        for place, leaf in self.grids:
            items = self.leaves[leaf]
            shapes = [tuple(item.shape) for item in items]
            ndim = len(shapes[0])
            told = self.told_grid(leaf, shapes) or self.grid(ndim, shapes)
            if told is None:
                parts[place] = _one(shapes)
                continue
            numbers, at = told
            parts[place] = *numbers, at, _one([of[at + 2 :] for of in shapes])
            self.leaves[leaf] = [Grid(item, numbers, at) for item in items]
            self.rec.met |= {("grid", leaf): None, ("sizes", leaf, numbers, at): None}
        for place, values in self.integers:
            number = self.sizes_that_are(values)
            found.append(number)
            parts[place - 1 : place + 1] = (int, _one(values)) if number < 0 else (Size, number)
        return Group(tuple(parts), self.leaves, self.sizes, found, self.lengths)

    def grid(self, ndim: int, shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, int], int] | None:
        """As long as which leaves two dimensions of a column of tensors are, and where the first of them is; None where
        they are no grids."""
        is_matrix = ndim == 2 or _one([math.prod(of[:-2]) == 1 for of in shapes])
        for at in [ndim - 2] if is_matrix else range(ndim - 2):
            numbers = self.sizes_that_are(of[at] for of in shapes), self.sizes_that_are(of[at + 1] for of in shapes)
            if min(numbers) >= 0 and _one([math.prod(of[:at]) == 1 for of in shapes]):
                return numbers, at
        return None

    def told_grid(self, leaf: int, shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, int], int] | None:
        """The same as others in this place were, if all can be: of one row, too, and where other leaves are as long."""
        for what, *of in self.rec.told_by:
            if what == "sizes" and of[0] == leaf:
                (a, b), at = of[1:]
                if not self.of_labels.isdisjoint((a, b)):
                    continue
                sizes = zip(shapes, self.sizes[a], self.sizes[b], strict=True)
                if all(shape[at : at + 2] == (n, m) and math.prod(shape[:at]) == 1 for shape, n, m in sizes):
                    return (a, b), at
        return None

    def sizes_that_are(self, values: Iterable[int], step: int = 1) -> int:
        """The number of the first leaf, or by a `step` of -1 the last one, that is as long as a number of each
        instance's says; -1 for none. Raises _Differ."""
        numbers = [*values]
        for k, of in [*enumerate(self.sizes)][::step]:
            num_equal = sum(map(operator.eq, numbers, of))
            if num_equal == len(numbers) and min(numbers) > 1:
                return k
            if num_equal:
                break
        else:
            return -1
        return int(_one([next((k for k, size in [*enumerate(of)][::step] if size == value), -1) if value > 1 else -1
                         for value, *of in zip(numbers, *self.sizes, strict=True)]))  # fmt: skip

    def column(self, items: Sequence[Any], depth: int) -> None:
        """Any items."""
        kind, parts = _one([*map(type, items)]), self.parts
        if kind is torch.Tensor:
            return self.tensors(items)
        if kind in PLAIN or kind is float:
            if kind is float and not _one([bool(item and item == item) for item in items]):  # zeros have signs
                raise _NotKeyed
            parts += kind, _one(items)
            return None
        if kind is list and self.is_of_numbers(items):
            return None
        if depth == DEEPEST:
            raise _NotKeyed
        if kind is tuple or kind is list or kind is dict or is_named(kind):
            parts += kind, _one([*map(len, items)])
            if kind is dict:
                if not _one([{str} == {*map(type, item)} or all(map(is_of_texts, item)) for item in items]):
                    raise _NotKeyed  # tensors are not to be compared
                parts += (names := _one([*map(tuple, items)]))
                unread = self.rec.unread_names.get(names)
                items = [item.values() for item in items]
            else:
                names = range(len(items[0]))
                unread = None if depth else self.rec.unread_names.get((kind, len(names)))
            if unread:
                parts.append(unread)
                items = [[x for name, x in zip(names, item, strict=True) if name not in unread] for item in items]
            for column in zip(*items, strict=True):
                self.column(column, depth + 1)
            return None
        fields = self.rec.tracer.closed.fields(kind)
        if fields is None:
            raise _NotKeyed
        return self.objects(kind, fields, items, depth + 1)

    def is_of_numbers(self, items: Sequence[list[Any]]) -> bool:
        """Lists; whether they are leaves."""
        if _one([*map(bool, items)]):
            kinds = [*map(type, itertools.chain.from_iterable(items))]
            width = 1 if kinds.count(int) == len(kinds) else _one([*map(width_of, items)])
            if width:
                self.parts += list, Numbers, width
                self.leaves.append(items)
                self.sizes.append([*map(len, items)])
            return bool(width)
        return False

    def objects(self, kind: type, fields: frozenset[str], items: Sequence[Any], depth: int) -> None:
        """Objects of a class: what code may read of them."""
        parts, spaces = self.parts, [*map(vars, items)]
        parts += kind, None
        self.addresses.append([*map(id, items)])
        names = _one([tuple([name for name in space if name in fields]) for space in spaces])
        for name in names:
            values = [space[name] for space in spaces]
            parts.append(name)
            if _one([type(value) is int for value in values]):
                parts += int, None
                self.integers.append((len(parts) - 1, values))
            else:
                self.column(values, depth)
        parts.append(None)

    def tensors(self, items: Sequence[torch.Tensor]) -> None:
        """Leaves that are tensors; one integer as large as a leaf before it is long is that size."""
        kinds = [*map(_KIND, items)]
        told: list[Any] = [*map(self.rec.leaf_kinds.get, kinds)]
        self.lengths.append(-1)
        if not all(told):
            place = "no length", len(self.leaves)
            if place not in self.rec.told_by and any(
                shape == (1,) and dtype is torch.int64 for shape, dtype, *_ in kinds
            ):
                numbers = [*map(_as_length, items)]
                self.lengths[-1] = self.sizes_that_are(numbers, -1)
                if self.lengths[-1] < 0 and max(numbers) > 1:
                    self.rec.met[place] = None
            if self.lengths[-1] >= 0:
                self.parts += Size, self.lengths[-1]
                return
            lengths = zip(*self.sizes, strict=True) if self.sizes else itertools.repeat(())
            told = [known or self._told(item, kind, earlier)
                    for known, item, kind, earlier in zip(told, items, kinds, lengths, strict=False)]  # fmt: skip
        every, sizes = zip(*told, strict=True)
        parts = _one(every)
        if parts is None:
            raise _NotKeyed
        self.parts += parts
        leaves: Sequence[Any] = items
        if parts[0] is Grid:
            self.grids.append((len(self.parts) - 1, len(self.leaves)))
        elif parts[0] is Label:
            leaves = [*map(Label, items)]
            self.of_labels |= {len(self.sizes)} if sizes[0] else set()
        elif parts[0] is Numbers and any(size != (1,) for size in sizes):
            self.rec.met["vector", len(self.leaves)] = None
        self.leaves.append(leaves)
        self.sizes += zip(*sizes, strict=True)

    def _told(self, item: torch.Tensor, kind: tuple[Any, ...], earlier: Sequence[int]) -> Any:
        """What `told` says, by kind, so that equal parts are one object: but for what is asked what is earlier."""
        known, shape, key = self.rec.leaf_kinds, kind[0], kind
        is_label = not shape or ("vector", len(self.leaves)) not in self.rec.told_by
        if len(shape) > 1 and shape[-1] == shape[-2] and (item.requires_grad or self.is_of_rows(item)):
            key = *kind, shape[-1] in earlier, ("grid", len(self.leaves)) in self.rec.told_by
        elif shape == (1,):
            key = *kind, is_label
        found = known.get(key)
        if found is None:
            parts, sizes = self.told(item, earlier, is_label and shape in OF_ONE)
            found = known.add(key, (known.get(parts) or known.add(parts, parts) if parts else None, sizes))
        return found

    def is_of_rows(self, item: torch.Tensor) -> bool:
        """Whether a tensor may be rows."""
        return self.rec.place_of_rows(item.shape, item.dtype) >= 0

    def told(self, item: torch.Tensor, earlier: Sequence[int],
             is_label: bool) -> tuple[tuple[Any, ...] | None, tuple[int, ...]]:  # fmt: skip
        """What tells a tensor from others, None for one that is no leaf, and its sizes. A square one as long as an
        `earlier` leaf is a grid; where it is of as many columns as rows have elsewhere, if this leaf was one before
        that could be nothing else."""
        if not item.is_cpu or item.layout is not torch.strided:
            return None, ()
        shape, dtype = tuple(item.shape), item.dtype  # slices of torch.Size take twice the time of all of this
        if dtype is torch.int64 and is_label:
            return (Label, shape), shape
        if dtype is torch.int64:
            if len(shape) == 2 and shape[0] > 2 and shape[1] == 1:
                self.rec.met[COLUMNS_MET] = None
            elif len(shape) == 2 and shape[0] == 2 and shape[1] > 1:
                self.rec.met[ENDS_MET] = None
            along = along_of(self.rec, shape) if 0 < len(shape) < 3 else 0
            count = 1 if along < 0 else shape[along] if len(shape) == 2 else 0
            sizes = shape if along < 0 else shape[1 - along : 2 - along]
            return ((Numbers, along, count), sizes) if 0 < count <= MOST_VECTORS else (None, ())
        is_matrix = len(shape) == 2 or (len(shape) > 2 and math.prod(shape[:-2]) == 1)
        is_square = is_matrix and shape[-2] == shape[-1] and shape[-1] in earlier
        if is_square and self.is_of_rows(item):
            is_square = ("grid", len(self.leaves)) in self.rec.told_by
        if is_square and (dtype is torch.bool or dtype.is_floating_point) and not item.requires_grad:
            return (Grid, dtype, len(shape), None), ()
        if dtype is torch.bool and len(shape) > 1 and not self.is_of_rows(item):
            return (Grid, dtype, len(shape), None), ()
        if not dtype.is_floating_point:
            return None, ()
        at = self.rec.place_of_rows(shape, dtype)
        if at >= 0:
            return (Ragged, dtype, item.requires_grad, at, shape[:at], shape[at + 1 :]), (shape[at],)
        if len(shape) > 1 and not item.requires_grad:
            return (Grid, dtype, len(shape), None), ()
        return (torch.Tensor, dtype, item.requires_grad, shape), ()


def _as_length(item: torch.Tensor) -> int:
    """How long the only sequence of a batch may be, by a tensor; 0 of other tensors."""
    return int(item) if item.shape == (1,) and item.dtype is torch.int64 and item.is_cpu else 0


def _one(labels: Sequence[Any]) -> Any:
    """What all items of a column have. Raises _Differ where they have not."""
    if labels.count(labels[0]) < len(labels):
        raise _Differ(labels)
    return labels[0]


def width_of(item: Sequence[Any]) -> int:
    """1 for a list of integers, the number of vectors for one of tuples or lists of so many integers, 0 for others."""
    kinds = set(map(type, item))
    if kinds == _INTEGERS:
        return 1
    if not kinds <= _NESTS:
        return 0
    widths = set(map(len, item))
    if len(widths) != 1 or not widths <= _WIDTHS or set(map(type, itertools.chain.from_iterable(item))) != _INTEGERS:
        return 0
    return widths.pop()


def vectors_in(rec: Recorder, leaf: Any) -> int:
    """How many vectors a leaf of indices is."""
    if type(leaf) is list:
        return width_of(leaf)
    along = along_of(rec, leaf.shape)
    return 1 if along < 0 else leaf.shape[along]
