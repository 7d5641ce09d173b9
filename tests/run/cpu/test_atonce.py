"""Mini-batches that run at once have the values of those that stop behind every batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import bound
from ordinary.registry import load_all
from torch import nn

from edbc.run.cpu.atonce import AtOnce
from edbc.run.outputs import named_tensors


def _equal(found: list[Any], expected: list[Any]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(
        torch.equal(a, b)
        for one, other in pairs
        for (_, a, _), (_, b, _) in zip(named_tensors(one), named_tensors(other), strict=True)
    )


@pytest.mark.parametrize("name", ["BatchDimensionOfOne", "InputsReturned", "Normalised", "PairTree", "StateOnSelf"])
@torch.no_grad()
def test_the_bits_are_those_of_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever externals are and results leave as, when a structure is new and when it comes again."""
    program = load_all()[name]
    net = bound(program.build(16), program.instances(0, 7))
    ran: list[AtOnce] = []
    run = AtOnce.run
    monkeypatch.setattr(AtOnce, "run", lambda self, *args: (ran.append(self), run(self, *args))[1])
    for seed in (0, 1, 0, 1):
        instances = program.instances(seed, 7)
        stopped = net.run(instances, on_batch=lambda *_: None)[0]
        assert _equal(net(instances), stopped)
    assert len(ran) >= 4


class _Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


@torch.no_grad()
def test_equal_nodes_are_looked_for_seldom_where_there_were_none() -> None:
    """They are looked for in some of the mini-batches of a structure, and in all again once there are some; no bit
    tells."""
    net = bound(_Doubled(), [torch.randn(4) for _ in range(32)])
    looked: list[int] = []
    shared = net.shared
    net.shared = lambda captured: (looked.append(len(looked)), shared(captured))[1]  # type: ignore[method-assign]
    for _ in range(40):
        instances = [torch.randn(4) for _ in range(32)]
        assert _equal(net(instances), net.run(instances, on_batch=lambda *_: None)[0])
    by_steps = 40
    assert by_steps < len(looked) < by_steps + 20
    same = [torch.ones(4)] * 32
    assert len({tuple(x.tolist()) for _ in range(20) for x in net(same)}) == 1
    before = len(looked)
    for _ in range(5):
        net(same)
    assert len(looked) >= before + 5
