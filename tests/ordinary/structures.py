"""Data as it comes, and results in any structure."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, LABELS, VOCAB, edge_graph, labelled_sentence, normal, sentence, tree, vector
from ordinary.registry import program


def numpy_vector(rng):
    """Features as numpy's float32."""
    return np.array([rng.gauss(0, 1) for _ in range(FEATURES)], dtype=np.float32)


def in_lists(rng):
    """A matrix as nested lists."""
    return [[rng.gauss(0, 1) for _ in range(FEATURES)] for _ in range(rng.randint(1, 4))]


@program(numpy_vector, in_double=False)
class FromNumpy(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, array):
        return torch.tanh(self.up(torch.from_numpy(array)))


@program(in_lists)
class NestedLists(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, rows):
        return self.up(torch.tensor(rows)).relu().sum(dim=0)


@program(lambda rng: normal(rng, FEATURES).double(), in_double=False)
class DoubleToFloat(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, x):
        return self.up(x.float())


@program(lambda rng: normal(rng, FEATURES).half())
class HalfToModel(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, x):
        return self.up(x.to(self.up.weight.dtype)) * 2


@program(lambda rng: (normal(rng, 5, FEATURES), [rng.random() < 0.6 for _ in range(4)] + [True]))
class BooleanMask(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, item):
        x, keep = item
        mask = torch.tensor(keep)
        scores = self.up(x).sum(-1).masked_fill(~mask, -1e9)
        return torch.softmax(scores, dim=0) @ x


@dataclass
class Example:
    """A record of a data set."""

    words: list[int]
    features: torch.Tensor
    weight: float
    label: int | None = None


def example(rng):
    """A record, with and without a label."""
    label = rng.choice([None, rng.randrange(LABELS)])
    return Example(sentence(rng), vector(rng), round(rng.random(), 3), label)


@program(example)
class DataclassRecord(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.up, self.out = nn.Embedding(VOCAB, size), nn.Linear(FEATURES, size), nn.Linear(size, LABELS)

    def forward(self, item):
        h = self.words(torch.tensor(item.words)).mean(0) + item.weight * self.up(item.features)
        logits = self.out(torch.tanh(h))
        return logits if item.label is None else logits[item.label]


@program(edge_graph)
class AttributesOfData(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.node, self.edge = nn.Linear(FEATURES, size), nn.Linear(3, size)

    def forward(self, data):
        x = self.node(data.x)
        messages = self.edge(data.edge_attr) * x[data.edge_index[0]]
        return {"nodes": x, "edges": messages.mean(dim=0), "count": data.num_nodes}


@program(tree)
class CyclesOfParents(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.up = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)

    def forward(self, root):
        node = root
        while node.children:
            node = node.children[0]
        h = self.words(torch.tensor(node.word))
        while node.parent is not None:
            node = node.parent
            h = torch.tanh(self.up(torch.cat([h, self.words(torch.tensor(node.word))])))
        return h


@program(vector)
class InputsReturned(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, x):
        return OrderedDict(x=x, h=self.up(x), size=len(x))


def tagged(rng):
    """Nodes with numbers of their own."""
    return {rng.randrange(100): sentence(rng) for _ in range(3)}


@program(tagged)
class OutputsById(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, LABELS)

    def forward(self, items):
        return {name: self.out(sum(self.words.weight[w] for w in words)) for name, words in items.items()}


@program(labelled_sentence)
class GroupedByLabel(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.groups = nn.Embedding(VOCAB, size), nn.ModuleList(nn.Linear(size, size) for _ in range(LABELS))

    def forward(self, item):
        found = defaultdict(list)
        for word, label in zip(*item, strict=True):
            found[label].append(self.groups[label](self.words(torch.tensor(word))))
        return [torch.stack(states).max(dim=0)[0] for _, states in sorted(found.items())]


@program(lambda rng: normal(rng, 1, 1, FEATURES))
class BatchDimensionOfOne(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.out = nn.Linear(FEATURES, size), nn.Linear(size, 1)

    def forward(self, x):
        return self.out(F.relu(self.up(x))).squeeze()


@program(lambda rng: {"a": vector(rng), "b": None if rng.random() < 0.5 else vector(rng), "n": rng.randint(1, 3)})
class OptionalParts(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.b, self.default = nn.Linear(8, size), nn.Linear(8, size), nn.Parameter(torch.zeros(size))

    def forward(self, item):
        b = self.default if item["b"] is None else self.b(item["b"])
        h = self.a(item["a"]) + b
        for _ in range(item["n"]):
            h = torch.tanh(h)
        return {"parts": [h, b], "none": None}


@program(lambda rng: np.array(sentence(rng)))
class NumpyIds(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(VOCAB, size)

    def forward(self, ids):
        rows = self.words(torch.from_numpy(ids))
        return sum(rows[i] * (i + 1) for i in range(len(ids)))


@program(lambda rng: rng.randrange(1 << 30))
class SeededByTheInstance(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(VOCAB, size)

    def forward(self, seed):
        rng: Any = random.Random(seed)
        return self.words.weight[rng.randrange(VOCAB)] * self.words.weight[rng.randrange(VOCAB)]


@program(lambda rng: (vector(rng), rng.random(), rng.choice(["left", "right"])))
class NumbersAndStrings(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.left, self.right = nn.Linear(FEATURES, size), nn.Linear(FEATURES, size)

    def forward(self, item):
        x, scale, side = item
        layer = self.left if side == "left" else self.right
        return layer(x) * scale + scale
