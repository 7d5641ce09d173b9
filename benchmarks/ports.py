"""Five models as their authors batch them by hand, beside edbc: `python benchmarks/ports.py [--size 128] [--batch 32]`.

Ways take turns in one process and on one thread; figures are medians over rounds, milliseconds per mini-batch, of a
forward pass. `by hand` runs on index tensors that are there already, `with indices` makes them too; `edbc` runs the
model's Python for every instance, `captured` takes captured instances. Mini-batches are new in every round. `lines` are
those of code that batching by hand needs.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _by_hand import BY_HAND

import edbc

PORTS = Path(__file__).resolve().parents[1] / "docs" / "examples" / "ports"


def port(name: str, size: int) -> tuple[Any, Any]:
    """A port's module, and its model."""
    sys.path.insert(0, str(PORTS))
    module = importlib.import_module(name)
    torch.manual_seed(0)
    return module, getattr(module, type(BY_HAND[name]).__name__)(size).eval()


def measured(name: str, size: int, batch: int, rounds: int) -> dict[str, float]:
    """Medians of each way, in milliseconds."""
    module, model = port(name, size)
    hand = BY_HAND[name]
    net = edbc.compile(model, module.instances(361, seed=0), measure_gain=False)
    times: dict[str, list[float]] = {}

    def timed(way: str, function: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = function()
        times.setdefault(way, []).append(1e3 * (time.perf_counter() - started))
        return result

    for number in range(rounds + 1):
        instances = module.instances(batch, seed=1000 + number)
        eager = timed("eager", lambda given=instances: [model(each) for each in given])
        prepared = timed("indices", lambda given=instances: hand.prepare(module, given))
        by_hand = timed("by hand", lambda given=prepared: hand.run(model, given))
        ours = timed("edbc", lambda given=instances: net(given))
        captured = net.capture_all(instances)
        timed("captured", lambda given=captured: net(given))
        for a, b, c in zip(eager, by_hand, ours, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(c, a, rtol=1e-3, atol=1e-4)
    medians = {way: statistics.median(found[1:]) for way, found in times.items()}
    medians["with indices"] = medians.pop("indices") + medians["by hand"]
    return medians


def lines_of(name: str) -> int:
    """Lines of code of what is written by hand, docstrings left out."""
    return len(ast.unparse(ast.parse(inspect.getsource(type(BY_HAND[name])))).splitlines())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = ("eager", "with indices", "by hand", "edbc", "captured")
    print(f"| port | {' | '.join(ways)} | lines |\n|---|{'--:|' * (len(ways) + 1)}")
    with torch.no_grad():
        for name in BY_HAND:
            found = measured(name, options.size, options.batch, options.rounds)
            print(f"| {name} | {' | '.join(f'{found[way]:.1f}' for way in ways)} | {lines_of(name)} |", flush=True)


if __name__ == "__main__":
    main()
