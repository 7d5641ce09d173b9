"""networkx graphs: attributes of nodes and edges choose what runs."""

from __future__ import annotations

import random
from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn

import edbc


class Expression(nn.Module):
    """A network per kind of node over expression graphs whose parts may be shared."""

    def __init__(self, size: int = 16):
        super().__init__()
        self.leaf = nn.Embedding(20, size)
        self.kinds = nn.ModuleDict({kind: nn.Linear(2 * size, size) for kind in ("add", "mul")})

    def forward(self, graph: nx.DiGraph) -> Tensor:
        h: dict[Any, Tensor] = {}
        for node in nx.topological_sort(graph):
            facts = graph.nodes[node]
            if facts["kind"] == "leaf":
                h[node] = self.leaf.weight[facts["symbol"]]
            else:
                left, right = graph.predecessors(node)
                combine = self.kinds[facts["kind"]]
                h[node] = torch.tanh(combine(torch.cat([h[left], h[right]])))
        return h[node]


def graphs(count: int, seed: int = 0) -> list[nx.DiGraph]:
    """Made-up expressions of 2 to 6 leaves."""
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        graph, leaves = nx.DiGraph(), generator.randint(2, 6)
        graph.add_nodes_from((v, {"kind": "leaf", "symbol": generator.randrange(20)}) for v in range(leaves))
        for node in range(leaves, 2 * leaves - 1):
            graph.add_node(node, kind=generator.choice(["add", "mul"]))
            graph.add_edges_from((part, node) for part in generator.sample(range(node), 2))
        graph.add_node("root", kind="add")
        graph.add_edges_from([(2 * leaves - 2, "root"), (0, "root")])
        made.append(graph)
    return made


def main(**options: Any) -> tuple[Any, nn.Module, list[nx.DiGraph]]:
    """Compile; give net, model and graphs that it has not seen."""
    model = Expression()
    return edbc.compile(model, graphs(40), **options), model, graphs(8, seed=1)


if __name__ == "__main__":
    net, _, unseen = main()
    print(net, [tuple(output.shape) for output in net(unseen)])
