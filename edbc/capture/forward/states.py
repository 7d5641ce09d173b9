"""Tensors that eager runs have left on a model: a state kept from one call to the next."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import nn


def without_history(model: nn.Module) -> dict[int, Any]:
    """What `copy.deepcopy` of a model must be told (its memo) where eager execution with gradients has left tensors on
    it: copy.deepcopy refuses tensors with a history, of which a copy has the values, and modules of Python's."""
    memo: dict[int, Any] = {}
    seen: set[int] = set()
    stack: list[Any] = [module.__dict__ for module in model.modules()]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            if not item.is_leaf:
                memo[id(item)] = item.detach().clone()
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            stack.extend(item)
        elif isinstance(item, ModuleType):  # `self.backend = torch`
            memo[id(item)] = item
        elif not isinstance(item, type | nn.Module) and not callable(item):
            attributes = getattr(item, "__dict__", None)
            stack.extend(attributes.values() if isinstance(attributes, dict) else ())
    return memo
