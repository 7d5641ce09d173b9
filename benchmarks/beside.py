"""Batches of different types side by side: what one stage of several ready batches would save, by measured costs.

    python benchmarks/beside.py [--batch 32] [--hidden 128] [PLAN ...]

The schedule of a mini-batch is walked once. A batch joins the stage before it when it reads none of the stage's batches
and a per-type cost (fixed + per row, measured in place) says that it pays: in two lanes, the longer one and a barrier
against one after the other. Told: the time in sequence, in stages, and with every batch's rows shared by two threads,
which is what the team of `edbc.run.cpu` does today; and what the decision takes per node.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numba
import numpy as np
import torch

from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.tools.compile.costs import measure_costs

ROOT = Path(__file__).resolve().parents[1]
PLANS = ("bilstm_tagger", "bilstm_tagger_char", "lstm_nmt", "tree_lstm", "tree_lstm_2type", "lattice_lstm", "mv_rnn")
BARRIER = 2.0
"""Microseconds for two threads to meet."""


@numba.njit
def stages_of(batch_type, batch_ptr, nodes, operand_ptr, operands, fixed, row, barrier):  # type: ignore[no-untyped-def]
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
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("plan                  batches  joined   sequence     stages  rows shared   ns per node")
    for name in options.plans:
        told(name, options)


def told(name: str, options: argparse.Namespace) -> None:
    """One plan's figures."""
    plan = read_plan(ROOT / "plans" / f"{name}.yaml")
    file = import_model_file(ROOT / "models" / f"{name}.py")
    config = file.config({**plan.model.config, "hidden_size": options.hidden})
    net = Net(plan, file.build(config, 0), rebind=True)
    instances = file.sample(options.batch, 1, config)
    costs = measure_costs(net, instances)
    prepared = net.prepare(instances, without=("share",))
    graph, schedule = prepared.capture.graph, prepared.schedule
    parts = [costs.get(t.name.split(" ")[0]) or max(costs.values(), key=lambda c: c.fixed_us) for t in graph.types]
    fixed, row = (np.array([float(getattr(c, key)) for c in parts]) for key in ("fixed_us", "row_us"))
    arguments = (schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands, fixed, row)
    sequence, staged, joined = stages_of(*arguments, BARRIER)
    started = time.process_time()
    for _ in range(100):
        stages_of(*arguments, BARRIER)
    each = (time.process_time() - started) * 1e9 / 100 / max(graph.num_nodes, 1)
    sizes = np.diff(schedule.batch_ptr)
    shared = float(np.sum(fixed[schedule.batch_type] + row[schedule.batch_type] * sizes / 2 + BARRIER))
    figures = f"{sequence:>10,.0f} {staged:>10,.0f} {min(shared, sequence):>12,.0f} us {each:>10.1f}"
    print(f"{name:<20}{schedule.num_batches:>9}{joined:>8} {figures}")


if __name__ == "__main__":
    main()
