"""The number of threads of the library's products: one where they are small, and the library's own setting again."""

from __future__ import annotations

import os

import pytest
import torch

from edbc.native import threads
from edbc.native.threads import SMALLEST, threads_of_products


def test_small_products_take_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens inside, the library's own setting returns; large products, and none, leave it alone."""
    settings: list[int] = []
    monkeypatch.setattr(threads, "_set_local", lambda: settings.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(KeyError), threads_of_products(lambda: (100.0, 1)):
        raise KeyError
    for work in ((0.0, 0.0), (2.0 * SMALLEST, 2.0)):
        with threads_of_products(lambda work=work: work):
            pass

    assert settings == [1, 0]


def test_processes_of_tests_share_the_processors() -> None:
    """Side by side they have no more threads together than there are processors, and each has one."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    assert torch.get_num_threads() <= max(1, threads.num_cores() // workers)
