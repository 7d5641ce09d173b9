"""A schedule as a program of streams: which unit is issued when, on which stream, and what it waits for.

(1) An *operation* is what is issued as one: a unit, or several that are merged. Operations of one stream run in the
    order in which they are issued. One *happens before* another when it is earlier on the same stream, or the other
    one waits for it, or by both any number of times.
(2) With barriers every group of a stage is a stream; the first operation of each waits for the last ones of all groups
    of the stage before. Without, an operation waits for those that write what it reads, and nothing else but the one
    before it on its stream. Then operations are issued by the longest path that remains from them, and each is put
    behind one of its operands where nothing stands there yet, else on a stream whose last operation happens before it
    anyway, else on a new one, else on the one with the least work.
(3) A value's memory belongs to the stream of the operation that writes it (its *home*): the allocator gives it to later
    allocations on that stream, and to no other. So a value is let go just before the first operation on its home that
    happens after all that touch it. Values that are alive never share memory, and units of concurrent groups are in no
    order, so neither do their values. Results stay. Values that units keep to themselves are made and let go on one
    stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from edbc.stages.graph import UnitGraph
from edbc.stages.table import MERGE, Schedule


@dataclass(frozen=True)
class Operation:
    """Definition (1)."""

    units: tuple[int, ...]
    stream: int
    waits: tuple[int, ...] = ()
    """Operations of other streams, by number."""
    frees: tuple[int, ...] = ()
    """Units whose values are let go before it, definition (3)."""


@dataclass(frozen=True)
class Program:
    """Operations in the order in which they are issued."""

    operations: tuple[Operation, ...]

    @property
    def streams(self) -> int:
        """How many are used; the first one is where the program begins and ends."""
        return 1 + max((op.stream for op in self.operations), default=0)

    @property
    def awaited(self) -> frozenset[int]:
        """Operations that others wait for."""
        return frozenset(number for op in self.operations for number in op.waits)


def program_of(graph: UnitGraph, schedule: Schedule, streams: int, barriers: bool = True) -> Program:
    """A schedule on so many streams, definition (2), with the lives of values, (3)."""
    operations = _staged(graph, schedule, streams) if barriers else _open(graph, schedule, streams)
    return Program(tuple(_with_lives(graph, operations)))


def _staged(graph: UnitGraph, schedule: Schedule, streams: int) -> list[Operation]:
    made: list[Operation] = []
    ends: list[int] = []
    for groups, run in schedule:
        units = tuple(unit for group in groups for unit in group)
        lanes = [[units]] if run == MERGE else _lanes(graph, groups, streams)
        following = []
        for stream, lane in enumerate(lanes):
            waits = tuple(end for end in ends if made[end].stream != stream)
            for part in lane:
                made.append(Operation(part, stream, waits))
                waits = ()
            following.append(len(made) - 1)
        ends = following
    return made


def _lanes(graph: UnitGraph, groups: Sequence[Sequence[int]], streams: int) -> list[list[tuple[int, ...]]]:
    """Groups on streams, those with most work first, each where there is least."""
    work = {tuple(group): sum(graph.units[unit].flops + 1 for unit in group) for group in groups}
    lanes: list[list[tuple[int, ...]]] = [[] for _ in range(min(streams, len(groups)))]
    load = [0] * len(lanes)
    for group in sorted(work, key=lambda group: -work[group]):
        lane = load.index(min(load))
        lanes[lane] += [(unit,) for unit in group]
        load[lane] += work[group]
    return lanes


def _open(graph: UnitGraph, schedule: Schedule, streams: int) -> list[Operation]:
    parts = [
        part
        for groups, run in schedule
        for part in ([tuple(u for g in groups for u in g)] if run == MERGE else [(u,) for g in groups for u in g])
    ]
    return _Assignment(graph, parts, streams).operations()


@dataclass
class _Assignment:
    """Streams for operations without barriers, (2)."""

    graph: UnitGraph
    parts: list[tuple[int, ...]]
    """Units of each operation, in an order that can be run."""
    streams: int
    made: list[Operation] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    """Of each made, the set of those that happen before it."""
    tails: list[int] = field(default_factory=list)
    """The last operation of each stream."""

    def operations(self) -> list[Operation]:
        """All, the longest path first."""
        part_of = {unit: i for i, units in enumerate(self.parts) for unit in units}
        reads = [{part_of[r] for u in units for r in self.graph.units[u].reads if r >= 0} for units in self.parts]
        readers: list[list[int]] = [[] for _ in self.parts]
        for part, others in enumerate(reads):
            for other in others:
                readers[other].append(part)
        work = [sum(self.graph.units[u].flops + 1 for u in units) for units in self.parts]
        path = [0] * len(work)
        for part in range(len(work) - 1, -1, -1):
            path[part] = work[part] + max((path[reader] for reader in readers[part]), default=0)
        left, number, load = [len(others) for others in reads], dict[int, int](), [0] * self.streams
        ready = [(-path[part], part) for part, count in enumerate(left) if not count]
        heapq.heapify(ready)
        while ready:
            part = heapq.heappop(ready)[1]
            number[part] = len(self.made)
            self._add(self.parts[part], sorted((number[r] for r in reads[part]), reverse=True), load)
            load[self.made[-1].stream] += work[part]
            for reader in readers[part]:
                left[reader] -= 1
                if not left[reader]:
                    heapq.heappush(ready, (-path[reader], reader))
        return self.made

    def _add(self, units: tuple[int, ...], operands: list[int], load: list[int]) -> None:
        above = 0
        for other in operands:
            above |= self.before[other] | 1 << other
        behind = [other for other in operands if other in self.tails]
        idle = [stream for stream, tail in enumerate(self.tails) if above >> tail & 1]
        if behind:
            stream = self.made[behind[0]].stream
        elif idle:
            stream = idle[0]
        elif len(self.tails) < self.streams:
            stream = len(self.tails)
            self.tails.append(-1)
        else:
            stream = load.index(min(load))
        tail = self.tails[stream]
        if tail >= 0:
            above |= self.before[tail] | 1 << tail
        needed = [o for o in operands if self.made[o].stream != stream and not self._is_implied(o, operands, tail)]
        self.made.append(Operation(units, stream, tuple(sorted(needed))))
        self.before.append(above)
        self.tails[stream] = len(self.made) - 1

    def _is_implied(self, operand: int, operands: list[int], tail: int) -> bool:
        """Whether waiting for another operand, or the order of the stream, waits for this one too."""
        return any(self.before[other] >> operand & 1 for other in (*operands, *([tail] if tail >= 0 else [])))


def _with_lives(graph: UnitGraph, operations: Sequence[Operation]) -> list[Operation]:
    """Definition (3)."""
    before = happens_before(operations)
    touching: dict[int, int] = {}
    home: dict[int, int] = {}
    for number, op in enumerate(operations):
        for unit in op.units:
            home[unit] = op.stream
            touching[unit] = touching.get(unit, 0) | 1 << number
            for other in graph.units[unit].reads:
                touching[other] = touching.get(other, 0) | 1 << number
    alive = [unit for unit in home if unit not in graph.results]
    found = []
    for number, op in enumerate(operations):
        frees = [u for u in alive if home[u] == op.stream and touching[u] & ~before[number] == 0]
        alive = [u for u in alive if u not in frees]
        found.append(replace(op, frees=tuple(frees)))
    return found


def happens_before(operations: Iterable[Operation]) -> list[int]:
    """For every operation the set of those that happen before it, (1)."""
    found: list[int] = []
    last: dict[int, int] = {}
    for number, op in enumerate(operations):
        before = 0
        for other in (*op.waits, *([last[op.stream]] if op.stream in last else [])):
            before |= found[other] | 1 << other
        found.append(before)
        last[op.stream] = number
    return found
