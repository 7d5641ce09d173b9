"""PyTorch Geometric: a pass over each graph in topological order, states of predecessors summed.

`Data` is an instance as it is: forward reads its tensors and keeps no state on it.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import edbc


class DagEncoder(nn.Module):
    """A GRU over a directed acyclic graph; nodes are numbered in topological order."""

    def __init__(self, features: int = 4, size: int = 16):
        super().__init__()
        self.size, self.features, self.step = size, nn.Linear(features, size), nn.GRUCell(size, size)

    def forward(self, data: Data) -> Tensor:
        before: dict[int, list[int]] = {v: [] for v in range(data.num_nodes)}
        for source, target in data.edge_index.t().tolist():
            before[target].append(source)
        states: list[Tensor] = []
        for v in range(data.num_nodes):
            incoming = [states[u] for u in before[v]]
            message = torch.stack(incoming).sum(0) if incoming else torch.zeros(self.size)
            states.append(self.step(self.features(data.x[v]), message))
        return states[-1]


def graphs(count: int, seed: int = 0) -> list[Data]:
    """Made-up graphs of 2 to 12 nodes."""
    generator, torch_generator = random.Random(seed), torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        size = generator.randint(2, 12)
        edges = [(u, v) for v in range(1, size) for u in sorted(generator.sample(range(v), min(v, 2)))]
        x = torch.randn(size, 4, generator=torch_generator)
        made.append(Data(x=x, edge_index=torch.tensor(edges).t().contiguous()))
    return made


def main(**options: Any) -> tuple[Any, nn.Module, list[Data]]:
    """Compile; give net, model and graphs that it has not seen."""
    model = DagEncoder()
    return edbc.compile(model, graphs(40), **options), model, graphs(8, seed=1)


if __name__ == "__main__":
    net, _, unseen = main()
    print(net, [tuple(output.shape) for output in net(unseen)])
