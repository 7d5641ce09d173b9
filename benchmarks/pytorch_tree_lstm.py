"""The PyPI package pytorch-tree-lstm beside edbc: the same child-sum tree-LSTM, weights, trees and mini-batches.

    pip install pytorch-tree-lstm
    python benchmarks/pytorch_tree_lstm.py [--data DIR] [--batch-size 32] [--hidden 128] [--rounds 5]

The package batches by level: the user numbers nodes and edges of every tree and gives each its level beforehand
(`prepare`), joins the arrays of a mini-batch (`join`), and the module runs level after level (`run`). edbc gets trees
(`record`) or arrays (`vertex`). Every node has a feature row: the embedding of its word, of word 0 at inner nodes.
Outputs are compared first. Medians of processor time per mini-batch over rounds in which all take turns; one thread.

This file is the model file too: what edbc compiles is the class below, written for one tree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import edbc
from edbc.vertex import Vertex, VertexFunction, VertexInstance

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.append(str(REPOSITORY / "models"))


@edbc.cell
class Leaf(nn.Module):
    """State of a node without children."""

    def __init__(self, size: int):
        super().__init__()
        self.W_iou = nn.Linear(size, 3 * size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = self.W_iou(x).chunk(3, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c


@edbc.cell
class Keep(nn.Module):
    """What a child passes on of its memory."""

    def __init__(self, size: int):
        super().__init__()
        self.W_f = nn.Linear(size, size)
        self.U_f = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        return torch.sigmoid(self.W_f(x) + self.U_f(h)) * c


@edbc.cell
class Internal(nn.Module):
    """State of a node from the sums over its children."""

    def __init__(self, size: int, own: nn.Linear):
        super().__init__()
        self.W_iou = own
        self.U_iou = nn.Linear(size, 3 * size, bias=False)

    def forward(self, x: Tensor, h_sum: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = (self.W_iou(x) + self.U_iou(h_sum)).chunk(3, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u) + kept
        return torch.sigmoid(o) * torch.tanh(c), c


class ChildSum(nn.Module):
    """The package's network, for one tree."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.leaf = Leaf(size)
        self.keep = Keep(size)
        self.internal = Internal(size, self.leaf.W_iou)

    def forward(self, tree: Any) -> dict[str, list[Tensor]]:
        states: list[Tensor] = []
        self.encode(tree, states)
        return {"h": states}

    def encode(self, tree: Any, states: list[Tensor]) -> tuple[Tensor, Tensor]:
        x = self.embedding.weight[tree.word]
        if tree.left is None:
            h, c = self.leaf(x)
        else:
            children = [self.encode(child, states) for child in (tree.left, tree.right)]
            h, c = self.internal(x, sum(h for h, _ in children), sum(self.keep(x, h, c) for h, c in children))
        states.append(h)
        return h, c

    def vertices(self) -> dict[str, VertexFunction]:
        return {"leaf": self.leaf_vertex, "internal": self.internal_vertex}

    def leaf_vertex(self, v: Vertex) -> None:
        h, c = self.leaf(v.pull("word", self.embedding.weight))
        v.push("h", h)
        v.scatter(h, c)

    def internal_vertex(self, v: Vertex) -> None:
        x, children = v.pull("word", self.embedding.weight), v.gather_all()
        h, c = self.internal(x, sum(h for h, _ in children), sum(self.keep(x, h, c) for h, c in children))
        v.push("h", h)
        v.scatter(h, c)


def build(hidden_size: int = 128, vocab_size: int = 256, **config: Any) -> nn.Module:
    return ChildSum(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 256, **config: Any) -> Iterator[Any]:
    from _trees import read_trees

    for path in paths:
        yield from read_trees(path, vocab_size)


def sample(count: int, seed: int, vocab_size: int = 256, **config: Any) -> list[Any]:
    from _trees import sample_trees

    return sample_trees(count, seed, vocab_size)


def vertex_instance(tree: Any, **config: Any) -> VertexInstance:
    from _trees import tree_vertices

    return tree_vertices(tree)


