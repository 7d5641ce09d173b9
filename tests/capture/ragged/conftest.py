"""Weights are the same in every run, whichever tests came before."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded_weights() -> None:
    """Tolerances are for some weights, not for all that may be drawn."""
    torch.manual_seed(0)
