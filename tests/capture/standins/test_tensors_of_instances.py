"""Tensors that the instance brings, as arguments of functions beside recorded ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import bound, captured, require_parity, seeded
from torch import nn

USES = {
    "view_as": lambda h, x: h.view_as(x),
    "view_as a recorded tensor": lambda h, x: x.view_as(h) + h.view_as(x),
    "cat": lambda h, x: torch.cat([x, h]) + torch.cat([h, x]),
    "stack": lambda h, x: torch.stack([x, h, x]).sum(0),
    "arithmetic": lambda h, x: h * x - x / (2 + h.abs()) + torch.where(h > 0, x, h),
    "expand": lambda h, x: torch.broadcast_to(x, h.shape) + x.expand_as(h),
    "casts": lambda h, x: x.type_as(h) + h.to(x) + h.type_as(x),
    "keywords": lambda h, x: torch.maximum(input=h, other=x) + torch.add(x, h, alpha=2),
    "indices": lambda h, x: h[torch.tensor([1, 0])] + h[torch.tensor(1)],
}


class Uses(nn.Module):
    """A layer, and a function of its result and the instance."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.up, self.use = nn.Linear(4, 4), name

    def forward(self, x: Any) -> Any:
        x = x.to(self.up.bias.dtype)  # for the float64 reference
        return USES[self.use](self.up(x), x)


@pytest.mark.parametrize("name", USES)
def test_tensors_of_the_instance_are_operands(name: str) -> None:
    """Any function takes them as eager does, whichever argument they are."""
    require_parity(seeded(Uses, name), [torch.randn(2, 4) for _ in range(8)])


def test_calls_on_tensors_of_the_instance_are_known_by_key() -> None:
    """A call that repeats an earlier one on another instance's tensor describes nothing anew, and makes no type."""
    model = seeded(Uses, "arithmetic")

    counts = [len(captured(model, [torch.randn(2, 4) for _ in range(n)]).graph.types) for n in (1, 5)]

    assert counts[0] == counts[1]


def test_tensors_are_read_in_whatever_order_their_memory_has() -> None:
    """Transposed, strided, expanded, negated lazily, empty, and of another dtype; each mini-batch its own."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.linear(x.float())) + x

    def instances(seed: int) -> list[torch.Tensor]:
        made = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(seed))
        lazily_negated = torch.view_as_complex(made[1].view(4, 4, 2)).conj().imag
        assert lazily_negated.is_neg()
        plain = [made[0, :, :4], made[0, :, :4].t(), made[2, :, ::2], made[3, :1, :4].expand(4, 4), lazily_negated]
        return [*plain, made[4, :, 4:].double(), made[5, :0, :4], made[5, :, :4].contiguous()]

    torch.manual_seed(0)
    net = bound(Model(), instances(0))
    with torch.no_grad():
        for seed in (1, 2):
            for found, right in zip(net(instances(seed)), map(net.model, instances(seed)), strict=True):
                torch.testing.assert_close(found, right)
