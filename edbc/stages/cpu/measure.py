"""What stages take on this CPU: run as they will be run, over values of their own.

Every value of the graph has memory of its own here, filled with random numbers, so that any stage can run at any time.
A stage runs in the team of threads that will execute it, barriers included (`edbc.stages.timing`).
"""

from __future__ import annotations

import math

import torch

from edbc.stages.cpu.execute import Step, Team, steps_of
from edbc.stages.cpu.kernels import HostTasks
from edbc.stages.cpu.lifetimes import Arena
from edbc.stages.cpu.net import views_of
from edbc.stages.graph import Block
from edbc.stages.net import Ready, StaticModel
from edbc.stages.table import Cost, Groups
from edbc.stages.timing import timed


class Measurement:
    """Measures stages of a static model on batches of one size."""

    def __init__(self, static: StaticModel, batch: int, team: Team):
        self.static, self.team = static, team
        graph = static.graph
        sizes = [math.prod(unit.shape[1:]) for unit in graph.units]
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        generator = torch.Generator().manual_seed(0)
        dtype = next(static.model.parameters()).dtype
        memory = torch.rand(batch * sum(sizes), generator=generator).to(dtype)
        arena = Arena(tuple(offsets), sum(sizes))
        ready = Ready(static, static.stacked(batch))
        ready.take(static.stacked(batch))
        values = {**views_of(graph, static.bound.placed, arena, memory, batch), **ready.values}
        self.tasks = HostTasks(static.bound, values, team.threads)

    def stage(self, block: Block, groups: Groups, run: str) -> Cost:
        """What a stage of a block takes."""
        of_graph = tuple(tuple(block.units[unit] for unit in group) for group in groups)
        with self.team.alone():
            steps = steps_of(self.static.graph, [(of_graph, run)], self.tasks)
            return timed(lambda: self._run(steps))

    def _run(self, steps: list[Step]) -> None:
        for step in steps:
            step.run(self.team)

    def overhead(self) -> int:
        """What a stage of one task per thread takes that does nothing, in nanoseconds."""
        idle = [lambda: None] * self.team.threads
        with self.team.alone():
            return timed(lambda: self.team.phase(idle)).median
