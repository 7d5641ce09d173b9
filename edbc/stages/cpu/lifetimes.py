"""Where values stand: one arena per batch, laid out by lifetimes that are a partial order.

Units of one stage run side by side, so "later" is no number. Of two units, one *happens before* the other

(1) when its stage is earlier, or they are in one group of one stage and it comes first in it; or
(2) in execution without barriers, only when the other one reads it, directly or not (or both are in parts of the
    schedule between which there is a barrier all the same).

A value *lives* from the unit that writes it to the units that read it; a concatenation from the first operand that is
written in place in it. Results live to the end. Two values may share memory only when everything that touches one
happens before what writes the other. Units of concurrent groups are in no order, so what they write or read never
shares memory.

Offsets and sizes are in elements of one image: a value of a batch of N stands at N times its offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edbc.errors import LayoutError
from edbc.stages.endings import members
from edbc.stages.graph import UnitGraph
from edbc.stages.table import CONCURRENT, Schedule

ALIGNMENT = 16
"""Elements: a cache line of float32."""


@dataclass(frozen=True)
class Arena:
    """Where every unit's value stands."""

    offsets: tuple[int, ...]
    size: int


def happens_before(graph: UnitGraph, schedule: Schedule, barriers: bool = True) -> list[int]:
    """For every unit the set of those that happen before it, (1) or (2)."""
    before = [0] * len(graph.units)
    closure = graph.dag.closures()[0]
    done = part = 0
    for groups, run in schedule:
        is_open = not barriers and run == CONCURRENT
        if not is_open:
            done |= part
            part = 0
        for group in groups:
            earlier = done
            for unit in group:
                before[unit] = earlier | (closure[unit] if is_open else 0)
                if not is_open:
                    earlier |= 1 << unit
                part |= 1 << unit
        if not is_open:
            done |= part
            part = 0
    return before


def touches(graph: UnitGraph, placed: Mapping[int, tuple[int, int]]) -> tuple[list[int], list[int]]:
    """For every value, the units that write it and all units that touch it, as sets. A value that is placed in a
    concatenation is the concatenation's."""
    writers = [1 << unit for unit in range(len(graph.units))]
    for operand, (cat, _) in placed.items():
        writers[cat] |= writers[operand]
    touching = list(writers)
    for unit, reads in enumerate(unit.reads for unit in graph.units):
        for other in reads:
            if other >= 0:
                touching[other] |= 1 << unit
    for operand, (cat, _) in placed.items():
        touching[cat] |= touching[operand]
    return writers, touching


def plan_arena(graph: UnitGraph, schedule: Schedule, placed: Mapping[int, tuple[int, int]],
               barriers: bool = True) -> Arena:  # fmt: skip
    """Offsets of all values: the largest first, each at the lowest place that is free for as long as it lives.
    O(n^2 log n) for n values."""
    before = happens_before(graph, schedule, barriers)
    writers, touching = touches(graph, placed)
    last = {unit for unit in graph.results if unit >= 0}
    sizes = [-(-math.prod(unit.shape[1:]) // ALIGNMENT) * ALIGNMENT for unit in graph.units]
    offsets = [0] * len(graph.units)
    done: list[int] = []
    for value in sorted((v for v in range(len(graph.units)) if v not in placed), key=lambda v: (-sizes[v], v)):
        taken = sorted(
            (offsets[other], sizes[other])
            for other in done
            if not _may_share(value, other, before, writers, touching, last)
        )
        at = 0
        for start, size in taken:
            if at + sizes[value] <= start:
                break
            at = max(at, start + size)
        offsets[value] = at
        done.append(value)
    return Arena(tuple(offsets), max(offsets[v] + sizes[v] for v in done))


def _may_share(a: int, b: int, before: list[int], writers: list[int], touching: list[int], last: set[int]) -> bool:
    """Whether all that touches one of two values happens before what writes the other."""
    return (a not in last and _all_before(touching[a], writers[b], before)) or (
        b not in last and _all_before(touching[b], writers[a], before)
    )


def _all_before(some: int, others: int, before: list[int]) -> bool:
    return all(some & ~before[unit] == 0 for unit in members(others))


def verify_arena(graph: UnitGraph, schedule: Schedule, placed: Mapping[int, tuple[int, int]], arena: Arena,
                 barriers: bool = True) -> None:  # fmt: skip
    """Check a layout by other means than it was made: a graph of events, in which a value's memory must be quiet.

    Every unit is an event; edges are those of (1) or (2), by networkx. For any two values whose memory overlaps, there
    must be a path from every unit that touches one to every unit that writes the other. Raises LayoutError.
    """
    import networkx as nx

    events = _events(graph, schedule, barriers)
    later = {unit: nx.descendants(events, unit) for unit in range(len(graph.units))}
    sizes = [math.prod(unit.shape[1:]) for unit in graph.units]
    values = [value for value in range(len(graph.units)) if value not in placed]
    written = {value: _inside(value, placed) for value in values}
    used = {v: written[v] | {u for u, unit in enumerate(graph.units) if written[v] & {*unit.reads}} for v in values}
    ends = {unit for unit in graph.results if unit >= 0}
    after = {v: set.intersection(*(later[user] for user in used[v])) if v not in ends else set() for v in values}
    for value in values:
        if arena.offsets[value] < 0 or arena.offsets[value] + sizes[value] > arena.size:
            raise LayoutError(f"{graph.units[value].name}: expected a place inside the arena, got one outside of it")
    for i, a in enumerate(values):
        for b in values[:i]:
            low, high = sorted((a, b), key=lambda v: arena.offsets[v])
            overlaps = arena.offsets[low] + sizes[low] > arena.offsets[high]
            if overlaps and not (written[b] <= after[a] or written[a] <= after[b]):
                raise LayoutError(
                    f"{graph.units[a].name} and {graph.units[b].name}: expected memory of their own, as both may live "
                    "at once, got one place for both; report it"
                )


def _inside(value: int, placed: Mapping[int, tuple[int, int]]) -> set[int]:
    """A value and those that are placed in it, by whatever way."""
    return {value}.union(*(_inside(operand, placed) for operand, (cat, _) in placed.items() if cat == value))


def _events(graph: UnitGraph, schedule: Schedule, barriers: bool) -> object:
    """Units and barriers as a networkx graph: an edge where one must end before the other begins."""
    import networkx as nx

    events = nx.DiGraph()
    events.add_nodes_from(range(len(graph.units)))
    events.add_edges_from((other, u) for u, unit in enumerate(graph.units) for other in unit.reads if other >= 0)
    start = None
    for number, (groups, run) in enumerate(schedule):
        is_open = not barriers and run == CONCURRENT
        if is_open and number and schedule[number - 1][1] == CONCURRENT:
            begin = start
        else:
            begin = f"before {number}"
            if number:
                events.add_edges_from((u, begin) for g in schedule[number - 1][0] for u in g)
                events.add_edge(start, begin)
        start = begin
        events.add_edges_from((begin, group[0]) for group in groups)
        if is_open:
            events.add_edges_from((begin, unit) for group in groups for unit in group)
        else:
            events.add_edges_from(pair for group in groups for pair in zip(group, group[1:], strict=False))
        if is_open and number + 1 < len(schedule):
            follow = next((i for i in range(number + 1, len(schedule)) if schedule[i][1] != CONCURRENT), None)
            if follow is not None:
                events.add_edges_from((u, f"before {follow}") for g in groups for u in g)
    return events
