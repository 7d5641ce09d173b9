"""Ragged values: tensors whose size along one dimension differs between instances, as ranges of rows.

Problem. `h = self.emb(ids)` has shape (n, H), and n is another for every sentence: as one node, `linear(h)` would be of
a type for each length, and nothing would batch. Taken row by row it is n nodes of one type, and rows of all instances
stand one after the other in the same batch. So a ragged value is no value of the graph at all, but rows that are;
schedule, placement, kernels, gradients and policy know nothing of it.

Definitions.

(1) A `Ragged` stands for a tensor whose slices along one dimension, `at`, are recorded values of one slot: the *rows*.
    Its shape is the row's with n in place `at`, and n is the Python integer that it is in eager.
(2) A call is *row-wise* when each row of its result is the same function of the operands' rows of that number (and of
    what all rows share). It is recorded once, on stand-ins for a row, and what that has recorded becomes a program
    (`each_row`), which is recorded as one run whatever n is (`ragged.program`).
(3) What a call does to whole rows (slices, joins, gathers by the instance's indices) renames rows, and is no node.
(4) Where no rule knows a call, the rows are stacked, by a node of a type per size, and the call is recorded as one of
    such a value: `Recorder.stacked` tells which calls.

(5) A *ragged class* is a value class with one size that is a symbol, `f32[n,64]`: rows of `f32[64]`, as many as the
    instance brings. A class is ragged when that size differs within the sample that a model is compiled on: the leading
    one of rows looked up by a list or tensor of indices, of lists that forward stacks and of slices of parameters, any
    one of a tensor that the instance brings, as `f32[1,n,64]` is a batch of one (`varying`). Compiling decides, and the
    plan states it; a size that is the same everywhere (heads, gates, channels) stays a number.

Related: jagged tensors of torch.nested and TensorFlow's RaggedTensor keep rows of a whole batch as one matrix; here
rows belong to instances until the schedule joins them, so sizes may be anything, and control flow too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from edbc.capture.ragged.program import (
    FILL,
    NONE,
    PLACE,
    SCAN,
    SLICE,
    TAKE,
    TILE,
    CannotKeep,
    Count,
    Draft,
    Numbers,
    Triple,
    size_of,
    triple,
)  # fmt: skip
from edbc.capture.ragged.symbols import Shape, Size
from edbc.capture.standins.nests import inside
from edbc.capture.standins.standin import Lazy, Shared, Slot, Value, dtype_name, value_of

if TYPE_CHECKING:
    from edbc.base.graph import ValueClass
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.record.table import Draw


SYMBOL = "n"
Sizes = dict[tuple[torch.dtype, tuple[int, ...]], set[int]]
"""By dtype and shape of a tensor the dimensions that may be a symbol."""


def ragged_class(row_shape: Sequence[int], dtype: torch.dtype, at: int = 0) -> str:
    """The class of any number of rows along dimension `at`: `f32[n,64]`."""
    return f"{dtype_name(dtype)}[{','.join([*map(str, row_shape[:at]), SYMBOL, *map(str, row_shape[at:])])}]"


def varying(sizes: Sizes) -> tuple[str, ...]:
    """The classes of several sizes, sorted. One of most sizes comes first, and tensors of that count for no other:
    among (4,1,1), (7,1,1) and a (4,1,32) only `f32[n,1,1]` varies, not `f32[4,1,n]`."""
    of_class: dict[str, set[Any]] = {}
    for (dtype, shape), places in sizes.items():
        for at in places:
            of_class.setdefault(ragged_class(shape[:at] + shape[at + 1 :], dtype, at), set()).add((dtype, shape))
    found = []
    while of_class:
        name, met = max(sorted(of_class.items()), key=lambda item: len(item[1]))
        if len(met) < 2:
            break
        found.append(name)
        of_class = {other: rest for other in of_class if (rest := of_class[other] - met)}
    return tuple(sorted(found))


class NotRagged(BaseException):
    """Something that rows cannot follow: the instance is recorded again, and no class is ragged from then on."""


class Number(NamedTuple):
    """A Python number that is an operand (`record.numbers`), as every mini-batch has it."""

    number: float
    dtype: torch.dtype

    def again(self, rec: Recorder) -> Value:
        """In this mini-batch."""
        return rec.number(self.number, self.dtype)


class Constant(NamedTuple):
    """A constant by its key."""

    key: Any
    make: Callable[[], torch.Tensor]

    def again(self, rec: Recorder) -> Value:
        """In this mini-batch."""
        return rec.shared_constant(self.key, self.make)


class Held(NamedTuple):
    """A tensor that is no parameter, kept on the model, or made by code that is told by sizes."""

    tensor: torch.Tensor

    def again(self, rec: Recorder) -> Value:
        """In this mini-batch, with the numbers that it has now."""
        return rec.constant(self.tensor)


class Offset(NamedTuple):
    """Where an excerpt begins."""

    source: int
    offset: int
    slot: Slot

    def again(self, rec: Recorder) -> Value:
        """In this mini-batch."""
        value = rec.external(self.source, self.offset, self.slot)
        rec.remade[value.ref] = self
        return value


class Whole(NamedTuple):
    """A parameter that is an operand."""

    shared: Shared

    def again(self, rec: Recorder) -> Value:
        """In this mini-batch."""
        return rec.whole(self.shared)


class All(NamedTuple):
    """Rows that every mini-batch has, and as many: those of a parameter, places of the rows of a value."""

    make: Callable[[Recorder], Ragged]
    num: int

    def triple(self, rec: Recorder, given: Any, sizes: Sequence[int]) -> Triple:
        """As an argument of a run."""
        return triple(self.make(rec).refs)

    def size(self, indices: Sequence[Numbers], sizes: Sequence[Any]) -> int:
        """How many there are."""
        return self.num


class Drawn(NamedTuple):
    """Random numbers of a distribution, new ones in every call, for so many rows."""

    draw: Draw
    value_class: ValueClass
    num: Count

    def triple(self, rec: Recorder, given: Any, sizes: Sequence[int]) -> Triple:
        """As an argument of a run."""
        return triple(rec.drawn_rows(self, size_of(self.num, sizes)))

    def size(self, indices: Sequence[Numbers], sizes: Sequence[Any]) -> Any:
        """How many there are."""
        return size_of(self.num, sizes)


_DIRECT = frozenset((int, slice, list, torch.Tensor))
_INTEGERS = {int}
_ROWS = frozenset((int, slice))
_ALL = slice(None)


class Ragged(Lazy):
    """Definition (1)."""

    __slots__ = ("__weakref__", "at", "is_own", "of", "rec", "refs", "row", "seen", "taken")

    def __init__(self, rec: Recorder, refs: range, row: Slot, at: int = 0):
        self.rec = rec
        if refs:
            rec.last_stacked = max(rec.last_stacked, refs[0], refs[-1])
        self.refs = refs
        self.row = row
        self.at = at
        self.whole = None
        self.is_own, self.taken = False, None
        self.of: Ragged | None = None
        self.seen: weakref.ref[Ragged] | None = None
        """What shows all of it, along another dimension, and may change."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole; the size along `at` is a Python integer, but for code that is being kept (`ragged.symbols`)."""
        row, rec = self.row.shape, self.rec
        if rec.symbolic:
            size = Size(rec, len(self.refs), triple(self.refs))
            return Shape((*row[: self.at], size, *row[self.at :]))  # type: ignore[return-value]
        rec.asked_size = True
        return torch.Size((*row[: self.at], len(self.refs), *row[self.at :]))

    dtype = property(lambda self: self.row.dtype)
    ndim = property(lambda self: len(self.row.shape) + 1)

    @property
    def behind(self) -> int:
        """Dimensions from the ragged one on, it included: its place counted from the right, from 1."""
        return len(self.row.shape) - self.at + 1

    def _is_detached(self) -> bool:
        return not self.rec.flows or self.row.is_detached

    def _meta(self) -> torch.Tensor:
        self.rec.asked_size = True
        return torch.empty(
            (*self.row.shape[: self.at], len(self.refs), *self.row.shape[self.at :]),
            dtype=self.row.dtype,
            device="meta",
        )

    def __len__(self) -> int:
        self.rec.asked_size = True
        return len(self.refs) if self.at == 0 else self.row.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.at:
            return iter([self[i] for i in range(len(self))])
        return iter(self.values())

    def __getitem__(self, index: Any) -> Any:
        rec, kind = self.rec, type(index)
        if kind is tuple and self._is_split(index):
            rest = index[1:] if type(index[0]) is int else (_ALL, *index[1:])
            return self[index[0]][rest]
        if kind in _DIRECT and self.at == 0 and rec.books is None and rec.flows:
            if kind is int:
                return self.value(index)
            if rec.keeping or rec.looks:
                pass
            elif kind is slice:  # as `views.gotten` does
                self.show()
                return self.like(self.refs[index])
            elif kind is torch.Tensor and not index.ndim and index.dtype is torch.int64:  # a number, as torch has it
                return self.value(int(index))
            elif (numbers := self._numbers(index)) is not None:
                taken = self.take(numbers)
                taken.is_own = True
                return taken
        return Lazy.__getitem__(self, index)

    def _is_split(self, index: tuple[Any, ...]) -> bool:
        """Whether an index says which rows, and then the same of each: what a call is known by tells the latter."""
        is_plain = self.at == 0 and len(index) > 1 and not self.rec.keeping and self.rec.books is None
        if not is_plain or type(index[0]) not in _ROWS or index[0] == _ALL:
            return False
        return all(type(item) in _ROWS for item in index[1:])

    def _numbers(self, index: Any) -> Any:
        """The rows of a list of integers, of a vector of them, or of a mask; None for other indices."""
        if type(index) is list:
            return index if {*map(type, index)} == _INTEGERS else None
        if index.ndim != 1 or not index.is_cpu:
            return None
        if index.dtype is torch.bool:
            return index.nonzero().reshape(-1).numpy() if len(index) == len(self.refs) else None
        return self.rec.numbers_of(index) if index.dtype is torch.int64 else None

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self.rec.assigns_rows(self, index, value):
            Lazy.__setitem__(self, index, value)

    def value(self, number: int) -> Value:
        """One row. Raises IndexError as a tensor would."""
        count = len(self.refs)
        if not -count <= number < count:
            raise IndexError(f"index {number} is out of bounds for dimension {self.at} with size {count}")
        if self.rec.keeping:  # the slice tells how many rows there must be
            return self._of(self._slice(slice(number, number + 1 or None)).start)
        self.rec.asked_size = True
        return self._of(self.refs[number])

    def values(self) -> list[Value]:
        """All rows."""
        self.rec.asked_size = True
        return [self.value(i) for i in range(len(self.refs))]

    def _slice(self, which: slice) -> range:
        """Rows from one to another; what is to be kept says which."""
        if not self.rec.keeping:
            return self.refs[which]
        return one_step(self.rec, SLICE, bounds_of(which), [triple(self.refs)])

    def _of(self, ref: int) -> Value:
        rec, taken = self.rec, self.taken
        if self.seen is not None:
            self.show()
        if rec.keeping:
            self.is_own, self.taken = False, None
        elif taken is not None:
            taken.append(ref)
        elif self.is_own:
            self.is_own, self.taken = False, [ref]
        value = value_of(rec, ref, self.row)
        if rec.books is not None:
            rec.books.memory_of(value).is_row = True
        return value if rec.flows else rec.without_gradient(value)

    def take(self, numbers: Sequence[int] | np.ndarray | slice | Numbers) -> Ragged:
        """Rows by number, which may be negative; definition (3). Raises IndexError as a tensor would."""
        if isinstance(numbers, slice):
            return self.like(self._slice(numbers))
        self.rec.asked_size |= not isinstance(numbers, Numbers)
        found = numbers if isinstance(numbers, Numbers) else self.rec.hold(np.array(numbers, np.int64).reshape(-1))
        count = len(self.refs)
        if not found.size:
            return self.like(range(0))
        if not (-count <= found.lowest and found.highest < count):
            raise IndexError(f"index out of range: expected rows of {count}, got {found.lowest} to {found.highest}")
        return self.like(one_step(self.rec, TAKE, (), [triple(self.refs), found.triple]))

    def like(self, refs: range, at: int | None = None) -> Ragged:
        """Other rows of the same slot."""
        return Ragged(self.rec, refs, self.row, self.at if at is None else at)

    def like_at(self, at: int) -> Ragged:
        """The same rows along another dimension."""
        return self if at == self.at else self.like(self.refs, at)

    def repeated(self, count: int, like: Ragged | None = None) -> Ragged:
        """The one row `count` times, as broadcasting does: as often as there are rows that it stands beside, if any."""
        times = None if like is None else triple(like.refs)
        return self.like(filled(self.rec, self.refs[0], count, times)) if len(self.refs) == 1 != count else self

    def tiled(self, values: Triple, each: bool) -> Ragged:
        """The rows as often as there are values, one time behind the other or `each` so often: rows by pairs."""
        return self.like(one_step(self.rec, TILE, (int(each),), [triple(self.refs), values]))

    def another(self) -> Ragged:
        """The same rows by another name."""
        return self.like(self.refs)

    def is_as(self, other: Any) -> bool:
        """See Lazy."""
        if type(other) is not Ragged or other.at != self.at or len(other.refs) != len(self.refs):
            return False
        return other.row.shape == self.row.shape and other.row.dtype is self.row.dtype

    def become(self, other: Ragged) -> None:
        """Show other rows from now on."""
        self.refs, self.row, self.at, self.whole, self.taken = other.refs, other.row, other.at, None, None

    def show(self, view: Ragged | None = None) -> None:
        """Others show the memory from now on: a view of all of it, which may change both, or who knows what."""
        seen = None if self.seen is None else self.seen()
        if seen is not None:
            seen.show()
        if view is not None and self.is_own:
            view.is_own, view.of, self.seen = True, self, weakref.ref(view)
        self.is_own, self.taken = False, None

    def without_gradient(self) -> Ragged:
        """The same rows, seen such that no gradient passes."""
        rec = self.rec
        self.show()
        seen: Value = rec.without_gradient(value_of(rec, PLACE, self.row))
        return Ragged(rec, self.refs, seen.slot, self.at)

    def rows(self) -> tuple[Sequence[int], Slot, int] | None:
        is_plain = self.whole is None and self.rec.books is None and len(self.refs) > 0
        return (self.refs, self.row, self.at) if is_plain else None

    def make(self) -> Value:
        """The rows as one value, by a node of a type per size: definition (4)."""
        rec, count = self.rec, len(self.refs)
        if not count:
            return rec.constant(torch.zeros(self.shape, dtype=self.dtype))
        if count == 1:
            return value_of(rec, self.refs[0], self.row).unsqueeze(self.at)
        key = Ragged, count, self.row, self.at
        known = rec.functions.get(key)
        if known is not None:
            return rec.emit(known, self.refs)
        return rec.node(torch.stack, ([value_of(rec, ref, self.row) for ref in self.refs], self.at), {}, key=key)


