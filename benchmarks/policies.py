"""Batches per policy on real mini-batches: what docs/policies.md reports.

    python benchmarks/policies.py --data DIR [--sizes 8 32 64 256] [--workloads 'tree' ...]

Per workload: policies are trained on the first 256 instances (7 mini-batches of 32, one of all) and selected on the
next 256 at batch sizes 1, 8, 64 and 256; then every policy runs on 16 consecutive mini-batches of each size from
instance 512 on, or as many as the file has. Figures are sums of batches over those; `/beam` is relative to a beam of
width 64. Tables run alone, but for `selected`, which runs as it does in production: beside its fallback rule, the
shorter one taken. `chains` and `critical` are the fixed rules over the bits that the encodings `critical` and `rank`
hold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from _graphs import Workload, workloads

from edbc.base.graph import Graph
from edbc.schedule.learn.search import beam
from edbc.schedule.learn.train import TrainingResult, select, train
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import lower_bound, run

RULES = ("depth", "agenda", "sufficient", "chains", "critical")
LEARNED = ("base", "max", "sort", "phase", "critical", "rank")
TRAINING, FIRST_UNSEEN = 256, 512


def main() -> None:
    """Parse, measure, print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 32, 64, 256])
    parser.add_argument("--workloads", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    for name, workload in workloads(arguments.data).items():
        if not arguments.workloads or name in arguments.workloads:
            report(name, workload, arguments.sizes, arguments.seeds)


def report(name: str, workload: Workload, sizes: Sequence[int], seeds: Sequence[int]) -> None:
    """One workload's tables."""
    training = [*(workload.batch(32, i) for i in range(TRAINING // 32 - 1)), workload.batch(TRAINING)]
    validation = validation_graphs(workload)
    train(training[:1], trials=50)  # loads the kernels
    policies: dict[str, Policy] = {rule: Policy(rule) for rule in RULES}
    print(f"\n## {name}\n")
    for encoding in LEARNED:
        start = time.process_time()
        policy = train(training, encoding=encoding, validation=validation).policy
        policies[f"table over {encoding}"] = policy
        print(f"- {encoding}: trained in {time.process_time() - start:.2f} s, {len(policy.table)} states")
    chosen = select(training, validation, seeds)
    policies["selected"] = chosen.policy
    policies["selected, alone"] = chosen.policy
    policies["selected, random fallback, alone"] = with_random_fallback(chosen)
    print(f"- selected: {chosen.record['encoding']}, seed {chosen.record['seed']}\n")
    print("| policy | " + " | ".join(f"{size}: batches | /beam | worst | unseen" for size in sizes) + " |")
    print("|---" * (1 + 4 * len(sizes)) + "|")
    columns = [measured_columns(workload, size, policies) for size in sizes]
    for row in columns[0]:
        print(f"| {row} | " + " | ".join(column[row] for column in columns) + " |", flush=True)


def validation_graphs(workload: Workload) -> list[Graph]:
    """Mini-batches of 1, 8, 64 and 256 from the second 256 instances."""
    numbers = {1: range(256, 264), 8: range(33, 41), 64: range(5, 8), 256: range(1, 2)}
    return [workload.batch(size, i) for size, part in numbers.items() for i in part]


def with_random_fallback(result: TrainingResult) -> Policy:
    """The same table, an arbitrary ready type where it has no state; a rule becomes `random` altogether."""
    policy = result.policy
    if policy.kind != "fsm":
        return Policy("random")
    return replace(policy, fallback="random", beside=None)


def measured_columns(workload: Workload, size: int, policies: dict[str, Policy]) -> dict[str, str]:
    """Per policy, its cells of one batch size."""
    last = min(16, (len(workload.instances) - FIRST_UNSEEN) // size)
    graphs = [workload.batch(size, FIRST_UNSEEN // size + i) for i in range(last)]
    bounds, best = [lower_bound(graph) for graph in graphs], [beam(graph).num_batches for graph in graphs]
    cells = {
        "lower bound": f"{sum(bounds)} | {sum(bounds) / sum(best):.3f} | | ",
        "beam, width 64": f"{sum(best)} | 1.000 | | {last} mini-batches",
    }
    for name, policy in policies.items():
        schedules = [run(graph, policy, compare=name == "selected") for graph in graphs]
        batches = [schedule.num_batches for schedule in schedules]
        unseen = sum(schedule.unseen_states for schedule in schedules) / sum(batches)
        worst = max(count / bound for count, bound in zip(batches, best, strict=True))
        share = f"{unseen:.2%}" if policy.kind == "fsm" else ""
        cells[name] = f"{sum(batches)} | {sum(batches) / sum(best):.3f} | {worst:.2f} | {share}"
    return cells


if __name__ == "__main__":
    main()
