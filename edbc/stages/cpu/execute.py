"""Executing stages on a CPU: a team of threads that runs phases of tasks, with or without barriers between stages.

Each thread of the team, the caller's own among them, runs torch with one thread inside. Where all threads work on one
unit, or on a merged product, they are torch's own, and the others sleep.

torch's threads (libgomp's) spin for a while when they have nothing to do, 0.3 ms and more, on the core that another
group needs next: with `edbc.stages.SPIN` in the environment before torch is loaded they spin for microseconds. The
command line sets it.

(1) With barriers a schedule is a list of *phases*, lists of tasks that may run in any order at once; a phase begins
    when the one before it has ended. A concurrent stage is one phase, a task per group, the longest first.
(2) Without barriers, neighbouring concurrent stages are one *flow*: a unit begins when its operands are there, those
    first from which the longest path remains. Where all threads work together there are barriers still.

`edbc.stages.cuda.program` renders the same schedules on the streams of a GPU: groups are
streams, barriers are events.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from edbc.native.threads import torch_threads
from edbc.stages.cpu.kernels import HostTasks
from edbc.stages.graph import UnitGraph
from edbc.stages.table import CONCURRENT, MERGE, Schedule
from edbc.stages.units.tasks import Task

Wrap = Callable[[Sequence[int], Task], Task]


class Team:
    """Threads that run tasks together; `close` ends them.

    Each sleeps at a lock. To wake one takes some 20 microseconds, most of it for Python's own lock, which both threads
    need between torch's calls: looking at a word of memory instead of sleeping gained nothing.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self._begin = [_taken() for _ in range(threads - 1)]
        self._ended = [_taken() for _ in range(threads - 1)]
        self._work: Callable[[], None] | None = None
        self._errors: list[BaseException] = []
        self._workers = [
            threading.Thread(target=self._serve, args=locks, daemon=True, name=f"edbc stages {i + 1}")
            for i, locks in enumerate(zip(self._begin, self._ended, strict=True))
        ]
        with torch_threads(1):
            for worker in self._workers:
                worker.start()
            for ended in self._ended:
                ended.acquire()

    def _serve(self, begin: threading.Lock, ended: threading.Lock) -> None:
        # A thread keeps the number that was set last, anywhere, when it first asks: so to set it here would leave all
        # threads that are yet to ask, perhaps the program's own, with one.
        torch.get_num_threads()
        ended.release()
        with torch.no_grad():
            while True:
                begin.acquire()
                if self._work is None:
                    return
                self._guarded(self._work)
                ended.release()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def together(self, work: Callable[[], None], count: int) -> None:
        """Run `work` in `count` threads at once, this one among them; what one raises is raised here."""
        helpers = min(count, self.threads) - 1
        self._work = work
        for begin in self._begin[:helpers]:
            begin.release()
        self._guarded(work)
        for ended in self._ended[:helpers]:
            ended.acquire()
        if self._errors:
            error = self._errors[0]
            self._errors = []
            raise error

    def phase(self, tasks: Sequence[Task]) -> None:
        """Run tasks at once, each in the first thread that is free."""
        if len(tasks) == 1 or self.threads == 1:
            for task in tasks:
                task()
            return
        following = itertools.count()

        def work() -> None:
            while (i := next(following)) < len(tasks):
                tasks[i]()

        self.together(work, min(self.threads, len(tasks)))

    def close(self) -> None:
        """End the threads."""
        self._work = None
        for begin in self._begin:
            begin.release()
        for worker in self._workers:
            worker.join()

    @contextmanager
    def alone(self) -> Any:
        """torch with one thread, no gradients: how tasks run."""
        with torch_threads(1), torch.no_grad():
            yield


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(frozen=True)
class Flow:
    """Units that run as soon as their operands are there, definition (2)."""

    tasks: dict[int, Task]
    waits: dict[int, int]
    """Operands of each within the flow."""
    readers: dict[int, list[int]]
    priority: dict[int, int]

    def run(self, team: Team) -> None:
        """All units, in all threads."""
        state = _FlowState(self)
        team.together(state.work, min(team.threads, len(self.tasks)))