def changed_rows(target: Any, compute: Callable[[], Any]) -> Any:
    """Let a value, of one ragged dimension or two, show from now on what is computed of it: a change in place. Raises
    NotRagged where others may show its memory, CannotKeep in code that is being kept."""
    rec = target.rec
    if not target.is_own or not (rec.flows or (type(target) is Ragged and rec.requires_none_of(target))):
        raise CannotKeep if rec.keeping else NotRagged
    new = compute()
    if not target.is_as(new):
        raise NotRagged
    name: Any = target
    while name is not None:
        name.become(new if name is target else new.like_at(name.at))
        name = name.of
    target.is_own = True  # as before: what was computed of it may have shown it
    return target


def bounds_of(which: slice) -> tuple[int, int, int]:
    """A slice as parameters of a step."""
    start, stop, step = (NONE if bound is None else int(bound) for bound in (which.start, which.stop, which.step))
    return start, stop, step


def one_step(rec: Recorder, op: int, parameters: tuple[int, ...], triples: Sequence[Triple]) -> range:
    """A run of one step on its arguments, which makes one register."""
    program = rec.table.programs.of_step(op, parameters, len(triples))
    [made] = rec.run(program, [number for argument in triples for number in argument])
    return made


def filled(rec: Recorder, ref: int, count: int, like: Triple | None = None) -> range:
    """One value, so many times, or as often as there are others."""
    made = one_step(rec, FILL, (), [(ref, 0, 1), (ref, 0, count) if like is None else like])
    if rec.is_zero(ref):
        rec.zeros.add(made.start)
    return made


