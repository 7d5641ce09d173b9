"""Kept forwards: what a mini-batch's instances bring to a closed `forward`, taken in at once.

A `forward` whose code is closed is one run for each instance (`ragged.kept`). Instances of one key differ in numbers
alone: in the rows, values and indices that they bring, and in how many these are. So Python does not go through what
each of them records. Rows of all are one matrix, indices one vector, a look-up is one look-up; what tells the runs
apart are columns of integers, and each instance's run is a line of these.

Definitions.

(1) Instances of one key, and their leaves, are a group (`together.reading`).
(2) An instance *fits* what is kept where its sizes are equal where they must be and within bounds, and its indices are
    rows and none of those that it was told from (padding). What the first one that does not fit records is kept beside
    it, and is told from no indices if it did not fit for those; what is kept of one that fits neither is for its sizes
    alone, and where it cannot be kept it raises what eager execution does.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbc.capture.code.automatic import module_at
from edbc.capture.code.closed import methods_of
from edbc.capture.forward.returned import Collected
from edbc.capture.ragged.expandloops import distinct, extents
from edbc.capture.ragged.kept import (
    BY_SIZES,
    NOT_KEPT,
    ByIndices,
    First,
    Given,
    KeptCall,
    can_keep,
    first_whole_call,
    may_keep,
    symbolic_tensor,
    with_integers,
    with_left,
)
from edbc.capture.ragged.program import (
    INDICES,
    REFS,
    Below,
    CannotKeep,
    Count,
    Ints,
    Numbers,
    Program,
    Triple,
    size_of,
    triple,
)
from edbc.capture.ragged.rows import constant_rows_of
from edbc.capture.ragged.symbols import Index, Listed, Mask, Size, along_of, asked, vectors_of
from edbc.capture.ragged.together.reading import OF_ONE, Grid, Group, Label, read, vectors_in, width_of
from edbc.capture.ragged.together.templates import with_patterns
from edbc.capture.ragged.value import Drawn, Ragged
from edbc.capture.ragged.whole.function import CHUNK, packed
from edbc.capture.ragged.whole.recipes import WorkedOut
from edbc.capture.ragged.whole.runs import pairs_of, pairs_of_cells, size_of_rows
from edbc.capture.standins.nests import inside, rebuilt
from edbc.capture.standins.shown import Noted, Shown, Unseen, is_seen
from edbc.capture.standins.standin import Lazy
from edbc.capture.standins.unread import settle

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

MOST_KEYS = 256
"""Kept forwards of a model, beyond which no other is tried."""
FEW = 64
"""Instances that are looked at in any case. Of later ones half must be of forwards that are known, or constants or
sizes differ in each, and none is kept any more."""
BESIDE = 1
"""Beside what is kept for a key, so much for instances that do not fit it: some have padding, or are shorter."""
MANY = 6
"""Instances of one key from which on their columns are faster than one after the other."""


class Forwards:
    """`forward` of the instances of one mini-batch, called in their order; the recorder says which it is."""

    def __init__(self, rec: Recorder, shadow: nn.Module, instances: Sequence[Any]):
        self.rec, self.shadow, self.function = rec, shadow, type(shadow).forward
        self.instances = instances
        self.read: list[tuple[Group, int] | None] = [None] * len(instances)
        """The group of each instance and its place there, once it was asked for."""
        self.groups: list[tuple[Group, list[int]]] = []
        self.pays = 2 * rec.found_forwards > rec.read_forwards - FEW
        """Told once, as all instances are read before any is found."""
        self.tried = [0] * len(instances)
        """How much of what is kept for its key each instance does not fit."""
        self.runs: list[tuple[KeptCall, Ints] | None] = [None] * len(instances)
        self.names_left = rec.tracer.closed.left_by_forward or frozenset()
        self.leaving: dict[tuple[tuple[str, str], ...], tuple[int, KeptCall]] = {}
        """By what kept forwards leave on modules the last instance that does. It is asked for where another instance
        runs as it is written, and at the end."""

    @functools.cached_property
    def members(self) -> dict[Any, list[int]]:
        """The instances of each key, from this one on."""
        first = self.rec.instance
        self._read([i for i in range(first, len(self.instances)) if self.read[i] is None])
        found: dict[Any, list[int]] = {}
        for group, numbers in self.groups:
            found.setdefault(group.key, []).extend(numbers if numbers[0] >= first else [])
        return {key: sorted(numbers) for key, numbers in found.items()}

    def of(self, number: int) -> tuple[Group, int]:
        """What tells an instance from others."""
        if self.read[number] is None:
            self._read([number])
        known = self.read[number]
        assert known is not None
        return known

    def _read(self, numbers: Sequence[int]) -> None:
        self.rec.read_forwards += len(numbers)
        for i in numbers:
            item = self.instances[i]
            if isinstance(item, tuple) and self._is_unknown((type(item), len(item))):
                places = [k for k, x in enumerate(item) if _may_be_unseen(x)] if self.notes else ()
                self.rec.unread_names[type(item), len(item)] = frozenset(places)
        for group, places in read(self.rec, self.shadow.training, [self.instances[i] for i in numbers]):
            members = [numbers[place] for place in places]
            self.groups.append((group, members))
            for place, i in enumerate(members):
                self.read[i] = group, place

    def _read_anew(self) -> None:
        """What tells instances apart is another now."""
        self.read, self.groups = [None] * len(self.instances), []
        self.__dict__.pop("members", None)

    def __call__(self, instance: Any) -> Any:
        rec, number = self.rec, self.rec.instance
        if self.runs[number] is None and can_keep(rec) and rec.ragged and self.pays:
            group, place = self.of(number)
            tried = self.tried[number]
            known, key, sizes = self._known(group, place, tried)
            if type(known) is KeptCall:
                alike = [i for i in self.members[group.key] if i >= number and self.tried[i] == tried]
                if sizes is not None:
                    alike = [i for i in alike if sizes == _at(self.of(i)[0].sizes, self.of(i)[1])]
                with suppress(OverflowError, CannotKeep):  # words beyond 64 bits
                    self._keep(known, *self._take_in(known, alike))
                if tried < self.tried[number] <= BESIDE:
                    return self(instance)
            elif known is not NOT_KEPT:
                return self._first(group, place, key, sizes, instance)
        run = self.runs[number]
        return self._as_written(instance) if run is None else self._run(run[0], run[1].tolist())

    def _as_written(self, instance: Any) -> Any:
        self._leave()
        if type(instance) is not dict or not self._is_unknown((*instance,)) or not self.notes:
            return self.function(self.shadow, instance)
        noted = Noted(instance)
        result = self.function(self.shadow, noted)
        self.rec.unread_names[(*instance,)] = frozenset(instance) - noted.read
        self._read_anew()
        return instance if result is noted else inside(lambda item: instance if item is noted else item, result)

    def _is_unknown(self, names: Any) -> bool:
        """Whether it is still to be told what forward reads of dicts or tuples of this form: of the first MOST_KEYS."""
        unread = self.rec.unread_names
        return names not in unread and len(unread) < MOST_KEYS

    @functools.cached_property
    def notes(self) -> bool:
        """Whether forward may get another dict with what the instance's own has: it does not ask for its class, and
        leaves it as it is, and nowhere."""
        closed = self.rec.tracer.closed
        if closed.asks_types or closed.left_by_forward or not closed.is_forward_closed:
            return False
        return closed.only_computes(methods_of(closed.model)["forward"], closed.model)

    def _known(self, group: Group, place: int, tried: int) -> tuple[Any, Any, tuple[int, ...] | None]:
        """What is kept for an instance that so many do not fit, by which key, and for which sizes alone, if any."""
        functions, key = self.rec.functions, _key(group.key, min(tried, BESIDE))
        known = NOT_KEPT if key is None else functions.get(key)
        if known is not BY_SIZES and tried <= BESIDE:
            return known, key, None
        sizes = _at(group.sizes, place)
        return functions.get((key, sizes)), key, sizes

    def _run(self, known: KeptCall, flat: list[int]) -> Any:
        """An instance's run of its own."""
        result = self._formed(known, flat)
        self._note_left(known, self.rec.instance)
        if self.rec.instance == len(self.instances) - 1:
            self._leave()
        return result

    def _formed(self, known: KeptCall, flat: list[int]) -> Any:
        self.rec.formed.append(len(self.rec.entries))
        return known.of(self.rec, flat, with_patterns(self.rec.table, known))

    def _note_left(self, known: KeptCall, number: int) -> None:
        if known.left is not None:
            names = (*known.left.result,)
            self.leaving.pop(names, None)
            self.leaving[names] = number, known.left

    def _leave(self) -> None:
        """Let modules have what is `leaving`."""
        for number, call in self.leaving.values():
            flat = call.flat(self.rec, _given(self.rec, self._alone(number)[0], call.unread))
            if flat is None:
                self.rec.put_caches_back()
                self.function(self.shadow, self.instances[number])
            else:
                self._assign(self._formed(call, flat))
        self.leaving.clear()

    def _leave_at_once(self) -> list[_Taken] | None:
        """The same as calls of runs of all instances; None where they cannot be such."""
        taken: list[_Taken] = []
        for number, call in self.leaving.values():
            flat = call.flat(self.rec, _given(self.rec, self._alone(number)[0], call.unread))
            if flat is None:
                return None
            taken.append(_Taken(call, [number], np.array([flat], np.int64), with_patterns(self.rec.table, call)))
        return taken if all(map(_Taken.can_return, taken)) else None

    def _assign(self, left: dict[tuple[str, str], Any]) -> None:
        for (path, name), value in left.items():
            setattr(module_at(self.shadow, path), name, value)

    def _taken_off(self) -> dict[tuple[str, str], Any]:
        """What modules have by the names of what forward leaves, which is theirs no more."""
        found = {}
        for path, module in self.shadow.named_modules() if self.names_left else ():
            own = {*module._parameters, *module._buffers, *module._modules}
            for name in self.names_left & module.__dict__.keys() - own:
                found[path, name] = module.__dict__.pop(name)
        return found

    def at_once(self) -> tuple[Collected, Sequence[Program]] | None:
        """What all instances return, where forward runs for none, and the programs that are recorded: each is of a
        forward that is known, fits it, and gets single values or rows from it. O(what they bring)."""
        rec = self.rec
        rec.next_instance(0)
        if not (self.instances and can_keep(rec) and rec.ragged and self.pays):
            return None
        taken: list[_Taken] = []
        with suppress(OverflowError, CannotKeep):
            for key, members in self.members.items():
                taken += self._taken(key, members)
        if sum(len(of.members) for of in taken) < len(self.instances) or not all(map(_Taken.can_return, taken)):
            for of in taken:
                self._keep(of.call, of.members, of.lines)
            return None
        for number, call in sorted([(of.members[-1], of.call) for of in taken]):
            self._note_left(call, number)
        leaving = [] if torch.is_grad_enabled() else self._leave_at_once()
        if torch.is_grad_enabled() or leaving is None:
            collected = self._collected(taken, self._in_turn(taken))
            self._leave()
            return collected, ()
        made = [rec.run_together(of.program, of.lines) for of in taken]
        for of in leaving:
            begins, sizes = rec.run_together(of.program, of.lines)[:, 0], of.sizes(of.program.counts)[0]
            results = [range(begin, begin + size) for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)]
            self._assign(of.call.returned(rec, results, of.lines[0].tolist()))
        return self._collected(taken, made), [of.program for of in (*taken, *leaving)]

    def _taken(self, key: Any, members: list[int]) -> Iterator[_Taken]:
        """Instances of a key by what is kept that they fit. Raises CannotKeep where they fit none."""
        for tried in range(BESIDE + 1):
            known: Any = None if key is None else self.rec.functions.get(_key(key, tried))
            if type(known) is not KeptCall:
                raise CannotKeep
            fitting, lines = self._take_in(known, members)
            if fitting:
                yield _Taken(known, fitting, lines, with_patterns(self.rec.table, known))
            members = [i for i in members if self.tried[i] > tried]
            if not members:
                break

    def _in_turn(self, taken: Sequence[_Taken]) -> list[Ints]:
        """A run for each instance, and the refs of their results by key. Gradients are sums over batches in the order
        of their nodes: they have the bits that they have where instances are captured."""
        made = [np.empty((len(of.program.counts), len(of.members)), np.int64) for of in taken]
        for k, row in self._places(taken):
            program, line = taken[k].program, taken[k].lines[row]
            self.rec.formed.append(len(self.rec.entries))
            made[k][:, row] = [refs.start for refs in self.rec.run(program, line.tolist())]
        return made

    def _places(self, taken: Sequence[_Taken]) -> list[tuple[int, int]]:
        """Of each instance in order the number of its key, and its own there."""
        places = sorted((i, k, row) for k, of in enumerate(taken) for row, i in enumerate(of.members))
        return [(k, row) for _, k, row in places]

    def _collected(self, taken: Sequence[_Taken], made: Sequence[Ints]) -> Collected:
        """What instances return, where `made` has the first ref of each result of a key's instances."""
        forms = [of.call.form for of in taken]
        if len(taken) == 1 and forms[0].is_single:
            (form,), ((first, *_),), count = forms, (taken[0].results(made[0]),), len(self.instances)
            width = len(form.slots)
            result_ptr = [*range(0, width * count + 1, width)] if width else [0] * (count + 1)
            nests = [form.nest_of((1,) * width)] * count
            return Collected(first.reshape(-1), form.slots * count, nests, result_ptr)
        found = [of.results(refs) for of, refs in zip(taken, made, strict=True)]
        parts = [(0, row) for row in range(len(self.instances))] if len(taken) == 1 else self._places(taken)
        nests = [forms[k].nest_of(found[k].told[row]) for k, row in parts]
        if len(taken) == 1:
            first, step, sizes = (of.reshape(-1) for of in found[0][:3])
        else:
            first, step, sizes = (
                np.concatenate([of[k][row] for k, row in parts]) for of in [*zip(*found, strict=True)][:3]
            )
        ends = np.cumsum(sizes)
        refs = np.repeat(first - step * (ends - sizes), sizes) + np.repeat(step, sizes) * np.arange(sizes.sum())
        kinds = [slot for k, _ in parts for slot in forms[k].slots]
        slots = [slot for slot, size in zip(kinds, sizes.tolist(), strict=True) for _ in range(size)]
        is_stack = [rows for k, _ in parts for rows in forms[k].rows]
        bounds = [0, *ends.tolist()]
        stacks = [of for of, rows in zip(itertools.pairwise(bounds), is_stack, strict=True) if rows]
        result_ptr = [bounds[i] for i in itertools.accumulate([len(forms[k].slots) for k, _ in parts], initial=0)]
        return Collected(refs, slots, nests, result_ptr, stacks=stacks)

    def _first(self, group: Group, place: int, key: Any, alone: tuple[int, ...] | None, instance: Any) -> Any:
        """The first instance of a key, from which what it records is kept if it can be."""
        rec = self.rec
        if rec.kept_forwards < MOST_KEYS:
            try:
                given = _given(rec, leaves := _at(group.leaves, place))
            except OverflowError:
                return self._as_written(instance)
            if min(given.sizes(), default=2) > 1 and may_keep(given):  # its key does not tell one row of something
                rec.kept_forwards += 1
                sizes = _at(group.sizes, place)

                def forward(of: Any) -> Any:
                    rec.put_caches_back()
                    if of is instance:
                        return self.function(self.shadow, of)
                    shown = _Shown(rec, leaves, group.integers, group.lengths, of, self.notes)
                    known, has_failed = {**rec.unread_names}, True
                    try:
                        made = [self.function(self.shadow, shown.of_instance(instance))]
                        settle(rec.unread, made)
                        shown.require_unchanged()
                        self._assign(_returned(asked(self._taken_off())))  # where that cannot be, it is not kept
                        result, has_failed = _returned(made.pop()), False
                        return result
                    finally:
                        shown.tell_unread(has_failed)
                        if rec.unread_names != known:
                            self._read_anew()

                args, begin, before = (given, instance), rec.place(), self._taken_off()
                known = rec.functions.get(group.key)  # which an instance does not fit for its sizes, or its indices
                rec.tells_apart = key == group.key or (type(known) is KeptCall and known.is_apart(given.indices))
                try:
                    result = first_whole_call(rec, key, sizes, alone is not None, given, forward, args)
                finally:
                    rec.tells_apart, left = True, self._taken_off()
                    for (path, name), value in before.items():
                        module_at(self.shadow, path).__dict__[name] = value
                by_sizes = alone is not None or rec.functions.get(key) is BY_SIZES
                key = (key, sizes) if by_sizes else key
                known = rec.functions.get(key)
                if type(known) is KeptCall and left:
                    with_left(rec, key, known, begin, given, by_sizes, left)
                    known = rec.functions[key]
                draws, rec.draws = rec.draws, rec.draws[: begin[3]]  # as all later ones
                flat = known.flat(rec, given) if type(known) is KeptCall else None
                if not isinstance(known, KeptCall) or flat is None:
                    rec.draws = draws
                    self._leave()
                    self._assign(with_integers(left))
                    return result
                rec.forget_since(*begin[:3], len(rec.draws))  # it is recorded like all later ones
                rec.put_caches_back()
                return self._run(known, flat)
        return self._as_written(instance)

    def _take_in(self, known: KeptCall, members: list[int]) -> tuple[list[int], Ints]:
        """Those of a key's instances that fit, and the arguments of each, a line. O(rows + indices), natively but for
        the leaves."""
        if len(members) < MANY and not known.draws:
            flats = [known.flat(self.rec, _given(self.rec, leaves, known.unread))
                     for leaves, _ in map(self._alone, members)]  # fmt: skip
            fitting = [i for i, flat in zip(members, flats, strict=True) if flat is not None]
            lines = np.array([flat for flat in flats if flat is not None], np.int64)
        else:
            fitting, brought = members, self._brought(members, known.unread)
            fits = brought.fits(known)
            if not fits.all():
                fitting = [i for i, fit in zip(members, fits.tolist(), strict=True) if fit]
                brought = self._brought(fitting or members, known.unread)
            lines = brought.runs(known) if fitting else np.zeros((0, 0), np.int64)
        self.rec.found_forwards += len(fitting)
        for i in set(members).difference(fitting) if len(fitting) < len(members) else ():
            self.tried[i] += 1
        return fitting, lines

    def _keep(self, known: KeptCall, fitting: Sequence[int], lines: Ints) -> None:
        """Keep what was taken in until it is an instance's turn."""
        for i, line in zip(fitting, lines, strict=True):
            self.runs[i] = known, line

    def _brought(self, members: list[int], unread: frozenset[int]) -> _Brought:
        group, _ = self.of(members[0])
        if (group, members) in self.groups:
            leaves, sizes = group.leaves, group.sizes
        else:
            alone = [*map(self._alone, members)]
            leaves, sizes = ([*zip(*of, strict=True)] for of in zip(*alone, strict=True))
        return _Brought(self.rec, leaves, sizes, members, unread)

    def _alone(self, number: int) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """The leaves of an instance, and their sizes."""
        group, place = self.of(number)
        return _at(group.leaves, place), _at(group.sizes, place)


