"""Training curves of edbc and of eager PyTorch from the same seed, in one picture.

    python benchmarks/training_curve.py [--data DIR] [--limit N] [--epochs N] [--hidden-size N] [--output FILE.svg]

Both train the sentiment tree-LSTM in the same loop (edbc/train/fit/loop.py): the same weights at first, the same
mini-batches in the same order, the same optimiser; one runs mini-batches by the plan, the other instance by instance.
They take turns step by step. Times are processor time of steps (forward, loss, backward, optimiser) on one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from edbc.plan.reader import read_plan
from edbc.tools.report.curves import Line, Panel, picture
from edbc.tools.running import Bound, Setting, bind_plan
from edbc.tools.training import objective_of
from edbc.train.fit.loop import Data, Epoch, Loop, Run, Step
from edbc.train.fit.optimizers import optimizer_of

REPOSITORY = Path(__file__).resolve().parent.parent
PLAN = REPOSITORY / "plans" / "tree_lstm.yaml"
COLOURS = {"eager": ("#bcc6d1", 6.0), "edbc": ("#d9480f", 1.5)}
"""Eager lies below, wide, so that both show where they agree."""


@dataclass
class Side:
    """One of the two, with the losses of its steps."""

    name: str
    loop: Loop
    losses: list[float] = field(default_factory=list)

    def events(self, epochs: int) -> Iterator[Step | Epoch]:
        """The loop's events; losses are kept."""
        for event in self.loop.run(epochs):
            if isinstance(event, Step) and event.stage == "train":
                self.losses.append(event.loss)
            yield event

    @property
    def rate(self) -> float:
        """Training instances per second, the median over epochs."""
        return statistics.median(epoch.instances_per_second for epoch in self.loop.state.history)

    def line(self, points: list[tuple[float, float]]) -> Line:
        """A line of this side."""
        colour, width = COLOURS[self.name]
        return Line(self.name, points, colour, width)


def bind(options: argparse.Namespace) -> Bound:
    """The plan bound to a model with seeded weights."""
    config = {"hidden_size": options.hidden_size, "vocab_size": options.vocab_size}
    setting = Setting(config=config, seed=options.seed, dtype=options.dtype)
    return bind_plan(PLAN, read_plan(PLAN), setting, print)


def side(name: str, options: argparse.Namespace) -> Side:
    """One side with a model and data of its own."""
    bound = bind(options)
    model = bound.net.model
    net: Run = bound.net if name == "edbc" else lambda batch: [model(instance) for instance in batch]
    folder = Path(options.data) / "sst_trees"
    train = bound.file.load([folder / "train-first4000.txt"], bound.config, options.limit)
    dev = bound.file.load([folder / "dev.txt"], bound.config, options.dev_limit)
    optimizer = optimizer_of(model, "adam", options.lr)
    data = Data(list(train), list(dev))
    objective = objective_of(bound.file)
    return Side(name, Loop(net, model, optimizer, objective, data, options.batch_size, options.seed, time.process_time))


def draw(sides: list[Side]) -> str:
    """Loss of every mini-batch; loss and accuracy on dev after every epoch."""
    steps = [s.line(list(enumerate(s.losses, 1))) for s in sides]
    panels = [Panel("training loss", steps, "mini-batch")]
    for key in ("loss", "accuracy"):
        points = [[(float(e.epoch), (e.dev or {})[key]) for e in s.loop.state.history] for s in sides]
        panels.append(Panel(f"dev {key}", [s.line(p) for s, p in zip(sides, points, strict=True)]))
    return picture(panels)


def report(sides: list[Side]) -> None:
    """The figures of both, epoch by epoch, and how far apart they are."""
    print("| epoch | side | training loss | accuracy | dev loss | accuracy | root accuracy |")
    print("|---|---|---|---|---|---|---|")
    for epochs in zip(*(s.loop.state.history for s in sides), strict=True):
        for s, e in zip(sides, epochs, strict=True):
            dev = e.dev or {}
            figures = (e.train["loss"], e.train["accuracy"], dev["loss"], dev["accuracy"], dev["root accuracy"])
            print(f"| {e.epoch} | {s.name} | " + " | ".join(f"{figure:.4f}" for figure in figures) + " |")
    eager, ours = sides
    worst = max(abs(a - b) / abs(a) for a, b in zip(eager.losses, ours.losses, strict=True))
    print(f"largest relative difference of a mini-batch's loss: {worst:.1e}")
    for s in sides:
        print(f"{s.name}: {s.rate:,.0f} training instances per second")
    print(f"ratio: {ours.rate / eager.rate:.1f}")


def main() -> None:
    """Train both, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", default=default, help="folder with the shared data sets")
    parser.add_argument("--limit", type=int, default=640, help="training trees")
    parser.add_argument("--dev-limit", type=int, default=200, help="dev trees")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=5000)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--output", default=str(REPOSITORY / "docs" / "training-curve.svg"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides = [side(name, options) for name in COLOURS]
    next(side("edbc", options).loop.run(1))  # compiles kernels
    for _ in zip(*(s.events(options.epochs) for s in sides), strict=True):
        pass
    report(sides)
    Path(options.output).write_text(draw(sides), encoding="utf-8")


if __name__ == "__main__":
    main()
