"""What leaves a mini-batch: results of several classes, and of mini-batches that were joined before."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from helpers import bound
from torch import nn


class Sizes(nn.Module):
    """Vectors and matrices of the instance's size, a number, a stack and doubles, under a name that the instance
    brings; operations of one rounding, which all back ends have to the bit."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, instance: tuple[str, torch.Tensor]) -> Any:
        """See the class."""
        name, x = instance
        twice = x * self.scale
        matrix = twice.unsqueeze(1) + x.unsqueeze(0)
        whole = torch.stack([twice, x - 1, twice])
        return {name: [twice, matrix], "number": (x * 2)[0], "whole": whole, "double": x.double() + 1}


def instances(seed: int, count: int) -> list[tuple[str, torch.Tensor]]:
    """Vectors of one to three elements, some of them twice."""
    rng = random.Random(seed)
    given = [(rng.choice("ab"), torch.randn(rng.randint(1, 3))) for _ in range(count)]
    return [*given, *rng.sample(given, count // 3)]


def flat(item: Any) -> list[Any]:
    """Tensors and keys of a nest, in their order."""
    if isinstance(item, torch.Tensor):
        return [item]
    parts = [part for pair in item.items() for part in pair] if isinstance(item, dict) else item
    return [item] if isinstance(item, str) else [x for part in parts for x in flat(part)]


def require_equal(found: Any, expected: Any) -> None:
    """The same keys and tensors: shapes, dtypes and bits."""
    for one, other in zip(flat(found), flat(expected), strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            assert one.dtype is other.dtype
            assert torch.equal(one, other)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_results_of_several_classes_are_eager_s(backend: str) -> None:
    """Recorded and captured, whatever classes and dtypes stand beside each other; and they stay what they are while
    further mini-batches run."""
    torch.manual_seed(0)
    net = bound(Sizes(), instances(0, 9), backend=backend)
    given = [instances(seed, 3 * seed) for seed in range(1, 6)]
    with torch.no_grad():
        found = [net(some) for some in given] + [net(net.capture_all(some)) for some in given]
    for results, some in zip(found, [*given, *given], strict=True):
        require_equal(results, [net.model(x) for x in some])


def test_a_mini_batch_that_was_joined_before_has_its_own_constants_and_nests() -> None:
    """The same structures in the same order come again with other numbers, in other order and under other names."""
    torch.manual_seed(1)
    net = bound(Sizes(), instances(0, 9))
    kept = {size: [(name, torch.randn(size)) for name in "abababab"] for size in (1, 2)}
    of_size = {size: net.capture_all(some) for size, some in kept.items()}
    rng, expected, found = random.Random(2), list[Any](), list[Any]()
    with torch.no_grad():
        for _ in range(40):
            order = [rng.choice((1, 2)) for _ in range(2)]
            picked = [(size, rng.randrange(8)) for size in order]
            found.append(net([of_size[size][i] for size, i in picked]))
            expected.append([net.model(kept[size][i]) for size, i in picked])
    assert 0 < len(net.in_mode().lexicon.joined) < 40
    for one, other in zip(found, expected, strict=True):
        require_equal(one, other)
