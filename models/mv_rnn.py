"""Matrix-vector recursive network over parse trees: sentiment of every phrase.

Every word and phrase is a vector, what it means, and a matrix, how it changes its neighbour (Socher, Huval, Manning
and Ng, "Semantic Compositionality through Recursive Matrix-Vector Spaces", EMNLP 2012). The paper keeps matrices of
full size too; here 256 of them are shared by all words, so that the table fits in memory.

Input: one tree per line, `(3 (2 Good) (3 fun))`.
Output: `logits`, a row of 5 classes per node, children before their parent, the root last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from _targets import count_right, cross_entropy
from _trees import Tree, read_trees, sample_trees, tree_vertices
from torch import Tensor, nn

import edbc
from edbc.vertex import Vertex, VertexFunction, VertexInstance


@edbc.cell
class Internal(nn.Module):
    """Vector and matrix of a phrase: each part's vector is changed by the other part's matrix, then both combine."""

    def __init__(self, size: int):
        super().__init__()
        self.v = nn.Linear(2 * size, size)
        mean = torch.cat([torch.eye(size), torch.eye(size)], dim=1) / 2
        self.m = nn.Parameter(mean + torch.randn(size, 2 * size) * 0.1 / size**0.5)
        self.m_bias = nn.Parameter(torch.zeros(size, size))

    def forward(self, v1: Tensor, m1: Tensor, v2: Tensor, m2: Tensor) -> tuple[Tensor, Tensor]:
        v = torch.tanh(self.v(torch.cat([m1 @ v2, m2 @ v1], dim=-1)))
        m = self.m @ torch.cat([m1, m2], dim=-2) + self.m_bias
        return v, m


class MVRNN(nn.Module):
    """Encodes a tree from its leaves to its root and classifies the vector of every node."""

    def __init__(self, size: int, vocab_size: int, num_matrices: int, num_classes: int):
        super().__init__()
        self.vectors = nn.Embedding(vocab_size, size)
        self.matrices = nn.Parameter(torch.eye(size) + torch.randn(num_matrices, size, size) * 0.1 / size**0.5)
        self.num_matrices = num_matrices
        self.internal = Internal(size)
        self.out = nn.Linear(size, num_classes)

    def forward(self, tree: Tree) -> dict[str, Tensor]:
        logits: list[Tensor] = []
        self.encode(tree, logits)
        return {"logits": torch.stack(logits)}

    def encode(self, tree: Tree, logits: list[Tensor]) -> tuple[Tensor, Tensor]:
        if tree.left is None:
            v = self.vectors.weight[tree.word]
            m = self.matrices[tree.word % self.num_matrices]
        else:
            v1, m1 = self.encode(tree.left, logits)
            v2, m2 = self.encode(tree.right, logits)
            v, m = self.internal(v1, m1, v2, m2)
        logits.append(self.out(v))
        return v, m

    def vertices(self) -> dict[str, VertexFunction]:
        return {"leaf": self.leaf_vertex, "internal": self.internal_vertex}

    def leaf_vertex(self, vertex: Vertex) -> None:
        v = vertex.pull("word", self.vectors.weight)
        vertex.scatter(v, vertex.pull("matrix", self.matrices))
        vertex.push("logits", self.out(v))

    def internal_vertex(self, vertex: Vertex) -> None:
        (v1, m1), (v2, m2) = vertex.gather_all()
        v, m = self.internal(v1, m1, v2, m2)
        vertex.scatter(v, m)
        vertex.push("logits", self.out(v))


def build(
    hidden_size: int = 256, vocab_size: int = 20000, num_matrices: int = 256, num_classes: int = 5, **config: Any
) -> nn.Module:
    return MVRNN(hidden_size, vocab_size, num_matrices, num_classes)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Tree]:
    for path in paths:
        yield from read_trees(path, vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Tree]:
    return sample_trees(count, seed, vocab_size)


def vertex_instance(tree: Tree, num_matrices: int = 256, **config: Any) -> VertexInstance:
    instance = tree_vertices(tree)
    matrix = instance.inputs["word"] % num_matrices
    return replace(instance, inputs={**instance.inputs, "matrix": matrix})


def loss(outputs: dict[str, Tensor], tree: Tree) -> Tensor:
    """Cross-entropy of every node's label, summed over the tree."""
    return cross_entropy(outputs["logits"], [node.label for node in tree])


def metrics(outputs: dict[str, Tensor], tree: Tree) -> dict[str, tuple[int, int]]:
    """Right labels among all nodes, and at the root."""
    return {
        "accuracy": count_right(outputs["logits"], [node.label for node in tree]),
        "root accuracy": count_right(outputs["logits"][-1:], [tree.label]),
    }
