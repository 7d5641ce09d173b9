"""Kept forwards: what a mini-batch's instances bring to a closed `forward`, taken in at once.

A `forward` whose code is closed is one run for each instance (`ragged.kept`). Instances of one key differ in numbers
alone: in the rows, values and indices that they bring, and in how many these are. So Python does not go through what
each of them records. Rows of all are one matrix, indices one vector, a look-up is one look-up; what tells the runs
apart are columns of integers, and each instance's run is a line of these.

Definitions.

(1) A *leaf* of an instance is a tensor in it, or a list of integers, which is a vector of indices. An instance is keyed
    when it is a nest of tuples, lists and dicts with leaves and plain constants. Its key tells everything but the
    leaves' numbers, and sizes that are symbols.
(2) An instance *fits* what is kept where its sizes are equal where they must be, and its indices are rows. One that
    does not runs as it is written, and raises what eager execution does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from edbc.capture.ragged.expandloops import extents
from edbc.capture.ragged.kept import (
    BY_SIZES,
    NOT_KEPT,
    Given,
    KeptCall,
    LookedUp,
    can_keep,
    first_whole_call,
    may_keep,
    symbolic_tensor,
)
from edbc.capture.ragged.program import INDICES, CannotKeep, Ints, Numbers
from edbc.capture.ragged.rows import constant_rows_of
from edbc.capture.ragged.symbols import MOST_VECTORS, Index, along_of, vectors_of
from edbc.capture.ragged.value import Ragged
from edbc.capture.standins.nests import rebuilt
from edbc.capture.standins.standin import PLAIN

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

DEEPEST = 8
"""Levels of an instance that is keyed: deeper ones are structures that code recurses on."""
MOST_KEYS = 256
"""Kept forwards of a model, beyond which constants or sizes differ in every instance, and none is kept any more."""


class Forwards:
    """`forward` of the instances of one mini-batch, called in their order; the recorder says which it is."""

    def __init__(self, rec: Recorder, shadow: nn.Module, instances: Sequence[Any]):
        self.rec, self.shadow, self.function = rec, shadow, type(shadow).forward
        self.leaves: list[list[Any]] = []
        self.sizes: list[list[int]] = []
        """Of the leaves that have rows or indices."""
        self.keys: list[Any] = []
        self.runs: list[tuple[KeptCall, list[int]] | None] = [None] * len(instances)
        for instance in instances:
            parts: list[Any] = [KeptCall, "", shadow.training]
            leaves: list[Any] = []
            sizes: list[int] = []
            self.keys.append(tuple(parts) if _is_keyed(rec, instance, parts, leaves, sizes, 0) else None)
            self.leaves.append(leaves)
            self.sizes.append(sizes)

    def __call__(self, instance: Any) -> Any:
        rec, number = self.rec, self.rec.instance
        if self.runs[number] is None and self.keys[number] is not None and can_keep(rec) and rec.ragged:
            key, sizes = self.keys[number], None
            known = rec.functions.get(key)
            if known is BY_SIZES:
                sizes = self.sizes[number]
                known = rec.functions.get((key, tuple(sizes)))
            if type(known) is KeptCall:
                of_key = [i for i in range(number, len(self.keys)) if self.keys[i] == key]
                with suppress(OverflowError, CannotKeep):  # words beyond 64 bits
                    self._take_in(known, [i for i in of_key if sizes is None or self.sizes[i] == sizes])
            elif known is not NOT_KEPT:
                return self._first(key, sizes is not None, instance)
        run = self.runs[number]
        return self.function(self.shadow, instance) if run is None else run[0].of(rec, run[1])

    def _first(self, key: Any, by_sizes: bool, instance: Any) -> Any:
        """The first instance of a key, from which what it records is kept if it can be."""
        rec, given = self.rec, Given([], [], [])
        if rec.kept_forwards < MOST_KEYS:
            try:
                for leaf in self.leaves[rec.instance]:
                    _give(rec, leaf, given)
            except OverflowError:
                return self.function(self.shadow, instance)
            if may_keep(given):
                rec.kept_forwards += 1
                shown = _symbolic(rec, instance, iter(given.rows), iter(given.indices))
                forward = lambda of: self.function(self.shadow, of)  # noqa: E731
                sizes = tuple(self.sizes[rec.instance])
                return first_whole_call(rec, key, sizes, by_sizes, given, forward, (shown, instance))
        return self.function(self.shadow, instance)

    def _take_in(self, known: KeptCall, members: list[int]) -> None:
        """The runs of instances of one key, as far as they fit. O(rows + indices), natively but for the leaves."""
        brought = self._brought(members)
        fits = brought.fits(known)
        if not fits.all():
            for i in np.flatnonzero(~fits).tolist():
                self.keys[members[i]] = None
            members = [i for i, fit in zip(members, fits.tolist(), strict=True) if fit]
            if not members:
                return
            brought = self._brought(members)
        for i, run in zip(members, brought.runs(known), strict=True):
            self.runs[i] = known, run

    def _brought(self, members: list[int]) -> _Brought:
        return _Brought(self.rec, [self.leaves[i] for i in members], [self.sizes[i] for i in members])


class _Brought:
    """The leaves of instances of one key, by the arguments of a program: rows, then values, then indices."""

    def __init__(self, rec: Recorder, leaves: Sequence[Sequence[Any]], sizes: Sequence[Sequence[int]]):
        self.rec, self.count = rec, len(leaves)
        self.rows: list[tuple[Sequence[torch.Tensor], Ints]] = []
        """Of each leaf of rows, those of all instances, and how many each has."""
        self.values: list[Sequence[torch.Tensor]] = []
        self.indices: list[Numbers] = []
        """With an array of one item per instance in each field but the last; offsets count from 0."""
        of_leaf = iter(np.array(sizes, np.int64).T.copy())
        for column in zip(*leaves, strict=True):
            first = column[0]
            if type(first) is list or first.dtype is torch.int64:
                self.indices += _numbers(_vectors(column), next(of_leaf))
            elif first.ndim and rec.is_ragged(first):
                self.rows.append((column, next(of_leaf)))
            else:
                self.values.append(column)

    def fits(self, known: KeptCall) -> Any:
        """Definition (2): which instances do."""
        sizes: list[Any] = [size for _, size in self.rows] + [1] * len(self.values)
        sizes += [numbers.size for numbers in self.indices]
        fit = np.ones(self.count, np.bool_)
        for extra in known.extras:
            if isinstance(extra, LookedUp):
                numbers: Any = self.indices[extra.number]
                fit &= (numbers.size > 0) & (numbers.lowest >= 0) & (numbers.highest < extra.table.shape[0])
            sizes.append(extra.size(self.indices))
        return fit & known.fits(self.indices, sizes)

    def runs(self, known: KeptCall) -> list[list[int]]:
        """The arguments of each instance's run; what they name is recorded."""
        rec, flat = self.rec, list[Any]()
        for tensors, size in self.rows:
            is_apart = len(set(map(id, tensors))) < len(tensors)  # equal ones stay one
            if is_apart:
                flat += [constant_rows_of(rec, tensor, 0, False).refs.start for tensor in tensors], -1, size
            else:
                flat += rec.constant_rows(torch.cat(list(tensors))).start - _begins(size), -1, size
        for tensors in self.values:
            flat += [rec.constant(tensor).ref for tensor in tensors], 0, 1
        held = [rec.hold(numbers.array, False).offset + numbers.offset for numbers in self.indices]
        for offset, numbers in zip(held, self.indices, strict=True):
            flat += offset, INDICES, numbers.size
        for extra in known.extras:
            if isinstance(extra, LookedUp):
                numbers = self.indices[extra.number]
                looked_up = rec.rows_of_table(extra.table, numbers.array.tolist(), True)
                assert looked_up is not None
                flat += looked_up.refs.start - numbers.offset, -1, numbers.size
            else:
                flat += extra.triple(rec, None)
        lines = np.empty((self.count, len(flat)), np.int64)
        for k, column in enumerate(flat):
            lines[:, k] = column
        return lines.tolist()


