"""Batches of different types side by side (`edbc.schedule.waves.stages`): what costs promise, and what stages take.

    python benchmarks/beside.py [--batch 32] [--hidden 128] [--rounds 200] [PLAN ...]

Per plan, with costs per type (fixed + per row) measured in place on one thread. By these costs, in microseconds: one
batch after the other; the policy's order, where a batch joins the stage before it when it reads none of the stage's
batches and that pays in two lanes; and by waves, which put batches of several types into one step. What deciding takes
per node, in nanoseconds, by the policy's order, and as it is done: with the scheduling of waves where the mini-batch is
large enough for them. Measured with two threads, in
milliseconds: the mini-batch with every batch's rows shared, and in stages, taking turns; a team that was disturbed is
given another chance each time. `-` where costs are against stages.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from edbc.plan.reader import read_plan
from edbc.run.cpu.team import TEAM
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.schedule.waves.stages import MEETING, Beside, microseconds
from edbc.schedule.waves.waverun import run_due
from edbc.tools.compile.costs import measure_costs

ROOT = Path(__file__).resolve().parents[1]
PLANS = ("bilstm_tagger", "bilstm_tagger_char", "lstm_nmt", "tree_lstm", "tree_lstm_2type", "lattice_lstm", "mv_rnn")


@numba.njit
def joined_stages(batch_type, batch_ptr, nodes, operand_ptr, operands, fixed, row, barrier):  # type: ignore[no-untyped-def]
    """Microseconds in sequence and in stages, and batches that joined one. O(nodes and operands)."""
    batch_of = np.empty(len(nodes), np.int32)
    sequence, staged, joined = 0.0, 0.0, 0
    first, one, other = 0, 0.0, 0.0
    for batch in range(len(batch_type)):
        latest = -1
        for i in range(batch_ptr[batch], batch_ptr[batch + 1]):
            batch_of[nodes[i]] = batch
            for at in range(operand_ptr[nodes[i]], operand_ptr[nodes[i] + 1]):
                if operands[at] >= 0:
                    latest = max(latest, batch_of[operands[at]])
        cost = fixed[batch_type[batch]] + row[batch_type[batch]] * (batch_ptr[batch + 1] - batch_ptr[batch])
        sequence += cost
        low, high = min(one, other) + cost, max(one, other)
        paid = barrier if one > 0 and other > 0 else 0.0
        if batch > 0 and latest < first and max(low, high) + barrier < high + paid + cost:
            one, other = high, low
            joined += 1
        else:
            staged += high + paid
            first, one, other = batch, cost, 0.0
    return sequence, staged + max(one, other) + (barrier if one > 0 and other > 0 else 0.0), joined


def main() -> None:
    """A line per plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", default=PLANS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    print(
        "plan                batches  in sequence     joined      us  by waves   to decide:   waves    shared    staged"
    )
    for name in options.plans:
        told(name, options)


def told(name: str, options: argparse.Namespace) -> None:
    """One plan's figures."""
    torch.set_num_threads(1)
    plan = read_plan(ROOT / "plans" / f"{name}.yaml")
    file = import_model_file(ROOT / "models" / f"{name}.py")
    config = file.config({**plan.model.config, "hidden_size": options.hidden})
    model = file.build(config, 0)
    net = Net(plan, model, rebind=True)
    instances = file.sample(options.batch, 1, config)
    costs = measure_costs(net, instances)
    prepared = net.prepare(instances, without=("share",))
    graph, schedule = prepared.capture.graph, prepared.schedule
    beside = Beside({t: (c.fixed_us, c.row_us) for t, c in costs.items()})
    fixed, row = beside.arrays(graph.types)
    arguments = (schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands, fixed, row)
    sequence, joined_us, joined = joined_stages(*arguments, MEETING)
    waves = run_due(graph, np.ones(graph.num_types, np.int64))
    assert waves is not None
    by_waves = microseconds(waves.batch_type, waves.batch_ptr, waves.step, fixed, row, 2)
    each = nanoseconds(lambda: joined_stages(*arguments, MEETING)) / max(graph.num_nodes, 1)
    each_wave = nanoseconds(lambda: beside.chosen(graph, schedule, 2)) / max(graph.num_nodes, 1)
    figures = f"{sequence:>13,.0f} {joined:>11} {joined_us:>7,.0f} {by_waves:>9,.0f}"
    torch.set_num_threads(2)
    shared, staged = measured([net, Net(replace(plan, costs=costs), model, rebind=True)], instances, options.rounds)
    print(f"{name:<20}{schedule.num_batches:>7} {figures} {each:>20.1f} {each_wave:>6.1f} {shared:>9} {staged:>9}")


def measured(nets: list[Net], instances: list[Any], rounds: int) -> list[str]:
    """Median milliseconds of executing by a policy and in stages."""
    prepared = [net.prepare(instances) for net in nets]
    if not prepared[1].whole[1].staged:
        return ["-", "-"]
    times: list[list[float]] = [[] for _ in nets]
    for _ in range(rounds):
        for net, batch, found in zip(nets, prepared, times, strict=True):
            TEAM._alone = 0  # helpers come again, however late one was
            started = time.perf_counter()
            net.execute(batch)
            found.append(1e3 * (time.perf_counter() - started))
    return [f"{statistics.median(found):.2f}" for found in times]


def nanoseconds(run: Callable[[], object]) -> float:
    """Of processor time, the mean of a hundred calls."""
    run()
    started = time.process_time()
    for _ in range(100):
        run()
    return (time.process_time() - started) * 1e9 / 100


if __name__ == "__main__":
    main()
