"""Binary tree-GRU over parse trees: sentiment of every phrase.

A gated recurrent unit (Cho et al., EMNLP 2014) for two children: each child has its own reset and update gate and its
own candidate, biases are shared between the two, and the phrase is the mean of what the two give.

Input: one tree per line, `(3 (2 Good) (3 fun))`.
Output: `logits`, a row of 5 classes per node, children before their parent, the root last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _targets import count_right, cross_entropy
from _trees import Tree, read_trees, sample_trees, tree_vertices
from torch import Tensor, nn

import edbc
from edbc.vertex import Vertex, VertexFunction, VertexInstance


@edbc.cell
class Leaf(nn.Module):
    """State of a word: a mix of its embedding and a candidate made from it."""

    def __init__(self, size: int):
        super().__init__()
        self.r = nn.Linear(size, size)
        self.z = nn.Linear(size, size)
        self.c = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        r = torch.sigmoid(self.r(x))
        z = torch.sigmoid(self.z(x))
        c = torch.tanh(self.c(r * x))
        return z * x + (1 - z) * c


@edbc.cell
class Internal(nn.Module):
    """State of a phrase from the states of its two parts."""

    def __init__(self, size: int):
        super().__init__()
        self.r1 = nn.Linear(size, size, bias=False)
        self.r2 = nn.Linear(size, size, bias=False)
        self.z1 = nn.Linear(size, size, bias=False)
        self.z2 = nn.Linear(size, size, bias=False)
        self.c1 = nn.Linear(size, size, bias=False)
        self.c2 = nn.Linear(size, size, bias=False)
        self.r_bias = nn.Parameter(torch.zeros(size))
        self.z_bias = nn.Parameter(torch.zeros(size))
        self.c_bias = nn.Parameter(torch.zeros(size))

    def forward(self, h1: Tensor, h2: Tensor) -> Tensor:
        r1 = torch.sigmoid(self.r1(h1) + self.r_bias)
        r2 = torch.sigmoid(self.r2(h2) + self.r_bias)
        z1 = torch.sigmoid(self.z1(h1) + self.z_bias)
        z2 = torch.sigmoid(self.z2(h2) + self.z_bias)
        c1 = torch.tanh(self.c1(r1 * h1) + self.c_bias)
        c2 = torch.tanh(self.c2(r2 * h2) + self.c_bias)
        return (z1 * h1 + z2 * h2 + (1 - z1) * c1 + (1 - z2) * c2) / 2


class TreeGRU(nn.Module):
    """Encodes a tree from its leaves to its root and classifies every node."""

    def __init__(self, size: int, vocab_size: int, num_classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.leaf = Leaf(size)
        self.internal = Internal(size)
        self.out = nn.Linear(size, num_classes)

    def forward(self, tree: Tree) -> dict[str, Tensor]:
        logits: list[Tensor] = []
        self.encode(tree, logits)
        return {"logits": torch.stack(logits)}

    def encode(self, tree: Tree, logits: list[Tensor]) -> Tensor:
        if tree.left is None:
            h = self.leaf(self.embedding.weight[tree.word])
        else:
            h1 = self.encode(tree.left, logits)
            h2 = self.encode(tree.right, logits)
            h = self.internal(h1, h2)
        logits.append(self.out(h))
        return h

    def vertices(self) -> dict[str, VertexFunction]:
        return {"leaf": self.leaf_vertex, "internal": self.internal_vertex}

    def leaf_vertex(self, v: Vertex) -> None:
        h = self.leaf(v.pull("word", self.embedding.weight))
        v.push("logits", self.out(h))
        v.scatter(h)

    def internal_vertex(self, v: Vertex) -> None:
        h1, h2 = v.gather_all()
        h = self.internal(h1, h2)
        v.push("logits", self.out(h))
        v.scatter(h)


def build(hidden_size: int = 256, vocab_size: int = 20000, num_classes: int = 5, **config: Any) -> nn.Module:
    return TreeGRU(hidden_size, vocab_size, num_classes)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Tree]:
    for path in paths:
        yield from read_trees(path, vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Tree]:
    return sample_trees(count, seed, vocab_size)


def vertex_instance(tree: Tree, **config: Any) -> VertexInstance:
    return tree_vertices(tree)


def loss(outputs: dict[str, Tensor], tree: Tree) -> Tensor:
    """Cross-entropy of every node's label, summed over the tree."""
    return cross_entropy(outputs["logits"], [node.label for node in tree])


def metrics(outputs: dict[str, Tensor], tree: Tree) -> dict[str, tuple[int, int]]:
    """Right labels among all nodes, and at the root."""
    return {
        "accuracy": count_right(outputs["logits"], [node.label for node in tree]),
        "root accuracy": count_right(outputs["logits"][-1:], [tree.label]),
    }
