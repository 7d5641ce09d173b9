"""Threads that help with a walk (`edbc.run.cpu.teamwork`): a team that stays, a spin barrier per step, the same bits.

A mini-batch with enough work puts jobs in a queue at which the helpers sleep. Who wakes takes part from the next step
on and leaves at the end; who wakes too late finds that nothing is left. So a helper that the system does not run costs
nothing. One that it stops in the middle of a part costs what it is stopped for: the leader then goes on alone, and the
next mini-batches run without help, twice as many every time, and one fewer for each that had good help.

There are as many threads as torch has (`torch.set_num_threads`), and no more than cores that the process may use. One
mini-batch at a time has the team, others run on their own thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.cells.kernels.microkernel import shape_of
from edbc.native.pool import ALIGNMENT, aligned
from edbc.native.threads import num_cores
from edbc.run.cpu.teamwork import ALL_BYTES, LATE, MOST, NEXT, PANEL, TASK, WIDTH, help_team

WORTH = 1 << 24
"""Multiplications of a mini-batch from which helpers are called: waking one takes as long as some millions."""
_FEWEST_ALONE, _MOST_ALONE = 16, 1 << 12
"""Mini-batches without help behind one that had to wait."""
_NOBODY = nullcontext(0)
Job = tuple[Callable[[int], None], int]
"""What a helper runs, given the address of memory of its own, and how many bytes of it."""


class Team:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """As a new process begins: threads do not survive a fork."""
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._helpers = self._alone = 0
        self._penalty = _FEWEST_ALONE

    def helping(self, work: Callable[[], float], width: int, scratch: int = 0) -> AbstractContextManager[int]:
        """The address of what the team shares while the block runs, 0 where there is no help. `work` counts
        multiplications; elements and scratch rows have so many bytes."""
        return _NOBODY if helpers() == 0 else self._helping(work, width, scratch)

    @contextmanager
    def _helping(self, work: Callable[[], float], width: int, scratch: int) -> Iterator[int]:
        with self.lent(work) as count:
            if count:
                yield from self._with_help(count, width, scratch)
            else:
                yield 0

    @property
    def threads(self) -> int:
        """The helpers that a mini-batch would have now, and the caller."""
        return 1 if self._alone else 1 + helpers()

    @contextmanager
    def lent(self, work: Callable[[], float]) -> Iterator[int]:
        """How many helpers the block may `call`; nobody else has them meanwhile."""
        count = helpers()
        if count == 0 or work() < WORTH or not self._lock.acquire(blocking=False):
            yield 0
            return
        try:
            if self._alone:
                self._alone, count = self._alone - 1, 0
            yield count
        finally:
            self._lock.release()

    def call(self, count: int, run: Callable[[int], None], size: int) -> None:
        """One of at least so many helpers, to run that; one that wakes late runs it late."""
        self._jobs.put((run, size))
        while self._helpers < count:
            threading.Thread(target=_help, args=(self._jobs,), daemon=True, name="edbc helper").start()
            self._helpers += 1

    def _with_help(self, count: int, width: int, scratch: int) -> Iterator[int]:
        shape = shape_of(width)
        assert shape is not None
        shared = words(ALL_BYTES // 8)
        shared[TASK // 8 + WIDTH], shared[TASK // 8 + PANEL] = width, shape.columns
        for number in range(count):
            self.call(number + 1, partial(_help_with, shared), scratch)
        try:
            yield shared.ctypes.data
        finally:
            shared[NEXT // 8] = -1
        if shared[LATE // 8]:
            self._alone, self._penalty = self._penalty, min(2 * self._penalty, _MOST_ALONE)
        else:
            self._penalty = max(self._penalty - 1, _FEWEST_ALONE)


def helpers() -> int:
    """How many threads there may be beside one."""
    allowed = min(torch.get_num_threads(), MOST - 1)
    if allowed == 1:
        return 0
    return min(allowed, num_cores()) - 1


def _help(jobs: SimpleQueue[Job]) -> None:
    """Sleep at the queue for ever; the memory is this thread's."""
    memory = words(0)
    while True:
        run, size = jobs.get()
        memory = memory if memory.nbytes >= size else words(size // 8)
        run(memory.ctypes.data)


def _help_with(shared: NDArray[np.int64], memory: int) -> None:
    help_team(shared.ctypes.data, memory)


def words(count: int) -> NDArray[np.int64]:
    """Zeros at the beginning of a cache line."""
    whole = np.zeros(count + ALIGNMENT // 8, np.int64)
    first = (aligned(whole.ctypes.data) - whole.ctypes.data) // 8
    return whole[first : first + count]


TEAM = Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TEAM._forget)
