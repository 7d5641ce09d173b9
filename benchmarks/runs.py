"""Operand rows that need no gather, with and without ordering the nodes inside batches, on the nine workloads; and what
that gains.

    python benchmarks/runs.py [--data DIR] [--batch 32] [--hidden 128] [--rounds 25]

ED-Batch lays out memory inside cells and gathers between them. Here the order of nodes inside batches is chosen so that
operands are contiguous runs (`edbc.schedule.order`); *without* is the order in which the front end made the nodes.
*states* are operands that some node computed; *all* counts look-ups and constants too, whose rows stand in the order of
their reading. Under either order a run of rows is read where it is and every other row is gathered. The graphs are
those of the first mini-batch of the real files (`benchmarks/zoo.py` names them), schedules by the committed plans; no
cell is split.

`ms` is the time of a mini-batch through vertex functions, from arrays to outputs, cells split where that pays: medians
over four mini-batches and the rounds, both orders in turn, one core. The runtime orders none.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from zoo import INPUTS

from edbc.base.graph import Graph
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.passes.placement import Placement, place
from edbc.run.session import Net
from edbc.schedule.order import order_nodes
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import run

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
    instances = list(file.load(inputs, config, 4 * options.batch))
    captured = net.mini_batch(instances[: options.batch])
    plain = run(captured.graph, net.policy)
    ordered = order_nodes(captured.graph, plain)
    figures = [in_place(captured.graph, s, place(captured.graph, s, captured.result_node)) for s in (plain, ordered)]
    (states, runs, total, total_runs), (_, better, _, total_better) = figures
    vertices = list(map(file.vertex_instance(config), instances))
    times = timed(
        net, [vertices[i : i + options.batch] for i in range(0, len(vertices), options.batch)], options.rounds
    )
    shares = [f"{100 * part / max(whole, 1):.1f} %" for part, whole in
              ((runs, states), (better, states), (total_runs, total), (total_better, total))]  # fmt: skip
    columns = [name, f"{captured.graph.num_nodes:,}", f"{states:,}", *shares, *(f"{1e3 * t:.2f}" for t in times)]
    return f"| {' | '.join(columns)} |"


def timed(net: Net, batches: list[list[Any]], rounds: int) -> tuple[float, float]:
    """Seconds of a mini-batch as nodes come, and with them in order."""
    found: dict[bool, list[float]] = {False: [], True: []}
    with torch.no_grad():
        for turn in range(rounds + 1):
            for in_order, seconds in found.items():
                for batch in batches:
                    started = time.perf_counter()
                    captured = net.mini_batch(batch)
                    schedule = run(captured.graph, net.policy)
                    schedule = order_nodes(captured.graph, schedule) if in_order else schedule
                    net.passes.span("parts", "execute")(MiniBatch(capture=captured, schedule=schedule))
                    seconds += [time.perf_counter() - started] * (turn > 0)
    without, ordered = (statistics.median(seconds) for seconds in found.values())
    return without, ordered


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("EDBC_DATA", "../shared/data"))
    parser.add_argument("--plans", default="plans")
    parser.add_argument("--models", default="models")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    np.seterr(all="raise")
    torch.set_num_threads(1)
    columns = (
        "workload | nodes | state rows | states, without | with order | all, without | with order | ms, without | with"
    )
    print(f"| {columns} |\n{'|---' * 9}|")
    for name in WORKLOADS:
        print(measure(name, options), flush=True)


if __name__ == "__main__":
    main()