def _returned(item: Any) -> Any:
    """What forward returned, with what leaves in the place of what stands for values by way of others."""
    if type(item) is Unseen:
        bool(item)  # which it notes
    is_other = issubclass(type(item), Lazy) and type(item) is not Ragged
    return item.returned() if is_other else inside(_returned, dict(item) if type(item) is Noted else item)


def _may_be_unseen(item: Any) -> bool:
    """Whether an item of a tuple is a number, a text or an array, or a tensor of one number: an id, a label."""
    return type(item) in (str, bytes, int, float, np.ndarray) or (type(item) is torch.Tensor and item.numel() == 1)


class _Taken(NamedTuple):
    """The instances of one key, the arguments of each, and what is recorded for them."""

    call: KeptCall
    members: Sequence[int]
    lines: Ints
    program: Program

    def can_return(self) -> bool:
        """Whether each result is one value of each instance, or rows of which there are some."""
        form, counts = self.call.form, self.program.counts
        are_single = [counts[k] for k, rows in zip(form.sources, form.rows, strict=True) if k >= 0 and not rows]
        if not all(count is None for count in are_single) and not (self.sizes(are_single) == 1).all():
            return False
        if form.is_single:
            return True
        sizes, steps = self.sizes(form.count_of[: len(form.sources)]), self.lines[:, 1::3]
        held = [-1 - k for k, rows in zip(form.sources, form.rows, strict=True) if k < 0 and rows]
        is_held = any(((steps[:, k] == INDICES) | (steps[:, k] == REFS)).any() for k in held)
        return bool((sizes > 0).all()) and not is_held

    def sizes(self, counts: Sequence[Count]) -> Ints:
        """How many these are, of each instance."""
        known: dict[int, Any] = {}
        sizes, found = [*self.lines.T[2::3]], np.empty((len(self.lines), len(counts)), np.int64)
        for k, count in enumerate(counts):
            found[:, k] = size_of(count, sizes, known)
        return found

    def results(self, made: Ints) -> _Results:
        """What each instance returns, where `made` has the first ref of each result of the run."""
        form = self.call.form
        count, size = len(form.sources), self.sizes(form.count_of)
        first, step = np.empty((2, len(self.lines), count), np.int64)
        for k, source in enumerate(form.sources):
            if source >= 0:
                first[:, k], step[:, k] = made[source], 1
            else:
                first[:, k], step[:, k] = self.lines[:, -3 - 3 * source], self.lines[:, -2 - 3 * source]
        step[step == 0] = 1
        return _Results(first, step, size[:, :count], size.tolist())


