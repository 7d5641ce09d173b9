"""How many threads the vendor BLAS uses inside the native walk: all of torch's, or one, whichever is faster here.

Small products gain little from a second core and lose much when that core is busy: a thread that waits at the end of a
product waits for a time slice of the system (measured: a mini-batch of 4 ms took 400 ms while other programs kept both
cores busy). Which holds depends on the machine at the time, so it is measured: the first mini-batches alternate between
one thread and all, and the smaller median of time per multiplication decides. The results are the same bits either
way: the library divides rows and columns between threads, not the sums (tested).

Where the library offers no such switch (it is MKL's), its own setting stays.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

PROBES = 3
"""Mini-batches per setting before one is chosen."""


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


class ProductThreads:
    """Chooses between one thread and all by the first mini-batches of each size class. Safe to share between threads.

    A size class is the power of two of the work per product: large products may gain where small ones do not.
    """

    def __init__(self) -> None:
        self._rates: dict[int, tuple[list[float], list[float]]] = {}
        self._choice: dict[int, int] = {}

    @contextmanager
    def limited(self, multiplications: float, products: int) -> Iterator[None]:
        """Run the block with the number of threads that suits products of this size."""
        import torch

        switch = _set_local()
        if switch is None or torch.get_num_threads() == 1 or not products:
            yield
            return
        size = int(multiplications / products).bit_length()
        threads = self._threads(size)
        switch(threads)
        started = time.perf_counter()
        try:
            yield
        finally:
            switch(0)
            self._learn(size, threads, (time.perf_counter() - started) / multiplications)

    def _threads(self, size: int) -> int:
        """0 for all threads."""
        if size in self._choice:
            return self._choice[size]
        one, every = self._rates.setdefault(size, ([], []))
        return 1 if len(one) <= len(every) else 0

    def _learn(self, size: int, threads: int, rate: float) -> None:
        if size in self._choice:
            return
        one, every = self._rates[size]
        (one if threads else every).append(rate)
        if len(one) > PROBES and len(every) > PROBES:  # the first of each is warm-up
            self._choice[size] = 1 if statistics.median(one[1:]) <= statistics.median(every[1:]) else 0
