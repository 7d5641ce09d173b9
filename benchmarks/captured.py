"""Captured instances against recording and vertex functions: epochs, training steps, workers.

    python benchmarks/captured.py [--hidden 128] [--count 128] [--turns 7] [--workers 0 1 2] [NAME ...]

NAME is a model of the zoo or a program of the corpus (`tests/ordinary`: unmarked code). Instances are made up. Times
are medians of processor time of this process, in milliseconds per mini-batch of 32, ways taking turns on every one:
`first` captures (recording, splitting, joining), `later` joins what is captured, beside recording and vertex functions.
`later` and `vertex` are neighbours in turns, as what stands in caches is the same for both of a pair, and who comes
first changes from turn to turn. `ready` is the part before execution: making the graph, sharing, scheduling, placing.
With workers, `here` is what the main process spends on receiving, checking and reading a mini-batch that a worker
captured and joined, beyond what a loader takes whose workers capture too and send a number; mini-batches execute in
between. It is given as a part of recording one in the main process, and as its share of construction: of what worker
and main process spend on a mini-batch together. One thread. All times are of processors.

    python benchmarks/captured.py --payload 4000000

An instance of so many numbers for one multiplication, from a worker one by one: where receiving them takes longer than
capturing, the net says so.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import edbc  # noqa: E402
from edbc.run.modelfile import import_model_file  # noqa: E402
from edbc.run.outputs import named_tensors  # noqa: E402
from edbc.run.session import Net  # noqa: E402

SIZE = 32
NAMES = ["tree_lstm", "lattice_lstm", "bilstm_tagger", "dag_gru", "SentimentAtEveryNode", "BiCellTagger"]


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--payload", type=int, help="numbers of an instance that a worker sends to one multiplication")
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    if options.payload is not None:
        send(options.payload)
        return
    for name in options.names:
        report(name, options)


def keep_memory() -> None:
    """What is freed stays with this process. The gradient of the trees' look-up table is 10 MB, which the C library
    returns to the system after a step or does not, by what stands behind it: 2,468 page faults, 2 ms of 16, in every
    step of one way and in none of another, and in the next process the other way round."""
    if sys.platform == "linux":
        trim, top_pad, mmap_threshold = -1, -2, -3
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((mmap_threshold, 1 << 25), (trim, 1 << 30), (top_pad, 1 << 26)):
            mallopt(parameter, value)


class Scaled(torch.nn.Module):
    """One multiplication."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Any) -> Any:
        return x * self.scale


@torch.no_grad()
def send(payload: int) -> None:
    """Print what a net says of instances that a worker sends."""
    from helpers import bound

    instances = [torch.randn(payload) for _ in range(24)]
    net = bound(Scaled(), instances[:4])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for epoch in range(2):
            for batch in DataLoader(instances, 1, num_workers=1, collate_fn=edbc.collate(net)):
                net(batch)
            print(f"epoch {epoch}: {len(said)} warnings", flush=True)
    for warning in said:
        print(f"{warning.category.__name__}: {warning.message}")


def subject(name: str, hidden: int, count: int) -> tuple[Net, list[Any], list[Any] | None]:
    """A net, its instances, and they as vertices where the model has vertex functions."""
    path = ROOT / "models" / f"{name}.py"
    if path.is_file():
        net = edbc.load(ROOT / "plans" / f"{name}.yaml").bind(config={"hidden_size": hidden}, force=True)
        file = import_model_file(path)
        config = file.config({**net.plan.model.config, "hidden_size": hidden})
        plain = file.sample(count, 5, config)
        convert = getattr(file.module, "vertex_instance", None)
        return net, plain, None if convert is None else [convert(item, **config) for item in plain]
    from helpers import bound
    from ordinary.registry import load_all

    program = load_all().get(name)
    if program is None:
        sys.exit(f"{name}: expected a model of models/ or a program of tests/ordinary, got neither; check the name")
    return bound(program.build(hidden), program.instances(3, SIZE)), program.instances(1, count), None


def batches_of(items: Sequence[Any]) -> list[list[Any]]:
    return [list(items[i : i + SIZE]) for i in range(0, len(items) - SIZE + 1, SIZE)]


