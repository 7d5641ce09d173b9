"""Programs: what a call on rows records, as data, for any number of rows.

A call on rows is one entry of a recording whatever n is: a *run*, a program and its arguments. It is expanded to nodes
when the recording has ended (`ragged.expand`), natively.

Definitions.

(1) A *register* is a vector of values of one slot: rows, or a single value, which is a vector of one. A vector of
    indices or of refs that the recording holds is a register too.
(2) A *program* is a list of steps, each of which makes registers of earlier ones; see the operations below. Arguments
    are registers -1, -2, ..., in their order; what steps make is 0, 1, ... A run gives each argument as a triple
    `(first, step, count)`: every step-th ref from the first one on, or `(offset, INDICES, count)`.
(3) The *results* of a program are the registers that get refs of their own, one after the other, when a run is
    recorded. How many that are follows from the sizes of arguments (`Count`), so nothing need be expanded to go on.

Equal programs are one object, so a table has as many as a model has kinds of calls, not as many as it makes calls.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.kept import Kept

if TYPE_CHECKING:
    from edbc.capture.record.table import Operation
    from edbc.capture.standins.standin import Slot

Ints = NDArray[np.int64]

EACH, REDUCE, TAKE, GROUP, JOIN, SLICE, FILL, ALIAS, RUN, SCAN, TILE = range(11)
"""The operations, with parameters; registers.

EACH (entry, outputs, leader; operands): a node for each row; operand `leader` tells how many, the others are as many or
one for all. Without a leader (-1) one node.
REDUCE (reduction; rows): a node over all rows, of one that row itself.
TAKE (; rows, indices): rows by number, negative ones from the end.
GROUP (reduction, keeps; own, rows, indices): each row of `own`, reduced with the rows that the indices send there, with
its own first where it `keeps` it. Where nothing is sent it stays.
JOIN (; rows...): rows behind each other.
SLICE (start, stop, step; rows): with NONE for what Python calls None.
FILL (; value, rows): one value, as often as there are rows.
TILE (each; rows, values): all rows as often as there are values, one time behind the other or, with `each`, each row
so often.
ALIAS (; refs): the values that a vector of refs names.
RUN (function, kind, lengths, symbols...; rows..., marks...): a node of a function of whole runs (`ragged.whole`), with
one value or as many as field 0 has rows. Field k has as many rows as all fields of `symbols[k]`, one of so many
lengths. Where there are several, a node has as many items as the longest field has rows, shorter ones repeat their last
row, and a further field says which are real: an item of lengths 0 and 2 has mark number 0b101 - 1.
SCAN (backwards, states, nodes, outputs of all nodes, then of each node entry, outputs, operands and these, then what
each state becomes; rows, states, ...): the nodes of a step for each row in turn, or from the last one on; the register
of a node's output has a value per row. What a step reads is numbered: the row, the states, registers that all rows
share, then the outputs of its nodes."""
ONE, SEGMENTED = range(2)
"""Kinds of RUN."""
NONE = -(1 << 62)
PLACE = -(1 << 61)
"""Refs from here downwards are places of rows in a call that is being recorded for all of them."""
INDICES = 1 << 60
"""In the place of a step: the numbers from an offset on of those that the recording holds."""
REFS = INDICES + 1
"""The same of numbers that are refs: of externals that are looked up more than once."""
Triple = tuple[int, int, int]
MOST_TEMPLATES = 64
"""Combinations of kept forwards whose templates are kept."""


class CannotKeep(BaseException):
    """A call records what is neither its arguments' nor made by it, or asks what a program cannot tell."""


class Says(CannotKeep):
    """Code takes a branch that prints, warns or logs: for these sizes nothing is kept, of others nothing is told."""


class Numbers(NamedTuple):
    """Indices that the recording holds, `size` of them from `offset` on, and their bounds."""

    offset: int
    size: int
    lowest: int
    highest: int
    array: Ints

    @property
    def triple(self) -> Triple:
        """As an argument of a run."""
        return self.offset, INDICES, self.size


class Below(NamedTuple):
    """What integers are that stand as rows: any, or from 0 to `size` - 1."""

    size: int | None = None

    def holds(self, numbers: Numbers) -> Any:
        """Whether they are; of arrays, one item per instance, where. There must be some."""
        some: Any = numbers.size > 0
        return some if self.size is None else some & (numbers.lowest >= 0) & (numbers.highest < self.size)


class Sum(NamedTuple):
    """The size of a join."""

    parts: tuple[Count, ...]


class Times(NamedTuple):
    """The size of one that has the rows of others in pairs."""

    parts: tuple[Count, ...]


class Part(NamedTuple):
    """The size of a slice."""

    whole: Count
    bounds: tuple[int | None, int | None, int | None]


