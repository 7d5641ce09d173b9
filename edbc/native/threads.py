"""How many threads the vendor BLAS uses inside the native walk: all of torch's, or one, whichever is faster here.

Small products gain little from a second core and lose much when that core is busy: a thread that waits at the end of a
product waits for a time slice of the system (measured: a mini-batch of 4 ms took 400 ms while other programs kept both
cores busy). Which holds depends on the machine at the time, so it is measured: before the first products of a size
class run, products of that size on dummy data are timed with one thread and with all, and the faster setting is kept
for the life of the process. Real data are never used for timing, so that a mini-batch that runs twice gives the same
bits (with another number of threads the last bit of some products differs).

Products of fewer than SMALLEST multiplications always take one thread. Where the library offers no such switch (it is
MKL's), its own setting stays. Products of our own have a team (`edbc.run.cpu.team`).
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

PROBES = 7
"""Timed products per setting."""
SMALLEST = 1 << 22
"""Multiplications below which a second core gains nothing (measured at 6 million: 128 -> 91 microseconds)."""
HOPELESS = 4.0
"""One product this many times slower with all threads ends the timing at once."""
_AS_IT_IS = nullcontext()
_WIDTH = 256
"""Inner and outer size of the dummy products."""


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
    """The choice per size class, the power of two of the multiplications of a product. Threads may share it."""

    def __init__(self, measure: Callable[[int, int], float] | None = None) -> None:
        self._measure = measure or seconds_of_product
        self._choice: dict[int, int] = {}
        self._lock = threading.Lock()

    def limited(self, work: Callable[[], tuple[float, float]]) -> AbstractContextManager[None]:
        """Run the block with the number of threads that suits its products; `work` counts their multiplications and
        them, where there is a choice."""
        import torch

        switch = None if torch.get_num_threads() == 1 else _set_local()
        multiplications, products = (0, 0) if switch is None else work()
        if switch is None or not products:
            return _AS_IT_IS
        return self._switched(switch, int(multiplications / products))

    @contextmanager
    def _switched(self, switch: Callable[[int], int], multiplications: int) -> Iterator[None]:
        switch(self.threads_for(multiplications))
        try:
            yield
        finally:
            switch(0)

    def threads_for(self, multiplications: int) -> int:
        """1, or 0 for all threads."""
        if multiplications < SMALLEST:
            return 1
        size = multiplications.bit_length()
        with self._lock:
            if size not in self._choice:
                self._choice[size] = self._choose(1 << (size - 1))
            return self._choice[size]

    def _choose(self, multiplications: int) -> int:
        self._measure(multiplications, 1)  # pages and caches
        one, every = [], []
        for _ in range(PROBES):
            one.append(self._measure(multiplications, 1))
            every.append(self._measure(multiplications, 0))
            if every[-1] > HOPELESS * min(one):
                return 1
        return 1 if statistics.median(one) <= statistics.median(every) else 0


def seconds_of_product(multiplications: int, threads: int) -> float:
    """Time of one product of dummy data with so many multiplications, with 1 thread or all (0)."""
    import torch

    switch = _set_local()
    rows = max(multiplications // _WIDTH**2, 1)
    left, right, result = torch.zeros(rows, _WIDTH), torch.zeros(_WIDTH, _WIDTH), torch.empty(rows, _WIDTH)
    if switch is not None:
        switch(threads)
    started = time.perf_counter()
    torch.mm(left, right, out=result)
    elapsed = time.perf_counter() - started
    if switch is not None:
        switch(0)
    return elapsed


PRODUCT_THREADS = ProductThreads()
"""Of native products, forward and backward: what was measured holds for the whole process."""
