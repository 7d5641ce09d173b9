"""A model that does everything a vertex function may do, and random instances of it."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

import edbc
from edbc.vertex import Vertex, VertexFunction, VertexInstance

SIZE, NUM_ROWS, NUM_FEATURES = 4, 5, 3


@edbc.cell
class Mix(nn.Module):
    """Two values from two values."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(SIZE, SIZE)
        self.b = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.a(x)) + y, torch.sigmoid(self.b(y)) * x


class Everything(nn.Module):
    """Look-ups, rows of inputs, constants, defaults, sums of one and two fields, values passed on, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NUM_ROWS, SIZE))
        self.h0 = nn.Parameter(torch.randn(SIZE))
        self.mix = Mix()
        self.read = nn.Linear(NUM_FEATURES, SIZE)
        self.out = nn.Linear(SIZE, 2)

    def vertices(self) -> dict[str, VertexFunction]:
        return {
            "word": lambda v: v.scatter(v.pull("id", self.table), self.h0),
            "features": self.features,
            "fold": self.fold,
            "both": self.both,
            "pass": self.pass_on,
            "silent": lambda v: v.push("note", v.gather(0, default=(self.h0, self.h0))[0]),
        }

    def features(self, v: Vertex) -> None:
        h, c = self.mix(self.read(v.pull("row")), self.table[2])
        v.scatter(h, c)
        v.push("logits", self.out(c))
        v.push("logits", self.out(h))

    def fold(self, v: Vertex) -> None:
        states = v.gather_all()
        c = sum(c for _, c in states) if states else torch.ones(SIZE)
        each = sum(self.mix(c, h)[0] for h, c in states) if states else self.h0
        v.push("note", each)
        v.scatter(*self.mix(each, c))

    def both(self, v: Vertex) -> None:
        states = v.gather_all()
        h = sum((h for h, _ in states), start=0)
        c = sum((c for _, c in states), start=0)
        v.scatter(*(self.mix(h, c) if states else (self.h0, self.h0)))
        v.push("logits", self.out(h if states else self.h0))

    def pass_on(self, v: Vertex) -> None:
        h, c = v.gather(0, default=(self.h0, self.h0))
        v.scatter(h, c)


WORD, FEATURES, FOLD, BOTH, PASS, SILENT = range(6)


def everything() -> Everything:
    """The model, seed 0."""
    torch.manual_seed(0)
    return Everything().eval()


def random_instance(seed: int, size: int) -> VertexInstance:
    """A random instance: gathers of 0 to 3 earlier vertices, repeats too; `both` gathers computed states only."""
    rng = random.Random(seed)
    vertices: list[tuple[int, list[int]]] = []
    giving: list[int] = []
    computed: list[int] = []
    for number in range(size):
        kind = rng.choice((WORD, FEATURES, FOLD, BOTH, BOTH, PASS, SILENT))
        among = computed if kind == BOTH else giving
        at_most = {WORD: 0, FEATURES: 0, FOLD: 3, BOTH: 3, PASS: 1, SILENT: 1}[kind]
        predecessors = [rng.choice(among) for _ in range(rng.randint(0, at_most)) if among]
        vertices.append((kind, predecessors))
        if kind != SILENT:
            giving.append(number)
        if kind == FEATURES or (kind in (BOTH, FOLD) and predecessors):
            computed.append(number)
    ids = [rng.randrange(NUM_ROWS) for _ in range(size)]
    rows = np.array([[rng.random() for _ in range(NUM_FEATURES)] for _ in range(size)], np.float32)
    return VertexInstance.build(vertices, {"id": ids, "row": rows.reshape(size, NUM_FEATURES)})
