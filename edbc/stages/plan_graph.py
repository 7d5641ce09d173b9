"""Scheduling a whole static graph: every kind of block once, its costs from a table or measured.

Nothing here depends on a clock but what `measure` adds to the table, and when it ends: with the table alone, the same
graph gives the same schedule everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edbc.stages import Stages
from edbc.stages.blocks import find_blocks
from edbc.stages.graph import Block, block_dag
from edbc.stages.net import StaticModel
from edbc.stages.search import Machine, Problem, Scheduled, schedule_block
from edbc.stages.table import Cost, Costs, Groups, Schedule
from edbc.stages.units.products import merge_sets

MeasureStage = Callable[[Block, Groups, str], Cost]
Report = Callable[[int, int, Scheduled | None], None]


@dataclass(frozen=True)
class Planned:
    """A block and its schedule, in the block's own unit numbers."""

    block: Block
    scheduled: Scheduled

    def schedule(self, form: str) -> Schedule:
        """By a form of schedule, in the graph's unit numbers."""
        units = self.block.units
        stages = self.scheduled.forms[form]
        return [(tuple(tuple(units[u] for u in group) for group in s.groups), s.run) for s in stages]


def schedule_graph(
    static: StaticModel,
    machine: Machine,
    costs: Costs,
    limits: Stages,
    measure: MeasureStage | None = None,
    report: Report = lambda done, total, scheduled: None,
    seconds: float = float("inf"),
) -> list[Planned]:
    """Every block's schedule; measuring ends after so many seconds, of which kinds of blocks that are quick leave what
    they do not need to the others. Raises StaleError where a cost is missing and nothing measures."""
    blocks, end = find_blocks(static.graph), time.monotonic() + seconds
    done: dict[str, Scheduled] = {}
    kinds = len({block.text for block in blocks})
    for block in blocks:
        if block.text not in done:
            report(len(done), kinds, None)
            now = time.monotonic()
            until = now + (end - now) / (kinds - len(done))
            done[block.text] = scheduled = _schedule(static, machine, costs, limits, block, measure, until)
            report(len(done), kinds, scheduled)
    return [Planned(block, done[block.text]) for block in blocks]


def _schedule(static: StaticModel, machine: Machine, costs: Costs, limits: Stages, block: Block,
              measure: MeasureStage | None, until: float) -> Scheduled:  # fmt: skip
    bound, graph = static.bound, static.graph
    merges = merge_sets(graph, block.units, bound.layers)
    problem = Problem(block_dag(graph, block), machine, merges, limits.r, limits.s)
    stage = None if measure is None else (lambda groups, run: measure(block, groups, run))
    known, overhead = costs.of_block(block.text), costs.head.overhead_ns
    return schedule_block(problem, known, overhead, limits.gap, stage, lambda: time.monotonic() < until)


def whole_schedule(planned: Sequence[Planned], form: str = "both") -> Schedule:
    """All stages, in the graph's unit numbers."""
    return [stage for block in planned for stage in block.schedule(form)]
