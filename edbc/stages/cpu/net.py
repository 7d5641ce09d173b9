"""A static model bound to a schedule on the CPU.

Per batch size there is one arena, with views of it as the units' values and tasks made over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from edbc.stages.cpu.execute import Team, Wrap, steps_of
from edbc.stages.cpu.kernels import HostTasks
from edbc.stages.cpu.lifetimes import Arena, plan_arena
from edbc.stages.graph import UnitGraph
from edbc.stages.net import BatchNet, Ready, StaticModel
from edbc.stages.table import Schedule
from edbc.stages.timing import Clock, clock


class StagedNet(BatchNet["_Ready"]):
    """A static model that runs by a schedule, in a team of threads."""

    def __init__(self, static: StaticModel, schedule: Schedule, threads: int, barriers: bool = True,
                 wrap: Wrap = lambda units, task: task):  # fmt: skip
        super().__init__(static)
        self.schedule, self.barriers, self._wrap = schedule, barriers, wrap
        self.team = Team(threads)
        self.arena: Arena = plan_arena(static.graph, schedule, static.bound.placed, barriers)

    def close(self) -> None:
        """End the threads."""
        self.team.close()

    def batch(self, batch: Any) -> Any:
        ready = self.prepare(batch)
        with self.team.alone():
            ready.take(batch)
            for step in ready.steps:
                step.run(self.team)
            return ready.results()

    def _new(self, batch: Any) -> _Ready:
        with self.team.alone():
            return _Ready(self, batch)

    def clock(self, batch: Any) -> Clock:
        return clock(lambda: self.batch(batch))

    def memory(self, size: int) -> str:
        return f"{4e-6 * self.arena.size * size:,.2f} MB"


class _Ready(Ready):
    """Tasks for batches of one size."""

    def __init__(self, net: StagedNet, batch: Any):
        super().__init__(net.static, batch)
        first = self.inputs[0]
        dtype = next((p.dtype for p in net.static.model.parameters()), first.dtype)
        self.memory = torch.empty(net.arena.size * first.shape[0], dtype=dtype)
        self.values |= views_of(self.graph, self.bound.placed, net.arena, self.memory, first.shape[0])
        tasks = HostTasks(self.bound, self.values, net.team.threads)
        self.steps = steps_of(self.graph, net.schedule, tasks, net.barriers, net._wrap)


def views_of(graph: UnitGraph, placed: Mapping[int, tuple[int, int]], arena: Arena, memory: Tensor,
             batch: int) -> dict[int, Tensor]:  # fmt: skip
    """The units' values as views of an arena's memory; placed ones are channels of their concatenation."""
    found: dict[int, Tensor] = {}

    def view(unit: int) -> Tensor:
        if unit not in found:
            shape = graph.units[unit].shape[1:]
            if unit in placed:
                cat, at = placed[unit]
                found[unit] = view(cat).narrow(1, at, shape[0])
            else:
                start = arena.offsets[unit] * batch
                flat = memory[start : start + batch * math.prod(shape)]
                found[unit] = _channels_last(flat, batch, shape)
        return found[unit]

    return {unit: view(unit) for unit in range(len(graph.units))}


def _channels_last(flat: Tensor, batch: int, shape: Sequence[int]) -> Tensor:
    if len(shape) != 3:
        return flat.view(batch, *shape)
    channels, height, width = shape
    return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
