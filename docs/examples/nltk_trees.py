"""nltk trees: constituents of any number of children, with their labels."""

from __future__ import annotations

import random
import zlib
from typing import Any

import torch
from nltk import Tree
from torch import Tensor, nn

import edbc

LABELS = ("S", "NP", "VP", "PP")


class Constituents(nn.Module):
    """A constituent is the largest of its children in each direction, and its label."""

    def __init__(self, vocab_size: int = 500, size: int = 16):
        super().__init__()
        self.words, self.labels = nn.Embedding(vocab_size, size), nn.Embedding(len(LABELS), size)
        self.merge = nn.Linear(2 * size, size)

    def forward(self, tree: Tree | str) -> Tensor:
        if isinstance(tree, str):
            return self.words.weight[zlib.crc32(tree.encode()) % self.words.num_embeddings]
        children = torch.stack([self(child) for child in tree]).max(0).values
        label = self.labels.weight[LABELS.index(tree.label())]
        return torch.tanh(self.merge(torch.cat([children, label])))


def trees(count: int, seed: int = 0) -> list[Tree]:
    """Made-up trees of depth 1 to 4."""
    generator = random.Random(seed)

    def grown(depth: int) -> Tree | str:
        if depth == 0 or generator.random() < 0.3:
            return generator.choice("the dog saw a cat with its tail".split())
        return Tree(generator.choice(LABELS), [grown(depth - 1) for _ in range(generator.randint(1, 3))])

    return [Tree("S", [grown(3), grown(2)]) for _ in range(count)]


def main(**options: Any) -> tuple[Any, nn.Module, list[Tree]]:
    """Compile; give net, model and trees that it has not seen."""
    model = Constituents()
    return edbc.compile(model, trees(40), **options), model, trees(8, seed=1)


if __name__ == "__main__":
    net, _, unseen = main()
    print(net, [tuple(output.shape) for output in net(unseen)])