Count = int | None | Sum | Times | Part
"""How many values a register has: as many as argument number k, one (None), or what follows from other sizes."""


def size_of(count: Count, sizes: Sequence[Any], known: dict[int, Any] | None = None) -> Any:
    """How many that are where arguments have these sizes, which may be arrays of them. Sizes that consist of others are
    kept in `known` by their addresses: a convolution pads and slices the one before it."""
    if type(count) is int:
        return sizes[count]
    if count is None:
        return 1
    known = {} if known is None else known
    assert isinstance(count, Sum | Times | Part)
    if id(count) not in known:
        known[id(count)] = _new_size(count, sizes, known)
    return known[id(count)]


def _new_size(count: Sum | Times | Part, sizes: Sequence[Any], known: dict[int, Any]) -> Any:
    if isinstance(count, Sum):
        return sum(size_of(part, sizes, known) for part in count.parts)
    if isinstance(count, Times):
        return math.prod(size_of(part, sizes, known) for part in count.parts)
    whole, which = size_of(count.whole, sizes, known), slice(*count.bounds)
    if isinstance(whole, np.ndarray):
        return np.array([len(range(size)[which]) for size in whole.tolist()], np.int64)
    return len(range(whole)[which])


def arguments_of(count: Count) -> set[int]:
    """The arguments that a size follows from."""
    if type(count) is int:
        return {count}
    if isinstance(count, Part):
        return arguments_of(count.whole)
    return set().union(*map(arguments_of, count.parts)) if isinstance(count, Sum | Times) else set()


def num_made(op: int, parameters: Sequence[int]) -> int:
    """How many registers a step makes."""
    return parameters[1] if op == EACH else parameters[3] if op == SCAN else 1


def count_of(count: Count, sizes: Sequence[Count]) -> Count:
    """A size in terms of what the sizes that it is told by follow from."""
    if isinstance(count, Sum | Times):
        return type(count)(tuple([count_of(part, sizes) for part in count.parts]))
    if isinstance(count, Part):
        return Part(count_of(count.whole, sizes), count.bounds)
    return None if count is None else sizes[count]


def count_after(op: int, parameters: Sequence[int], counts: Sequence[Count]) -> Count:
    """The size of what a step makes that is no EACH."""
    if op == REDUCE or (op == RUN and parameters[1] == ONE):
        return None
    if op in (TAKE, FILL):
        return counts[1]
    if op == JOIN:
        return Sum(tuple(counts))
    if op == TILE:
        return Times(tuple(counts))
    if op == SLICE:
        start, stop, step = (None if p == NONE else p for p in parameters)
        return Part(counts[0], (start, stop, step))
    return counts[0]


class Step(NamedTuple):
    """An operation with its parameters and registers."""

    op: int
    parameters: tuple[int, ...]
    registers: tuple[int, ...]

    @property
    def entries(self) -> list[int]:
        """The entries of its nodes, but for those of any number of items."""
        if self.op != SCAN:
            return [self.parameters[0]] if self.op == EACH else []
        found, at = [], 4
        for _ in range(self.parameters[2]):
            found.append(self.parameters[at])
            at += 3 + self.parameters[at + 2]
        return found


class Program:
    """Definition (2)."""

    __slots__ = ("counts", "index", "num_args", "results", "steps")

    def __init__(self, index: int, num_args: int, steps: tuple[Step, ...], results: tuple[int, ...],
                 counts: tuple[Count, ...]):  # fmt: skip
        self.index, self.num_args, self.steps, self.results, self.counts = index, num_args, steps, results, counts

    @property
    def entries(self) -> list[int]:
        """The entries of its nodes, but for reductions."""
        return [entry for step in self.steps for entry in step.entries]

    def counts_of_steps(self) -> list[list[Count]]:
        """The sizes of the registers that each step makes."""
        found: list[list[Count]] = []
        counts: list[Count] = []
        for op, parameters, registers in self.steps:
            read = [-1 - r if r < 0 else counts[r] for r in registers]
            if op == EACH:
                count = None if parameters[2] < 0 else read[parameters[2]]
            else:
                count = count_after(op, parameters, read)
            found.append([count] * num_made(op, parameters))
            counts += found[-1]
        return found

    def words(self) -> list[int]:
        """As numbers: for each step its operation, what follows with its length each; then the results."""
        made = []
        for op, parameters, registers in self.steps:
            made += [op, len(parameters), *parameters, len(registers), *registers]
        return [self.num_args, len(self.steps), *made, len(self.results), *self.results]