def as_arrays(tree: Any) -> dict[str, Tensor]:
    """A tree as the package wants it: words, edges (parent, child), levels of nodes and of edges."""
    from treelstm import calculate_evaluation_orders

    nodes = list(tree)
    number = {id(node): i for i, node in enumerate(nodes)}
    edges = [(i, number[id(child)]) for i, node in enumerate(nodes) if node.left for child in (node.left, node.right)]
    if not edges:
        raise ValueError("the package takes no tree of one node")
    node_order, edge_order = calculate_evaluation_orders(edges, len(nodes))
    return {
        "features": torch.tensor([node.word for node in nodes]),
        "adjacency_list": torch.tensor(edges),
        "node_order": torch.from_numpy(node_order),
        "edge_order": torch.from_numpy(edge_order),
    }


def package_with(model: ChildSum, size: int) -> nn.Module:
    """The package's module with the model's weights."""
    import treelstm

    package = treelstm.TreeLSTM(size, size).eval()
    for name, linear in (("W_iou", model.leaf.W_iou), ("U_iou", model.internal.U_iou), ("W_f", model.keep.W_f),
                         ("U_f", model.keep.U_f)):  # fmt: skip
        getattr(package, name).load_state_dict(linear.state_dict())
    return package


def median_ms(functions: dict[str, Callable[[int], Any]], batches: int, rounds: int) -> dict[str, float]:
    """Median processor time of each function over mini-batches and rounds, in milliseconds; all take turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    with torch.no_grad():
        for turn in range(rounds + 1):  # the first one warms up
            for number in range(batches):
                for name, function in functions.items():
                    started = time.process_time()
                    function(number)
                    if turn:
                        times[name].append(1e3 * (time.process_time() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Compile, compare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data")))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        import treelstm
    except ImportError:
        sys.exit("this benchmark compares with another package: pip install pytorch-tree-lstm")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        loaded = edbc.compile(__file__, Path(folder) / "plan.yaml", config={"hidden_size": options.hidden})
    torch.manual_seed(0)
    model = ChildSum(options.hidden, 256).eval()
    net, package = loaded.bind(model), package_with(model, options.hidden)
    read = (tree for tree in load(f"{options.data}/sst_trees/dev.txt") if tree.left is not None)
    batches = [[next(read) for _ in range(options.batch_size)] for _ in range(options.batches)]
    arrays = [[as_arrays(tree) for tree in batch] for batch in batches]
    joined = [treelstm.batch_tree_input(batch) for batch in arrays]
    vertices = [list(map(vertex_instance, batch)) for batch in batches]

    def run(number: int) -> Tensor:
        batch = joined[number]
        words, order = model.embedding.weight[batch["features"]], batch["node_order"]
        return package(words, order, batch["adjacency_list"], batch["edge_order"])[0]

    with torch.no_grad():
        torch.testing.assert_close(run(0), torch.cat([torch.stack(r["h"]) for r in net(batches[0])]))
    ms = median_ms(
        {
            "package: prepare": lambda i: [as_arrays(tree) for tree in batches[i]],
            "package: join": lambda i: treelstm.batch_tree_input(arrays[i]),
            "package: run": run,
            "edbc: record": lambda i: net(batches[i]),
            "edbc: vertex": lambda i: net(vertices[i]),
        },
        options.batches,
        options.rounds,
    )
    print(f"outputs agree; batch {options.batch_size}, hidden {options.hidden}, one thread")
    for name, value in ms.items():
        rate = (
            "" if name in ("package: prepare", "package: join") else f"{1e3 * options.batch_size / value:9,.0f} trees/s"
        )
        print(f"{name:18} {value:8.2f} ms per mini-batch {rate}")
    whole = ms["package: join"] + ms["package: run"]
    print(f"edbc over the package, joining included, preparation not: record {whole / ms['edbc: record']:.2f} x, "
          f"vertex {whole / ms['edbc: vertex']:.2f} x")  # fmt: skip


if __name__ == "__main__":
    main()
