"""Comparing gradients with eager's: the same model, the same instances, the same loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from edbc.run.outputs import by_name
from edbc.run.session import Net

Loss = Callable[[list[Any]], torch.Tensor]
Gradients = dict[str, torch.Tensor | None]


def tensors(results: Any) -> Iterator[torch.Tensor]:
    """Every floating tensor of results, in the order of names."""
    for result in results:
        yield from (t for ts in by_name(result).values() for t in ts if t.is_floating_point())


def random_loss(results: list[Any]) -> torch.Tensor:
    """Every element of every result with a random weight of its own, the same in every dtype."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.cat([t.reshape(-1) for t in tensors(results)])
    return (rows * torch.randn(rows.shape, generator=generator).to(rows.dtype)).sum()


def gradients(model: nn.Module, loss: torch.Tensor) -> Gradients:
    """`.grad` of every parameter after this loss alone."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def require_equal(ours: Gradients, theirs: Gradients, tolerance: float = 1e-12) -> None:
    """None in the same places, numbers within `tolerance` of the gradient's scale elsewhere."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        got = ours[name]
        assert (got is None) == (expected is None), f"{name}: got {got}, expected {expected}"
        if got is not None and expected is not None:
            assert got.layout == expected.layout, name
            error = (got - expected).to_dense().abs().max() if got.numel() else 0.0
            scale = expected.to_dense().abs().max() if got.numel() else 0.0
            assert error <= tolerance * scale, f"{name}: error {error:.3g}, scale {scale:.3g}"


def require_equal_gradients(net: Net, instances: Sequence[Any], loss: Loss = random_loss,
                            tolerance: float = 1e-12) -> Gradients:  # fmt: skip
    """Gradients of the net equal eager's. Returns them."""
    ours = gradients(net.model, loss(net(instances)))
    require_equal(ours, gradients(net.model, loss([net.model(instance) for instance in instances])), tolerance)
    return ours
