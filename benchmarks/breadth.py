"""What threads, dtypes and streams gain, everything that is compared taking turns in one process.

    python benchmarks/breadth.py [threads] [dtypes] [stream] [--data DIR] [--model NAME] [--hidden N,..] [--batch N,..]
                                 [--rounds N] [--processor-time]

threads: executing a mini-batch with one thread of torch and its BLAS and with all. dtypes: the same weights in each
dtype, and the bare products beside them. stream: `net.stream` against a loop of `net(...)`, graphs made by running the
model's Python. Medians over rounds of real trees; `spread` is the distance between the quartiles as a part of the
median. With --processor-time the clock is the process's own, which tells dtypes apart on a busy machine; threads and
streams need wall time and a quiet one. Without --hidden and --batch: 512 and 256 for threads, 256 and 64 for dtypes,
256 and 32 for streams; with several, every combination.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net

REPOSITORY = Path(__file__).resolve().parent.parent
SIZES = {"threads": (512, 256), "dtypes": (256, 64), "stream": (256, 32)}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def seconds(function: Callable[[], Any]) -> float:
    """Of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def report(title: str, times: dict[str, list[float]]) -> None:
    """Medians, spreads, and how many times as fast as the first each is."""
    print(title)
    first = statistics.median(next(iter(times.values())))
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(
            f"  {name:24} {1e3 * middle:9.2f} ms  spread {100 * (high - low) / middle:3.0f} %  {first / middle:5.2f}x"
        )


def bound(options: argparse.Namespace, hidden: int, count: int, dtype: torch.dtype) -> tuple[Net, list[Any]]:
    """The model at a hidden size, and real instances."""
    file = import_model_file(REPOSITORY / "models" / f"{options.model}.py")
    config = file.config({"hidden_size": hidden, "vocab_size": 256})
    plan = read_plan(REPOSITORY / "plans" / f"{options.model}.yaml")
    model = file.build(config, 0).eval().to(dtype)
    data = Path(options.data) / "sst_trees" / "dev.txt"
    return Net(plan, model, rebind=True), list(file.load([str(data)], config, count))


def take_turns(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Every round runs each once."""
    for function in contestants.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, function in contestants.items():
            times[name].append(seconds(function))
    return times


def threads(options: argparse.Namespace, hidden: int, batch: int) -> None:
    """One thread against all of the machine's."""
    net, instances = bound(options, hidden, batch, torch.float32)
    every = os.cpu_count() or 1

    def run(count: int) -> None:
        torch.set_num_threads(count)
        net.execute(prepared)

    with torch.no_grad():
        prepared = net.prepare(instances)
        contestants = {f"{n} threads": lambda n=n: run(n) for n in (1, every)}
        report(f"{options.model}: executing, hidden {hidden}, batch {batch}", take_turns(contestants, options.rounds))
    torch.set_num_threads(1)


def dtypes(options: argparse.Namespace, hidden: int, batch: int) -> None:
    """Executing, then one product of the cell's shape."""
    contestants: dict[str, Callable[[], Any]] = {}
    products: dict[str, Callable[[], Any]] = {}
    for dtype in DTYPES:
        net, instances = bound(options, hidden, batch, dtype)
        name = str(dtype).removeprefix("torch.")
        prepared = net.prepare(instances)
        contestants[name] = lambda net=net, prepared=prepared: net.execute(prepared)
        a, b = torch.randn(256, 2 * hidden).to(dtype), torch.randn(2 * hidden, 5 * hidden).to(dtype)
        products[name] = lambda a=a, b=b: torch.mm(a, b)
    with torch.no_grad():
        report(f"{options.model}: executing, hidden {hidden}, batch {batch}", take_turns(contestants, options.rounds))
        report(f"one product, 256 x {2 * hidden} x {5 * hidden}", take_turns(products, options.rounds))


def stream(options: argparse.Namespace, hidden: int, batch: int) -> None:
    """A loop over mini-batches against a stream."""
    net, instances = bound(options, hidden, 8 * batch, torch.float32)
    starts = range(0, len(instances), batch)
    contestants = {
        "loop": lambda: [net(instances[i : i + batch]) for i in starts],
        "stream": lambda: list(net.stream(iter(instances), batch_size=batch)),
    }
    with torch.no_grad():
        report(f"{options.model}: 8 mini-batches, hidden {hidden}, batch {batch}",
               take_turns(contestants, options.rounds))  # fmt: skip


def numbers(text: str) -> list[int]:
    """`1,8,32`."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("parts", nargs="*", choices=[*SIZES, []], default=list(SIZES))
    parser.add_argument("--data", default=default, help="folder with the shared data sets")
    parser.add_argument("--model", default="tree_lstm", help="a model of the zoo on trees")
    parser.add_argument("--hidden", type=numbers, default=None)
    parser.add_argument("--batch", type=numbers, default=None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processor-time", action="store_true", help="other processes do not count")
    options = parser.parse_args()
    if options.processor_time:
        time.perf_counter = time.process_time  # type: ignore[assignment]
    torch.set_num_threads(1)
    for part in options.parts:
        hidden, batch = SIZES[part]
        for sizes in itertools.product(options.hidden or [hidden], options.batch or [batch]):
            globals()[part](options, *sizes)


if __name__ == "__main__":
    main()
