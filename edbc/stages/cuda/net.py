"""A static model bound to a schedule on a GPU: a CUDA graph per batch size, branches joined by events.

Graphs are captured for a size when it first comes, and the last used are kept (`stages.net`). A batch is copied in, the
graph replayed, and results copied out, all on the caller's current stream; the host waits for nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from edbc.stages.cuda.kernels import HOW, DeviceTasks, How
from edbc.stages.cuda.program import Operation, program_of
from edbc.stages.cuda.streams import Call, Mark, Streams, issue, streams_of
from edbc.stages.net import BatchNet, Ready, StaticModel
from edbc.stages.table import Schedule
from edbc.stages.timing import Clock

REPLAYS = 5


class Span(NamedTuple):
    """Units, one or several that are merged, and when they ran on which stream, in nanoseconds."""

    units: tuple[int, ...]
    stream: int
    start: int
    end: int


class DeviceNet(BatchNet["_Ready"]):
    """A static model that runs by a schedule, on streams of the device where its weights are."""

    def __init__(self, static: StaticModel, schedule: Schedule, count: int, barriers: bool = True, *, how: How = HOW,
                 streams: Streams | None = None):  # fmt: skip
        super().__init__(static)
        self.how, self.schedule, self.barriers = how, schedule, barriers
        self.program = program_of(static.graph, schedule, count, barriers)
        self.streams = streams or streams_of(static.device, self.program.streams)

    def close(self) -> None:
        """Give graphs and their memory back."""
        self._ready.clear()

    def batch(self, batch: Any) -> Any:
        with torch.no_grad():
            ready = self.prepare(batch)
            ready.take(batch)
            ready.replay()
            return ready.results()

    def _new(self, batch: Any) -> _Ready:
        return _Ready(self, batch)

    def clock(self, batch: Any) -> Clock:
        """See BatchNet: without the host, whose launches lie between a batch and the next."""
        with torch.no_grad():
            ready = self.prepare(batch)
            ready.take(batch)
        return lambda: statistics.fmean(self.streams.nanoseconds(ready.replay, REPLAYS))

    def spans(self, batch: Any) -> list[Span]:
        """What runs when in a replay: of a graph of its own, with the time recorded around every operation."""
        marks: list[tuple[Operation, Mark, Mark]] = []

        def wrap(operation: Operation, call: Call) -> Call:
            begin, end = self.streams.mark(), self.streams.mark()
            marks.append((operation, begin, end))

            def run() -> None:
                begin.record()
                call()
                end.record()

            return run

        with torch.no_grad():
            ready = _Ready(self, batch, wrap)
            ready.replay()
            self.streams.finish()
        recorded = marks[-len(self.program.operations) :]  # behind those of the run before it was captured
        first = recorded[0][1]
        return [Span(op.units, op.stream, begin.since(first), end.since(first)) for op, begin, end in recorded]

    def memory(self, size: int) -> str:
        elements = sum(torch.Size(unit.shape[1:]).numel() for unit in self.static.graph.units)
        return f"at most {4e-6 * elements * size:,.2f} MB"


class _Ready(Ready):
    """A graph for batches of one size."""

    def __init__(self, net: DeviceNet, batch: Any, wrap: Callable[[Operation, Call], Call] = lambda _, call: call):
        super().__init__(net.static, batch, net.how.images)
        self.take(batch)
        self._tasks = DeviceTasks(self.bound, self.values, net.how)  # has the packed weights, which the graph reads

        def program() -> None:
            issue(net.program, self._tasks, self.values, net.streams, wrap)

        net.streams.run(program)
        self._drop()
        self.replay = net.streams.capture(program)

    def _drop(self) -> None:
        """What the first run made; capturing makes all of it in the graph's own memory."""
        for unit in [unit for unit in self.values if unit >= 0]:
            del self.values[unit]
