"""In-place modules inside of nn.Sequential: values and gradients as in eager, whoever holds what they change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import bound, seeded
from torch import nn

from edbc.capture.code.expressions import changes, unseen


class InTurn(nn.Module):
    """Calls the sequence, and its layers one by one, holding what each of them gave."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> Any:
        held, h = [], x.clone()
        for layer in self.net:
            h = layer(h)
            held.append(h)
        return self.net(x.clone()), held


NETS = {
    "hidden": [nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 4)],
    "hidden twice": [nn.LayerNorm(4), nn.SiLU(inplace=True), nn.Dropout(0.5, inplace=True), nn.Linear(4, 3)],
    "seen, as first": [nn.ReLU(inplace=True), nn.Linear(4, 4)],
    "seen through what passes on": [nn.Identity(), nn.ELU(inplace=True), nn.Linear(4, 4)],
    "nested": [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(inplace=True)), nn.Tanh()],
}


@pytest.mark.parametrize("layers", NETS.values(), ids=NETS)
def test_changes_show_where_eager_shows_them(layers: list[nn.Module]) -> None:
    """The same tensors from the sequence and from its layers, and the same gradients."""
    model = seeded(lambda: InTurn(*layers))
    instances = [torch.randn(4, generator=torch.Generator().manual_seed(k)) for k in range(5)]
    net = bound(model, instances, cells="auto")
    found: list[list[torch.Tensor]] = []
    for results in (net(instances), [model(x) for x in instances]):
        model.zero_grad()
        tensors = [y for result, held in results for y in (result, *held)]
        torch.stack([y.square().sum() for y in tensors]).sum().backward()
        found.append([*tensors, *(p.grad for p in model.parameters() if p.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_which_changes_are_hidden() -> None:
    """Behind a module that makes a new tensor, and behind such a one; not in front, and not behind what passes on."""
    hidden = {name: len(list(unseen(nn.Sequential(*layers)))) for name, layers in NETS.items()}
    assert hidden == {
        "hidden": 1,
        "hidden twice": 2,
        "seen, as first": 0,
        "seen through what passes on": 0,
        "nested": 0,
    }
    assert [changes(nn.Sequential(*layers)) for layers in NETS.values()] == [False, False, True, True, False]
