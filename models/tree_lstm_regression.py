"""Binary tree-LSTM that rates every phrase by a number, and the loss of its ratings.

Sentiment as regression over the Stanford Sentiment Treebank (Socher et al., EMNLP 2013), with the cells of
`tree_lstm.py` and a loss at every node: a workload of Neubig, Goldberg and Dyer, "On-the-fly Operation Batching in
Dynamic Computation Graphs", NIPS 2017. Labels 0 to 4 stand for the ratings -1, -1/2, 0, 1/2 and 1. Losses are part of
the network, so they batch with the rest of it.

Input: one tree per line, `(3 (2 Good) (3 fun))`.
Output: `ratings`, one tensor of 1 per node, children before their parent, the root last; `loss`, one tensor of 1 per
tree, the sum of the squared errors at its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _trees import NUM_LABELS, Tree, read_trees, sample_trees
from torch import Tensor, nn

import edbc


@edbc.cell
class Leaf(nn.Module):
    """State of a word."""

    def __init__(self, size: int):
        super().__init__()
        self.i = nn.Linear(size, size)
        self.o = nn.Linear(size, size)
        self.u = nn.Linear(size, size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        i = torch.sigmoid(self.i(x))
        o = torch.sigmoid(self.o(x))
        u = torch.tanh(self.u(x))
        c = i * u
        h = o * torch.tanh(c)
        return h, c


@edbc.cell
class Internal(nn.Module):
    """State of a phrase from the states of its two parts."""

    def __init__(self, size: int):
        super().__init__()
        self.i = nn.Linear(2 * size, size)
        self.o = nn.Linear(2 * size, size)
        self.u = nn.Linear(2 * size, size)
        self.f1 = nn.Linear(size, size, bias=False)
        self.f2 = nn.Linear(size, size, bias=False)
        self.f_bias = nn.Parameter(torch.zeros(size))

    def forward(self, h1: Tensor, c1: Tensor, h2: Tensor, c2: Tensor) -> tuple[Tensor, Tensor]:
        e = torch.cat([h1, h2], dim=-1)
        i = torch.sigmoid(self.i(e))
        o = torch.sigmoid(self.o(e))
        u = torch.tanh(self.u(e))
        f1 = torch.sigmoid(self.f1(h1) + self.f_bias)
        f2 = torch.sigmoid(self.f2(h2) + self.f_bias)
        c = i * u + f1 * c1 + f2 * c2
        h = o * torch.tanh(c)
        return h, c


@edbc.cell
class Rating(nn.Module):
    """How good a phrase is, and how far that is from its label."""

    def __init__(self, size: int):
        super().__init__()
        self.out = nn.Linear(size, 1)

    def forward(self, h: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        rating = torch.tanh(self.out(h))
        return rating, torch.square(rating - label)


class TreeLSTMRegression(nn.Module):
    """Encodes a tree from its leaves to its root and rates every node."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.leaf = Leaf(size)
        self.internal = Internal(size)
        self.rating = Rating(size)
        self.register_buffer("labels", torch.linspace(-1, 1, NUM_LABELS)[:, None], persistent=False)

    def forward(self, tree: Tree) -> dict[str, list[Tensor]]:
        ratings: list[Tensor] = []
        losses: list[Tensor] = []
        self.encode(tree, ratings, losses)
        return {"ratings": ratings, "loss": [sum(losses)]}

    def encode(self, tree: Tree, ratings: list[Tensor], losses: list[Tensor]) -> tuple[Tensor, Tensor]:
        if tree.left is None:
            h, c = self.leaf(self.embedding.weight[tree.word])
        else:
            h1, c1 = self.encode(tree.left, ratings, losses)
            h2, c2 = self.encode(tree.right, ratings, losses)
            h, c = self.internal(h1, c1, h2, c2)
        rating, loss = self.rating(h, self.labels[tree.label])
        ratings.append(rating)
        losses.append(loss)
        return h, c


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return TreeLSTMRegression(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Tree]:
    for path in paths:
        yield from read_trees(path, vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Tree]:
    return sample_trees(count, seed, vocab_size)


def loss(outputs: dict[str, list[Tensor]], tree: Tree) -> Tensor:
    """What the network computed as its loss."""
    return outputs["loss"][0]
