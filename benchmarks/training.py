"""Training: forward and backward of mini-batches on real data against eager PyTorch and against bare products.

    python benchmarks/training.py [--data DIR] [--only NAME,..] [--hidden 128,256] [--front-end vertex] [--rounds 5]
                                  [--mini-batches 3] [--vocabulary 256]

One row per model of the zoo at hidden size 128, the targets' models at 256 too, and one row apart with a vocabulary of
20,000, for which eager adds a dense gradient of the table per look-up. Real data where there are any, else the model's
own sample (`zoo.MADE_UP`).

Definitions. A *step* is the forward pass of a mini-batch of 32 instances, a loss and its backward pass; construction
and scheduling are part of it, the optimiser is not (its step, Adam with foreach, and `zero_grad` stand beside). The
loss is the mean square of each output, written as one would a loss over a mini-batch: one `torch.stack` of the
tensors of all instances (`loss_of`), the same for eager and edbc. A view of every tensor by itself,
`torch.cat([t.view(-1) ..])`, would cost both of them some 8 microseconds per tensor more. *Eager* is the same
with the model run instance by instance. The *floor* is, per batch and type, one product with all gates side by side,
then one for its operands' gradients, then per type one product over all nodes for the weights' gradients. They take
turns on each mini-batch; the clock is the process's own, and the least of the rounds counts for the net and the
floor, which are short. *MB* is how far a step raises the resident memory of a process of its own, whose net and
model have run on one instance before (what a pool keeps counts: a fresh process keeps nothing). Read ratios,
and compare within one run only.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from zoo import INPUTS, MADE_UP

from edbc.plan.reader import read_plan
from edbc.run.modelfile import ModelFile, import_model_file
from edbc.run.session import Net

REPOSITORY = Path(__file__).resolve().parent.parent
BATCH_SIZE = 32
TARGETS = ("tree_lstm", "lattice_lstm")
LARGE_VOCABULARY = 20_000
TITLES = (
    "eager ms",
    "edbc ms",
    "floor ms",
    "x eager",
    "x floor",
    "Adam ms",
    "eager MB",
    "edbc MB",
    "ratio",
)
HEADER = f"{'workload':21}{'hidden':>7}" + "".join(f"{title:>10}" for title in TITLES)


def loss_of(results: Sequence[dict[str, Any]]) -> torch.Tensor:
    """The mean square of every output, added up: what instances return is put together once per mini-batch, lists by
    one `torch.stack`, tensors by one `torch.cat`."""
    outputs: dict[str, list[torch.Tensor]] = {}
    together = {}
    for result in results:
        for name, output in result.items():
            is_list = isinstance(output, list)
            outputs.setdefault(name, []).extend(output if is_list else [output])
            together[name] = torch.stack if is_list else torch.cat
    return torch.stack([together[name](tensors).square().mean() for name, tensors in outputs.items()]).sum()


def seconds(function: Callable[[], Any]) -> float:
    """Processor time of a call."""
    started = time.process_time()
    function()
    return time.process_time() - started


def peak_bytes(function: Callable[[], Any]) -> float:
    """How far the resident memory of the process rises above where it is now, by the kernel's mark; Linux only."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    function()
    return _status("VmHWM") - before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field))) * 1024


class Floor:
    """The products of a step, see the module's docstring."""

    def __init__(self, net: Net, instances: Sequence[Any]):
        with torch.no_grad():
            prepared = net.prepare(instances, without=("parts", "share"))
            schedule = prepared.schedule
            self.calls: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
            total: dict[tuple[int, int, int], int] = {}
            backward = []
            for kind, count in zip(schedule.batch_type.tolist(), np.diff(schedule.batch_ptr).tolist(), strict=True):
                weights = getattr(getattr(net.kernel(kind), "program", None), "weights", ())
                if not weights:
                    continue
                rows, columns = max(w.rows for w in weights), sum(w.columns for w in weights)
                weight = torch.rand(rows, columns)
                self.calls.append((torch.rand(count, rows), weight, torch.empty(count, columns)))
                backward.append((torch.rand(count, columns), weight.t(), torch.empty(count, rows)))
                total[kind, rows, columns] = total.get((kind, rows, columns), 0) + count
            self.calls += backward[::-1]
            self.calls += [
                (torch.rand(count, rows).t(), torch.rand(count, columns), torch.empty(rows, columns))
                for (_, rows, columns), count in total.items()
            ]

    def run(self) -> None:
        """All of them."""
        with torch.no_grad():
            for a, b, c in self.calls:
                torch.mm(a, b, out=c)


