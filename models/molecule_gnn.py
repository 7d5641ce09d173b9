"""Graph network over the atoms of one molecule, messages passed by index: a property of the whole molecule.

Gilmer et al., "Neural Message Passing for Quantum Chemistry", ICML 2017, section 2: a message along each bond in both
directions, summed for the atom that it reaches, a GRU that updates the atom, and a sum over all atoms as readout. The
code is that of one graph; no library, and no graph joined to another by hand.

Input: SMILES strings, one per line or in the column `smiles` of a `.csv` file.
Output: `property`, one tensor of 1 per molecule.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from _molecules import ATOMS, read_strings, sample_smiles
from _samples import sample_sizes
from _smiles import Molecule, parse_smiles
from torch import Tensor, nn

ELEMENTS = ["C", "c", "N", "n", "O", "o", "S", "s", "F", "Cl", "Br", "other"]


class AtomGraph(NamedTuple):
    """The element of each atom, and the two atoms of each bond, in both directions."""

    atoms: list[int]
    sources: list[int]
    targets: list[int]


class MoleculeGNN(nn.Module):
    """Two rounds of messages."""

    def __init__(self, size: int):
        super().__init__()
        self.elements, self.message = nn.Embedding(len(ELEMENTS), size), nn.Linear(2 * size, size)
        self.update, self.out = nn.GRUCell(size, size), nn.Linear(size, 1)

    def forward(self, graph: AtomGraph) -> dict[str, list[Tensor]]:
        h = self.elements(torch.tensor(graph.atoms))
        h = self.states(h, torch.tensor(graph.sources), torch.tensor(graph.targets))
        return {"property": [self.out(h.sum(0))]}

    def states(self, h: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Of all atoms, from those that they have alone."""
        for _ in range(2):
            message = torch.relu(self.message(torch.cat([h[source], h[target]], -1)))
            h = self.update(torch.zeros_like(h).index_add(0, target, message), h)
        return h


def graph_of(molecule: Molecule) -> AtomGraph:
    kinds = [ELEMENTS.index(atom if atom in ELEMENTS else "other") for atom in molecule.atoms]
    one, other = [a for a, _, _ in molecule.bonds], [b for _, b, _ in molecule.bonds]
    return AtomGraph(kinds, one + other, other + one)


def build(hidden_size: int = 256, **config: Any) -> nn.Module:
    return MoleculeGNN(hidden_size)


def load(*paths: str, **config: Any) -> Iterator[AtomGraph]:
    for path in paths:
        for number, text in read_strings(path):
            yield graph_of(parse_smiles(text, f"{path}:{number}"))


def sample(count: int, seed: int, **config: Any) -> list[AtomGraph]:
    rng = random.Random(seed)
    strings = [sample_smiles(num_atoms, rng) for num_atoms in sample_sizes(count, ATOMS, rng)]
    return [graph_of(parse_smiles(text, "sample")) for text in strings]
