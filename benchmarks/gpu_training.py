"""Training steps on a GPU: forward pass, loss and backward pass of a mini-batch, against eager on the same GPU.

    python benchmarks/gpu_training.py [--only MODELS] [--batch-size 32] [--hidden 128] [--seconds 60] [--json F]
                                      [--data DIR] [--device cuda]

Milliseconds by the clock until the device is done, the median of ROUNDS mini-batches behind one that compiles; the loss
is that of `benchmarks/training.py`, the optimiser's step is left out. `captured` joins instances that were captured
before, as all epochs but the first do; `recorded` runs Python for each; eager runs instance by instance. No model is
begun after --seconds. With `--device cpu` and TRITON_INTERPRET=1 it runs in Triton's interpreter, where no figure means
anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from end_to_end import DATA, REPOSITORY, WORKLOADS, Workload, inputs_of
from training import loss_of

import edbc
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net

ROUNDS, EAGER_ROUNDS = 10, 2


def milliseconds(step: Callable[[], list[Any]], model: torch.nn.Module, device: torch.device, rounds: int) -> float:
    """Of a step, the forward pass of which is given."""
    found = []
    for _ in range(rounds + 1):
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        loss_of(step()).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(1e3 * (time.perf_counter() - started))
    return statistics.median(found[1:])


def bound(workload: Workload, count: int, hidden: int, options: argparse.Namespace) -> tuple[Any, Any, Net, list[Any]]:
    """A workload's file and config, its net on the device, and so many instances of its data."""
    device, file = torch.device(options.device), import_model_file(REPOSITORY / "models" / f"{workload.model}.py")
    config = file.config({"vocab_size": 256, "hidden_size": hidden, **dict(workload.settings)})
    inputs = inputs_of(workload, Path(options.data))
    made = file.load(inputs, config) if inputs else iter(file.sample(count, 1, config))
    plan = edbc.load(REPOSITORY / "plans" / f"{workload.model}.yaml").plan
    backend = "cuda" if device.type == "cpu" else None
    net = Net(plan, file.build(config, 0).to(device), backend=backend, rebind=True)
    return file, config, net, list(islice(made, count))


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What a parser has, and what every benchmark of one device is told."""
    parser.add_argument("--seconds", type=float, default=60.0, help="begin nothing after this time")
    parser.add_argument("--json", default=None, help="where the rows go")
    parser.add_argument("--data", default=DATA, help="folder with the shared data sets; without it, samples")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: in Triton's interpreter")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none")
    return options


def row(workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """The three ways of a workload."""
    batch_size = options.batch_size
    _, _, net, instances = bound(workload, batch_size, options.hidden, options)
    model, device = net.model, torch.device(options.device)
    captured = net.capture_all(instances)
    ways: dict[str, tuple[Callable[[], list[Any]], int]] = {
        "captured": (lambda: net(captured), ROUNDS),
        "recorded": (lambda: net(instances), ROUNDS),
        "eager": (lambda: [model(instance) for instance in instances], EAGER_ROUNDS),
    }
    return {"model": workload.model, "batch_size": batch_size, "hidden_size": options.hidden,
            **{name: milliseconds(step, model, device, rounds) for name, (step, rounds) in ways.items()}}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """A line per workload."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="models, separated by commas")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=128)
    options = parsed(parser, arguments)
    rows, began = [], time.monotonic()
    print("training steps, ms        captured recorded    eager  captured, recorded / eager", flush=True)
    for workload in WORKLOADS:
        if (
            options.only and workload.model not in options.only.split(",")
        ) or time.monotonic() > began + options.seconds:
            continue
        found = row(workload, options)
        rows.append(found)
        ours, recorded, eager = (found[name] for name in ("captured", "recorded", "eager"))
        times = f"{ours:8.2f} {recorded:8.2f} {eager:8.1f}  {eager / ours:.1f} x, {eager / recorded:.1f} x"
        print(f"{workload.model:25} {times}", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
