"""Cost of loop nests: recursive LSTMs over computations and inner loops.

After Baghdadi et al., A Deep Learning Based Cost Model for Automatic Code Optimization, MLSys 2021 (Tiramisu). A
program comes as its JSON: iterators by name with `child_iterators` and `computations_list`, computations by name.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

FEATURES = 24
"""Numbers that describe a computation: extents, accesses, schedule. (The published vector is longer, not another.)"""


class LoopNests(nn.Module):
    """A loop is what LSTMs read of the computations in it and of the loops in it, merged."""

    def __init__(self, size: int = 128):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(FEATURES, size), nn.ELU(), nn.Linear(size, size), nn.ELU())
        self.of_computations, self.of_loops = nn.LSTMCell(size, size), nn.LSTMCell(size, size)
        self.merge = nn.Sequential(nn.Linear(2 * size, size), nn.ELU())
        self.speedup, self.size = nn.Linear(size, 1), size

    def forward(self, program: dict[str, Any]) -> Tensor:
        roots = [name for name, loop in program["iterators"].items() if loop["parent_iterator"] is None]
        return self.speedup(self.read(self.of_loops, [self.loop(program, name) for name in roots]))

    def loop(self, program: dict[str, Any], name: str) -> Tensor:
        loop = program["iterators"][name]
        inside = [self.loop(program, child) for child in loop["child_iterators"]]
        embedded = [self.embed(torch.tensor(program["computations"][c])) for c in loop["computations_list"]]
        both = torch.cat([self.read(self.of_computations, embedded), self.read(self.of_loops, inside)])
        return self.merge(both)

    def read(self, cell: nn.LSTMCell, items: list[Tensor]) -> Tensor:
        h = c = torch.zeros(self.size)
        for item in items:
            h, c = cell(item, (h, c))
        return h


def instances(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Made-up programs of 1 to 3 nests, up to 4 deep."""
    generator = random.Random(seed)

    def program() -> dict[str, Any]:
        made: dict[str, Any] = {"iterators": {}, "computations": {}}

        def loop(parent: str | None, depth: int) -> str:
            name = f"i{len(made['iterators'])}"
            made["iterators"][name] = facts = {
                "lower_bound": 0, "upper_bound": generator.choice([64, 256, 1024]), "parent_iterator": parent,
                "child_iterators": [], "computations_list": [],
            }  # fmt: skip
            for _ in range(generator.choice([0, 1, 1, 2]) if depth else 0):
                facts["child_iterators"].append(loop(name, depth - 1))
            for _ in range(generator.randint(0 if facts["child_iterators"] else 1, 2)):
                computation = f"comp{len(made['computations'])}"
                made["computations"][computation] = [generator.random() for _ in range(FEATURES)]
                facts["computations_list"].append(computation)
            return name

        for _ in range(generator.randint(1, 3)):
            loop(None, generator.randint(0, 3))
        return made

    return [program() for _ in range(count)]
