"""Segments that run at once: what they carry has the bits that passes and arenas give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import bound, model_file
from torch import nn

from edbc.run.cpu.atonce import AtOnce
from edbc.run.outputs import named_tensors
from edbc.run.session import Net

pytestmark = pytest.mark.compiled
MODELS = ["greedy_nmt", "easy_first", "adaptive_time"]


def net_of(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Net, list[list[Any]]]:
    """A model of the zoo that reads values, and three mini-batches."""
    file = model_file(name)
    torch.manual_seed(0)
    model = file.build(hidden_size=8, vocab_size=50).to(dtype).eval()
    batches = [file.sample(count, 7, vocab_size=50) for count in (6, 1, 6)]
    return model, bound(model, batches[0]), batches


def outputs(net: Net, batches: list[list[Any]]) -> list[torch.Tensor]:
    with torch.no_grad():
        results = [result for batch in batches for result in net(batch)]
    return [tensor for result in results for _, tensor, _ in named_tensors(result)]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[AtOnce]:
    """Whatever runs at once."""
    found: list[AtOnce] = []
    run = AtOnce.run

    def told(self: AtOnce, *args: Any) -> Any:
        found.append(self)
        return run(self, *args)

    monkeypatch.setattr(AtOnce, "run", told)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits(name: str, runs: list[AtOnce], monkeypatch: pytest.MonkeyPatch) -> None:
    """In mini-batches that come again most segments run at once, and none where nobody may: outputs are equal."""
    _, net, batches = net_of(name)
    _, other, _ = net_of(name)
    once = [outputs(net, batches) for _ in range(2)]
    assert len(runs) > 3 * len(batches)
    runs.clear()
    monkeypatch.setattr(AtOnce, "serves", lambda *_: False)
    passes = [outputs(other, batches) for _ in range(2)]

    assert not runs
    for found in once[1:] + passes:
        assert len(found) == len(once[0])
        assert all(torch.equal(a, b) for a, b in zip(found, once[0], strict=True))


def test_weights_that_change_are_seen(runs: list[AtOnce]) -> None:
    """Tables of parameters and packed weights are looked up anew in every mini-batch."""
    model, net, batches = net_of("adaptive_time", torch.float64)
    outputs(net, batches)
    with torch.no_grad():
        model.embedding.weight.data = model.embedding.weight.flip(0)
        model.zero.add_(0.5)
        model.ponder.state.weight.mul_(0.5)
    runs.clear()
    found = outputs(net, batches[2:])
    with torch.no_grad():
        expected = [tensor for x in batches[2] for _, tensor, _ in named_tensors(model(x))]

    assert runs
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(found, expected, strict=True))
