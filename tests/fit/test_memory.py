"""Memory over many training steps."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from budget import PLAIN
from helpers import bound
from small import fresh, loop_of, sequences

from edbc.fit.loop import Step

PAGE = 4096


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        pytest.skip("no /proc/self/statm here")
    return int(statm.read_text().split()[1]) * PAGE


def growth(steps: int, warm_up: int, size: int) -> tuple[int, int]:
    """By how many bytes and tensors the process grows from the end of the warm-up to the last training step."""
    model = fresh(size=size)
    loop = loop_of(model, net=bound(model, sequences(10)), count=40)
    trained = (e for e in loop.run(steps) if isinstance(e, Step) and e.stage == "train")
    marks = []
    for step in range(steps):
        next(trained)
        if step in (warm_up, steps - 1):
            gc.collect()
            marks.append((resident_bytes(), sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())))
    (bytes_before, tensors_before), (bytes_after, tensors_after) = marks
    return bytes_after - bytes_before, tensors_after - tensors_before


def test_two_hundred_steps_keep_nothing() -> None:
    """From step 60 to 200 no tensor and at most 8 MB stay; the values of these mini-batches take 13.8 MB. In plain
    Python torch allocates them, which does not give everything back: the values of two mini-batches may stay."""
    grown, tensors = growth(200, 60, 512)

    assert tensors <= 0
    assert grown < (28e6 if PLAIN else 8e6)


@pytest.mark.slow
def test_ten_thousand_steps_have_flat_memory() -> None:
    """From step 500 to 10,000 no tensor and at most 16 MB stay, 1.7 KB per step."""
    grown, tensors = growth(10_000, 500, 32)
    print(f"grown by {grown / 1e6:.2f} MB and {tensors} tensors in 9,500 steps")

    assert tensors <= 0
    assert grown < 16e6
