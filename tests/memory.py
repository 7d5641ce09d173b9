"""What a process holds, exactly: not pages in RAM, which also count what the allocator keeps for later."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import NamedTuple

import pytest


class _MallInfo(ctypes.Structure):
    """The C library's struct mallinfo2 (malloc.h), of all its arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


class Held(NamedTuple):
    """Memory in use: `malloced` bytes of the C library (tensors, arrays, the records of kernels) and `blocks` of
    Python's own allocator (objects of at most 512 bytes)."""

    malloced: int
    blocks: int

    def __sub__(self, before: Held) -> Held:
        """By how much it grew since `before`."""
        return Held(self.malloced - before.malloced, self.blocks - before.blocks)


def held() -> Held:
    """What this process holds after a collection; skips the test where the C library does not say."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("no mallinfo2 in this C library (glibc 2.33 has it)")
    mallinfo.restype = _MallInfo
    gc.collect()
    info = mallinfo()
    return Held(info.uordblks + info.hblkhd, sys.getallocatedblocks())


def objects(kind: type) -> int:
    """How many objects of `kind` the garbage collector sees."""
    return sum(issubclass(type(o), kind) for o in gc.get_objects())
