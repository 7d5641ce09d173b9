"""The number of threads of products: the faster one, measured on dummy data, once per size."""

from __future__ import annotations

import pytest
import torch

from edbc.native import threads
from edbc.native.threads import PROBES, SMALLEST, ProductThreads, seconds_of_product


@pytest.mark.parametrize(("every", "expected", "measurements"), [(0.5, 0, 2 * PROBES + 1), (2.0, 1, 2 * PROBES + 1),
                                                                 (9.0, 1, 3)])  # fmt: skip
def test_the_faster_setting_is_kept(every: float, expected: int, measurements: int) -> None:
    """One size is measured once; a second core that makes things many times slower is given up at once."""
    asked: list[int] = []

    def measure(multiplications: int, setting: int) -> float:
        asked.append(setting)
        return 1.0 if setting == 1 else every

    chooser = ProductThreads(measure)
    chosen = {chooser.threads_for(10 * SMALLEST + i) for i in range(5)}

    assert chosen == {expected}
    assert len(asked) == measurements


def test_small_products_take_one_thread_unmeasured() -> None:
    """Below SMALLEST nothing is timed."""

    def measure(multiplications: int, setting: int) -> float:
        raise AssertionError("small products are not timed")

    assert ProductThreads(measure).threads_for(SMALLEST - 1) == 1


def test_the_switch_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens inside, the library's own setting returns; without products nothing is switched."""
    settings: list[int] = []
    monkeypatch.setattr(threads, "_set_local", lambda: settings.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    chooser = ProductThreads(lambda multiplications, setting: 1.0)
    with pytest.raises(KeyError), chooser.limited(lambda: (100.0, 1)):
        raise KeyError
    with chooser.limited(lambda: (0.0, 0)):
        pass

    assert settings == [1, 0]


def test_dummy_products_run() -> None:
    """Timing works with the real library, with one thread and with all."""
    assert seconds_of_product(SMALLEST, 1) > 0
    assert seconds_of_product(SMALLEST, 0) > 0
