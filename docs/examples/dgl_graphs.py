"""DGL graphs: `dgl.prop_nodes_topo` written for one graph.

DGL publishes no package for current torch. What stands here uses the methods that DGL documents (`ndata`,
`predecessors`, `num_nodes`, `in_degrees`), so a graph of DGL's works as it is; so does any object that has them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def topological(graph: Any) -> list[int]:
    """Nodes, each after its predecessors: what `dgl.topological_nodes_generator` yields, one by one."""
    waiting = graph.in_degrees().tolist()
    ready = [v for v, count in enumerate(waiting) if count == 0]
    for v in ready:
        for w in graph.successors(v).tolist():
            waiting[w] -= 1
            if waiting[w] == 0:
                ready.append(w)
    return ready


class TopoEncoder(nn.Module):
    """Message, reduce and apply of `prop_nodes_topo`, as three lines of a loop."""

    def __init__(self, features: int = 4, size: int = 16):
        super().__init__()
        self.size, self.embed, self.message = size, nn.Linear(features, size), nn.Linear(size, size)
        self.apply_node = nn.GRUCell(size, size)

    def forward(self, graph: Any) -> Tensor:
        x = graph.ndata["x"]
        h: dict[int, Tensor] = {}
        for v in topological(graph):
            mailbox = [self.message(h[u]) for u in graph.predecessors(v).tolist()]
            reduced = torch.stack(mailbox).sum(0) if mailbox else torch.zeros(self.size)
            h[v] = self.apply_node(self.embed(x[v]), reduced)
        return torch.stack([h[v] for v in range(graph.num_nodes())]).mean(0)
