"""Layouts and programs of stages, checked by other means than they were made: graphs of events, by networkx."""

from __future__ import annotations

import math
from collections.abc import Mapping

import networkx as nx

from edbc.stages.cpu.lifetimes import Arena
from edbc.stages.cuda.program import Program
from edbc.stages.graph import UnitGraph
from edbc.stages.table import CONCURRENT, Schedule


def require_arena(graph: UnitGraph, schedule: Schedule, placed: Mapping[int, tuple[int, int]], arena: Arena,
                 barriers: bool = True) -> None:  # fmt: skip
    """Check a layout by other means than it was made: a graph of events, in which a value's memory must be quiet.

    Every unit is an event; edges are those of (1) or (2), by networkx. For any two values whose memory overlaps, there
    must be a path from every unit that touches one to every unit that writes the other. Raises AssertionError.
    """
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
            raise AssertionError(f"{graph.units[value].name}: expected a place inside the arena, got one outside of it")
    for i, a in enumerate(values):
        for b in values[:i]:
            low, high = sorted((a, b), key=lambda v: arena.offsets[v])
            overlaps = arena.offsets[low] + sizes[low] > arena.offsets[high]
            if overlaps and not (written[b] <= after[a] or written[a] <= after[b]):
                raise AssertionError(
                    f"{graph.units[a].name} and {graph.units[b].name}: expected memory of their own, as both may live "
                    "at once, got one place for both"
                )


def _inside(value: int, placed: Mapping[int, tuple[int, int]]) -> set[int]:
    """A value and those that are placed in it, by whatever way."""
    return {value}.union(*(_inside(operand, placed) for operand, (cat, _) in placed.items() if cat == value))


def _events(graph: UnitGraph, schedule: Schedule, barriers: bool) -> nx.DiGraph:
    """Units and barriers as a networkx graph: an edge where one must end before the other begins."""
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


def require_program(graph: UnitGraph, program: Program) -> None:
    """Check a program by other means than it was made: as a graph of events, by networkx.

    Every unit is in one operation; a unit runs after those that it reads; a value is let go once at most, never if it
    is a result, and what touches it happens before everything that is issued on its home stream from then on. Raises
    AssertionError.
    """
    events, last = nx.DiGraph(), dict[int, int]()
    for number, op in enumerate(program.operations):
        events.add_node(number)
        events.add_edges_from((other, number) for other in op.waits)
        if op.stream in last:
            events.add_edge(last[op.stream], number)
        last[op.stream] = number
    of_unit = {unit: number for number, op in enumerate(program.operations) for unit in op.units}
    held = sorted(unit for op in program.operations for unit in op.units)
    if held != list(range(len(graph.units))) or not nx.is_directed_acyclic_graph(events):
        raise AssertionError("program: expected every unit once, and no operation that waits for a later one")
    earlier = {number: nx.ancestors(events, number) for number in events}
    users = {unit: {of_unit[unit]} for unit in of_unit}
    for unit, number in of_unit.items():
        for other in (r for r in graph.units[unit].reads if r >= 0):
            users[other].add(number)
            if of_unit[other] not in earlier[number]:
                raise AssertionError(
                    f"{graph.units[unit].name}: expected to run after {graph.units[other].name}, which it reads, got "
                    "no order between them"
                )
    gone: set[int] = set()
    for number, op in enumerate(program.operations):
        for unit in op.frees:
            home = program.operations[of_unit[unit]].stream
            following = [n for n, later in enumerate(program.operations) if n >= number and later.stream == home]
            if unit in gone or unit in graph.results or any(users[unit] - earlier[n] for n in following):
                raise AssertionError(
                    f"{graph.units[unit].name}: expected its memory to stay while its value is read, got it let go "
                    "before"
                )
            gone.add(unit)
