"""What stages take on a GPU: several of a kind one behind the other in one CUDA graph, replayed between events.

Every value of the graph stands ready here, filled with random numbers, so that any stage can run at any time. A stage
is issued as it will be in a program with barriers, forked and joined; so many times in one graph that what lies between
graphs counts little, OPERATIONS operations or SECONDS at most. Of ROUNDS replays the median counts; the spread is half
of what lies between the quartiles.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from edbc.stages.cuda.kernels import HOW, DeviceTasks, How
from edbc.stages.cuda.program import program_of
from edbc.stages.cuda.streams import Call, Streams, issue, streams_of
from edbc.stages.graph import Block
from edbc.stages.net import Ready, StaticModel
from edbc.stages.table import Cost, Groups
from edbc.stages.timing import cost_of
from edbc.stages.units.products import Runner

ROUNDS = 9
OPERATIONS, LEAST = 32, 2
"""In one graph, and times a stage at least."""
SECONDS = 0.002


class DeviceMeasurement:
    """Measures stages of a static model on batches of one size."""

    def __init__(self, static: StaticModel, batch: int, count: int, how: How = HOW):
        self.static, self.count, self.how = static, count, how
        self.streams: Streams = streams_of(static.device, count)
        self._packed: list[Runner] = []  # so that weights are packed once, whatever stages hold them
        ready = Ready(static, static.stacked(batch), how.images)
        ready.take(static.stacked(batch))
        generator = torch.Generator(static.device).manual_seed(0)
        dtype = next(static.model.parameters()).dtype

        def filled(shape: tuple[int, ...]) -> torch.Tensor:
            value = torch.rand(batch, *shape[1:], generator=generator, device=static.device).to(dtype)
            return value.contiguous(memory_format=how.images) if value.dim() == 4 else value

        self.values: dict[int, Any] = {
            **ready.values, **{number: filled(unit.shape) for number, unit in enumerate(static.graph.units)}
        }  # fmt: skip

    def stage(self, block: Block, groups: Groups, run: str) -> Cost:
        """What a stage of a block takes."""
        of_graph = tuple(tuple(block.units[unit] for unit in group) for group in groups)
        program = program_of(self.static.graph, [(of_graph, run)], self.count)
        values = dict(self.values)
        tasks = DeviceTasks(self.static.bound, values, self.how)
        cost = self._cost(partial(issue, program, tasks, values, self.streams), len(program.operations))
        self._packed += tasks.packed
        return cost

    def overhead(self) -> int:
        """What a stage takes that does nothing but to write one number, in nanoseconds."""
        number = torch.zeros((), device=self.static.device)

        def write() -> None:
            number.fill_(1)

        return self._cost(lambda: self.streams.on(0, write), 1).median

    def _cost(self, once: Call, operations: int) -> Cost:
        with torch.no_grad():
            self.streams.run(once)
            [_, nanoseconds] = self.streams.nanoseconds(lambda: self.streams.run(once), 2)
            times = max(LEAST, min(OPERATIONS // operations, round(1e9 * SECONDS / max(nanoseconds, 1))))

            def repeated() -> None:
                for _ in range(times):
                    once()

            replay = self.streams.capture(repeated, shares=True)
            taken = self.streams.nanoseconds(replay, ROUNDS + 1)[1:]
        return cost_of([each / times for each in taken])
