"""The number of threads of products: chosen by measuring, and without an effect on the bits."""

from __future__ import annotations

import pytest
import torch

from edbc.runtime import threads
from edbc.runtime.threads import PROBES, ProductThreads


def test_the_faster_setting_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings alternate, then the one with the smaller median time is used for good, per size class."""
    settings: list[int] = []
    clock = iter(range(10**6))
    monkeypatch.setattr(threads, "_set_local", lambda: settings.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    elapsed = {1: 1.0, 0: 5.0}
    now = [0.0]
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0] + 0 * next(clock))
    chooser = ProductThreads()
    for _ in range(2 * (PROBES + 1) + 5):
        with chooser.limited(1e6, 2):
            now[0] += elapsed[settings[-1]]
    used = settings[::2]

    assert sorted(used[: 2 * (PROBES + 1)]) == [0] * (PROBES + 1) + [1] * (PROBES + 1)
    assert set(used[2 * (PROBES + 1) :]) == {1}
    assert set(settings[1::2]) == {0}


@pytest.mark.parametrize("rows", [1, 7, 32, 129, 500])
@pytest.mark.parametrize("inner", [64, 256, 512])
def test_products_have_the_same_bits_with_one_thread_and_with_two(rows: int, inner: int) -> None:
    """The library divides rows and columns between threads, not sums."""
    switch = threads._set_local()
    if switch is None:
        pytest.skip("torch's BLAS has no switch for threads here")
    a, b = torch.randn(rows, inner), torch.randn(inner, 384)
    switch(1)
    one = a @ b
    switch(2)
    two = a @ b
    switch(0)

    assert torch.equal(one, two)
