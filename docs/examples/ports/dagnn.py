"""DAGNN on code graphs: attention over predecessors and a GRU, node after node in topological order, two layers.

After Thost and Chen, Directed Acyclic Graph Neural Networks, ICLR 2021. A graph comes as in ogbg-code2:
`edge_index`, `node_feat` (type and attribute of each node), nodes in the order in which the tree is traversed, so that
edges point up.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

TYPES, ATTRIBUTES, LAYERS = 98, 1000, 2


class DAGNN(nn.Module):
    """Per layer h_v = GRU(h_v of the layer below, sum of attention-weighted predecessors)."""

    def __init__(self, size: int = 128):
        super().__init__()
        self.types, self.attributes = nn.Embedding(TYPES, size), nn.Embedding(ATTRIBUTES, size)
        self.query = nn.ModuleList(nn.Linear(size, 1, bias=False) for _ in range(LAYERS))
        self.key = nn.ModuleList(nn.Linear(size, 1, bias=False) for _ in range(LAYERS))
        self.step = nn.ModuleList(nn.GRUCell(size, size) for _ in range(LAYERS))
        self.out, self.size = nn.Linear(LAYERS * size, 16), size

    def forward(self, graph: dict[str, Any]) -> Tensor:
        kinds = graph["node_feat"]
        before: list[list[int]] = [[] for _ in kinds]
        for source, target in zip(*graph["edge_index"], strict=True):
            before[target].append(source)
        below = [self.types.weight[kind] + self.attributes.weight[attribute] for kind, attribute in kinds]
        last = []
        for layer in range(LAYERS):
            below = self.layer(layer, below, before)
            last.append(below[-1])
        return self.out(torch.cat(last))

    def layer(self, layer: int, below: list[Tensor], before: list[list[int]]) -> list[Tensor]:
        h: list[Tensor] = []
        for v, own in enumerate(below):
            if not before[v]:
                message = torch.zeros(self.size)
            else:
                states = torch.stack([h[u] for u in before[v]])
                scores = self.query[layer](own) + self.key[layer](states).squeeze(1)
                message = (torch.softmax(scores, 0).unsqueeze(1) * states).sum(0)
            h.append(self.step[layer](own, message))
        return h


def instances(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Made-up graphs of 8 to 40 nodes: syntax trees whose edges point to the root, with some of the next token."""
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        size = generator.randint(8, 40)
        parents = [generator.randint(v + 1, min(size - 1, v + 6)) for v in range(size - 1)]
        edges = dict.fromkeys([*enumerate(parents), *((v, v + 1) for v in range(0, size - 1, 4))])
        feat = [(generator.randrange(TYPES), generator.randrange(ATTRIBUTES)) for _ in range(size)]
        made.append({"edge_index": [list(ends) for ends in zip(*edges, strict=True)], "node_feat": feat})
    return made
