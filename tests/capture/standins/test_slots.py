"""Slots: whether the views of a value are one reshape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.record.table import TypeTable

CHAINS: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "view": (True, lambda x: x.view(-1)),
    "unsqueeze": (True, lambda x: x[None].view(2, 6)),
    "transpose of a vector": (True, lambda x: x.view(1, 12).t()),
    "there and back": (True, lambda x: x.t().t()),
    "transpose": (False, lambda x: x.t()),
    "expanded": (False, lambda x: x.view(1, 12).expand(2, 12)),
    "detached": (False, lambda x: x.detach().view(-1)),
    "flipped twice": (True, lambda x: x.view(3, 2, 2).transpose(0, 1).transpose(0, 1)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_views_keep_the_order_of_elements_or_not(name: str) -> None:
    """As eager shows it, for numbers that differ."""
    keeps, chain = CHAINS[name]
    _, recorder = recording_shadow(ModelView(nn.Linear(2, 2)), TypeTable())
    recorder.begin()
    value = recorder.constant(torch.randn(3, 4)) * 2.0
    seen = chain(value)
    numbers = torch.arange(12.0).view(3, 4)

    assert seen.slot.views
    assert seen.slot.keeps_order is keeps
    if keeps:
        torch.testing.assert_close(chain(numbers), numbers.reshape(seen.shape))
