"""`Batcher`: requests that arrive one by one run in mini-batches of what waits.

    batcher = Batcher(net)
    outputs = await batcher(instance)

(1) A request waits in a queue. Whenever the runtime is free, it takes all that waits, in order, up to a number of
    instances: nobody waits for company, and company forms while a mini-batch executes. There is no timer: at low load
    a request runs at once and alone, at high load mini-batches grow until they keep up.
(2) Limits of a mini-batch in nodes and bytes are held when its graph is made, before anything executes: one that is
    larger runs as two halves, and the next ones take no more instances than nodes allow by the last one's mean. An
    instance that is larger by itself runs alone.
(3) A queue that is full refuses a request at once with `Busy`: who asks can go elsewhere while there is time.
(4) Requests that were cancelled, and those not taken `within` their time (`Late`), are dropped before they execute.
(5) Where a mini-batch fails, its halves run again, and so on: one bad request fails alone, with what forward raised.

A mini-batch that will take less than SHORT, by what the last one took, runs in the event loop: whoever comes meanwhile
would wait for its end anyway, and is read together with others then. Where more wait, as many run as take SHORT, if
these are ENOUGH and the queue is less than half full. Else all run in one thread, and the event loop goes on meanwhile,
which costs each request some 20 microseconds more: it is read by itself, and what records a mini-batch shares Python's
lock with the event loop.
A server calls `gc.freeze()` once it is warm: a full collection over what torch and numba hold takes 0.2 s.

Gao et al., "Low Latency RNN Inference with Cellular Batching", EuroSys 2018, join at cells rather than at mini-batches;
see docs/reach.md for what that would gain.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from edbc.base.arguments import require_count, require_rate
from edbc.errors import EdbcError
from edbc.reach.outcomes import Failure, outcomes

if TYPE_CHECKING:
    from edbc.run.passes.minibatch import MiniBatch
    from edbc.run.session import Net


SHORT = 16e-3
"""Seconds."""
ENOUGH = 64
"""Instances of a mini-batch from which on larger ones gain little."""
TURNS = 2
"""Of the event loop between mini-batches: in the first it looks for what has come, and goes on with this task before it
reads that."""


class Busy(EdbcError):
    """The queue is full; ask again later, or elsewhere."""

    kind = "busy"


class Late(EdbcError):
    """The request's time was over before the runtime was free; nothing was executed for it."""

    kind = "late"


class _TooLarge(Exception):
    """A mini-batch beyond a limit, before it executes."""


@dataclass(eq=False, slots=True)
class _Request:
    instance: Any
    answer: asyncio.Future[Any]
    until: float | None


@dataclass
class Counts:
    """What a batcher has done."""

    answered: int = 0
    failed: int = 0
    busy: int = 0
    dropped: int = 0
    """Cancelled or late."""
    mini_batches: int = 0
    """Halved ones and their halves too."""
    halved: int = 0
    """Mini-batches beyond a limit, or with a bad request in them."""


class Batcher:
    """See the module's docstring. It belongs to the event loop in which it is first called."""

    def __init__(self, net: Net, *, max_instances: int = 256, max_nodes: int = 200_000, max_bytes: int = 1 << 30,
                 max_waiting: int = 1024):  # fmt: skip
        for name, value in (("max_instances", max_instances), ("max_nodes", max_nodes), ("max_waiting", max_waiting)):
            require_count(name, value)
        require_rate("max_bytes", max_bytes)
        self.net = net
        self.max_instances, self.max_nodes, self.max_bytes = max_instances, max_nodes, max_bytes
        self.max_waiting = max_waiting
        self.counts = Counts()
        self._most = max_instances
        self._pace = math.inf
        """Seconds per instance of the last mini-batch."""
        self._waiting: deque[_Request] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "edbc-batcher")

    async def __call__(self, instance: Any, within: float | None = None) -> Any:
        """What the model returns for an instance. Raises Busy at once where the queue is full, Late where it was not
        taken `within` so many seconds, and what forward raises."""
        return await self.submit(instance, within)

    def submit(self, instance: Any, within: float | None = None) -> asyncio.Future[Any]:
        """The same without waiting: the answer to come."""
        if len(self._waiting) >= self.max_waiting:
            self.counts.busy += 1
            raise Busy(f"batcher: expected at most {self.max_waiting:,} waiting requests, got one more; ask later")
        loop = asyncio.get_running_loop()
        until = None if within is None else loop.time() + within
        request = _Request(instance, loop.create_future(), until)
        self._waiting.append(request)
        if self._serving is None:
            self._serving = loop.create_task(self._serve(loop))
        return request.answer

    async def close(self) -> None:
        """Answer all that wait, then end the thread."""
        if self._serving is not None:
            await self._serving
        self._thread.shutdown()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Definition (1), while anything waits."""
        try:
            while self._waiting:
                fit, waiting = int(SHORT / self._pace), len(self._waiting)
                is_short = waiting <= fit or (fit >= ENOUGH and waiting < self.max_waiting // 2)
                requests = self._take(loop.time(), fit if is_short else waiting)
                if not requests:
                    continue
                instances = [request.instance for request in requests]
                if is_short:
                    self._answer(requests, self._run(instances))
                    for _ in range(TURNS):
                        await asyncio.sleep(0)
                else:
                    self._answer(requests, await loop.run_in_executor(self._thread, self._run, instances))
        finally:
            self._serving = None

    def _take(self, now: float, most: int) -> list[_Request]:
        """Requests to run now, at most so many; definition (4)."""
        taken: list[_Request] = []
        while self._waiting and len(taken) < min(self._most, most):
            request = self._waiting.popleft()
            is_late = request.until is not None and request.until < now
            if is_late and not request.answer.done():
                request.answer.set_exception(Late("batcher: the request's time was over before the runtime was free"))
            if request.answer.done():
                self.counts.dropped += 1
            else:
                taken.append(request)
        return taken

    def _answer(self, requests: Sequence[_Request], outcomes: Sequence[Any]) -> None:
        for request, outcome in zip(requests, outcomes, strict=True):
            is_error = isinstance(outcome, Failure)
            self.counts.failed += is_error
            self.counts.answered += not is_error
            if request.answer.done():
                continue
            if is_error:
                request.answer.set_exception(outcome.error)
            else:
                request.answer.set_result(outcome)

    # --- in the thread, or not --------------------------------------------------------------------------------------

    def _run(self, instances: Sequence[Any]) -> list[Any]:
        """An outcome for each instance; definitions (2) and (5)."""
        started = time.perf_counter()
        found = outcomes(self._execute, instances, self._count_halved)
        self._pace = (time.perf_counter() - started) / len(instances)
        return found

    def _count_halved(self) -> None:
        self.counts.halved += 1

    def _execute(self, instances: Sequence[Any]) -> list[Any]:
        self.counts.mini_batches += 1
        net = self.net.in_mode()
        with torch.no_grad():
            if net.runs_eagerly:
                return net.run_eagerly(instances)
            return net.run(instances, observer=partial(self._require_room, len(instances)))[0]

    def _require_room(self, count: int, name: str, prepared: MiniBatch) -> None:
        """Definition (2), an observer: told when a mini-batch has been placed."""
        if name != "place":
            return
        fit = count * self.max_nodes // max(prepared.capture.graph.num_nodes, 1)
        self._most = min(self.max_instances, max(1, fit))
        if count == 1:
            return
        if prepared.capture.graph.num_nodes > self.max_nodes or prepared.demand.total > self.max_bytes:
            raise _TooLarge
