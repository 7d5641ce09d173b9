"""Memory against time: training with `recompute=`, on long chains and on models of the zoo.

    python benchmarks/recompute.py [--data DIR] [--only NAME,..] [--steps 200,1000,5000] [--batch-sizes 8,32]
                                   [--segments none,auto] [--hidden 128] [--rounds 3]

A *chain* is the LSTM of models/lstm_lm.py of which the last state alone is a result, on so many words. Definitions as
in benchmarks/training.py: a step is construction, scheduling, forward pass, loss (mean square) and backward pass.
*Pools* is what the pools of values and of gradients hold after a step: what the mini-batch took for numbers. *Resident*
is how far a step raises the resident memory of a fresh process, in which the net has run on one word before: recording,
graph and results too. *Segments* is into how many the schedule was cut. The least processor time of rounds in which all
settings take turns in one process; read ratios.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from training import REPOSITORY, loss_of, peak_bytes, seconds
from zoo import INPUTS

from edbc.plan.reader import read_plan
from edbc.run.modelfile import ModelFile, import_model_file
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.session import Net

MODELS = ("lstm_lm", "tree_lstm", "lattice_lstm")
HEADER = "workload       steps batch recompute segments  pools MB resident MB        ms"
Recompute = int | str | None


class Job:
    """One workload: a model, a net and a mini-batch."""

    def __init__(self, name: str, steps: int, batch_size: int, options: argparse.Namespace):
        self.name, self.steps, self.batch_size = name, steps, batch_size
        file = import_model_file(REPOSITORY / "models" / f"{'lstm_lm' if name == 'chain' else name}.py")
        config = file.config({"vocab_size": 256, "hidden_size": options.hidden})
        self.model = file.build(config, 0).train()
        if name == "chain":
            self.model.__class__ = type("LastState", (type(self.model),), {"forward": _last_state})
            self.batch = [[(7 * i + j) % 256 for i in range(steps)] for j in range(batch_size)]
            self.warm = [self.batch[0][:1]]
        else:
            self.batch = instances_of(file, name, config, batch_size, options)
            self.warm = self.batch[:1]
        plan = read_plan(REPOSITORY / "plans" / f"{'lstm_lm' if name == 'chain' else name}.yaml")
        self.net = Net(plan, self.model, rebind=True)

    def step(self, batch: Sequence[Any]) -> None:
        """Forward, loss and backward."""
        loss_of(self.net(batch)).backward()
        self.model.zero_grad(set_to_none=True)

    def set(self, recompute: Recompute) -> None:
        """From now on."""
        self.net.in_mode().recompute = recompute

    def memory(self, recompute: Recompute) -> tuple[int, int, float]:
        """Segments, bytes of the pools and resident bytes; in a fresh process."""
        self.set(recompute)
        self.step(self.warm)
        resident = peak_bytes(lambda: self.step(self.batch))
        of_mode: Any = self.net.in_mode()
        pools = sum(b.numel() for pool in (of_mode.backend.pool, of_mode.trainer.pool) for b in pool._idle)
        captured = of_mode.mini_batch(self.batch)
        scheduled = of_mode.passes.span("schedule", "schedule")(MiniBatch(capture=captured))
        placement = of_mode.trainer.place(scheduled).placement
        return len(placement.borders) - 1, pools, resident

    def times(self, settings: Sequence[Recompute], rounds: int) -> list[float]:
        """Least processor seconds of a step per setting."""
        found: list[list[float]] = [[] for _ in settings]
        self.step(self.warm)
        for _ in range(rounds + 1):
            for number, recompute in enumerate(settings):
                self.set(recompute)
                gc.collect()
                found[number].append(seconds(lambda: self.step(self.batch)))
        return [min(times[1:]) for times in found]


def _last_state(self: Any, words: list[int]) -> torch.Tensor:
    h = c = self.zero
    for word in words:
        h, c = self.lstm(self.embedding.weight[word], h, c)
    return h


def instances_of(file: ModelFile, name: str, config: dict[str, Any], count: int,
                 options: argparse.Namespace) -> list[Any]:  # fmt: skip
    """Real data where there are any; as vertices where the model has them."""
    paths = [str(Path(options.data) / path) for path in INPUTS.get(name, [])]
    found = list(islice(file.load(paths, config), count)) if paths else list(file.sample(count, 1, config))
    return list(map(file.vertex_instance(config), found)) if hasattr(file.module, "vertex_instance") else found


def _send(pipe: Any, name: str, steps: int, batch_size: int, recompute: Recompute, options: Any) -> None:
    torch.set_num_threads(1)
    pipe.send(Job(name, steps, batch_size, options).memory(recompute))


def memory_of(*job: Any) -> tuple[int, int, float]:
    """`Job.memory` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(theirs, *job))
    process.start()
    found: tuple[int, int, float] = ours.recv()
    process.join()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", default=default, help="folder with the shared data sets")
    parser.add_argument("--only", default=",".join(("chain", *MODELS)), help="workloads, separated by commas")
    parser.add_argument("--steps", default="200,1000,5000", help="lengths of chains")
    parser.add_argument("--batch-sizes", default="8,32")
    parser.add_argument("--segments", default="none,auto", help="settings: none, auto or a number")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="0: memory only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings: list[Recompute] = [
        None if s == "none" else int(s) if s.isdecimal() else s for s in options.segments.split(",")
    ]
    print(HEADER)
    for name in options.only.split(","):
        for steps in map(int, options.steps.split(",")) if name == "chain" else [0]:
            for batch_size in map(int, options.batch_sizes.split(",")):
                rows = [memory_of(name, steps, batch_size, recompute, options) for recompute in settings]
                job = Job(name, steps, batch_size, options) if options.rounds else None
                times = job.times(settings, options.rounds) if job else [0.0] * len(settings)
                for recompute, (segments, pools, resident), taken in zip(settings, rows, times, strict=True):
                    figures = f"{segments:9}{pools / 1e6:10.1f}{resident / 1e6:12.1f}{taken * 1e3:10.1f}"
                    print(f"{name:14}{steps or '':>6}{batch_size:6}{recompute!s:>10}{figures}", flush=True)


if __name__ == "__main__":
    main()
