"""Long trainings: memory that stays flat over thousands of steps, dropout, Adam and waiting mini-batches included."""

from __future__ import annotations

import random

import pytest
import torch
from budget import budget
from gradients import random_loss
from helpers import bound
from memory import Held, held
from test_random import Model, chain
from torch import nn

from edbc.capture.record import table
from edbc.run import session
from edbc.run.session import Net


def net_with_dropout() -> Net:
    """Chains of cells with dropout, in training mode."""
    net = bound(Model(chain, torch.float32), [[1, 2], [3]])
    net.model.train()
    return net


def growth(steps: int, warm_up: int) -> Held:
    """What `steps` steps on 1 to 12 sentences of 1 to 20 words add after `warm_up` of them; every third step
    has two mini-batches, both forward passes before the backward pass, and some losses never get one."""
    torch.manual_seed(0)
    net, rng = net_with_dropout(), random.Random(1)
    assert isinstance(net.model, nn.Module)
    optimizer = torch.optim.Adam(net.model.parameters(), 1e-4)
    before = Held(0, 0)
    for number in range(warm_up + steps):
        if number == warm_up:
            before = held()
        losses = [
            random_loss(net([rng.choices(range(12), k=rng.randrange(1, 21)) for _ in range(rng.randrange(1, 13))]))
            for _ in range(2 if number % 3 == 0 else 1)
        ]
        if number % 7:
            optimizer.zero_grad()
            sum(losses).backward()  # type: ignore[union-attr]
            optimizer.step()
    return held() - before


@pytest.mark.long
def test_memory_is_flat_over_a_hundred_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 steps add less than 0.7 MB and 30 objects each to what the first 60 took, which fill caches, small ones here;
    a kept arena each would be more."""
    for module in (table, session):
        monkeypatch.setattr(module, "MOST", 16)
    steps = budget(100, 20)
    added = growth(steps, budget(60, 10))

    assert added.malloced < 0.7e6
    assert added.blocks < 30 * steps


@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_steps() -> None:
    """10,000 steps add less than 4 MB and half an object a step."""
    added = growth(10_000, 500)
    print(added)

    assert added.malloced < 4e6
    assert added.blocks < 5_000
