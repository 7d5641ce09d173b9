"""A small model of sequences with its loss and metrics, and a loop over it, for tests of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edbc.train.fit.loop import Data, Epoch, Loop, Run
from edbc.train.fit.objective import Objective
from edbc.train.fit.optimizers import optimizer_of

Sequence = tuple[tuple[int, ...], int]
"""Word ids and a class."""


class Step(nn.Module):
    """One step of a recurrent network."""

    def __init__(self, size: int):
        super().__init__()
        self.both = nn.Linear(2 * size, size)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.both(torch.cat([x, h], dim=-1)))


class Classifier(nn.Module):
    """The class of a sequence from its last state, with dropout in training mode; nothing reaches `unused`."""

    def __init__(self, size: int = 8, dropout: float = 0.0):
        super().__init__()
        self.embedding = nn.Embedding(16, size)
        self.step = Step(size)
        self.dropout = dropout
        self.out = nn.Linear(size, 3)
        self.unused = nn.Linear(size, 2)
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def forward(self, sequence: Sequence) -> Tensor:
        h = self.zero
        for word in sequence[0]:
            h = self.step(self.embedding.weight[word], h)
        if self.dropout:
            h = nn.functional.dropout(h, self.dropout, self.training)
        return self.out(h)


def loss(outputs: Tensor, sequence: Sequence) -> Tensor:
    """Cross-entropy of the class."""
    return nn.functional.cross_entropy(outputs, torch.tensor(sequence[1]))


def metrics(outputs: Tensor, sequence: Sequence) -> dict[str, tuple[int, int]]:
    """Whether the class is right."""
    return {"accuracy": (int(outputs.argmax()) == sequence[1], 1)}


OBJECTIVE = Objective(loss, metrics, "small.py")


def sequences(count: int) -> list[Sequence]:
    """Sequences of 1 to 5 words; the class is the first word's remainder by 3."""
    generator = torch.Generator().manual_seed(1)
    words = [tuple(torch.randint(0, 16, (1 + i % 5,), generator=generator).tolist()) for i in range(count)]
    return [(w, w[0] % 3) for w in words]


def eager(model: nn.Module) -> Run:
    """The model, instance by instance."""
    return lambda batch: [model(instance) for instance in batch]


def loop_of(model: nn.Module, optimizer: str = "adam", rate: float = 0.01, net: Run | None = None,
            objective: Objective = OBJECTIVE, count: int = 10) -> Loop:  # fmt: skip
    """A loop over ten sequences in mini-batches of four, with six dev sequences."""
    data = Data(sequences(count), sequences(6))
    return Loop(net or eager(model), model, optimizer_of(model, optimizer, rate), objective, data, 4, seed=3)


def fresh(seed: int = 0, **options: Any) -> Classifier:
    """A model with seeded weights; torch's generator is seeded too."""
    torch.manual_seed(seed)
    return Classifier(**options)


def figures(history: list[Epoch]) -> list[tuple[dict[str, float], dict[str, float] | None]]:
    """What of epochs does not depend on the clock."""
    return [(epoch.train, epoch.dev) for epoch in history]
