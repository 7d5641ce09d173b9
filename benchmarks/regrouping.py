"""The same instances in mini-batches of 1, 2, 4 .. 256: the cost per node, everything included.

    python benchmarks/regrouping.py [--data DIR] [--instances 256] [--rounds 5] [--hidden 128] [--only NAME,..]

Larger mini-batches should cost less per node, or the same: `step` is the change against the line above, which may rise
by 5 % at most. Medians of processor time over rounds in which all sizes take turns; one thread; by both front ends.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net, Stats

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = {
    "tree_lstm": "sst_trees/dev.txt",
    "tree_lstm_2type": "sst_trees/dev.txt",
    "lattice_lstm": "zh_lattice_edbatch/train.txt",
    "bilstm_tagger": "wikiner_tags/first1200.txt",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data")))
    parser.add_argument("--instances", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--only", default="tree_lstm,lattice_lstm")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only.split(","):
        net, front_ends = prepared(name, Path(options.data), options.instances, options.hidden)
        for front_end, instances in front_ends.items():
            for line in lines(net, instances, options.rounds):
                print(f"{name:16} {front_end:6} {line}", flush=True)


def prepared(name: str, data: Path, count: int, hidden: int) -> tuple[Net, dict[str, list[Any]]]:
    """The zoo's plan at the wanted size, and its instances by front end."""
    plan = read_plan(REPOSITORY / "plans" / f"{name}.yaml")
    file = import_model_file(REPOSITORY / "models" / f"{name}.py")
    config = file.config({**plan.model.config, "hidden_size": hidden, "vocab_size": 256})
    instances = list(file.load([str(data / DATA[name])], config, count))
    net = Net(plan, file.build(config, 0), rebind=True)
    return net, {"record": instances, "vertex": list(map(file.vertex_instance(config), instances))}


def lines(net: Net, instances: list[Any], rounds: int) -> Iterator[str]:
    """One per size of mini-batch."""
    sizes = [1 << k for k in range(len(instances).bit_length()) if 1 << k <= len(instances)]
    groups = {size: [instances[i : i + size] for i in range(0, len(instances), size)] for size in sizes}
    for size in sizes:  # warm up
        for group in groups[size][:2]:
            net(group)
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    stats = {size: Stats() for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            stats[size] = Stats()
            started = time.process_time()
            for group in groups[size]:
                net.run(group, stats[size])
            seconds[size].append(time.process_time() - started)
    before = None
    for size in sizes:
        per_node = 1e6 * statistics.median(seconds[size]) / stats[size].nodes
        step = "" if before is None else f"{100 * (per_node / before - 1):+6.1f} %"
        before = per_node
        yield f"{size:4} {stats[size].batches:6,} batches {per_node:7.3f} us per node {step}"


if __name__ == "__main__":
    main()
