"""A model file whose instances are lengths, so that a test can have any size and any fault by writing a number."""

from __future__ import annotations

from pathlib import Path

MODEL = '''"""Chains: an instance is a length; a negative one is a fault of the user's code."""

import torch
from torch import nn

import edbc


@edbc.cell
class Step(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Linear(2 * size, size)

    def forward(self, h, x):
        return torch.tanh(self.weight(torch.cat([h, x])))


class Chain(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.table = nn.Embedding(10, size)
        self.start = nn.Parameter(torch.zeros(size))
        self.step = Step(size)

    def forward(self, length):
        if length < 0:
            raise ValueError(f"no chain has {length} links")
        h = self.start
        for i in range(length):
            h = self.step(h, self.table.weight[i % 10])
        return {"h": [h]} if length else {}


def build(hidden_size: int = 8, **config):
    return Chain(hidden_size)


def load(*paths, **config):
    for path in paths:
        with open(path) as file:
            yield from map(int, file)


def sample(count, seed, **config):
    return [(seed + i) % 7 for i in range(count)]


def loss(outputs, length):
    return (outputs["h"][0] ** 2).sum() if length else torch.zeros(())
'''


def write_model(folder: Path) -> Path:
    """The model file in a folder."""
    path = folder / "chain.py"
    path.write_text(MODEL)
    return path


def write_lengths(folder: Path, *lengths: int) -> Path:
    """An input file of these instances."""
    path = folder / "lengths.txt"
    path.write_text("".join(f"{length}\n" for length in lengths))
    return path
