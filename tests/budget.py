"""How much work a test does: less where numba's compiler is switched off, and all that it compiles is plain Python.

`NUMBA_DISABLE_JIT=1 make test` is a run of its own, for coverage of the native loops (`make coverage`); there a loop is
some hundred times slower, and what takes seconds compiled would take hours.
"""

from __future__ import annotations

import os

PLAIN = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
"""True when nothing is compiled."""


def budget(compiled: int, plain: int) -> int:
    """`compiled` trials, examples or mini-batches; `plain` of them where nothing is compiled."""
    return plain if PLAIN else compiled


def share_processors(workers: int) -> None:
    """Processes that run tests side by side, and those that they start, compute in as many threads as there are
    processors for each: torch's threads wait for each other at every operation. Called before they start, as they
    inherit it, and before torch is loaded."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors // workers)))


HANGS = 600
"""Seconds after which what has not ended never will, however busy the machine is: a test that waits longer fails."""
