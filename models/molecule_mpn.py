"""Junction-tree message passing over molecules: a property of the whole molecule, its solubility for example.

The tree encoder of Jin, Barzilay and Jaakkola, "Junction Tree Variational Autoencoder for Molecular Graph Generation",
ICML 2018, section 2.3: messages run from the leaves of the junction tree to its root and back, each a GRU over the
messages that reach its sender from everywhere else; then every ring and bond gathers what has reached it.

Input: SMILES strings, one per line or in the column `smiles` of a `.csv` file.
Output: `property`, one tensor of 1 per molecule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _molecules import JunctionTree, read_molecules, sample_molecules
from torch import Tensor, nn

import edbc


@edbc.cell
class Reset(nn.Module):
    """What the sender of a message takes over from one that has reached it."""

    def __init__(self, size: int):
        super().__init__()
        self.r_x = nn.Linear(size, size)
        self.r_m = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        r = torch.sigmoid(self.r_x(x) + self.r_m(m))
        return r * m


@edbc.cell
class Message(nn.Module):
    """A message from the sender's label and the sums over the messages that have reached it."""

    def __init__(self, size: int):
        super().__init__()
        self.z_x = nn.Linear(size, size)
        self.z_s = nn.Linear(size, size, bias=False)
        self.c_x = nn.Linear(size, size)
        self.c_s = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, heard: Tensor, kept: Tensor) -> Tensor:
        z = torch.sigmoid(self.z_x(x) + self.z_s(heard))
        c = torch.tanh(self.c_x(x) + self.c_s(kept))
        return (1 - z) * heard + z * c


@edbc.cell
class Gather(nn.Module):
    """A cluster from its label and all messages to it."""

    def __init__(self, size: int):
        super().__init__()
        self.x = nn.Linear(size, size)
        self.m = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, heard: Tensor) -> Tensor:
        return torch.relu(self.x(x) + self.m(heard))


class MoleculeMPN(nn.Module):
    """Passes messages up and down a junction tree and sums the clusters."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.reset = Reset(size)
        self.message = Message(size)
        self.gather = Gather(size)
        self.out = nn.Linear(size, 1)
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def forward(self, tree: JunctionTree) -> dict[str, list[Tensor]]:
        xs = [self.embedding.weight[cluster] for cluster in tree.clusters]
        children = tree.children()
        up: list[Tensor] = [self.zero] * len(xs)
        down: list[Tensor] = [self.zero] * len(xs)
        for cluster in reversed(range(len(xs))):
            if tree.parents[cluster] is not None:
                up[cluster] = self.send(xs[cluster], [up[child] for child in children[cluster]])
        for cluster, parent in enumerate(tree.parents):
            above = [down[cluster]] if parent is not None else []
            for child in children[cluster]:
                others = [up[other] for other in children[cluster] if other != child]
                down[child] = self.send(xs[cluster], others + above)
        gathered = []
        for cluster, parent in enumerate(tree.parents):
            heard = [up[child] for child in children[cluster]] + ([down[cluster]] if parent is not None else [])
            gathered.append(self.gather(xs[cluster], sum(heard) if heard else self.zero))
        return {"property": [self.out(sum(gathered))]}

    def send(self, x: Tensor, heard: list[Tensor]) -> Tensor:
        if not heard:
            return self.message(x, self.zero, self.zero)
        return self.message(x, sum(heard), sum(self.reset(x, m) for m in heard))


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return MoleculeMPN(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[JunctionTree]:
    for path in paths:
        yield from read_molecules(path, vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[JunctionTree]:
    return sample_molecules(count, seed, vocab_size)
