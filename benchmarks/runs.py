"""Operand rows that need no gather, with and without ordering the nodes inside batches, on the nine workloads.

    python benchmarks/runs.py [--data DIR] [--batch 32] [--hidden 128]

ED-Batch lays out memory inside cells and gathers between them. Here the order of nodes inside batches is chosen so that
operands are contiguous runs (`edbc.schedule.order`); *without* is the order in which the front end made the nodes.
*states* are operands that some node computed; *all* counts look-ups and constants too, whose rows stand in the order of
their reading. Under either order a run of rows is read where it is and every other row is gathered. `order us` is the
time of ordering a mini-batch, the median of 15.

The graphs are those of the first mini-batch of the real files (`benchmarks/zoo.py` names them), schedules by the
committed plans; no cell is split.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np
from zoo import INPUTS

from edbc.graph import Graph
from edbc.modelfile import import_model_file
from edbc.plan.reader import read_plan
from edbc.runtime.placement import Placement, place
from edbc.runtime.session import Net
from edbc.schedule.order import order_nodes
from edbc.schedule.run import run
from edbc.schedule.schedule import Schedule

WORKLOADS = ("tree_lstm", "tree_gru", "mv_rnn", "tree_lstm_2type", "lattice_lstm", "lattice_gru", "bilstm_tagger",
             "bilstm_tagger_char", "lstm_nmt")  # fmt: skip


def in_place(graph: Graph, schedule: Schedule, placement: Placement) -> tuple[int, int, int, int]:
    """Operand rows of states and those of them in contiguous runs, then the same of all operands."""
    states = state_runs = total = total_runs = 0
    for b, (kind, _) in enumerate(schedule.batches()):
        items, at = int(placement.items[b]), int(placement.start[b])
        for k, value_class in enumerate(graph.types[kind].operands):
            rows = placement.rows[at + k * items : at + (k + 1) * items]
            computed = int((rows >= placement.class_externals[placement.class_index[value_class]]).sum())
            is_run = placement.run[b, k] >= 0
            states, total = states + computed, total + items
            state_runs, total_runs = state_runs + is_run * computed, total_runs + is_run * items
    return states, state_runs, total, total_runs


def measure(name: str, options: argparse.Namespace) -> str:
    """A row of the table."""
    plan = read_plan(Path(options.plans) / f"{name}.yaml")
    file = import_model_file(Path(options.models) / f"{name}.py")
    config = file.config({**plan.model.config, "hidden_size": options.hidden, "vocab_size": 256})
    inputs = [Path(options.data) / part for part in INPUTS[name]]
    net = Net(plan, file.build(config, plan.model.seed), rebind=True)
    captured = net.capture(list(file.load(inputs, config, options.batch)))
    plain = run(captured.graph, net.policy)
    ordered = order_nodes(captured.graph, plain)
    figures = [in_place(captured.graph, s, place(captured.graph, s, captured.result_node)) for s in (plain, ordered)]
    (states, runs, total, total_runs), (_, better, _, total_better) = figures
    times = []
    for _ in range(15):
        started = time.perf_counter()
        order_nodes(captured.graph, plain)
        times.append(1e6 * (time.perf_counter() - started))
    shares = [f"{100 * part / max(whole, 1):.1f} %" for part, whole in
              ((runs, states), (better, states), (total_runs, total), (total_better, total))]  # fmt: skip
    columns = [name, f"{captured.graph.num_nodes:,}", f"{states:,}", *shares, f"{statistics.median(times):.0f}"]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("EDBC_DATA", "../shared/data"))
    parser.add_argument("--plans", default="plans")
    parser.add_argument("--models", default="models")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()
    np.seterr(all="raise")
    print("| workload | nodes | state rows | states, without | with order | all, without | with order | order us |")
    print("|---" * 8 + "|")
    for name in WORKLOADS:
        print(measure(name, options), flush=True)


if __name__ == "__main__":
    main()
