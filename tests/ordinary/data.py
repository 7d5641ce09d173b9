"""Instances of the corpus: sentences, trees, graphs and pictures, made from a random generator."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

VOCAB = 50
FEATURES = 8
LABELS = 4


def normal(rng: Random, *shape: int) -> torch.Tensor:
    """Numbers that float32 holds, in the default dtype."""
    count = int(np.prod(shape))
    numbers = np.array([rng.gauss(0, 1) for _ in range(count)], dtype=np.float32)
    return torch.tensor(numbers.tolist()).reshape(shape)


def sentence(rng: Random) -> list[int]:
    """Word numbers."""
    return [rng.randrange(VOCAB) for _ in range(rng.randint(2, 9))]


def labelled_sentence(rng: Random) -> tuple[list[int], list[int]]:
    """Words and a label for each."""
    words = sentence(rng)
    return words, [rng.randrange(LABELS) for _ in words]


def id_tensor(rng: Random) -> torch.Tensor:
    """Word numbers as a tensor."""
    return torch.tensor(sentence(rng))


def pair_of_sentences(rng: Random) -> tuple[list[int], list[int]]:
    """Two sentences."""
    return sentence(rng), sentence(rng)


def series(rng: Random) -> torch.Tensor:
    """A sequence of feature vectors."""
    return normal(rng, rng.randint(2, 8), FEATURES)


def vector(rng: Random) -> torch.Tensor:
    """One feature vector."""
    return normal(rng, FEATURES)


def batch_of_one(rng: Random) -> torch.Tensor:
    """One feature vector with a batch dimension."""
    return normal(rng, 1, FEATURES)


def two_vectors(rng: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Two feature vectors."""
    return vector(rng), vector(rng)


def classified(rng: Random) -> dict[str, Any]:
    """Features and a label, as a data set's item."""
    return {"x": vector(rng), "y": rng.randrange(LABELS)}


def picture(rng: Random) -> torch.Tensor:
    """One channel, 8 x 8."""
    return normal(rng, 1, 8, 8)


def sized_picture(rng: Random) -> torch.Tensor:
    """One channel of several heights and widths."""
    return normal(rng, 1, rng.randint(4, 7), rng.randint(4, 7))


def binary_tree(rng: Random, depth: int = 3) -> Any:
    """A word, or a pair of trees."""
    if depth == 0 or rng.random() < 0.25:
        return rng.randrange(VOCAB)
    return binary_tree(rng, depth - 1), binary_tree(rng, depth - 1)


@dataclass
class Node:
    """A node of a tree, with a place for what forward computes."""

    word: int
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None
    state: Any = None


def tree(rng: Random, depth: int = 3) -> Node:
    """A tree with up to three children a node, which know their parent."""
    node = Node(rng.randrange(VOCAB))
    if depth:
        node.children = [tree(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    for child in node.children:
        child.parent = node
    return node


def expression(rng: Random, depth: int = 3) -> Any:
    """A number, or an operator with its arguments."""
    if depth == 0 or rng.random() < 0.3:
        return rng.randint(0, 9)
    name = rng.choice(["add", "mul", "neg"])
    return (name, *[expression(rng, depth - 1) for _ in range(1 if name == "neg" else 2)])


def layout_tree(rng: Random, depth: int = 2) -> dict[str, Any]:
    """A program over a picture, as nested dicts."""
    name = rng.choice(["find", "describe"]) if depth == 0 else rng.choice(["find", "both", "transform"])
    count = {"both": 2, "transform": 1}.get(name, 0)
    return {"op": name, "inputs": [layout_tree(rng, depth - 1) for _ in range(count)], "word": rng.randrange(VOCAB)}


def dag(rng: Random) -> list[list[int]]:
    """For each node the earlier ones that it reads."""
    return [sorted(rng.sample(range(i), min(i, rng.randint(1, 3)))) for i in range(rng.randint(3, 8))]


def kinds_dag(rng: Random) -> list[tuple[str, list[int]]]:
    """A circuit: kind of gate and inputs."""
    return [(rng.choice(["and", "or", "not"]), reads) for reads in dag(rng)]


def graph(rng: Random) -> SimpleNamespace:
    """Features of nodes, and edges as pairs in a list."""
    count = rng.randint(3, 7)
    edges = [(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randint(count, 2 * count))]
    return SimpleNamespace(x=normal(rng, count, FEATURES), edges=edges, num_nodes=count)


class Data:
    """What graph libraries hand over: tensors as attributes."""

    def __init__(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor):
        self.x = x
        self.edge_index = edge_index
        self.edge_attr = edge_attr

    @property
    def num_nodes(self) -> int:
        """Rows of x."""
        return self.x.size(0)


def edge_graph(rng: Random) -> Data:
    """A graph whose edges are two rows of a tensor."""
    plain = graph(rng)
    return Data(plain.x, torch.tensor(plain.edges).t().contiguous(), normal(rng, len(plain.edges), 3))


def points(rng: Random) -> torch.Tensor:
    """A cloud of points."""
    return normal(rng, rng.randint(4, 8), 3)


def actions(rng: Random) -> tuple[list[int], list[str]]:
    """Words and the shift and reduce actions that make one tree of them."""
    words, steps, waiting, depth = sentence(rng), [], 0, 0
    waiting = len(words)
    while waiting or depth > 1:
        shift = waiting and (depth < 2 or rng.random() < 0.5)
        steps.append("shift" if shift else "reduce")
        waiting, depth = (waiting - 1, depth + 1) if shift else (waiting, depth - 1)
    return words, steps
