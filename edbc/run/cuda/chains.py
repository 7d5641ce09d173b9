"""Launchers: what runs the steps of a mini-batch. Chains of them are nodes of CUDA graphs, captured once and replayed.

Definitions.

(1) A *chain* is a graph of so many launches of one step kernel, one behind the other. All that differs between
    mini-batches is in the table and in the cursor (`edbc.run.cuda.tritonsource`, definition 4), so a chain of 16, 64 or
    256 steps captured once runs any 16, 64 or 256 steps. Launches alternate in parity, so chains are of even length,
    and so are the pairs of launches that run without a graph.
(2) A run of steps is *cut* into chains of least cost; what is left over of the last one are steps without work, which
    the table holds for it. Costs are in microseconds as published for an H100: a launch by the host, a graph's launch
    by the host, a node of it on the device. `benchmarks/gpu.py` measures them.

(3) The *loop* is the other launcher: one launch of a kernel whose programs run all steps and pass a barrier after each.
    It saves what lies between nodes of a graph and pays for barriers; which is faster depends on the steps alone, as
    what a step does is the same text. LOOPS are the numbers of steps for which `benchmarks/gpu_gaps.py` has measured
    the loop to be faster: none, until it has been measured.

Launchers are kept per kernel, stream and precision, at most KEPT at a time, the least recently used goes first. Nodes
allocate nothing, so a chain holds no memory but its nodes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any, Protocol

import torch

LENGTHS = (256, 64, 16)
"""Of chains, in steps."""
LAUNCH, REPLAY, NODE = 9.0, 6.0, 1.3
"""Microseconds, definition (2)."""
LOOPS = range(0)
"""Definition (3)."""
KEPT = 8

Call = Callable[[], None]


@cache
def cut(steps: int) -> tuple[int, ...]:
    """The lengths of the chains that run so many steps at least, longest first; 2 stands for a pair of launches.
    Definition (2); O(1), since all but a few hundred of the steps go to the longest chains."""
    longest = LENGTHS[0]
    whole = max(steps // longest - 1, 0)
    return (longest,) * whole + _cheapest(steps - whole * longest)


def launches(steps: int) -> int:
    """What the host issues for so many steps."""
    return sum(2 if length == 2 else 1 for length in cut(steps))


def _cheapest(steps: int) -> tuple[int, ...]:
    """The same for few steps, tried out from none on."""
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for count in range(1, steps + 1):
        tried = []
        for length in (*LENGTHS, 2):
            cost, chains = best[max(count - length, 0)]
            tried.append((cost + (2 * LAUNCH if length == 2 else REPLAY + NODE * length), (length, *chains)))
        best.append(min(tried))
    return tuple(sorted(best[steps][1], reverse=True))


class Graphs(Protocol):
    """What captures launches."""

    def capture(self, launches: Call) -> Call:
        """What issues the launches again, as one."""


class DeviceGraphs:
    """CUDA's own."""

    def capture(self, launches: Call) -> Call:
        """See Graphs. Nothing runs while it is captured."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            launches()
        return graph.replay


class HostGraphs:
    """Where there is no device: a replay is the launches themselves."""

    def capture(self, launches: Call) -> Call:
        """See Graphs."""
        return launches


class Launcher(ABC):
    """One step kernel on one stream, run by `programs` programs."""

    def __init__(self, device: torch.device, programs: int):
        self.programs = programs
        self.cursor = torch.zeros(2, dtype=torch.int64, device=device)
        self.lock = RLock()
        """Held while a mini-batch is issued: its steps move the cursor, another's must not come between them."""

    def begin(self, cursor: torch.Tensor) -> None:
        """Steps that follow are those from `cursor` on: the address of the first record, and 0."""
        self.cursor.copy_(cursor)

    @staticmethod
    @abstractmethod
    def whole(steps: int) -> int:
        """How many steps run where so many have work."""

    @staticmethod
    @abstractmethod
    def launches(steps: int) -> int:
        """What the host issues for so many steps."""

    @abstractmethod
    def prepare(self, empty: torch.Tensor, warm_up: WarmUp) -> None:
        """Compile the kernel, by steps without work that begin at `empty`."""

    @abstractmethod
    def run(self, steps: int) -> None:
        """Issue the next steps with work."""


class Chains(Launcher):
    """Definition (1). `launch(cursor, parity)` issues one step."""

    launches = staticmethod(launches)

    def __init__(self, launch: Callable[[torch.Tensor, int], None], graphs: Graphs, device: torch.device,
                 programs: int):  # fmt: skip
        super().__init__(device, programs)
        self._launch = launch
        self._graphs = graphs
        self._known: dict[int, Call] = {2: self._pair}

    @staticmethod
    def whole(steps: int) -> int:
        """See Launcher."""
        return sum(cut(steps))

    def _pair(self) -> None:
        self._launch(self.cursor, 0)
        self._launch(self.cursor, 1)

    def prepare(self, empty: torch.Tensor, warm_up: WarmUp) -> None:
        """See Launcher; all chains are captured."""
        with warm_up.running():
            self.begin(empty)
            self._pair()
            for length in LENGTHS:
                self._known[length] = self._graphs.capture(lambda pairs=length // 2: self._pairs(pairs))  # type: ignore[misc]
                warm_up.chains += 1

    def _pairs(self, count: int) -> None:
        for _ in range(count):
            self._pair()

    def run(self, steps: int) -> None:
        """See Launcher: as `cut` says."""
        for length in cut(steps):
            self._known[length]()


class Loop(Launcher):
    """Definition (3). `launch(cursor, before, steps)` issues so many steps, behind those of the mini-batch so far."""

    def __init__(self, launch: Callable[[torch.Tensor, int, int], None], device: torch.device, programs: int):
        super().__init__(device, programs)
        self._launch = launch
        self._before = 0

    def begin(self, cursor: torch.Tensor) -> None:
        """See Launcher."""
        super().begin(cursor)
        self._before = 0

    @staticmethod
    def whole(steps: int) -> int:
        """See Launcher."""
        return steps

    @staticmethod
    def launches(steps: int) -> int:
        """See Launcher."""
        return min(steps, 1)

    def prepare(self, empty: torch.Tensor, warm_up: WarmUp) -> None:
        """See Launcher."""
        with warm_up.running():
            self.begin(empty)
            self.run(1)

    def run(self, steps: int) -> None:
        """See Launcher."""
        self._launch(self.cursor, self._before, steps)
        self._before += steps


class WarmUp:
    """What chains cost before the first mini-batch could use them: processor time, and how many there are."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.chains = 0
        self.kernels = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a kernel, and the time until its chains stand."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        self.kernels += 1

    def __str__(self) -> str:
        kernels = f"{self.kernels} step kernel{'s' * (self.kernels != 1)}"
        return f"{kernels} compiled and {self.chains} chains captured in {self.seconds:.2f} s, once"


def graphs_of(device: torch.device) -> Graphs:
    """What captures launches on a device."""
    return DeviceGraphs() if device.type == "cuda" else HostGraphs()


def stream_of(device: torch.device) -> Any:
    """What tells the device's current stream from others."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
