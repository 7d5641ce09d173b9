"""Weights are the same in every run, whichever tests came before."""

from __future__ import annotations

import pytest
import torch

from edbc.capture.record import recorder


@pytest.fixture(autouse=True)
def seeded_weights() -> None:
    """Tolerances are for some weights, not for all that may be drawn."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def often_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of code are asked for in every second mini-batch from the third on: in the others calls that are kept are
    found at once (`kept.again_at_once`), as in nearly all of a long run."""
    monkeypatch.setattr(recorder, "LOOKS", 2)
