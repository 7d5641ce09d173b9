"""The number of threads of the library's products: one where they are small, and the library's own setting again."""

from __future__ import annotations

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
