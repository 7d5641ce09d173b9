"""Time of scheduling per node, precomputation included, and of training.

    python benchmarks/scheduling.py --data DIR [--repeat 7]

Median processor times (other processes do not count) over repeated calls on one graph of at least 20,000 nodes per
workload, in nanoseconds per node; then the time of 1,000 trials on the first 32 lattices and trees. One core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from _graphs import workloads

from edbc.base.graph import Graph
from edbc.schedule.learn.train import Hyper, cover, train
from edbc.schedule.policy import ENCODINGS, FALLBACK, Policy
from edbc.schedule.scheduler import lower_bound, run

SIZES = {"nmt": 384}
"""Instances that make 20,000 nodes, where 256 do not."""


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    every = workloads(arguments.data)
    graphs = {name: workload.batch(SIZES.get(name, 256)) for name, workload in every.items()}
    graphs["1,000 a, b, 1,000 a, ten times"] = barbell()
    print("| ns per node | nodes | " + " | ".join(policies(graphs["nmt"])) + " | lower bound |")
    print("|---" * (3 + len(policies(graphs["nmt"]))) + "|")
    for name, graph in graphs.items():
        cells = [
            per_node(graph, lambda p=policy, g=graph: run(g, p), arguments.repeat)
            for policy in policies(graph).values()
        ]
        cells.append(per_node(graph, lambda g=graph: lower_bound(g), arguments.repeat))
        print(f"| {name} | {graph.num_nodes} | " + " | ".join(cells) + " |", flush=True)
    print()
    for name in ("lattice by arity", "tree"):
        time_training(name, every[name].batch(32), arguments.repeat)


def policies(graph: Graph) -> dict[str, Policy]:
    """Every rule, and per encoding a table that has every state of the graph."""
    named = {rule: Policy(rule) for rule in ("depth", "agenda", "sufficient", "chains", "critical")}
    for encoding in ENCODINGS:
        named[f"E_{encoding}"] = cover(Policy("fsm", encoding, FALLBACK.get(encoding, "chains")), [graph])
    return named


def barbell() -> Graph:
    """The shape on which pairs of nearest same-type ancestors would be quadratic."""
    nodes: list[tuple[str, list[int]]] = []
    for _ in range(10):
        start = len(nodes)
        nodes += [("a", [])] * 1000 + [("b", list(range(start, start + 1000)))] + [("a", [start + 1000])] * 1000
    return Graph.build(["a", "b"], nodes)


def median_time(action: Callable[[], object], repeat: int) -> float:
    """Median processor seconds of a call, after one that loads what it needs."""
    action()
    times = []
    for _ in range(repeat):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def per_node(graph: Graph, action: Callable[[], object], repeat: int) -> str:
    """Nanoseconds per node."""
    return f"{median_time(action, repeat) / graph.num_nodes * 1e9:.0f}"


def time_training(name: str, graph: Graph, repeat: int) -> None:
    """1,000 trials of each encoding; the local search apart."""
    for encoding in ENCODINGS:
        trials = median_time(lambda e=encoding: train([graph], encoding=e, hyper=Hyper(refinements=0)), min(repeat, 3))
        whole = median_time(lambda e=encoding: train([graph], encoding=e), min(repeat, 3))
        print(
            f"{name}, {graph.num_nodes} nodes, {encoding}: {trials:.2f} s; with the local search {whole:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
