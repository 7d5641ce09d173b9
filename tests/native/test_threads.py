"""How many threads tests have."""

from __future__ import annotations

import os

import torch

from edbc.native import threads


def test_processes_of_tests_share_the_processors() -> None:
    """Side by side they have no more threads together than there are processors, and each has one."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    assert torch.get_num_threads() <= max(1, threads.num_cores() // workers)
