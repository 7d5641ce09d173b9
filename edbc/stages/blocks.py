"""Blocks: where a static graph falls into parts that are scheduled one after the other.

(1) A unit is a *cut* when every other unit is before or after it and no value passes it by: single exit of what is
    before, single entry of what follows. A block is what lies between two cuts, the second one included; cuts that
    follow each other directly have nothing to run side by side, and are one block.
(2) A block of more than `most` units is cut further, where few values are live: at units u for which at most 2, 3, ...
    values computed up to u are read later. What is neither before nor after u is put after it. So a network whose cells
    read the two cells before them (NASNet) falls into its cells. The schedules that a cut of this kind excludes are
    those that run units of both sides in one stage; the block says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edbc.stages.endings import members, set_of
from edbc.stages.graph import Block, UnitGraph, block_of

MOST = 40
"""Units of a block."""


def find_blocks(graph: UnitGraph, most: int = MOST) -> list[Block]:
    """All blocks, in order. O(n^2) for n units."""
    everything = list(range(len(graph.units)))
    blocks: list[Block] = []
    for part in _chains(_parts(graph, everything, 1)):
        blocks += [block_of(graph, part)] if len(part) <= most else _cut(graph, part, most)
    return blocks


def _cut(graph: UnitGraph, units: Sequence[int], most: int) -> list[Block]:
    """Definition (2)."""
    for live in range(2, len(units)):
        parts = _parts(graph, units, live)
        if max(map(len, parts)) <= most:
            note = f"cut where up to {live} values are live"
            return [block_of(graph, part, note) for part in _grown(parts, most * 3 // 5)]
    return [block_of(graph, units[at : at + most], "cut after a number of units") for at in range(0, len(units), most)]


def _grown(parts: list[list[int]], least: int) -> Iterator[list[int]]:
    """Small parts joined with what follows, up to `least` units."""
    grown: list[int] = []
    for part in parts:
        if grown and len(grown) + len(part) > least:
            yield grown
            grown = []
        grown = grown + part
    yield grown


def _parts(graph: UnitGraph, units: Sequence[int], live: int) -> list[list[int]]:
    """The units between one cut that at most `live` values pass and the next."""
    inside = set_of(units)
    before, after = graph.dag.closures()
    readers = [set_of(found) for found in graph.readers()]
    parts, done = [], 0
    for unit in units:
        part = (before[unit] | 1 << unit) & inside
        rest = inside & ~part
        if part & done != done or part == done:
            continue
        passing = [other for other in members(part) if readers[other] & ~part]
        is_cut = len(passing) <= live if live > 1 else passing == [unit] and not rest & ~after[unit]
        if is_cut:
            parts.append(members(part & ~done))
            done = part
    if inside & ~done:
        parts.append(members(inside & ~done))
    return parts


def _chains(parts: list[list[int]]) -> Iterator[list[int]]:
    """Parts, with neighbours of one unit each joined."""
    chain: list[int] = []
    for part in parts:
        if len(part) > 1 and chain:
            yield chain
            chain = []
        if len(part) > 1:
            yield part
        else:
            chain = chain + part
    if chain:
        yield chain
