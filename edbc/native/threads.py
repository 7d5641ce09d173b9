"""How many threads there are to run on, and how many torch has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


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
