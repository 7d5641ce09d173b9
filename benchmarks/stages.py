"""Where the host's time of a mini-batch goes: the stages of construction and scheduling, through vertex functions.

    python benchmarks/stages.py [--data DIR] [--hidden 128] [--batch 32] [--rounds 25] [MODEL ...]

Mini-batches of real data run one after the other under the committed plans, so every stage finds the caches as
execution has left them: a stage that is called in a loop of its own takes a half of that. Times are the stage's own,
medians over mini-batches and rounds, in microseconds of processor time; `share` is that of construction and scheduling
in the total. One core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from end_to_end import REPOSITORY, WORKLOADS, Workload, inputs_of, parse

import edbc.capture.vertex.vertexloops
import edbc.capture.vertex.vertexprogram
import edbc.run.session
from edbc.capture.code.shadow import ModelView
from edbc.capture.vertex.vertexprogram import VertexProgram
from edbc.plan.reader import read_plan
from edbc.run.cpu.cpubackend import CpuBackend
from edbc.run.modelfile import import_model_file
from edbc.run.passes.eagerparts import Splitter
from edbc.run.session import Net

DEFAULT = "tree_lstm tree_gru tree_lstm_2type lattice_lstm lattice_gru".split()
STAGES: dict[str, tuple[Any, str]] = {
    "unchanged": (ModelView, "require_unchanged"),
    "native": (edbc.capture.vertex.vertexloops, "join"),
    "capture": (edbc.capture.vertex.vertexprogram, "capture_of"),
    "join": (VertexProgram, "join"),
    "schedule": (Net, "schedule"),
    "split": (Splitter, "split"),
    "place": (edbc.run.session, "place"),
    "demand": (CpuBackend, "demand"),
    "prepare": (Net, "prepare"),
    "execute": (Net, "execute"),
}
"""By name, what a stage calls. Its time is its own: `join` and `prepare` are what is left beside the stages in them."""


class Watch:
    """The stages' own times since `take` was last called."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(STAGES, 0.0)
        self._inner = [0.0]
        for name, (owner, attribute) in STAGES.items():
            setattr(owner, attribute, self._timed(name, getattr(owner, attribute)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = time.process_time() - started
                self.spent[name] += elapsed - self._inner.pop()
                self._inner[-1] += elapsed

        return run

    def take(self) -> dict[str, float]:
        """Seconds by stage; starts again."""
        taken, self.spent = self.spent, dict.fromkeys(STAGES, 0.0)
        return taken


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=parse([]).data, help="folder with the shared data sets")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("models", nargs="*", default=DEFAULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    watch = Watch()
    print(f"| model | {' | '.join(STAGES)} | share |")
    print("|---" * (len(STAGES) + 2) + "|")
    for workload in WORKLOADS:
        if workload.model in options.models:
            print(row(workload, watch, options), flush=True)


def row(workload: Workload, watch: Watch, options: argparse.Namespace) -> str:
    """One model's line."""
    net, batches = loaded(workload, options)
    samples = []
    with torch.no_grad():
        for turn in range(options.rounds + 1):
            for batch in batches:
                watch.take()
                net.run(batch)
                if turn:
                    samples.append(watch.take())
    host = [1 - sample["execute"] / sum(sample.values()) for sample in samples]
    medians = (1e6 * statistics.median(sample[stage] for sample in samples) for stage in STAGES)
    return (
        f"| {workload.model} | {' | '.join(f'{median:,.0f}' for median in medians)} | {statistics.median(host):.1%} |"
    )


def loaded(workload: Workload, options: argparse.Namespace) -> tuple[Net, list[list[Any]]]:
    """The net of a workload's plan, and four mini-batches of instances as arrays."""
    plan, file = read_plan(REPOSITORY / "plans" / f"{workload.model}.yaml"), import_model_file(workload.path)
    settings = {"vocab_size": 256, "hidden_size": options.hidden, **dict(workload.settings)}
    config = file.config({**plan.model.config, **settings})
    count, inputs = 4 * options.batch, inputs_of(workload, Path(options.data))
    instances = list(file.load(inputs, config, count)) if inputs else file.sample(count, 1, config)
    vertices = list(map(file.vertex_instance(config), instances))
    net = Net(plan, file.build(config, plan.model.seed), rebind=True)
    return net, [vertices[i : i + options.batch] for i in range(0, len(vertices), options.batch)]


if __name__ == "__main__":
    main()
