"""Kept forwards: what a mini-batch's instances bring to a closed `forward`, taken in at once.

A `forward` whose code is closed is one run for each instance (`ragged.kept`). Instances of one key differ in numbers
alone: in the rows, values and indices that they bring, and in how many these are. So Python does not go through what
each of them records. Rows of all are one matrix, indices one vector, a look-up is one look-up; what tells the runs
apart are columns of integers, and each instance's run is a line of these.

Definitions.

(1) A *leaf* of an instance is a tensor in it, or a list of integers, which is a vector of indices, or of pairs of them,
    two vectors. An instance is keyed when it is a nest of tuples, lists, dicts and objects with leaves and plain
    constants. Its key tells everything but the leaves' numbers, and sizes that are symbols. Of an object that is what
    closed code may read of it (`code.closed.Closed.fields`); an integer there that is a leaf's size is that size.
(2) An instance *fits* what is kept where its sizes are equal where they must be, and its indices are rows. One that
    does not runs as it is written, and raises what eager execution does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbc.capture.forward.returned import Collected
from edbc.capture.ragged.expandloops import extents
from edbc.capture.ragged.kept import (
    BY_SIZES,
    NOT_KEPT,
    First,
    Given,
    KeptCall,
    LookedUp,
    can_keep,
    first_whole_call,
    may_keep,
    symbolic_tensor,
)
from edbc.capture.ragged.program import INDICES, CannotKeep, Ints, Numbers, Program, Triple, size_of, triple
from edbc.capture.ragged.rows import constant_rows_of
from edbc.capture.ragged.symbols import MOST_VECTORS, Index, Size, along_of, vectors_of
from edbc.capture.ragged.together.templates import with_patterns
from edbc.capture.ragged.value import Ragged
from edbc.capture.standins.nests import is_named
from edbc.capture.standins.shown import Shown
from edbc.capture.standins.standin import PLAIN

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

DEEPEST = 8
"""Levels of an instance that is keyed: deeper ones are structures that code recurses on."""
_WIDTHS = frozenset(range(2, MOST_VECTORS + 1))
MOST_KEYS = 256
"""Kept forwards of a model, beyond which no other is tried."""
FEW = 64
"""Instances that are looked at in any case. Of later ones half must be of forwards that are known, or constants or
sizes differ in each, and none is kept any more."""
MANY = 6
"""Instances of one key from which on their columns are faster than one after the other."""


class Forwards:
    """`forward` of the instances of one mini-batch, called in their order; the recorder says which it is."""

    def __init__(self, rec: Recorder, shadow: nn.Module, instances: Sequence[Any]):
        self.rec, self.shadow, self.function = rec, shadow, type(shadow).forward
        self.instances = instances
        self.read: list[_Read | None] = [None] * len(instances)
        """What is known of instances, once it was asked for."""
        self.runs: list[tuple[KeptCall, Ints] | None] = [None] * len(instances)

    @functools.cached_property
    def members(self) -> dict[Any, list[int]]:
        """The instances of each key, from this one on."""
        found: dict[Any, list[int]] = {}
        for number in range(self.rec.instance, len(self.instances)):
            found.setdefault(self.of(number).key, []).append(number)
        return found

    def of(self, number: int) -> _Read:
        """What tells an instance from others."""
        known = self.read[number]
        if known is None:
            self.rec.read_forwards += 1
            known = self.read[number] = _Read(self.rec, self.shadow.training)
            known.take(self.instances[number])
        return known

    def __call__(self, instance: Any) -> Any:
        rec, number = self.rec, self.rec.instance
        if self.runs[number] is None and can_keep(rec) and rec.ragged and self._pays():
            read = self.of(number)
            key, sizes = read.key, None
            known = NOT_KEPT if key is None else rec.functions.get(key)
            if known is BY_SIZES:
                sizes = read.sizes
                known = rec.functions.get((key, tuple(sizes)))
            if type(known) is KeptCall:
                of_key = self.members[key]
                if sizes is not None:
                    of_key = [i for i in of_key if self.of(i).sizes == sizes]
                with suppress(OverflowError, CannotKeep):  # words beyond 64 bits
                    self._take_in(known, [i for i in of_key if i >= number])
            elif known is not NOT_KEPT:
                return self._first(read, sizes is not None, instance)
        run = self.runs[number]
        return self.function(self.shadow, instance) if run is None else run[0].of(rec, run[1].tolist())

    def at_once(self) -> tuple[Collected, Sequence[Program]] | None:
        """What all instances return, where forward runs for none, and the programs that are recorded: each is of a
        forward that is known, fits it, and gets single values from it. O(what they bring)."""
        rec = self.rec
        rec.next_instance(0)
        if not (can_keep(rec) and rec.ragged and self._pays()):
            return None
        known: list[Any] = [None if key is None else rec.functions.get(key) for key in self.members]
        if not known or not all(type(of_key) is KeptCall and of_key.form is not None for of_key in known):
            return None
        taken: list[_Taken] = []
        with suppress(OverflowError, CannotKeep):
            for of_key, members in zip(known, self.members.values(), strict=True):
                lines = self._take_in(of_key, members)
                if lines is None:
                    return None
                taken.append(_Taken(of_key, members, lines, with_patterns(rec.table, of_key.program)))
        if len(taken) < len(known) or not all(map(_Taken.returns_values, taken)):
            return None
        if torch.is_grad_enabled():
            return self._collected(taken, self._in_turn(taken)), ()
        made = [rec.run_together(of.program, of.lines) for of in taken]
        return self._collected(taken, made), [of.program for of in taken]

    def _in_turn(self, taken: Sequence[_Taken]) -> list[Ints]:
        """A run for each instance, and the refs of their results by key. Gradients are sums over batches in the order
        of their nodes: those have the bits that they have where instances are recorded for the first time, or captured,
        and patterns are found among nodes."""
        made = [np.empty((len(of.call.program.counts), len(of.members)), np.int64) for of in taken]
        for k, row in self._places(taken):
            program, line = taken[k].call.program, taken[k].lines[row]
            made[k][:, row] = [refs.start for refs in self.rec.run(program, line.tolist())]
        return made

    def _places(self, taken: Sequence[_Taken]) -> list[tuple[int, int]]:
        """Of each instance in order the number of its key, and its own there."""
        places = sorted((i, k, row) for k, of in enumerate(taken) for row, i in enumerate(of.members))
        return [(k, row) for _, k, row in places]

    def _collected(self, taken: Sequence[_Taken], made: Sequence[Ints]) -> Collected:
        """What instances return, where `made` has the refs of each result of a key's instances."""
        found = [of.results(refs) for of, refs in zip(taken, made, strict=True)]
        forms: list[Any] = [of.call.form for of in taken]
        if len(taken) == 1:
            (refs,), (form,), count = found, forms, len(self.instances)
            ends, slots, nests = [*range(0, refs.size + 1, refs.shape[1] or 1)], form.slots * count, [form.nest] * count
            if not refs.size:
                ends = [0] * (count + 1)
            return Collected(refs.reshape(-1), slots, nests, ends[1:], result_ptr=ends)
        parts = self._places(taken)
        refs = np.concatenate([found[k][row] for k, row in parts])
        ends = [0, *itertools.accumulate(len(forms[k].slots) for k, _ in parts)]
        slots = [slot for k, _ in parts for slot in forms[k].slots]
        return Collected(refs, slots, [forms[k].nest for k, _ in parts], ends[1:], result_ptr=ends)

    def _pays(self) -> bool:
        return 2 * self.rec.found_forwards > self.rec.read_forwards - FEW

    def _first(self, read: _Read, by_sizes: bool, instance: Any) -> Any:
        """The first instance of a key, from which what it records is kept if it can be."""
        rec = self.rec
        if rec.kept_forwards < MOST_KEYS:
            try:
                given = _given(rec, read.leaves)
            except OverflowError:
                return self.function(self.shadow, instance)
            if may_keep(given):
                rec.kept_forwards += 1
                shown = _Shown(rec, read, given)
                sizes = tuple(read.sizes)

                def forward(of: Any) -> Any:
                    if of is instance:
                        return self.function(self.shadow, of)
                    result = self.function(self.shadow, of)
                    shown.require_unchanged()
                    return result

                args = shown.of(instance), instance
                return first_whole_call(rec, read.key, sizes, by_sizes, given, forward, args)
        return self.function(self.shadow, instance)

    def _take_in(self, known: KeptCall, members: list[int]) -> Ints | None:
        """The runs of instances of one key, as far as they fit, and their arguments, a line for each, where all do.
        O(rows + indices), natively but for the leaves."""
        self.rec.found_forwards += len(members)
        fitting = members
        if len(members) < MANY:
            flats = [known.flat(self.rec, _given(self.rec, self.of(i).leaves)) for i in members]
            fitting = [i for i, flat in zip(members, flats, strict=True) if flat is not None]
            lines = np.array([flat for flat in flats if flat is not None], np.int64)
        else:
            brought = self._brought(members)
            fits = brought.fits(known)
            if not fits.all():
                fitting = [i for i, fit in zip(members, fits.tolist(), strict=True) if fit]
                brought = self._brought(fitting)
            lines = brought.runs(known) if fitting else np.zeros((0, 0), np.int64)
        for i in set(members).difference(fitting):
            self.of(i).key = None
        for i, line in zip(fitting, lines, strict=True):
            self.runs[i] = known, line
        return lines if len(fitting) == len(members) else None

    def _brought(self, members: list[int]) -> _Brought:
        read = [self.of(i) for i in members]
        return _Brought(self.rec, [of.leaves for of in read], [of.sizes for of in read])


