"""Flags of the model, at which forward looks: parameters and buffers of one truth value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import bound, require_eager, seeded
from torch import nn

import edbc
from edbc.errors import StaleError

SIZE = 4


class Flagged(nn.Module):
    """A sum over rows, by what two flags say."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(SIZE, SIZE)
        self.register_buffer("ready", torch.tensor(1, dtype=torch.uint8))
        self.scaled = nn.Parameter(torch.tensor(True), requires_grad=False)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.relu(self.up(x))
        if self.ready.item() == 0:
            h = h - h.mean(0)
        return h.sum(0) * 2 if self.scaled else h.sum(0)


class Counted(Flagged):
    """One that reads a parameter that is no flag."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = nn.Parameter(torch.tensor(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(self.rounds):
            x = torch.tanh(self.up(x))
        return x.sum(0)


def some(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, SIZE, generator=generator) for size in (2, 5, 3, 5, 1, 4)]


@pytest.mark.parametrize("rows", [False, True])
def test_nobody_waits_for_flags(rows: bool) -> None:
    """They are looked at while recording, and once more where somebody has changed one."""
    model: Any = seeded(Flagged)
    net = bound(model, some(0), "auto", rows=rows)
    assert not net.plan.reads
    require_eager(net, some(1))
    for number in range(12):
        flag = (model.ready, model.scaled)[number % 2]
        flag.data.copy_(1 - flag.to(torch.uint8))
        require_eager(net, some(2))
        require_eager(net, some(3))
        assert net.capture_all(some(1))


def test_captured_instances_are_of_flags_as_they_were() -> None:
    """They run as long as those stay."""
    model: Any = seeded(Flagged)
    net = bound(model, some(0), "auto")
    captured = net.capture_all(some(1))
    require_eager(net, some(1), net(captured))
    model.ready.fill_(0)
    with pytest.raises(StaleError, match="structure"):
        net(captured)


def test_other_parameters_are_read() -> None:
    """Eager replays those reads, of which it knows by parameters themselves."""
    net = edbc.compile(seeded(Counted).eval(), some(0), force=True)
    assert [Path(site.partition(":")[0]).name for site in net.plan.reads] == [Path(__file__).name]
    require_eager(net, some(1))