def _begins(sizes: Ints) -> Ints:
    """How many there are before each."""
    return np.cumsum(sizes) - sizes


def _vectors(column: Sequence[Any]) -> Sequence[Ints]:
    """The vectors of one leaf of indices, those of all instances behind each other."""
    first = column[0]
    if type(first) is list:
        return [np.fromiter(itertools.chain.from_iterable(column), np.int64)]
    if first.ndim == 1:
        return [torch.cat(list(column)).numpy()]
    along = along_of(first.shape)
    found = torch.cat(list(column), 1 - along).numpy()
    return list(found if along == 0 else np.ascontiguousarray(found.T))


def _numbers(vectors: Sequence[Ints], sizes: Ints) -> Iterator[Numbers]:
    begins = _begins(sizes)
    ends = begins + sizes
    for vector in vectors:
        lowest, highest = extents(vector, begins, ends)
        yield Numbers(begins, sizes, lowest, highest, vector)  # type: ignore[arg-type]


def _is_keyed(rec: Recorder, item: Any, parts: list[Any], leaves: list[Any], sizes: list[int], depth: int) -> bool:
    """Append what tells an instance from others, its leaves, and their sizes; definition (1)."""
    kind = type(item)
    if kind is torch.Tensor:
        if not item.is_cpu or item.layout is not torch.strided:
            return False
        leaves.append(item)
        shape, dtype = tuple(item.shape), item.dtype  # slices of torch.Size take twice the time of all of this
        if dtype is torch.int64:
            along = along_of(shape) if 0 < len(shape) < 3 else 0
            count = 1 if along < 0 else shape[along] if len(shape) == 2 else 0
            parts += Numbers, along, count
            sizes += shape if along < 0 else shape[1 - along : 2 - along]
            return 0 < count <= MOST_VECTORS
        if not dtype.is_floating_point:
            return False
        if shape and rec.has_rows(shape[1:], dtype):
            sizes.append(shape[0])
            parts += Ragged, dtype, item.requires_grad, shape[1:]
        else:
            parts += torch.Tensor, dtype, item.requires_grad, shape
        return True
    if kind in PLAIN or (kind is float and item and item == item):
        parts += kind, item
        return True
    if kind is list and item and {int} == set(map(type, item)):
        parts += list, Numbers
        leaves.append(item)
        sizes.append(len(item))
        return True
    is_nest = kind is tuple or kind is list or kind is dict or _is_named(kind)  # type: ignore[arg-type]
    if depth == DEEPEST or not is_nest:
        return False
    parts += kind, len(item)
    if kind is dict:
        if {str} != set(map(type, item)):
            return False
        parts += item
        item = item.values()
    return all(_is_keyed(rec, part, parts, leaves, sizes, depth + 1) for part in item)


