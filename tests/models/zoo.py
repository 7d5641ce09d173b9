"""What the tests of the model zoo share: the models, and the dataflow graph's nodes counted while eager code runs."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from zoo_names import DYNAMIC

from edbc.capture.code.mark import is_cell

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = DYNAMIC


def model(name: str) -> ModuleType:
    """The model file of that name, imported."""
    return importlib.import_module(name)


def small(name: str, hidden_size: int = 8, vocab_size: int = 50, **config: Any) -> nn.Module:
    """A small network of a model file in float64, seed 0."""
    torch.manual_seed(0)
    return model(name).build(hidden_size=hidden_size, vocab_size=vocab_size, **config).double().eval()


def run(network: nn.Module, instance: Any) -> Any:
    """The eager result."""
    with torch.no_grad():
        return network(instance)


def count_calls(network: nn.Module, instances: Iterable[Any]) -> Counter[str]:
    """How often each cell or other leaf module is called, by its name in the network: its nodes in the graph."""
    calls: Counter[str] = Counter()
    handles = [
        module.register_forward_hook(lambda *_, name=name: calls.update([name]))
        for name, module in network.named_modules()
        if is_cell(module) or ("." not in name and not list(module.children()))
    ]
    for instance in instances:
        run(network, instance)
    for handle in handles:
        handle.remove()
    return calls


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """Every tensor of an eager result, in order."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, dict):
        for item in result.values():
            yield from tensors(item)
    else:
        for item in result:
            yield from tensors(item)
