"""Deep sets over the atoms of one molecule: a function of each, a mean and a maximum over all, a function of both.

Zaheer et al., "Deep Sets", NIPS 2017, section 3.1. The order of the atoms changes nothing, and bonds are not looked at.

Input: SMILES strings, one per line or in the column `smiles` of a `.csv` file.
Output: `property`, one tensor of 2 per molecule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import molecule_gnn
import torch
from molecule_gnn import ELEMENTS
from torch import Tensor, nn


class SetEncoder(nn.Module):
    """One network for each atom, another for all."""

    def __init__(self, size: int):
        super().__init__()
        self.elements = nn.Embedding(len(ELEMENTS), size)
        self.one = nn.Sequential(nn.ReLU(), nn.Linear(size, size), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(2 * size, size), nn.ReLU(), nn.Linear(size, 2))

    def forward(self, atoms: list[int]) -> dict[str, list[Tensor]]:
        h = self.one(self.elements(torch.tensor(atoms)))
        return {"property": [self.all(torch.cat([h.mean(0), h.amax(0)]))]}


def build(hidden_size: int = 256, **config: Any) -> nn.Module:
    return SetEncoder(hidden_size)


def load(*paths: str, **config: Any) -> Iterator[list[int]]:
    for graph in molecule_gnn.load(*paths):
        yield graph.atoms


def sample(count: int, seed: int, **config: Any) -> list[list[int]]:
    return [graph.atoms for graph in molecule_gnn.sample(count, seed)]