@functools.cache
def _is_named(kind: Any) -> bool:
    """Whether tuples of a class have names for their items, and nothing else that code could ask them for."""
    fields = getattr(kind, "_fields", None)
    public = {name for name in vars(kind) if not name.startswith("_")}
    return kind.__mro__ == (kind, tuple, object) and fields is not None and public == set(fields)


def _give(rec: Recorder, leaf: Any, given: Given) -> None:
    """A leaf as what a call is given."""
    if type(leaf) is list:
        given.indices.append(rec.hold(np.array(leaf, np.int64), False))
    elif leaf.dtype is torch.int64:
        found = vectors_of(rec, leaf)
        assert found is not None
        given.indices.extend(found[0])
    elif leaf.ndim and rec.is_ragged(leaf):
        given.rows.append(constant_rows_of(rec, leaf, 0, False))
    else:
        given.values.append(rec.constant(leaf).ref)


def _symbolic(rec: Recorder, item: Any, rows: Iterator[Ragged], indices: Iterator[Numbers]) -> Any:
    """An instance with stand-ins in the place of its leaves."""
    kind = type(item)
    if kind is torch.Tensor:
        return symbolic_tensor(rec, item, rows, indices)
    if kind is list and item and {int} == set(map(type, item)):
        numbers = next(indices)
        return Index(rec, rec.tensor_of(numbers), (numbers,), -1)
    if kind is dict:
        return {key: _symbolic(rec, x, rows, indices) for key, x in item.items()}
    if issubclass(kind, tuple | list):
        found = [_symbolic(rec, x, rows, indices) for x in item]
        return found if kind is list else rebuilt(item, found)
    return item
