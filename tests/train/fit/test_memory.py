"""Memory over many training steps."""

from __future__ import annotations

import pytest
import torch
from helpers import bound
from memory import Held, held, objects
from small import fresh, loop_of, sequences

from edbc.capture.record import table
from edbc.run import session
from edbc.train.fit.loop import Step


def growth(steps: int, warm_up: int, size: int) -> tuple[Held, int]:
    """What, and how many tensors, the process holds more after the last training step than after the warm-up."""
    model = fresh(size=size)
    loop = loop_of(model, net=bound(model, sequences(10)), count=40)
    trained = (e for e in loop.run(steps) if isinstance(e, Step) and e.stage == "train")
    marks = []
    for step in range(steps):
        next(trained)
        if step in (warm_up, steps - 1):
            marks.append((held(), objects(torch.Tensor)))
    (before, tensors_before), (after, tensors_after) = marks
    return after - before, tensors_after - tensors_before


@pytest.mark.long
def test_a_hundred_steps_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From step 40 to 100 no tensor, at most 0.25 MB and 20 objects a step stay; the values of as many mini-batches
    would be 1.3 MB. Structures are kept by the hundred, the newest: so few here that the first steps fill their place.
    """
    for module in (table, session):
        monkeypatch.setattr(module, "MOST", 16)
    grown, tensors = growth(100, 40, 128)

    assert tensors <= 0
    assert grown.malloced < 0.25e6
    assert grown.blocks < 60 * 20


@pytest.mark.slow
def test_ten_thousand_steps_have_flat_memory() -> None:
    """From step 500 to 10,000 no tensor, at most 0.5 MB and 4 objects a step stay."""
    grown, tensors = growth(10_000, 500, 32)
    print(f"{grown} and {tensors} tensors in 9,500 steps")

    assert tensors <= 0
    assert grown.malloced < 0.5e6
    assert grown.blocks < 9_500 * 4
