"""Where programs are issued: the streams of a device, in a CUDA graph or not; or a host that has none.

(1) `issue` walks over a program. What is issued on another stream than the first waits for the first, where the program
    begins; at the end the first waits for all others. So a program is one fork and join, whatever is inside, and
    programs can be issued one behind the other.
(2) A graph is captured from the first stream; the others join the capture by waiting for it. Nothing synchronises with
    the host. A program runs once before it is captured, as libraries allocate and choose kernels when first called.
(3) Memory: allocations made while a graph is captured are from the graph's own pool, which nothing else uses as long as
    the graph lives. In it, as outside, what was let go on a stream is given to that stream alone; lives of values are
    the program's (`stages.cuda.program`, definition 3). cuDNN's workspaces are such allocations; cuBLAS has one per
    stream. So no stream writes what another one reads, but by the program's order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from edbc.run.cuda.streams import captured_on
from edbc.stages.cuda.program import Operation, Program
from edbc.stages.units.tasks import Tasks

Call = Callable[[], None]
HELD, CYCLES = 20e-6, 2e9
"""Seconds that a device waits for each call that is timed, so that the host has launched them all, and its clock."""


class Mark:
    """A point in time, also inside of a graph; of the host's clock."""

    _at = 0

    def record(self) -> None:
        """Now, on the current stream."""
        self._at = time.perf_counter_ns()

    def since(self, other: Any) -> int:
        """Nanoseconds between another one and this."""
        return self._at - int(other._at)


class Streams:
    """What programs are issued on. Here there is no device: everything is done when it is issued, and a replay issues
    again."""

    def on(self, stream: int, call: Call) -> None:
        """Issue what a call issues on a stream."""
        call()

    def record(self, stream: int) -> Any:
        """The point that a stream has reached."""

    def wait(self, stream: int, point: Any) -> None:
        """Let a stream wait for that point of another one."""

    def run(self, issue: Call) -> None:
        """Issue at once, behind and before what the current stream does."""
        issue()

    def capture(self, issue: Call, shares: bool = False) -> Call:
        """What issues the same again, as one. What `shares` has its memory from one pool: its results count until the
        next such capture or replay."""
        return issue

    def nanoseconds(self, run: Call, times: int) -> list[int]:
        """What a call takes that is issued so many times, one right behind the other."""
        points = [time.perf_counter_ns()]
        for _ in range(times):
            run()
            points.append(time.perf_counter_ns())
        return [b - a for a, b in zip(points, points[1:], strict=False)]

    def mark(self) -> Mark:
        """A new one."""
        return Mark()

    def finish(self) -> None:
        """Return when everything that was issued is done."""


class CudaStreams(Streams):
    """A device's own."""

    def __init__(self, device: torch.device, count: int):
        self.device = device
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]
        self._pool = torch.cuda.graph_pool_handle()
        self._sharing: torch.cuda.CUDAGraph | None = None  # a pool ends with the last graph that has memory of it

    def on(self, stream: int, call: Call) -> None:
        with torch.cuda.stream(self._streams[stream]):
            call()

    def record(self, stream: int) -> torch.cuda.Event:
        point = torch.cuda.Event()
        point.record(self._streams[stream])
        return point

    def wait(self, stream: int, point: torch.cuda.Event) -> None:
        self._streams[stream].wait_event(point)

    def run(self, issue: Call) -> None:
        current = torch.cuda.current_stream(self.device)
        self._streams[0].wait_stream(current)
        issue()
        current.wait_stream(self._streams[0])

    def capture(self, issue: Call, shares: bool = False) -> Call:
        self.finish()
        graph = captured_on(self._streams[0], issue, self._pool if shares else None)
        self._sharing = graph if shares else self._sharing
        replay: Call = graph.replay
        return replay

    def nanoseconds(self, run: Call, times: int) -> list[int]:
        points = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        torch.cuda._sleep(int(times * HELD * CYCLES))
        points[0].record()
        for point in points[1:]:
            run()
            point.record()
        self.finish()
        return [round(1e6 * a.elapsed_time(b)) for a, b in zip(points, points[1:], strict=False)]

    def mark(self) -> Mark:
        return CudaMark()

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)


class CudaMark(Mark):
    """An event that a graph records whenever it is replayed."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True, external=True)

    def record(self) -> None:
        self._event.record()

    def since(self, other: CudaMark) -> int:
        return round(1e6 * other._event.elapsed_time(self._event))


def streams_of(device: torch.device, count: int) -> Streams:
    """So many streams of a device."""
    return CudaStreams(device, count) if device.type == "cuda" else Streams()


def issue(program: Program, tasks: Tasks, values: dict[int, Any], streams: Streams,
          wrap: Callable[[Operation, Call], Call] = lambda operation, call: call) -> None:  # fmt: skip
    """Issue a program, definition (1); its values are put among `values`, and taken out when they are let go."""
    begin, points = streams.record(0), dict[int, Any]()
    awaited, last = program.awaited, {0: -1}
    for number, operation in enumerate(program.operations):
        if operation.stream not in last and not operation.waits:
            streams.wait(operation.stream, begin)
        for other in operation.waits:
            streams.wait(operation.stream, points[other])
        streams.on(operation.stream, wrap(operation, _call(operation, tasks, values)))
        if number in awaited:
            points[number] = streams.record(operation.stream)
        last[operation.stream] = number
    for stream in last:
        if stream:
            streams.wait(0, streams.record(stream))


def _call(operation: Operation, tasks: Tasks, values: dict[int, Any]) -> Call:
    def call() -> None:
        for unit in operation.frees:
            let_go(values, unit)
        task = tasks.merge(operation.units) if len(operation.units) > 1 else tasks.whole(operation.units[0])
        task()

    return call


def let_go(values: dict[int, Any], unit: int) -> None:
    """Give a value's memory back."""
    del values[unit]
