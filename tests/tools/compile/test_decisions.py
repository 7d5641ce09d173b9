"""What a choice between rows and types weighs."""

from __future__ import annotations

import torch
from torch import nn

from edbc.capture.code.closed import Closed
from edbc.capture.code.regions import Regions
from edbc.tools.compile.decisions import Trial, _attempt

SIZE = 4


class Body(nn.Module):
    """Convolutions over a series: one cell, for each length another type."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, SIZE, 3, padding=1), nn.Conv1d(SIZE, SIZE, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.relu(self.first(x))))


class Series(nn.Module):
    """One that is called by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def attempt(lengths: list[int], names: frozenset[str]) -> Trial:
    """Series of these lengths, with the names as cells."""
    model = Series().eval()
    return _attempt(model, Regions(model, Closed(model)), [torch.ones(1, 2, n) for n in lengths], (), names)


def test_types_that_are_to_come_count_by_their_operations() -> None:
    """A cell is as dear as what it stands for: it is traced and compiled for each length that comes. Lengths that were
    met twice are not to come."""
    cell, none = frozenset({"body"}), frozenset[str]()

    assert attempt([5, 6, 7, 7], cell).unseen == attempt([5, 6, 7, 7], none).unseen == 8
    assert attempt([5, 5, 6, 6], cell).unseen == 0
