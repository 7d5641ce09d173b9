"""Memory for mini-batches: a buffer belongs to one mini-batch at a time and comes back when nothing needs it.

Fresh memory costs a page fault per page on every mini-batch; one buffer shared by two mini-batches that are alive at
once would give wrong numbers in silence. The pool keeps as few buffers as were ever in use at once, each as large as
the largest mini-batch needed, and never more than `limit`.
"""

from __future__ import annotations

import threading

import torch

from edbc.native.memory import MemoryErrors, require_memory

ALIGNMENT = 64
"""Bytes of a cache line; also the width of the widest vector registers."""


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Pool:
    """See the module's docstring. Threads may take and give at any time; so may the garbage collector, which gives what
    dead mini-batches held while any statement runs, those of `take` too: hence the lock may be taken again by its
    holder, and a buffer given in the middle of `take` is at worst dropped."""

    def __init__(self, limit: int = 4):
        self.limit = limit
        self._idle: list[torch.Tensor] = []
        self._lock = threading.RLock()

    def take(self, size: int) -> torch.Tensor:
        """A buffer of at least `size` bytes, not initialised. Raises DeviceError when memory is short."""
        with self._lock:
            if len(self._idle) == 1:  # as nearly always
                only = self._idle.pop()
                if only.numel() >= size:
                    return only
                self._idle.append(only)
            fitting = [buffer for buffer in self._idle if buffer.numel() >= size]
            chosen = min(fitting, key=torch.Tensor.numel) if fitting else None
            dropped = chosen if chosen is not None else min(self._idle, key=torch.Tensor.numel, default=None)
            self._idle = [buffer for buffer in self._idle if buffer is not dropped]
        return chosen if chosen is not None else self._allocate(size)

    def give(self, buffer: torch.Tensor) -> None:
        """Take a buffer back. The caller must not touch it any more."""
        with self._lock:
            if len(self._idle) < self.limit:
                self._idle.append(buffer)

    def _allocate(self, size: int) -> torch.Tensor:
        require_memory(size, "the values of this mini-batch")
        with MemoryErrors("the values of this mini-batch"):
            return torch.empty(aligned(size) + ALIGNMENT, dtype=torch.uint8)