@dataclass
class _FlowState:
    flow: Flow
    waits: dict[int, int] = field(init=False)
    ready: list[tuple[int, int]] = field(init=False)
    left: int = field(init=False)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.waits = dict(self.flow.waits)
        self.ready = [(-self.flow.priority[u], u) for u, count in self.waits.items() if not count]
        heapq.heapify(self.ready)
        self.left = len(self.flow.tasks)

    def work(self) -> None:
        """What one thread does: units until none is left. An error ends the flow for all."""
        while (unit := self._take()) is not None:
            try:
                self.flow.tasks[unit]()
            except BaseException:
                with self.changed:
                    self.left = 0
                    self.changed.notify_all()
                raise
            self._give(unit)

    def _take(self) -> int | None:
        with self.changed:
            while self.left and not self.ready:
                self.changed.wait()
            return heapq.heappop(self.ready)[1] if self.left and self.ready else None

    def _give(self, unit: int) -> None:
        with self.changed:
            self.left -= 1
            for reader in self.flow.readers[unit]:
                self.waits[reader] -= 1
                if not self.waits[reader]:
                    heapq.heappush(self.ready, (-self.flow.priority[reader], reader))
            self.changed.notify_all()


@dataclass(frozen=True)
class Step:
    """One thing after which all threads wait: a phase, or a flow. `stage` is the first stage that it is of."""

    stage: int
    run: Callable[[Team], None]


def steps_of(graph: UnitGraph, schedule: Schedule, tasks: HostTasks, barriers: bool = True,
             wrap: Wrap = lambda units, task: task) -> list[Step]:  # fmt: skip
    """A schedule as steps; `wrap` is given every task and its units, for those who watch or disturb."""
    steps: list[Step] = []
    pending: list[int] = []
    for number, (groups, run) in enumerate(schedule):
        if run == CONCURRENT and not barriers:
            pending += [unit for group in groups for unit in group]
            ends = number + 1 == len(schedule) or schedule[number + 1][1] != CONCURRENT
            if ends:
                steps.append(Step(number, flow_of(graph, pending, tasks, wrap).run))
                pending = []
        elif run == CONCURRENT:
            ordered = sorted(groups, key=lambda group: -sum(graph.units[unit].flops for unit in group))
            steps.append(_phase(number, [_sequence([wrap([u], tasks.whole(u)) for u in group]) for group in ordered]))
        else:
            units = [unit for group in groups for unit in group]
            task = tasks.merge(units) if run == MERGE else tasks.split(units[0])
            steps.append(_phase(number, [wrap(units, task)]))
    return steps


def _phase(number: int, tasks: list[Task]) -> Step:
    return Step(number, lambda team: team.phase(tasks))


def _sequence(tasks: Iterable[Task]) -> Task:
    ordered = list(tasks)

    def run() -> None:
        for task in ordered:
            task()

    return ordered[0] if len(ordered) == 1 else run


def flow_of(graph: UnitGraph, units: Sequence[int], tasks: HostTasks, wrap: Wrap) -> Flow:
    """A flow of units; the priority of one is the work on the longest path from it on."""
    inside = set(units)
    waits = {u: len({r for r in graph.units[u].reads if r in inside}) for u in units}
    readers: dict[int, list[int]] = {u: [] for u in units}
    for u in units:
        for other in {r for r in graph.units[u].reads if r in inside}:
            readers[other].append(u)
    priority: dict[int, int] = {}
    for u in sorted(units, reverse=True):
        priority[u] = graph.units[u].flops + 1 + max((priority[r] for r in readers[u]), default=0)
    return Flow({u: wrap([u], tasks.whole(u)) for u in units}, waits, readers, priority)
