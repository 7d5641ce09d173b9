"""Training sentences per second without batching, by depth, by agenda and by the plan's policy.

    python benchmarks/training_table1.py [--data DIR] [--only NAME,..] [--mini-batches N] [--hidden-size N]

The form and the workloads of Table 1 of Neubig, Goldberg and Dyer, "On-the-fly Operation Batching in Dynamic
Computation Graphs", NIPS 2017: mini-batches of 64 sentences, a loss at every word, node or transition. A step is
`zero_grad`, forward (capture and scheduling in it), loss, backward and Adam. All ways take turns on each mini-batch,
each with a model and an optimiser of its own; figures are medians over mini-batches, in processor time on one thread.
No batching is eager PyTorch, the unmodified model file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edbc.errors import EdbcError
from edbc.plan.reader import read_plan
from edbc.run.modelfile import ModelFile
from edbc.tools.running import Bound, Setting, bind_plan
from edbc.tools.training import objective_of
from edbc.train.fit.objective import Objective
from edbc.train.fit.optimizers import optimizer_of

REPOSITORY = Path(__file__).resolve().parent.parent
WAYS = ("no batching", "depth", "agenda", "plan", "vertex")
"""`vertex`: by plan, instances turned into arrays when they are read (models with vertex functions)."""
PARTS = ("zero_grad", "forward", "loss", "backward", "Adam")
WORKLOADS = {
    "BiLSTM": ("bilstm_tagger", "wikiner_tags/first1200.txt"),
    "BiLSTM w/ char": ("bilstm_tagger_char", "wikiner_tags/first1200.txt"),
    "TreeLSTM": ("tree_lstm", "sst_trees/train-first4000.txt"),
    "Transition parsing": ("transition_parser", "ud_ewt/en_ewt-ud-train-every10th.conllu"),
}
Pair = tuple[Any, Any]
"""An instance, and what its loss compares its outputs with."""


@dataclass
class Contestant:
    """One way to run a mini-batch, with its own model; seconds of every step by part."""

    name: str
    net: Callable[[list[Any]], Sequence[Any]]
    model: nn.Module
    convert: Callable[[Any], Any] = lambda instance: instance
    steps: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = optimizer_of(self.model, "adam", 1e-3)

    def step(self, batch: list[Pair], objective: Objective) -> None:
        """One training step; converting instances is no part of it."""
        given = [self.convert(instance) for instance, _ in batch]
        clock, marks = time.process_time, [time.process_time()]
        self.optimizer.zero_grad(set_to_none=True)
        marks.append(clock())
        outputs = self.net(given)
        marks.append(clock())
        loss = objective.loss_of(outputs, [target for _, target in batch])
        marks.append(clock())
        loss.backward()
        marks.append(clock())
        self.optimizer.step()
        marks.append(clock())
        self.steps.append({part: b - a for part, a, b in zip(PARTS, marks, marks[1:], strict=False)})

    def seconds(self) -> float:
        """A step's median."""
        return statistics.median(sum(step.values()) for step in self.steps)

    def shares(self) -> dict[str, float]:
        """What part of all steps' time each part takes."""
        total = sum(sum(step.values()) for step in self.steps)
        return {part: sum(step[part] for step in self.steps) / total for part in PARTS}


def contestants(name: str, options: argparse.Namespace) -> tuple[ModelFile, dict[str, Any], str, list[Contestant]]:
    """The model file, its config, the plan's policy, and every way of running it."""
    path = REPOSITORY / "plans" / f"{name}.yaml"
    plan = read_plan(path)
    config = {"hidden_size": options.hidden_size, "vocab_size": options.vocab_size}

    def bind(policy: str | None) -> Bound:
        return bind_plan(path, plan, Setting(config=config, policy=policy), print)

    eager = bind(None)
    model = eager.net.model
    found = [Contestant(WAYS[0], lambda batch: [model(instance) for instance in batch], model)]
    for way in WAYS[1:4]:
        bound = bind(None if way == "plan" else way)
        found.append(Contestant(way, bound.net, bound.net.model))
    if hasattr(eager.file.module, "vertex_instance"):
        bound = bind(None)
        found.append(Contestant(WAYS[4], bound.net, bound.net.model, bound.file.vertex_instance(bound.config)))
    policy = f"{plan.policy.kind} {plan.policy.encoding or ''}".strip()
    return eager.file, eager.config, policy, found


def pairs_of(file: ModelFile, config: dict[str, Any], path: Path) -> tuple[Iterator[Pair], Objective]:
    """Instances with what their loss looks at. The taggers' instances hold no tags: they come from the file here."""
    instances = file.load([path], config)
    try:
        return ((instance, instance) for instance in instances), objective_of(file)
    except EdbcError:
        from _targets import cross_entropy

        return zip(instances, tags_of(path), strict=True), Objective(lambda o, tags: cross_entropy(o["tags"], tags))


def tags_of(path: Path) -> list[list[int]]:
    """The tags of every sentence, numbered."""
    lines = [[item.rpartition("|")[2] for item in line.split()] for line in path.read_text("utf-8").splitlines()]
    number = {tag: i for i, tag in enumerate(sorted({tag for line in lines for tag in line}))}
    return [[number[tag] for tag in line] for line in lines if line]


def measure(name: str, path: Path, options: argparse.Namespace) -> tuple[str, list[Contestant]]:
    """Every way's steps on the same mini-batches; batched ones have run the first before."""
    file, config, policy, found = contestants(name, options)
    pairs, objective = pairs_of(file, config, path)
    for number in range(options.mini_batches):
        batch = list(islice(pairs, options.batch_size))
        for contestant in found:
            if number == 0 and contestant.name != WAYS[0]:
                contestant.step(batch, objective)
                contestant.steps.clear()
            contestant.step(batch, objective)
    return policy, found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", default=default, help="folder with the shared data sets")
    parser.add_argument("--only", default="", help="workloads, separated by commas")
    parser.add_argument("--mini-batches", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| task | {' | '.join(WAYS)} | policy | plan / no batching | vertex / no batching |")
    print("|" + "---|" * (len(WAYS) + 4))
    shares = []
    for title, (name, file) in WORKLOADS.items():
        if options.only and title not in options.only.split(","):
            continue
        policy, found = measure(name, Path(options.data) / file, options)
        rates = {contestant.name: options.batch_size / contestant.seconds() for contestant in found}
        gains = [f"{rates[way] / rates[WAYS[0]]:.1f}" if way in rates else "" for way in WAYS[3:]]
        cells = [f"{rates[way]:,.0f}" if way in rates else "" for way in WAYS]
        print("| " + " | ".join([title, *cells, policy, *gains]) + " |", flush=True)
        shares += [(title, contestant) for contestant in found[3:]]
    print_shares(shares)


def print_shares(shares: list[tuple[str, Contestant]]) -> None:
    """Where steps by plan spend their time."""
    print(f"\n| task | way | {' | '.join(PARTS)} |")
    print("|" + "---|" * (len(PARTS) + 2))
    for title, contestant in shares:
        parts = [f"{100 * share:.0f} %" for share in contestant.shares().values()]
        print("| " + " | ".join([title, contestant.name, *parts]) + " |")


if __name__ == "__main__":
    main()