def each_row(rec: Recorder, rows: Sequence[Ragged], call: Callable[..., Any], at: int | Callable[[Value], int]) -> Any:
    """What `call` gives for every row of ragged values of equal numbers, definition (2): `call` gets one stand-in for a
    row of each. The results' rows stand along `at`; results that are no tensors stay."""
    first = rec.next_value
    entries, refs, result = _on_places(rec, [ragged.row for ragged in rows], call)
    return _OfRow(rec, rows, first).recorded(entries, refs, result, at)


def _on_places(rec: Recorder, slots: Sequence[Slot], call: Callable[..., Any]) -> tuple[list[int], list[int], Any]:
    """What a call of one stand-in for each slot records, which is taken back; and what it gives."""
    num_entries, num_refs, first, num_draws = rec.place()
    result = call(*[value_of(rec, PLACE - k, slot) for k, slot in enumerate(slots)])
    entries, refs = rec.entries[num_entries:], rec.refs[num_refs:]
    del rec.entries[num_entries:], rec.refs[num_refs:], rec.draws[num_draws:]
    rec.next_value = first
    if any(entry < 0 for entry in entries):
        raise NotRagged
    return entries, refs, result


def scanned(rec: Recorder, rows: Ragged, states: Sequence[Value], step: Callable[..., Sequence[Value]],
            backwards: bool = False) -> list[Ragged]:  # fmt: skip
    """The states after each row, as rows: `step` gets a row and the states before it, and gives those after it. Rows
    are taken in their order, or from the last one on. One run whatever n is; O(n) when it is expanded."""
    first = rec.next_value
    entries, refs, after = _on_places(rec, [rows.row, *[s.slot for s in states]], step)
    made = range(first, first + sum(len(rec.table.entries[number].output_slots) for number in entries))
    places = range(PLACE, PLACE - 1 - len(states), -1)
    shared = [ref for ref in dict.fromkeys(refs) if ref not in places and ref not in made]
    fits = all(value.slot is state.slot and value.ref in made for value, state in zip(after, states, strict=True))
    if not fits or any(rec.drawn_from(ref) is not None for ref in shared):
        raise NotRagged
    number_of = {ref: k for k, ref in enumerate((*places, *shared, *made))}
    parameters, at = [int(backwards), len(states), len(entries), len(made)], 0
    for number in entries:
        entry = rec.table.entries[number]
        operands = refs[at : at + entry.num_operands]
        parameters += number, len(entry.output_slots), len(operands), *[number_of[ref] for ref in operands]
        at += len(operands)
    parameters += [number_of[value.ref] for value in after]
    singles = [(ref, 0, 1) for ref in (*[s.ref for s in states], *shared)]
    draft = Draft(1 + len(singles))
    draft.add(SCAN, parameters, range(-1, -2 - len(singles), -1), 0)
    results = [value.ref - first for value in after]
    flat = [number for argument in (triple(rows.refs), *singles) for number in argument]
    found = rec.run(rec.table.programs.made_of(draft, results), flat)
    return [Ragged(rec, own, value.slot, rows.at) for own, value in zip(found, after, strict=True)]