class Draft:
    """A program as it is put together."""

    def __init__(self, num_args: int):
        self.num_args = num_args
        self.steps: list[Step] = []
        self.counts: list[Count] = []

    def argument(self) -> int:
        """One more argument: its register."""
        self.num_args += 1
        return -self.num_args

    def count_of(self, register: int) -> Count:
        """The size of a register."""
        return -1 - register if register < 0 else self.counts[register]

    def add(self, op: int, parameters: Sequence[int], registers: Sequence[int], count: Count) -> int:
        """A step; the first of the registers that it makes."""
        first = len(self.counts)
        self.steps.append(Step(op, tuple(parameters), tuple(registers)))
        self.counts += [count] * num_made(op, parameters)
        return first

    def each(self, entry: int, outputs: int, registers: Sequence[int], leader: int) -> int:
        """A node per row, or one (-1)."""
        count = None if leader < 0 else self.count_of(registers[leader])
        return self.add(EACH, (entry, outputs, leader), registers, count)


def triple(refs: range) -> Triple:
    """Rows as an argument."""
    return refs.start, refs.step, len(refs)


class Reduction(NamedTuple):
    """What reduces rows of a slot to one value."""

    op: str
    slot: Slot
    autocast: Any


class RunOf(NamedTuple):
    """A function of runs."""

    operation: Operation
    """Of one item."""
    result: Slot
    segmented: bool
    described: Any

    def __hash__(self) -> int:
        return hash(self.described)

    def __eq__(self, other: object) -> bool:
        return type(other) is RunOf and self.described == other.described


class Programs:
    """The programs and reductions of one table. Adding is guarded by a lock."""

    def __init__(self) -> None:
        self._programs: list[Program] = []
        self._known: dict[Any, Program] = {}
        self._of_step: dict[Any, Program] = {}
        self._variadic: list[tuple[Reduction | RunOf, dict[int, int]]] = []
        """What nodes of any number of items do, with an entry for each number that was met."""
        self._number_of: dict[Any, int] = {}
        self.with_patterns: dict[Any, tuple[Any, Program]] = {}
        self.templates: Kept[tuple[int, ...], tuple[Any, Any]] = Kept(MOST_TEMPLATES)
        """Of whole mini-batches (`ragged.together.templates`)."""
        self._words: tuple[Ints, Ints] = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._entries: tuple[Ints, Ints] = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._lock = threading.RLock()

    def __getitem__(self, index: int) -> Program:
        return self._programs[index]

    def made_of(self, draft: Draft, results: Sequence[int]) -> Program:
        """The program that a draft has become."""
        counts = tuple(draft.count_of(register) for register in results)
        key = draft.num_args, tuple(draft.steps), tuple(results), counts
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = Program(len(self._programs), *key)
                self._programs.append(known)
        return known

    def of_step(self, op: int, parameters: tuple[int, ...], num_args: int) -> Program:
        """The program of one step on its arguments, which makes one register."""
        key = op, parameters, num_args
        known = self._of_step.get(key)
        if known is None:
            draft = Draft(num_args)
            registers = tuple(range(-1, -1 - num_args, -1))
            draft.add(op, parameters, registers, count_after(op, parameters, range(num_args)))
            known = self._of_step[key] = self.made_of(draft, [0])
        return known

    def variadic(self, what: Reduction | RunOf) -> int:
        """The number of a reduction, or of a function of runs."""
        with self._lock:
            number = self._number_of.setdefault(what, len(self._variadic))
            if number == len(self._variadic):
                self._variadic.append((what, {}))
        return number

    def variadic_of(self, number: int) -> Reduction | RunOf:
        """That of a number."""
        return self._variadic[number][0]

    def entries_of(self, number: int) -> dict[int, int]:
        """The entries of what is variadic, by number of items."""
        return self._variadic[number][1]

    def add_entry(self, number: int, count: int, entry: int) -> None:
        """The entry for so many items."""
        with self._lock:
            self._variadic[number][1].setdefault(count, entry)
            self._entries = np.zeros(0, np.int64), np.zeros(1, np.int64)

    def arrays(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Programs as words, and entries of what is variadic by number of items, each with bounds."""
        if len(self._words[1]) <= len(self._programs):
            with self._lock:
                self._words = _joined([program.words() for program in self._programs])
        if len(self._entries[1]) <= len(self._variadic):
            with self._lock:
                self._entries = _joined([_by_count(entries) for _, entries in self._variadic])
        return *self._words, *self._entries


def _by_count(entries: dict[int, int]) -> list[int]:
    """Entries by number of values, -1 where there is none."""
    return [entries.get(count, -1) for count in range(max(entries, default=0) + 1)]


def _joined(parts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    ptr = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=ptr[1:])
    return np.array([number for part in parts for number in part], np.int64), ptr