class Contest:
    """One model at one hidden size."""

    def __init__(self, name: str, hidden: int, options: argparse.Namespace):
        self.name, self.hidden = name, hidden
        file: ModelFile = import_model_file(REPOSITORY / "models" / f"{name}.py")
        known = file.config({})
        wanted = {"vocab_size": options.vocabulary, "hidden_size": hidden}
        config = file.config({key: value for key, value in wanted.items() if key in known})
        instances = instances_of(file, name, config, options)
        self.model = file.build(config, 0).train()
        self.net = Net(read_plan(REPOSITORY / "plans" / f"{name}.yaml"), self.model, rebind=True)
        self.batches = [instances[i : i + BATCH_SIZE] for i in range(0, len(instances), BATCH_SIZE)]
        self.given = self.batches
        if options.front_end == "vertex" and hasattr(file.module, "vertex_instance"):
            convert = file.vertex_instance(config)
            self.given = [list(map(convert, batch)) for batch in self.batches]
        self.floors = [Floor(self.net, batch) for batch in self.given]
        self.optimiser = torch.optim.Adam(self.model.parameters(), foreach=True)

    def step(self, results: Callable[[], Sequence[Any]]) -> float:
        """A forward and a backward pass; gradients are dropped outside of the clock."""
        taken = seconds(lambda: loss_of(results()).backward())
        self.model.zero_grad(set_to_none=True)
        return taken

    def update(self, batch: Sequence[Any]) -> float:
        """The optimiser's step and zero_grad."""
        loss_of(self.net(batch)).backward()
        return seconds(lambda: (self.optimiser.step(), self.optimiser.zero_grad()))

    def row(self, rounds: int) -> str:
        """The line of the table."""
        eager: list[float] = []
        ours, floors = ([[] for _ in self.given] for _ in range(2))  # type: ignore[var-annotated]
        self.step(lambda: self.net(self.given[0]))
        gc.collect()
        for turn in range(rounds):
            for number, (batch, given) in enumerate(zip(self.batches, self.given, strict=True)):
                if turn == 0:
                    eager.append(self.step(lambda batch=batch: [self.model(x) for x in batch]))  # type: ignore[misc]
                ours[number].append(self.step(lambda given=given: self.net(given)))  # type: ignore[misc]
                floors[number].append(seconds(self.floors[number].run))
        adam = statistics.median(self.update(given) for given in self.given) * 1e3
        e = statistics.median(eager) * 1e3
        n, f = (statistics.median(map(min, times)) * 1e3 for times in (ours, floors))
        figures = f"{e:10.1f}{n:10.2f}{f:10.2f}{e / n:10.1f}{n / f:10.2f}{adam:10.2f}"
        return f"{self.name:21}{self.hidden:7}{figures}"

    def peak(self, who: str) -> float:
        """Megabytes that a step of `eager` or of the net takes."""
        run = self.net if who == "edbc" else lambda batch: [self.model(x) for x in batch]
        batches = self.given if who == "edbc" else self.batches
        self.step(lambda: run(batches[0][:1]))
        return peak_bytes(lambda: self.step(lambda: run(batches[0]))) / 1e6


def instances_of(file: ModelFile, name: str, config: dict[str, Any], options: argparse.Namespace) -> list[Any]:
    """As many as the mini-batches take."""
    limit = BATCH_SIZE * options.mini_batches
    if name in MADE_UP:
        return list(file.sample(limit, 1, config))
    paths = [str(Path(options.data) / path) for path in INPUTS[name]]
    return list(islice(file.load(paths, config), limit))


def peaks(name: str, hidden: int, options: argparse.Namespace) -> str:
    """Memory of eager and of the net, each in a process of its own, and their ratio."""
    context = multiprocessing.get_context("spawn")
    found = []
    for who in ("eager", "edbc"):
        ours, theirs = context.Pipe()
        process = context.Process(target=_send_peak, args=(theirs, who, name, hidden, options))
        process.start()
        found.append(ours.recv())
        process.join()
    return "".join(f"{megabytes:10.1f}" for megabytes in found) + f"{found[1] / found[0]:10.2f}"


def _send_peak(pipe: Any, who: str, name: str, hidden: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    pipe.send(Contest(name, hidden, options).peak(who))


def print_row(name: str, hidden: int, options: argparse.Namespace) -> None:
    """Measure a model and print its line."""
    memory = peaks(name, hidden, options)
    print(Contest(name, hidden, options).row(options.rounds) + memory, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", default=default, help="folder with the shared data sets")
    parser.add_argument("--only", default="", help="models, separated by commas")
    parser.add_argument("--hidden", default="", help="hidden sizes, in place of those of the table")
    parser.add_argument("--front-end", default="vertex", choices=["vertex", "record"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mini-batches", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = options.only.split(",") if options.only else sorted((*INPUTS, *MADE_UP))
    print(HEADER)
    for name in chosen:
        for hidden in map(int, (options.hidden or ("128,256" if name in TARGETS else "128")).split(",")):
            print_row(name, hidden, options)
    if not options.only:
        options.vocabulary = LARGE_VOCABULARY
        print(f"\nA vocabulary of {LARGE_VOCABULARY:,}:\n{HEADER}")
        print_row(TARGETS[0], 128, options)


if __name__ == "__main__":
    main()
