"""A model that makes use of all that a captured instance holds, and instances of many shapes for it."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import torch
from test_structures import Base
from torch import nn
from torch.nn import functional as F

from edbc.run.session import Net


class Pair(NamedTuple):
    h: Any
    scores: Any


@dataclass
class Answer:
    label: str
    pair: Any


@dataclass(frozen=True)
class Sentence:
    words: list[int]
    features: torch.Tensor
    kind: int


class EveryKind(Base):
    """Look-ups, constants, a whole parameter, sums, excerpts, views, draws, numbers, code without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, instance: Sentence) -> Any:
        states = [self.join(self.table.weight[w], instance.features) for w in instance.words]
        root = self.join(self.start, sum(states) if states else self.start)
        scores = self.out(self.dropout(root)) * float(instance.kind)
        matrix = torch.outer(root, root)
        with torch.no_grad():
            peek = torch.tanh(matrix)[instance.kind]
        if instance.kind == 0:
            return Answer("none", Pair(root, [scores, peek]))
        if instance.kind == 1:
            return OrderedDict(first=scores, rows=deque([matrix[1], peek], maxlen=5)), len(states), None
        rows = {"rows": torch.stack(states)} if states else {}
        rows[0, ("a", 2.5)] = root
        return {"states": states, 3: F.softmax(scores, -1), "start": self.start, "text": ("a", [1.5, True]), **rows}


def sentences(count: int, seed: int = 0) -> list[Sentence]:
    """Instances of three kinds, of no word to seven."""
    rng = Random(seed)
    numbers = torch.Generator().manual_seed(seed)
    return [
        Sentence(
            [rng.randrange(20) for _ in range(rng.randrange(8))], torch.randn(6, generator=numbers), rng.randrange(3)
        )
        for _ in range(count)
    ]


def tensors(result: Any) -> list[torch.Tensor]:
    """All tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return [t for part in result.values() for t in tensors(part)]
    if isinstance(result, list | tuple | deque):
        return [t for part in result for t in tensors(part)]
    return [t for part in vars(result).values() for t in tensors(part)] if hasattr(result, "__dict__") else []


def told(result: Any) -> Any:
    """A result with the bits of each tensor in its place, to compare classes, places and values at once."""
    if isinstance(result, torch.Tensor):
        return result.dtype, tuple(result.shape), result.detach().numpy().tobytes()
    if isinstance(result, dict):
        return type(result), [(key, told(part)) for key, part in result.items()]
    if isinstance(result, list | tuple | deque):
        return type(result), [told(part) for part in result]
    return (type(result), told(vars(result))) if hasattr(result, "__dict__") else result


def gradients(net: Any, instances: list[Any], seed: int = 0, run: Any = Net.__call__) -> list[Any]:
    """The bits of every parameter's gradient of one loss over all results, and theirs."""
    net.model.zero_grad()
    torch.manual_seed(seed)
    results = run(net, instances)
    wanted = [t for t in tensors(results) if t.requires_grad]
    if wanted:
        sum((t * t).sum() for t in wanted).backward()
    found = [None if p.grad is None else p.grad.to_dense().numpy().tobytes() for p in net.model.parameters()]
    return [told(results), *found]