class _Taken(NamedTuple):
    """The instances of one key, the arguments of each, and what is recorded for them."""

    call: KeptCall
    members: Sequence[int]
    lines: Ints
    program: Program

    def returns_values(self) -> bool:
        """Whether each result is one value of each instance, for any of them that has rows."""
        sizes = list(self.lines.T[2::3])
        return all(count is None or bool(np.all(size_of(count, sizes) == 1)) for count in self.program.counts)

    def results(self, made: Ints) -> Ints:
        """The refs of what each instance returns, where `made` has those of each result of the run."""
        form: Any = self.call.form
        columns = [made[k] if k >= 0 else self.lines[:, -3 - 3 * k] for k in form.sources]
        return np.array(columns, np.int64).reshape(len(columns), len(self.lines)).T


def note_sizes(rec: Recorder, instances: Sequence[Any]) -> None:
    """Note how many rows the leaves of instances have. What closed code computes of those alone is recorded too."""
    for instance in instances:
        read = _Read(rec, False)
        read.take(instance)
        for leaf in read.leaves if read.key is not None else ():
            if type(leaf) is torch.Tensor and leaf.is_floating_point():
                rec.note_sizes(leaf)


class _Brought:
    """The leaves of instances of one key, by the arguments of a program: rows, then values, then indices."""

    def __init__(self, rec: Recorder, leaves: Sequence[Sequence[Any]], sizes: Sequence[Sequence[int]]):
        self.rec, self.count = rec, len(leaves)
        self.rows: list[tuple[Sequence[torch.Tensor], int, Ints]] = []
        """Of each leaf of rows, those of all instances, the dimension that they stand along, how many each has."""
        self.values: list[Sequence[torch.Tensor]] = []
        self.indices: list[Numbers] = []
        """With an array of one item per instance in each field but the last; offsets count from 0."""
        of_leaf = iter(np.array(sizes, np.int64).T.copy())
        for column in zip(*leaves, strict=True):
            first = column[0]
            if type(first) is list or first.dtype is torch.int64:
                self.indices += _numbers(_vectors(column), next(of_leaf))
            elif (at := rec.place_of_rows(first.shape, first.dtype)) >= 0:
                self.rows.append((column, at, next(of_leaf)))
            else:
                self.values.append(column)

    def fits(self, known: KeptCall) -> Any:
        """Definition (2): which instances do."""
        sizes: list[Any] = [size for *_, size in self.rows] + [1] * len(self.values)
        sizes += [numbers.size for numbers in self.indices]
        fit = np.ones(self.count, np.bool_)
        for extra in known.extras:
            if isinstance(extra, LookedUp):
                numbers: Any = self.indices[extra.number]
                fit &= (numbers.size > 0) & (numbers.lowest >= 0) & (numbers.highest < extra.table.shape[0])
            sizes.append(extra.size(self.indices, sizes))
            if isinstance(extra, First):
                fit &= (sizes[-1] > 0) & (sizes[-1] <= extra.table.shape[0])
        return fit & known.fits(self.indices, sizes)

    def runs(self, known: KeptCall) -> Ints:
        """The arguments of each instance's run, a line each; what they name is recorded."""
        rec, flat = self.rec, list[Any]()
        for tensors, at, size in self.rows:
            is_apart = len(set(map(id, tensors))) < len(tensors)  # equal ones stay one
            if is_apart:
                flat += [constant_rows_of(rec, tensor, at, False).refs.start for tensor in tensors], -1, size
            else:
                joined = torch.cat([tensor.movedim(at, 0) for tensor in tensors] if at else list(tensors))
                flat += rec.constant_rows(joined).start - _begins(size), -1, size
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
            elif isinstance(extra, First):
                size = np.broadcast_to(extra.size(self.indices, flat[2::3]), self.count)
                begins = _begins(size)
                places = np.arange(size.sum()) - np.repeat(begins, size)
                looked_up = rec.rows_of_table(extra.table, places.tolist(), True)
                assert looked_up is not None
                flat += looked_up.refs.start - begins, -1, size
            else:
                flat += extra.triple(rec, None, ())
        lines = np.empty((self.count, len(flat)), np.int64)
        for k, column in enumerate(flat):
            lines[:, k] = column
        return lines


