"""A class for a JSON document: attention pools the members of objects and lists, whatever they nest.

    edbc compile docs/examples/json_documents.py -o build/json_documents.yaml
    edbc run build/json_documents.yaml --input documents.jsonl --verify

What plain PyTorch code has between its modules (softmax over a list, a weighted sum, a maximum) is recorded as it
stands; norms, softmax and products of weights with vectors run in native code on the CPU.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import edbc

Document = dict[str, Any] | list[Any] | str | float | bool | None


@edbc.cell
class Member(nn.Module):
    """A key and its value."""

    def __init__(self, size: int):
        super().__init__()
        self.key, self.value = nn.Linear(size, size), nn.Linear(2 * size, size)

    def forward(self, key: Tensor, value: Tensor) -> Tensor:
        return torch.relu(self.key(key) + self.value(torch.cat([key, value])))


@edbc.cell
class Pool(nn.Module):
    """The attended sum of the members, and the largest of each feature."""

    def __init__(self, size: int):
        super().__init__()
        self.out, self.norm = nn.Linear(size, size), nn.LayerNorm(size)

    def forward(self, attended: Tensor, largest: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.out(attended)) + largest)


@edbc.cell
class Number(nn.Module):
    """A number as a vector."""

    def __init__(self, size: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, size), nn.GELU(), nn.Linear(size, size))

    def forward(self, number: Tensor) -> Tensor:
        return self.layers(number)


class Classifier(nn.Module):
    """Logits of a document."""

    def __init__(self, size: int, buckets: int, classes: int):
        super().__init__()
        self.words = nn.Embedding(buckets, size)
        self.member, self.pool, self.number = Member(size), Pool(size), Number(size)
        self.query, self.empty = nn.Parameter(torch.randn(size) / size**0.5), nn.Parameter(torch.zeros(size))
        self.out = nn.Linear(size, classes)

    def forward(self, document: Document) -> Tensor:
        return self.out(self.encode(document))

    def encode(self, item: Document) -> Tensor:
        if isinstance(item, dict):
            return self.pooled([self.member(self.word(key), self.encode(value)) for key, value in item.items()])
        if isinstance(item, list):
            return self.pooled([self.encode(value) for value in item])
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            return self.number(torch.tensor([float(item)]))
        return self.word(str(item))

    def pooled(self, members: list[Tensor]) -> Tensor:
        if not members:
            return self.empty
        stacked = torch.stack(members)
        weights = torch.softmax(stacked @ self.query, 0)
        return self.pool((weights.unsqueeze(-1) * stacked).sum(0), stacked.max(0).values)

    def word(self, text: str) -> Tensor:
        return self.words.weight[zlib.crc32(text.encode()) % self.words.num_embeddings]


def build(hidden_size: int = 32, buckets: int = 256, classes: int = 3) -> nn.Module:
    """The model."""
    return Classifier(hidden_size, buckets, classes)


def load(*paths: str) -> Iterator[Document]:
    """Documents from files with one on each line."""
    for path in paths:
        with Path(path).open(encoding="utf-8") as lines:
            yield from map(json.loads, filter(str.strip, lines))


def sample(count: int, seed: int) -> list[Document]:
    """Made-up documents of up to four levels."""
    rng = random.Random(seed)

    def item(levels: int) -> Document:
        kind = rng.random()
        if not levels or kind < 0.3:
            return rng.choice([rng.randrange(100), rng.random(), f"word{rng.randrange(40)}", None])
        if kind < 0.7:
            return {f"key{rng.randrange(10)}": item(levels - 1) for _ in range(rng.randrange(5))}
        return [item(levels - 1) for _ in range(rng.randrange(5))]

    return [item(4) for _ in range(count)]