class _Results(NamedTuple):
    """Of instances of one key, by instance and result: the first ref, what is between two of them, and how many there
    are; and what tells nests apart."""

    first: Ints
    step: Ints
    sizes: Ints
    told: list[list[int]]


def note_sizes(rec: Recorder, instances: Sequence[Any]) -> None:
    """Note how many rows the leaves of instances have. What closed code computes of those alone is recorded too."""
    for group, _ in read(rec, False, instances):
        for leaf in itertools.chain.from_iterable(group.leaves):
            if type(leaf) is torch.Tensor and leaf.is_floating_point():
                rec.note_sizes(leaf)


def _key(key: Any, tried: int) -> Any:
    """The key of what is kept for instances that so many others do not fit."""
    return (key, tried) if tried else key


def _at(columns: Sequence[Sequence[Any]], place: int) -> tuple[Any, ...]:
    """What columns have in one place."""
    return tuple([column[place] for column in columns])


class _Brought:
    """The leaves of instances of one key, by the arguments of a program: rows, then values, then indices. Of what the
    program does not read there is nothing but the sizes."""

    def __init__(self, rec: Recorder, leaves: Sequence[Sequence[Any]], sizes: Sequence[Sequence[int]],
                 members: list[int], unread: frozenset[int]):  # fmt: skip
        """Columns of these instances."""
        self.rec, self.members, self.count = rec, members, len(members)
        self.shares = rec.shares_equal and not torch.is_grad_enabled()
        """Whether equal look-ups are one external: in runs of all instances."""
        self.rows: list[tuple[Sequence[torch.Tensor], int, Ints]] = []
        """Of each leaf of rows, those of all instances, the dimension that they stand along, how many each has."""
        self.values: list[Sequence[torch.Tensor]] = []
        self.indices: list[Numbers] = []
        """With an array of one item per instance in each field but the last; offsets count from 0."""
        of_leaf = iter(np.array(sizes, np.int64))
        of_indices: list[tuple[Sequence[Any], Ints]] = []
        for column in leaves:
            first = column[0]
            if type(first) is Grid and first.is_by_rows:
                of_pairs = [grid.rows() for grid in column]
                size = np.array([*map(len, of_pairs)], np.int64)
                self.rows.append(([] if len(self.rows) in unread else of_pairs, 0, size))
            elif type(first) is Grid:
                tensors = [grid.tensor for grid in column]
                size = np.array([-(-tensor.numel() // CHUNK) for tensor in tensors], np.int64)
                self.rows.append(([] if len(self.rows) in unread else [packed(*tensors)], 0, size))
            elif _is_of_indices(first):
                of_indices.append((column, next(of_leaf)))
            elif type(first) is Label:
                next(of_leaf, None) if first.tensor.ndim else None
                self.values.append([label.tensor for label in column])
            elif (at := rec.place_of_rows(first.shape, first.dtype)) >= 0:
                self.rows.append(([] if len(self.rows) in unread else column, at, next(of_leaf)))
            else:
                self.values.append(column)
        self.values = [[] if k in unread else column for k, column in enumerate(self.values, len(self.rows))]
        for column, size in of_indices:
            number = len(self.rows) + len(self.values) + len(self.indices)
            places = range(number, number + vectors_in(rec, column[0]))
            if unread.issuperset(places):
                none: Any = np.zeros(self.count, np.int64)
                self.indices += [Numbers(none, size, none, none, _NO_NUMBERS) for _ in places]  # type: ignore[arg-type]
            else:
                self.indices += _numbers(_vectors(rec, column), size)

    def fits(self, known: KeptCall) -> Any:
        """Definition (2): which instances do."""
        sizes: list[Any] = [size for *_, size in self.rows] + [1] * len(self.values)
        sizes += [numbers.size for numbers in self.indices]
        fit, indices = np.ones(self.count, np.bool_), [*self.indices]
        for extra in known.extras:
            if isinstance(extra, ByIndices):
                fit &= extra.holds(indices[extra.number])
            if isinstance(extra, WorkedOut):
                found, joined, size = extra.of_instances(self.count, sizes)
                fit &= size > 0
                indices += extra.numbers(found, joined, size)
                sizes.append(size)
                continue
            sizes.append(extra.size(indices, sizes))
            if isinstance(extra, First):
                fit &= (sizes[-1] > 0) & (isinstance(extra.table, Below) or sizes[-1] <= extra.table.shape[0])
        return fit & known.fits(indices, sizes)

    def runs(self, known: KeptCall) -> Ints:
        """The arguments of each instance's run, a line each; what they name is recorded."""
        rec, flat, drawn = self.rec, list[Any](), np.zeros(self.count, np.int64)
        for tensors, at, size in self.rows:
            if not tensors:
                flat += 0, -1, 0
                continue
            is_apart = len(set(map(id, tensors))) < len(tensors)  # equal ones stay one
            if is_apart:
                flat += [constant_rows_of(rec, tensor, at, False).refs.start for tensor in tensors], -1, size
            else:
                joined = torch.cat([tensor.movedim(at, 0) for tensor in tensors] if at else list(tensors))
                flat += rec.constant_rows(joined).start - _begins(size), -1, size
        for tensors in self.values:
            flat += [rec.constant(tensor).ref for tensor in tensors] or 0, 0, 1  # 0 where nobody reads them
        for numbers in self.indices:
            is_read = numbers.array is not _NO_NUMBERS
            offset = rec.hold(numbers.array, False).offset + numbers.offset if is_read else 0
            flat += offset, INDICES, numbers.size if is_read else 0
        indices = [*self.indices]
        for extra in known.extras:
            if isinstance(extra, ByIndices):
                numbers = indices[extra.number]
                if isinstance(extra.table, Below):
                    integers = rec.constant_rows(torch.from_numpy(numbers.array))
                    flat += integers.start - numbers.offset, -1, numbers.size
                    continue
                rows, which = distinct(numbers.array)
                repeats = self.shares and 8 * len(rows) <= 7 * len(which)
                looked_up = rec.rows_of_table(extra.table, (rows if repeats else numbers.array).tolist(), True)
                assert looked_up is not None
                if repeats:
                    held = rec.hold(looked_up.refs.start - which, False)
                    flat += held.offset + numbers.offset, REFS, numbers.size
                else:
                    flat += looked_up.refs.start - numbers.offset, -1, numbers.size
            elif isinstance(extra, First):
                size = np.broadcast_to(extra.size(indices, flat[2::3]), self.count)
                begins = _begins(size)
                places = np.arange(size.sum()) - np.repeat(begins, size)
                if isinstance(extra.table, Below):
                    flat += rec.constant_rows(torch.from_numpy(places)).start - begins, -1, size
                    continue
                looked_up = rec.rows_of_table(extra.table, places.tolist(), True)
                assert looked_up is not None
                flat += looked_up.refs.start - begins, -1, size
            elif isinstance(extra, Drawn):
                size = np.broadcast_to(extra.size(indices, flat[2::3]), self.count)
                begins = _begins(size)
                of_draw = np.arange(size.sum()) + np.repeat(drawn - begins, size)
                refs = rec.drawn_externals(extra, of_draw.tolist(), np.repeat(self.members, size).tolist())
                drawn = drawn + size
                flat += refs.start - begins, -1, size
            elif isinstance(extra, WorkedOut):
                found, joined, size = extra.of_instances(self.count, flat[2::3])
                indices += (worked := extra.numbers(found, joined, size))
                if worked:
                    flat += rec.hold(worked[0].array, False).offset + worked[0].offset, INDICES, size
                else:
                    flat += rec.constant_rows(joined).start - _begins(size), -1, size
            else:
                flat += extra.triple(rec, None, ())
        lines = np.empty((self.count, len(flat)), np.int64)
        for k, column in enumerate(flat):
            lines[:, k] = column
        return lines


_NO_NUMBERS = np.zeros(0, np.int64)


def _begins(sizes: Ints) -> Ints:
    """How many there are before each."""
    return np.cumsum(sizes) - sizes


def _integers(numbers: Sequence[int]) -> Ints:
    """Python's integers as an array, in half the time of NumPy. Raises OverflowError beyond 64 bits."""
    found = np.empty(len(numbers), np.int64)
    try:
        struct.pack_into(f"{len(numbers)}q", found.data, 0, *numbers)
    except struct.error as error:
        raise OverflowError from error
    return found


def _vectors(rec: Recorder, column: Sequence[Any]) -> Sequence[Ints]:
    """The vectors of one leaf of indices, those of all instances behind each other."""
    first = column[0]
    if type(first) is list:
        numbers = [*itertools.chain.from_iterable(column)]
        if type(first[0]) is int:
            return [_integers(numbers)]
        found = _integers([*itertools.chain.from_iterable(numbers)])
        return list(np.ascontiguousarray(found.reshape(-1, len(first[0])).T))
    if first.ndim == 1:
        return [torch.cat(list(column)).numpy()]
    along = along_of(rec, first.shape)
    found = torch.cat(list(column), 1 - along).numpy()
    return list(found if along == 0 else np.ascontiguousarray(found.T))


def _numbers(vectors: Sequence[Ints], sizes: Ints) -> Iterator[Numbers]:
    begins = _begins(sizes)
    ends = begins + sizes
    for vector in vectors:
        lowest, highest = extents(vector, begins, ends)
        yield Numbers(begins, sizes, lowest, highest, vector)  # type: ignore[arg-type]


def _given(rec: Recorder, leaves: Sequence[Any], unread: frozenset[int] = frozenset()) -> Given:
    """Leaves as what a call is given, and nothing of those that are `unread` by it. Raises OverflowError for integers
    beyond 64 bits."""
    given, vectors = Given([], [], []), [leaf for leaf in leaves if _is_of_indices(leaf)]
    for leaf in leaves:
        if type(leaf) is Grid:
            if len(given.rows) in unread:
                given.rows.append(_no_rows(rec))
            else:
                rows = leaf.rows() if leaf.is_by_rows else packed(leaf.tensor)
                given.rows.append(constant_rows_of(rec, rows, 0, False))
        elif type(leaf) is Label:
            given.values.append(rec.constant(leaf.tensor).ref)
        elif not _is_of_indices(leaf):
            at = rec.place_of_rows(leaf.shape, leaf.dtype)
            if at >= 0:
                is_unread = len(given.rows) in unread
                given.rows.append(_no_rows(rec) if is_unread else constant_rows_of(rec, leaf, at, False))
            else:
                given.values.append(rec.constant(leaf).ref)
    for leaf in vectors:
        first = len(given.rows) + len(given.values) + len(given.indices)
        places = range(first, first + vectors_in(rec, leaf))
        if unread.issuperset(places):
            given.indices.extend([Numbers(0, 0, 0, 0, _NO_NUMBERS)] * len(places))
        elif type(leaf) is list:
            given.indices.extend(rec.hold(vector, False) for vector in _vectors(rec, [leaf]))
        else:
            found = vectors_of(rec, leaf)
            assert found is not None
            given.indices.extend(found[0])
    return given


def _is_of_indices(leaf: Any) -> bool:
    return type(leaf) is list or (type(leaf) is torch.Tensor and leaf.dtype is torch.int64)


def _may_be_label(leaf: torch.Tensor) -> bool:
    return leaf.dtype is torch.int64 and leaf.shape in OF_ONE


def _no_rows(rec: Recorder) -> Ragged:
    return Ragged(rec, range(0), rec.number(0, torch.int64).slot)


class _Shown(Shown):
    """Rows, values and indices by stand-ins, and sizes by symbols."""

    def __init__(self, rec: Recorder, leaves: Sequence[Any], integers: Sequence[int], lengths: Sequence[int],
                 given: Given, notes: bool):  # fmt: skip
        super().__init__(rec)
        self.notes = notes
        self.lengths = iter(lengths)
        self.rows, self.indices = iter(given.rows), iter(given.indices)
        self.integers = iter(integers)
        self.sizes: list[Triple] = []
        """The registers of the sizes of leaves."""
        self.likes: list[Ragged | None] = []
        """The rows of these leaves, None for indices."""
        self.grids = {id(leaf.tensor): leaf for leaf in leaves if type(leaf) is Grid}
        of_one = [
            leaf for leaf in leaves if type(leaf) is Label or (type(leaf) is torch.Tensor and _may_be_label(leaf))
        ]
        self.are_labels = iter([type(leaf) is Label for leaf in of_one])
        self.noted: list[Noted] = []
        self.unseen: dict[Any, Unseen] = {}
        """By place."""
        self.places: Any = None
        rows, indices = iter(given.rows), iter(given.indices)
        for leaf in leaves:
            if type(leaf) is Grid:
                next(rows)
            elif _is_of_indices(leaf):
                vectors = [next(indices) for _ in range(vectors_in(rec, leaf))]
                self.sizes.append(vectors[0].triple)
                self.likes.append(None)
            elif type(leaf) is Label:
                self.sizes += [(0, 0, 1)] * leaf.tensor.ndim  # which nothing is as long as
                self.likes += [None] * leaf.tensor.ndim
            elif rec.place_of_rows(leaf.shape, leaf.dtype) >= 0:
                self.likes.append(like := next(rows))
                self.sizes.append(triple(like.refs))

    def of_tensor(self, item: torch.Tensor) -> Any:
        number = next(self.lengths)
        if number >= 0:
            size = Size(self.rec, int(item), self.sizes[number])
            return Mask(self.rec, (1,), (0, size, size), torch.int64)
        grid = self.grids.get(id(item))
        if grid is not None:
            sizes = [self.like(size, of) for size, of in zip(item.shape[grid.at :], grid.of, strict=False)]
            rows, rest = next(self.rows), item.shape[grid.at + 2 :]
            found: Any = (
                pairs_of_cells(rows, [size if isinstance(size, Size) else size_of_rows(size) for size in sizes])
                if grid.is_by_rows
                else pairs_of(self.rec, rows, sizes, item.dtype, rest)
            )
            for _ in range(grid.at):
                found = found.unsqueeze(0)
            return found
        if _may_be_label(item) and next(self.are_labels):
            return self.rec.constant(item)
        return symbolic_tensor(self.rec, item, self.rows, self.indices)

    def of_dict(self, item: dict[Any, Any]) -> dict[Any, Any]:
        """See Shown. What stands for no leaf, as nobody has read it so far, is there for who does."""
        unread = self.rec.unread_names.get((*item,), frozenset())
        found = {name: x if name in unread else self.of(x) for name, x in item.items()}
        if self.notes:
            self.noted.append(found := Noted(found))
        return found

    def of_instance(self, instance: Any) -> Any:
        """The instance."""
        self.places = (type(instance), len(instance)) if isinstance(instance, tuple) else None
        unread = self.rec.unread_names.get(self.places)
        if not unread:
            return self.of(instance)
        self.unseen = {k: Unseen() for k in unread}
        return rebuilt(instance, [self.unseen[k] if k in unread else self.of(x) for k, x in enumerate(instance)])

    def tell_unread(self, has_failed: bool) -> None:
        """Let the recorder know what nobody has read: that is not to tell instances apart from now on, until somebody
        does read it. A forward that failed would have read more: where it asked nothing unseen, all of that."""
        unread = self.rec.unread_names
        read: dict[Any, set[str]] = {}
        for noted in self.noted:
            read.setdefault((*noted,), set()).update(noted.read)
        for names, of in read.items():
            if names in unread or not (has_failed or len(unread) >= MOST_KEYS):
                unread[names] = unread.get(names, frozenset(names)) - of
        if self.unseen:
            seen = {k for k, item in self.unseen.items() if is_seen(item)}
            unread[self.places] = unread[self.places] - (self.unseen.keys() if has_failed and not seen else seen)

    def like(self, size: int, of: int) -> Ragged | Size:
        """Rows that are so many, or the symbol of the size of indices."""
        rows = self.likes[of]
        return Size(self.rec, size, self.sizes[of]) if rows is None else rows

    def of_numbers(self, item: list[Any]) -> Any:
        if not width_of(item):
            return None
        vectors = tuple(next(self.indices) for _ in range(vectors_in(self.rec, item)))
        if len(vectors) == 1:
            return Listed(Index(self.rec, self.rec.tensor_of(vectors[0]), vectors, -1))
        return Listed(Index(self.rec, torch.tensor(item), vectors, 1))

    def of_size(self, value: int) -> Any:
        number = next(self.integers)
        return value if number < 0 else Size(self.rec, value, self.sizes[number])
