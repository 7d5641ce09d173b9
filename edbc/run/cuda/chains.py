"""What runs the steps of a mini-batch: chains of launches, nodes of CUDA graphs, captured once and replayed.

Definitions.

(1) A *chain* is a graph of so many launches of one step kernel, one behind the other. All that differs between
    mini-batches is in the table and in the cursor (`edbc.run.cuda.tritonsource`, definition 4), so a chain of 8 to 256
    steps captured once runs any 8 to 256 steps.
(2) A run of steps is *cut* into chains of least cost; what is left over of the last one are steps without work, which
    the table holds for it. Costs are in microseconds as `benchmarks/gpu_gaps.py` measured them on an H200: what a chain
    takes beside its nodes, and a node of it. (A launch of a single kernel from Python takes 19, as much as a chain of 8
    or more, so there are none.)

All steps inside one launch, whose programs pass a barrier after each, would save what lies between nodes. It was built
and measured on an H200: a barrier takes 1.3 us where a node takes 1.1, and mini-batches took 1.02 to 1.08 times as long
as in chains, but for 19 steps (0.95), which are padded to 24; so chains are what there is.

Chains are kept per kernel, stream and precision, at most KEPT at a time, the least recently used goes first. Nodes
allocate nothing, so a chain holds no memory but its nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import RLock

import torch

from edbc.run.cuda.streams import captured_on

LENGTHS = (256, 64, 32, 16, 8)
"""Of chains, in steps."""
REPLAY, NODE = 10.0, 1.1
"""Microseconds, definition (2)."""
KEPT = 8

Call = Callable[[], None]


@cache
def cut(steps: int) -> tuple[int, ...]:
    """The lengths of the chains that run so many steps at least, longest first, by definition (2). O(1), since all but
    a few hundred of the steps go to the longest chains."""
    longest = LENGTHS[0]
    whole = max(steps // longest - 1, 0)
    return (longest,) * whole + _cheapest(steps - whole * longest)


def launches(steps: int) -> int:
    """What the host issues for so many steps."""
    return len(cut(steps))


def _cheapest(steps: int) -> tuple[int, ...]:
    """The same for few steps, tried out from none on."""
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for count in range(1, steps + 1):
        tried = []
        for length in LENGTHS:
            cost, chains = best[max(count - length, 0)]
            tried.append((cost + REPLAY + NODE * length, (length, *chains)))
        best.append(min(tried))
    return tuple(sorted(best[steps][1], reverse=True))


def captured(launches: Call, device: torch.device) -> Call:
    """What issues launches again, as one: CUDA's own graph; where there is no such device, the launches themselves."""
    if device.type != "cuda":
        return launches
    replay: Call = captured_on(torch.cuda.Stream(), launches).replay
    return replay


Capture = Callable[[Call, torch.device], Call]


class Chains:
    """Those of one step kernel on one stream, run by `programs` programs; definition (1). `launch(cursor, number,
    ahead)` issues one step."""

    def __init__(self, launch: Callable[[torch.Tensor, int, int], None], device: torch.device, programs: int,
                 capture: Capture):  # fmt: skip
        self.programs = programs
        self.cursor = torch.zeros(2, dtype=torch.int64, device=device)
        self.lock = RLock()
        """Held while a mini-batch is issued: its steps move the cursor, another's must not come between them."""
        self._launch, self._capture, self._device = launch, capture, device
        self._known: dict[int, Call] = {}

    def begin(self, cursor: torch.Tensor) -> None:
        """Steps that follow are those that `cursor` points to, as a step kernel has it, and 0."""
        self.cursor.copy_(cursor)

    def prepare(self, empty: torch.Tensor, warm_up: WarmUp) -> None:
        """Compile the kernel, by steps without work to which `empty` points, as many as the shortest chain has; and
        capture all chains."""
        with warm_up.running():
            self.begin(empty)
            self._chain(LENGTHS[-1])
            for length in LENGTHS:
                self._known[length] = self._capture(partial(self._chain, length), self._device)
                warm_up.chains += 1

    def _chain(self, length: int) -> None:
        """Issue the launches of a chain."""
        self._launch(self.cursor, 0, length)
        for number in range(1, length - 1):
            self._launch(self.cursor, number, 0)
        self._launch(self.cursor, -1, 0)

    def run(self, steps: int) -> None:
        """Issue the next steps, as `cut` says."""
        for length in cut(steps):
            self._known[length]()


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
