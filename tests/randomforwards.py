"""Random forwards over rows, as source text: closed code, whose calls are kept for instances of other sizes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from helpers import imported
from torch import nn

HEADER = """
import torch
import torch.nn.functional as F
from torch import nn


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lin = nn.Embedding(20, 6), nn.Linear(6, 6)
        self.norm, self.cell, self.score = nn.LayerNorm(6), nn.GRUCell(6, 6), nn.Linear(6, 1)

    def forward(self, instance):
        ids, source, target = {bring}
        h = self.words(torch.tensor(ids) if isinstance(ids, list) else ids)
        g = h
        s = torch.zeros(6)
"""
OF_ROWS = (
    "torch.tanh(self.lin(h))", "self.norm(h + g)", "F.gelu(h) * 0.5", "h - h.mean(0)", "h.softmax(-1)",
    "self.score(h).softmax(0) * h", "h + torch.zeros_like(h).index_add(0, target, h[source])", "h + s",
    "self.cell(h, g)",
    "torch.cat([h, g], -1).view(h.shape[0], 2, 6).mean(1)", "torch.where(h > 0, h, g)", "h.flip(0)", "h * g[:, :1]",
    "torch.relu(h[:, 1:4].sum(-1, keepdim=True) + g)", "F.scaled_dot_product_attention(h, g, h)", "h.cumsum(0) * 0.1",
    "torch.zeros(h.shape[0], 6).index_add(0, target, h[source] * 0.5)", "torch.cat([h[1:], h[:1]])",
    "torch.zeros_like(h).index_add_(0, target, h[source]).mul_(0.5)", "h + self.words.weight[: len(ids)]",
    "torch.zeros(len(h), 6).scatter_add(0, target[:, None].expand(-1, 6), h[source])",
    "h / torch.zeros(len(h)).scatter_add_(0, target, torch.ones(len(target))).clamp(min=1).unsqueeze(-1)",
)  # fmt: skip
OF_ONE = (
    "h.mean(0)", "h.sum(0)", "h.amax(0)", "torch.tanh(self.lin(s))", "s + h[0]", "self.cell(s, h[-1])",
    "h[source].sum(0)", "(h @ self.lin(s)).softmax(0) @ h", "(h * g).sum(0)", "h.logsumexp(0)",
)  # fmt: skip
BRINGS = {"instance": 0, 'instance["x"]': 1, "(instance[0], *instance[1])": 2,
          "instance.words, *instance.edges": 3, "instance.words, *torch.tensor(instance.pairs).t()": 4}  # fmt: skip


def source_of(rng: Random) -> tuple[str, int]:
    """A model's text, and how its instances bring what they have."""
    bring, form = rng.choice(list(BRINGS.items()))
    lines = []
    for _ in range(rng.randint(1, 6)):
        name, of = rng.choice([("h", OF_ROWS), ("h", OF_ROWS), ("g", OF_ROWS), ("s", OF_ONE)])
        lines.append(f"        {name} = {rng.choice(of)}")
    ends = [rng.choice(OF_ONE) for _ in range(rng.randint(1, 2))]
    return HEADER.format(bring=bring) + "\n".join([*lines, f"        return {', '.join(ends)}, s\n"]), form


def model_of(text: str, folder: Path, name: str) -> nn.Module:
    """The model of a text, which stands in a file, as code does."""
    path = folder / f"{name}.py"
    path.write_text(text)
    made: nn.Module = imported(path, name).Drawn()
    return made


def instance(rng: Random, form: int, size: int) -> Any:
    """Words, and edges between them: tensors or lists, flat, in a dict, in a nest or in an object."""
    count = rng.randint(1, 2 * size)
    words = [rng.randrange(20) for _ in range(size)]
    edges = [torch.tensor([rng.randrange(size) for _ in range(count)]) for _ in range(2)]
    if form == 0:
        return words, edges[0], edges[1]
    if form == 4:
        return SimpleNamespace(
            words=words, pairs=list(zip(*(e.tolist() for e in edges), strict=True)), name=rng.random()
        )
    if form == 3:
        return SimpleNamespace(words=torch.tensor(words), edges=torch.stack(edges), size=size)
    return {"x": (torch.tensor(words), *edges)} if form == 1 else [words, torch.stack(edges)]