def seconds(function: Callable[[], Any]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def forward(net: Net, batch: Any, built: list[float]) -> list[Any]:
    started = time.process_time()
    with torch.no_grad():
        prepared = net.in_mode().prepare(batch)
        built.append(time.process_time() - started)
        return net.in_mode().execute(prepared)


def step(net: Net, batch: Any) -> None:
    """Forward, a loss over all results, backward."""
    found = [t for result in net(batch) for _, t, _ in named_tensors(result) if t.requires_grad]
    torch.cat([tensor.reshape(-1) for tensor in found]).sum().backward()


def report(name: str, options: Any) -> None:
    """The lines of one subject."""
    net, plain, vertices = subject(name, options.hidden, options.count)
    for mode in ("forward", "training"):
        net.model.train(mode == "training")
        ways: dict[str, list[Any]] = {"record": batches_of(plain), "first": batches_of(plain)}
        ways["later"] = batches_of(net.capture_all(plain))
        if vertices is not None:
            ways["vertex"] = batches_of(vertices)
        found: dict[str, list[float]] = {way: [] for way in ways}
        built: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.turns + 1):
            for number in range(len(ways["record"])):
                order = list(ways) if turn % 2 else list(reversed(ways))
                for way in order:
                    took = seconds(partial(run, net, ways[way][number], way, mode, built[way]))
                    if turn:
                        found[way].append(took)
        medians = {way: 1e3 * statistics.median(of) for way, of in found.items()}
        line = ", ".join(f"{way} {took:.2f}" for way, took in medians.items())
        if mode == "forward":
            line += "; ready " + ", ".join(f"{way} {1e3 * statistics.median(of):.2f}" for way, of in built.items())
        if vertices is not None:
            line += f"; throughput of later {medians['vertex'] / medians['later']:.2f} of vertex"
        print(f"{name:16} {mode:8} {line}", flush=True)
        net.model.eval()
    torch.set_grad_enabled(False)
    prepared = [net.prepare(batch) for batch in batches_of(plain)]
    recorded = statistics.median(built_of(net, batches_of(plain), prepared))
    captured = net.capture_all(plain)
    size = sum(len(c.words) for c in captured) / sum(c.num_nodes + c.num_operands for c in captured)
    shares = []
    for count in options.workers:
        found = list(zip(*received(net, plain, count, prepared), strict=True))
        times, loader, there = map(statistics.median, found)
        here, of_workers = times - loader, there if count else 0.0
        shares.append(
            f"{count}: {1e3 * here:.2f} ms here ({100 * here / recorded:.0f} % of recording, "
            f"{100 * here / (here + of_workers):.0f} % of construction), the loader {1e3 * loader:.2f}"
        )
    torch.set_grad_enabled(True)
    print(
        f"{name:16} {size:.1f} bytes per node and operand; recording {1e3 * recorded:.2f} ms; "
        f"workers {'; '.join(shares)}",
        flush=True,
    )


def run(net: Net, batch: Any, way: str, mode: str, built: list[float]) -> None:
    if way == "first":
        batch = net.capture_all(batch)
    if mode == "training":
        step(net, batch)
    else:
        forward(net, batch, built)


def built_of(net: Net, batches: Sequence[Any], prepared: Sequence[Any]) -> Iterator[float]:
    """What making the graph of each mini-batch takes, one executing in between."""
    for _ in range(3):
        for batch, ready in zip(batches, prepared, strict=True):
            yield seconds(lambda batch=batch: net.mini_batch(batch))  # type: ignore[misc]
            net.execute(ready)


def capture_only(collate: Callable[[Any], Any], items: Any) -> int:
    """Capture in the worker, and send a number."""
    return len(collate(items))


def received(net: Net, plain: list[Any], workers: int, prepared: Sequence[Any]) -> Iterator[tuple[float, float, float]]:
    """What this process spends per mini-batch on receiving and reading it, with no workers on capturing it too; what it
    spends on a number from a loader whose workers capture, in turns with it; and what capturing and joining it took
    where that happened."""
    collate = edbc.collate(net)
    loaders = [
        DataLoader(plain, SIZE, collate_fn=make, num_workers=workers, drop_last=True, persistent_workers=workers > 0)
        for make in (collate, partial(capture_only, collate))
    ]
    for epoch in range(9):
        both = [iter(loader) for loader in loaders]
        for ready in prepared:
            took = []
            for batches in both:
                started = time.process_time()
                batch = next(batches)
                if type(batch) is not int:
                    net.mini_batch(batch)
                    there = batch.seconds
                took.append(time.process_time() - started)
                net.execute(ready)
            if epoch:
                yield took[0], took[1], there


if __name__ == "__main__":
    sys.exit(main())