class _OfRow:
    """The program of what was recorded on places of rows, and its run."""

    def __init__(self, rec: Recorder, rows: Sequence[Ragged], first: int):
        self.rec, self.first, self.rows = rec, first, rows
        self.draft = Draft(len(rows))
        self.flat = [number for ragged in rows for number in triple(ragged.refs)]
        self.registers = {PLACE - k: -1 - k for k in range(len(rows))}
        self.shared: set[int] = set()
        """Registers of what is the same for all rows."""
        self.results: list[int] = []

    def recorded(self, entries: Sequence[int], refs: Sequence[int], result: Any, at: Any) -> Any:
        """Record the run; what the call gave, of all rows."""
        begin, value = 0, self.first
        for number in entries:
            entry = self.rec.table.entries[number]
            operands = [self.register(ref) for ref in refs[begin : begin + entry.num_operands]]
            leader = next((k for k, register in enumerate(operands) if register not in self.shared), -1)
            made = self.draft.each(number, len(entry.output_slots), operands, leader)
            for k in range(len(entry.output_slots)):
                self.registers[value + k] = made + k
                self.shared |= {made + k} if leader < 0 else set()
            begin, value = begin + entry.num_operands, value + len(entry.output_slots)
        places: list[tuple[int, Value]] = []
        nest = self.placed(result, places)
        made_of = self.rec.table.programs.made_of
        found = self.rec.run(made_of(self.draft, self.results), self.flat) if self.results else []
        return self.filled(nest, places, found, at)

    def register(self, ref: int) -> int:
        """The register of an operand."""
        known = self.registers.get(ref)
        if known is None:
            known = self.registers[ref] = self.draft.argument()
            distribution = self.rec.drawn_from(ref)
            if distribution is None:
                self.flat += ref, 0, 1
                self.shared.add(known)
            else:  # random numbers are drawn for each row
                self.flat += triple(self.rec.drawn_rows(Drawn(*distribution, 0), len(self.rows[0].refs)))
        return known

    def placed(self, item: Any, places: list[tuple[int, Value]]) -> Any:
        """The nest with the number of a place for each value."""
        if type(item) is Value:
            register = self.register(item.ref)
            if register in self.shared:
                register = self.draft.add(FILL, (), (register, -1), 0)
            if register >= 0 and register not in self.results:
                self.results.append(register)
            places.append((register, item))
            return _Place(len(places) - 1)
        if isinstance(item, Lazy):
            raise TypeError("a row-wise call gave a stack that is no node yet")
        return inside(lambda x: self.placed(x, places), item)

    def filled(self, item: Any, places: Sequence[tuple[int, Value]], found: Sequence[range], at: Any) -> Any:
        """The nest with ragged values in its places."""
        if type(item) is _Place:
            register, value = places[item.number]
            refs = found[self.results.index(register)] if register >= 0 else self.rows[-1 - register].refs
            return Ragged(self.rec, refs, value.slot, at if isinstance(at, int) else at(value))
        return inside(lambda x: self.filled(x, places, found, at), item)


class _Place(NamedTuple):
    """Place of a value in a nest."""

    number: int
