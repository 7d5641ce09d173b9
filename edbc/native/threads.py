"""How many threads the vendor BLAS uses inside the native walk: all of torch's where products are large, else one.

Small products gain little from a second core and lose much when that core is busy: a thread that waits at the end of a
product waits for a time slice of the system (measured: a mini-batch of 4 ms took 400 ms while other programs kept both
cores busy). With another number of threads the last bit of some products differs; which it is hangs on sizes alone, so
a mini-batch that runs twice gives the same bits.

Where the library offers no such switch (it is MKL's), its own setting stays. Products of our own have a team
(`edbc.run.cpu.team`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SMALLEST = 1 << 22
"""Multiplications below which a second core gains nothing (measured at 6 million: 128 -> 91 microseconds)."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """In it, torch has so many threads. Also a decorator."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _set_local() -> Callable[[int], int] | None:
    """MKL's switch for the calling thread (0: back to the global setting), from torch's own library."""
    import torch

    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            function: Callable[[int], int] = ctypes.CDLL(str(path)).MKL_Set_Num_Threads_Local
        except (OSError, AttributeError):
            continue
        return function
    return None


@contextmanager
def threads_of_products(work: Callable[[], tuple[float, float]]) -> Iterator[None]:
    """Run the block with the number of threads that suits its products; `work` counts their multiplications and them,
    where there is a choice."""
    import torch

    switch = None if torch.get_num_threads() == 1 else _set_local()
    multiplications, products = (0, 0) if switch is None else work()
    if switch is None or not products or multiplications / products >= SMALLEST:
        yield
        return
    switch(1)
    try:
        yield
    finally:
        switch(0)
