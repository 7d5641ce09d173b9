"""Child-sum tree-LSTM over parse trees of mixed arity: a phrase label for every node.

Tai, Socher and Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks", ACL
2015, section 3.1, with words at the leaves only. Every child has a forget gate of its own from one set of weights, and
children meet in sums, so one network takes any number of them. States live in the tree's own nodes.

Input: one tree per line, `(ROOT (NP (DT the) (NN cat)))`.
Output: `logits`, one tensor of 30 labels per node, pre-terminals too, children before their parent, the root last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _treebank import Node, read_treebank, sample_treebank
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
class Keep(nn.Module):
    """What a child passes on of its memory."""

    def __init__(self, size: int):
        super().__init__()
        self.f = nn.Linear(size, size)

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        f = torch.sigmoid(self.f(h))
        return f * c


@edbc.cell
class Internal(nn.Module):
    """State of a phrase from the sums over its children."""

    def __init__(self, size: int):
        super().__init__()
        self.i = nn.Linear(size, size)
        self.o = nn.Linear(size, size)
        self.u = nn.Linear(size, size)

    def forward(self, h_sum: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        i = torch.sigmoid(self.i(h_sum))
        o = torch.sigmoid(self.o(h_sum))
        u = torch.tanh(self.u(h_sum))
        c = i * u + kept
        h = o * torch.tanh(c)
        return h, c


class ChildSumTreeLSTM(nn.Module):
    """States of a tree's nodes, children first, and a class for every node."""

    def __init__(self, size: int, vocab_size: int, num_classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.leaf = Leaf(size)
        self.keep = Keep(size)
        self.internal = Internal(size)
        self.out = nn.Linear(size, num_classes)

    def forward(self, tree: Node) -> dict[str, list[Tensor]]:
        states: dict[int, tuple[Tensor, Tensor]] = {}
        logits = []
        for node in tree:
            if node.children:
                below = [states[id(child)] for child in node.children]
                h_sum = sum(h for h, _ in below)
                kept = sum(self.keep(h, c) for h, c in below)
                h, c = self.internal(h_sum, kept)
            else:
                h, c = self.leaf(self.embedding.weight[node.word])
            states[id(node)] = h, c
            logits.append(self.out(h))
        return {"logits": logits}

    def vertices(self) -> dict[str, VertexFunction]:
        return {"leaf": self.leaf_vertex, "internal": self.internal_vertex}

    def leaf_vertex(self, v: Vertex) -> None:
        h, c = self.leaf(v.pull("word", self.embedding.weight))
        v.push("logits", self.out(h))
        v.scatter(h, c)

    def internal_vertex(self, v: Vertex) -> None:
        children = v.gather_all()
        h_sum = sum(h for h, _ in children)
        kept = sum(self.keep(h, c) for h, c in children)
        h, c = self.internal(h_sum, kept)
        v.push("logits", self.out(h))
        v.scatter(h, c)


def build(hidden_size: int = 256, vocab_size: int = 20000, num_classes: int = 30, **config: Any) -> nn.Module:
    return ChildSumTreeLSTM(hidden_size, vocab_size, num_classes)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Node]:
    for path in paths:
        yield from read_treebank(path, vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Node]:
    return sample_treebank(count, seed, vocab_size)


def vertex_instance(tree: Node, **config: Any) -> VertexInstance:
    nodes = list(tree)
    number = {id(node): at for at, node in enumerate(nodes)}
    vertices = [(1 if node.children else 0, [number[id(child)] for child in node.children]) for node in nodes]
    return VertexInstance.build(vertices, {"word": [node.word for node in nodes]})
