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