def _begins(sizes: Ints) -> Ints:
    """How many there are before each."""
    return np.cumsum(sizes) - sizes


def _vectors(column: Sequence[Any]) -> Sequence[Ints]:
    """The vectors of one leaf of indices, those of all instances behind each other."""
    first = column[0]
    if type(first) is list:
        numbers = itertools.chain.from_iterable(column)
        if type(first[0]) is int:
            return [np.fromiter(numbers, np.int64)]
        found = np.fromiter(itertools.chain.from_iterable(numbers), np.int64)
        return list(np.ascontiguousarray(found.reshape(-1, len(first[0])).T))
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


class _Read:
    """What tells an instance from others, its leaves, and their sizes; definition (1)."""

    __slots__ = ("integers", "key", "leaves", "parts", "rec", "sizes")

    def __init__(self, rec: Recorder, is_training: bool):
        self.rec = rec
        self.parts: list[Any] = [KeptCall, "", is_training]
        self.leaves: list[Any] = []
        self.sizes: list[int] = []
        """Of the leaves that have rows or indices."""
        self.integers: list[int] = []
        """Where integers of objects stand in the parts; then which sizes they are, -1 for none."""
        self.key: Any = None

    def take(self, instance: Any) -> None:
        """Read an instance; it has a key if it is keyed."""
        if not self.is_keyed(instance, 0):
            return
        parts, sizes, found = self.parts, self.sizes, []
        for place in self.integers:
            value = parts[place]
            found.append(sizes.index(value) if value > 1 and value in sizes else -1)
            if found[-1] >= 0:
                parts[place - 1 : place + 1] = Size, found[-1]
        self.integers, self.key = found, tuple(parts)

    def is_keyed(self, item: Any, depth: int) -> bool:
        """Append what tells one item from others."""
        kind, parts = type(item), self.parts
        if kind is torch.Tensor:
            return self.is_keyed_tensor(item)
        if kind in PLAIN or (kind is float and item and item == item):
            parts += kind, item
            return True
        if kind is list and item:
            width = _width(item)
            if width:
                parts += list, Numbers, width
                self.leaves.append(item)
                self.sizes.append(len(item))
                return True
        if depth == DEEPEST:
            return False
        if kind is tuple or kind is list or kind is dict or is_named(kind):  # type: ignore[arg-type]
            parts += kind, len(item)
            if kind is dict:
                if {str} != set(map(type, item)):
                    return False
                parts += item
                item = item.values()
            return all(self.is_keyed(part, depth + 1) for part in item)
        fields = self.rec.tracer.fields_of(kind)
        return fields is not None and self.is_keyed_object(item, fields, depth + 1)

    def is_keyed_object(self, item: Any, fields: frozenset[str], depth: int) -> bool:
        """What code may read of an object."""
        parts = self.parts
        parts += type(item), None
        for name, value in vars(item).items():
            if name in fields:
                parts.append(name)
                if type(value) is int:
                    parts += int, value
                    self.integers.append(len(parts) - 1)
                elif not self.is_keyed(value, depth):
                    return False
        parts.append(None)
        return True

    def is_keyed_tensor(self, item: torch.Tensor) -> bool:
        """A leaf that is a tensor."""
        if not item.is_cpu or item.layout is not torch.strided:
            return False
        self.leaves.append(item)
        shape, dtype = tuple(item.shape), item.dtype  # slices of torch.Size take twice the time of all of this
        if dtype is torch.int64:
            along = along_of(shape) if 0 < len(shape) < 3 else 0
            count = 1 if along < 0 else shape[along] if len(shape) == 2 else 0
            self.parts += Numbers, along, count
            self.sizes += shape if along < 0 else shape[1 - along : 2 - along]
            return 0 < count <= MOST_VECTORS
        if not dtype.is_floating_point:
            return False
        at = self.rec.place_of_rows(shape, dtype)
        if at >= 0:
            self.sizes.append(shape[at])
            self.parts += Ragged, dtype, item.requires_grad, at, shape[:at], shape[at + 1 :]
        else:
            self.parts += torch.Tensor, dtype, item.requires_grad, shape
        return True


