"""What tests of ragged values share: instances, and comparing with eager PyTorch, gradients too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers import bound
from torch import nn

from edbc.capture.ragged.kept import KeptCall
from edbc.capture.record import recorder
from edbc.run.session import Net

VOCAB, HIDDEN = 20, 8


def sentence(rng: Random, longest: int = 9) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))]


def graph(rng: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of nodes, and edges as a matrix of two rows."""
    nodes, edges = rng.randint(1, 8), rng.randint(1, 12)
    numbers = torch.tensor([rng.gauss(0, 1) for _ in range(nodes * 3)]).view(nodes, 3)
    return numbers, torch.tensor([[rng.randrange(nodes) for _ in range(edges)] for _ in range(2)])


def kept_forwards(net: Net) -> list[Any]:
    """What is known of forward: of each key, beside it, and of some sizes alone."""
    functions = net._idle[0][1].functions.items()
    return [known for key, known in functions if (KeptCall, "") in (key[:2], type(key[0]) is tuple and key[0][:2])]


def leaves(results: Any) -> list[torch.Tensor]:
    """The tensors of a nest."""
    if isinstance(results, tuple | list | dict | Iterator):
        parts = results.values() if isinstance(results, dict) else results
        return [leaf for part in parts for leaf in leaves(part)]
    return [results] if isinstance(results, torch.Tensor) else []


def gradients(model: nn.Module, results: Any) -> list[torch.Tensor]:
    """Of a sum that weighs every element differently."""
    model.zero_grad()
    total = sum((x * torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).view(x.shape)).sum() for x in leaves(results))
    if isinstance(total, torch.Tensor) and total.requires_grad:
        total.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def model_of_text(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """The class `Made` of a file with this text, which is read, with seeded parameters."""
    name = f"made_in_{folder.name}_{len(list(folder.iterdir()))}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    torch.manual_seed(0)
    model: nn.Module = importlib.import_module(name).Made()
    return model


def require_eager(net: Net, model: nn.Module, instances: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Equal shapes, numbers and gradients."""
    results, expected = net(instances), [model(x) for x in instances]
    for ours, theirs in zip(leaves(results), leaves(expected), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    found, wanted = gradients(model, results), gradients(model, expected)
    scale = max([1.0, *(g.abs().max().item() for g in wanted)])
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale)


def of_model(model: nn.Module, make: Callable[[Random], Any], rounds: int = 1) -> Net:
    """A bound model that has been compared with eager on several mini-batches, one of a single instance among them, and
    beyond those whose calls are asked for their lines."""
    rng = Random(0)
    model.eval()
    net = bound(model, [make(rng) for _ in range(6)], cells="auto", rows=True)
    for _ in range(rounds):
        require_eager(net, model, [make(rng) for _ in range(5)])
    with torch.no_grad():
        for _ in range(recorder.LOOKS):
            net([make(rng)])
    for count in (1, 5, 5):
        require_eager(net, model, [make(rng) for _ in range(count)])
    return net
