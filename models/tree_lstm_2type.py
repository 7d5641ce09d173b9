"""Binary tree-LSTM with two types of inner node, which have weights of their own.

The cells of `tree_lstm.py`; which of the two an inner node takes depends on the words below it (the lowest bit of the
CRC-32 of the phrase, see `_trees.Tree.kind`), as if two kinds of phrase composed differently. It is the workload on
which batching by depth loses most: nodes of both types stand at every depth.

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


class TreeLSTM2Type(nn.Module):
    """Encodes a tree from its leaves to its root and classifies every node."""

    def __init__(self, size: int, vocab_size: int, num_classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.leaf = Leaf(size)
        self.internal_a = Internal(size)
        self.internal_b = Internal(size)
        self.out = nn.Linear(size, num_classes)

    def forward(self, tree: Tree) -> dict[str, Tensor]:
        logits: list[Tensor] = []
        self.encode(tree, logits)
        return {"logits": torch.stack(logits)}

    def encode(self, tree: Tree, logits: list[Tensor]) -> tuple[Tensor, Tensor]:
        if tree.left is None:
            h, c = self.leaf(self.embedding.weight[tree.word])
        else:
            h1, c1 = self.encode(tree.left, logits)
            h2, c2 = self.encode(tree.right, logits)
            internal = self.internal_b if tree.kind else self.internal_a
            h, c = internal(h1, c1, h2, c2)
        logits.append(self.out(h))
        return h, c

    def vertices(self) -> dict[str, VertexFunction]:
        return {
            "leaf": self.leaf_vertex,
            "internal_a": lambda v: self.internal_vertex(v, self.internal_a),
            "internal_b": lambda v: self.internal_vertex(v, self.internal_b),
        }

    def leaf_vertex(self, v: Vertex) -> None:
        h, c = self.leaf(v.pull("word", self.embedding.weight))
        v.push("logits", self.out(h))
        v.scatter(h, c)

    def internal_vertex(self, v: Vertex, internal: Internal) -> None:
        (h1, c1), (h2, c2) = v.gather_all()
        h, c = internal(h1, c1, h2, c2)
        v.push("logits", self.out(h))
        v.scatter(h, c)


def build(hidden_size: int = 256, vocab_size: int = 20000, num_classes: int = 5, **config: Any) -> nn.Module:
    return TreeLSTM2Type(hidden_size, vocab_size, num_classes)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Tree]:
    for path in paths:
        yield from read_trees(path, vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Tree]:
    return sample_trees(count, seed, vocab_size)


def vertex_instance(tree: Tree, **config: Any) -> VertexInstance:
    return tree_vertices(tree, by_kind=True)


def loss(outputs: dict[str, Tensor], tree: Tree) -> Tensor:
    """Cross-entropy of every node's label, summed over the tree."""
    return cross_entropy(outputs["logits"], [node.label for node in tree])


def metrics(outputs: dict[str, Tensor], tree: Tree) -> dict[str, tuple[int, int]]:
    """Right labels among all nodes, and at the root."""
    return {
        "accuracy": count_right(outputs["logits"], [node.label for node in tree]),
        "root accuracy": count_right(outputs["logits"][-1:], [tree.label]),
    }