def _width(item: Sequence[Any]) -> int:
    """1 for a list of integers, the number of vectors for one of tuples or lists of so many integers, 0 for others."""
    kinds = set(map(type, item))
    if kinds == {int}:
        return 1
    if not kinds <= {tuple, list}:
        return 0
    widths = set(map(len, item))
    if len(widths) != 1 or not widths <= _WIDTHS or {int} != set(map(type, itertools.chain.from_iterable(item))):
        return 0
    return widths.pop()


def _given(rec: Recorder, leaves: Sequence[Any]) -> Given:
    """Leaves as what a call is given. Raises OverflowError for integers beyond 64 bits."""
    given = Given([], [], [])
    for leaf in leaves:
        if type(leaf) is list:
            given.indices.extend(rec.hold(vector, False) for vector in _vectors([leaf]))
        elif leaf.dtype is torch.int64:
            found = vectors_of(rec, leaf)
            assert found is not None
            given.indices.extend(found[0])
        elif (at := rec.place_of_rows(leaf.shape, leaf.dtype)) >= 0:
            given.rows.append(constant_rows_of(rec, leaf, at, False))
        else:
            given.values.append(rec.constant(leaf).ref)
    return given


class _Shown(Shown):
    """Rows, values and indices by stand-ins, and sizes by symbols."""

    def __init__(self, rec: Recorder, read: _Read, given: Given):
        super().__init__(rec)
        self.rows, self.indices = iter(given.rows), iter(given.indices)
        self.integers = iter(read.integers)
        self.sizes: list[Triple] = []
        """The registers of the sizes of leaves."""
        rows, indices = iter(given.rows), iter(given.indices)
        for leaf in read.leaves:
            if type(leaf) is list or leaf.dtype is torch.int64:
                vectors = [next(indices) for _ in range(_num_vectors(leaf))]
                self.sizes.append(vectors[0].triple)
            elif rec.place_of_rows(leaf.shape, leaf.dtype) >= 0:
                self.sizes.append(triple(next(rows).refs))

    def of_tensor(self, item: torch.Tensor) -> Any:
        """See Shown."""
        return symbolic_tensor(self.rec, item, self.rows, self.indices)

    def of_numbers(self, item: list[Any]) -> Any:
        """See Shown."""
        if not _width(item):
            return None
        vectors = tuple(next(self.indices) for _ in range(_num_vectors(item)))
        if len(vectors) == 1:
            return Index(self.rec, self.rec.tensor_of(vectors[0]), vectors, -1)
        return Index(self.rec, torch.tensor(item), vectors, 1)

    def of_size(self, value: int) -> Any:
        """See Shown."""
        number = next(self.integers)
        return value if number < 0 else Size(self.rec, value, self.sizes[number])


def _num_vectors(leaf: Any) -> int:
    if type(leaf) is list:
        return _width(leaf)
    along = along_of(leaf.shape)
    return 1 if along < 0 else leaf.shape[along]
