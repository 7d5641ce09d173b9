"""A device that does not exist, in formulas: what tests and figures without a GPU schedule on.

A unit has so many tiles of work; the device runs `TILES` of them at once, one after the other within a unit's share.
Alone a unit takes its waves of tiles; side by side, units share the device, and none is faster than alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from edbc.stages.graph import Block, UnitGraph
from edbc.stages.search import Machine
from edbc.stages.table import MERGE, SPLIT, Cost, Groups

MACHINE = Machine(streams=8, splits=False)
TILES, OVERHEAD = 132, 3_000
NAME = "simulated, 132 tiles"


def unit_costs(graph: UnitGraph, batch: int = 1) -> list[tuple[int, int]]:
    """Per unit what it takes alone, and what of the whole device it keeps busy, in nanoseconds."""
    found = []
    for unit in graph.units:
        positions = batch * math.prod(unit.shape[2:]) if len(unit.shape) > 2 else batch
        tiles = math.ceil(positions / 128) * math.ceil(unit.shape[1] / 64)
        each = 2_000 + unit.flops * batch / tiles / 25
        found.append((int(math.ceil(tiles / TILES) * each), int(tiles / TILES * each)))
    return found


def measured(costs: Sequence[tuple[int, int]], block: Block, groups: Groups, run: str) -> Cost:
    """What a stage takes on the device, always the same figure."""
    alone = [[costs[block.units[unit]] for unit in group] for group in groups]
    longest = max(sum(cost for cost, _ in group) for group in alone)
    busy = sum(part for group in alone for _, part in group)
    ripple = zlib.crc32(repr((block.kind, groups, run)).encode()) % 400
    if run == MERGE:
        return Cost(OVERHEAD + max(longest, busy) // 2 + ripple, 100)
    if run == SPLIT:
        return Cost(OVERHEAD + longest // 2 + ripple, 100)
    return Cost(OVERHEAD + max(longest, busy) + ripple, 100)
