"""Trees with labels, for the loops of Lightning and Accelerate."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader


class TreeClassifier(nn.Module):
    """One tree: a word's number, or a pair of trees."""

    def __init__(self, size: int = 16):
        super().__init__()
        self.words, self.merge, self.out = nn.Embedding(50, size), nn.Linear(2 * size, size), nn.Linear(size, 2)

    def forward(self, tree: Any) -> Tensor:
        return self.out(self.encode(tree))

    def encode(self, tree: Any) -> Tensor:
        if isinstance(tree, int):
            return self.words.weight[tree]
        return torch.tanh(self.merge(torch.cat([self.encode(tree[0]), self.encode(tree[1])])))


def labelled(count: int, seed: int = 0) -> list[tuple[Any, int]]:
    """Made-up trees; the label is whether the first word is an even number."""
    generator = random.Random(seed)

    def grown(words: int) -> Any:
        if words == 1:
            return generator.randrange(50)
        left = generator.randint(1, words - 1)
        return grown(left), grown(words - left)

    def first(tree: Any) -> int:
        return tree if isinstance(tree, int) else first(tree[0])

    trees = [grown(generator.randint(1, 9)) for _ in range(count)]
    return [(tree, first(tree) % 2) for tree in trees]


def loader(data: list[tuple[Any, int]], collate_fn: Any = None) -> DataLoader[Any]:
    """Mini-batches of 16: a list of trees and a tensor of labels, or what `collate_fn` makes."""

    def plain(items: list[tuple[Any, int]]) -> tuple[list[Any], Tensor]:
        return [tree for tree, _ in items], torch.tensor([label for _, label in items])

    return DataLoader(data, batch_size=16, collate_fn=collate_fn or plain)
