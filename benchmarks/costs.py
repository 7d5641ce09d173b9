"""What choosing schedules by cost instead of count gains: batches per type, and time through the runtime.

    python benchmarks/costs.py --data DIR [--models lattice_lstm ..] [--hidden 64 128] [--sizes 8 32] [--rounds 15]

Per model and hidden size a table over `rank` is compiled twice from made-up instances: counting batches, and with
`--profile`. Both plans, bound to the same weights, then execute the same unseen mini-batches of real data by turns, in
one process on one thread, and so does the first with the fixed rule `critical`. Per mini-batch the median of processor
time counts (other processes do not); figures are sums over the mini-batches. `fixed` is what the cost table says of
their batches, the part of the time that a schedule can change.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edbc.run.modelfile import import_model_file
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.session import Net
from edbc.tools.compile.compiler import compile_model

REPOSITORY = Path(__file__).resolve().parent.parent
LATTICES, TREES = "zh_lattice_edbatch/train.txt", "gum_const_trees/gum-const-train.txt"
DATA = {"lattice_lstm": LATTICES, "lattice_gru": LATTICES, "child_sum_tree_lstm": TREES}
FIRST_UNSEEN, MINI_BATCHES = 512, 8


@dataclass(frozen=True)
class Contender:
    """A compiled plan bound to its model."""

    name: str
    net: Net

    def types(self, mini_batches: Sequence[MiniBatch]) -> dict[str, int]:
        """Batches of every type of the plan in sum."""
        schedules = [prepared.whole[1].batch_type for prepared in mini_batches]
        counts = np.bincount(np.concatenate(schedules), minlength=len(self.net.plan.types))
        return {kind.name: int(counts[i]) for i, kind in enumerate(self.net.plan.types)}


def main() -> None:
    """Parse, measure, print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["lattice_lstm", "lattice_gru"])
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | hidden | batch | policy, chosen by | batches | by type | fixed, ms | execution, ms | against count |"
    )
    print("|---" * 9 + "|")
    for model in arguments.models:
        for hidden in arguments.hidden:
            report(model, hidden, arguments)


def report(model: str, hidden: int, arguments: argparse.Namespace) -> None:
    """The rows of one model at one hidden size."""
    path = REPOSITORY / "models" / f"{model}.py"
    settings: dict[str, Any] = {"hidden_size": hidden, "vocab_size": 256}
    by_count, by_cost = (
        compile_model(path, settings=settings, encoding="rank", profile=profile) for profile in (False, True)
    )
    weights, costs = by_count.captured.model, by_cost.plan.costs
    contenders = [
        Contender("rank, count", Net(by_count.plan, weights)),
        Contender("rank, cost", Net(by_cost.plan, weights)),
        Contender("critical, count", Net(by_count.plan, weights, policy="critical")),
        Contender("critical, cost", Net(by_cost.plan, weights, policy="critical")),
    ]
    file = import_model_file(path)
    config = file.config(settings)
    for size in arguments.sizes:
        instances = list(file.load([arguments.data / DATA[model]], config, FIRST_UNSEEN + MINI_BATCHES * size))
        parts = [instances[i : i + size] for i in range(FIRST_UNSEEN, len(instances), size)]
        prepared = [[contender.net.prepare(part) for part in parts] for contender in contenders]
        seconds = taking_turns(contenders, prepared, arguments.rounds)
        for contender, mini_batches, took in zip(contenders, prepared, seconds, strict=True):
            types = contender.types(mini_batches)
            fixed = sum(costs[name].fixed_us * count for name, count in types.items())
            print(
                f"| {model} | {hidden} | {size} | {contender.name} | {sum(types.values())} "
                f"| {', '.join(f'{n} {c}' for n, c in types.items())} "
                f"| {fixed / 1e3:.2f} | {took * 1e3:.2f} | {took / seconds[0]:.3f} |",
                flush=True,
            )


def taking_turns(
    contenders: Sequence[Contender], prepared: Sequence[Sequence[MiniBatch]], rounds: int
) -> tuple[float, ...]:
    """Processor seconds of execution per contender: medians over the rounds, summed over the mini-batches."""
    total = [0.0] * len(contenders)
    for column in zip(*prepared, strict=True):
        times: list[list[float]] = [[] for _ in contenders]
        for _ in range(rounds + 1):
            for contender, mini_batch, taken in zip(contenders, column, times, strict=True):
                started = time.process_time()
                contender.net.execute(mini_batch)
                taken.append(time.process_time() - started)
        total = [sofar + statistics.median(taken[1:]) for sofar, taken in zip(total, times, strict=True)]
    return tuple(total)


if __name__ == "__main__":
    main()
