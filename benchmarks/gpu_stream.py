"""Instances a second on a GPU, mini-batch after mini-batch, as serving and evaluation have them.

    python benchmarks/gpu_stream.py [--sizes tree_lstm:256:512,tree_lstm:32:128,lattice_lstm:32:128] [--workers 2,4]
                                    [--seconds 60] [--json F] [--data DIR] [--device cuda]

Per model, batch size and hidden size:

- vertices, captured: `net.stream` of what vertex functions made, of captured instances;
- workers N: the mini-batches of a DataLoader whose N processes join captured instances (`edbc.collate`), one after the
  other through `net`, which waits for nothing on a device.

The clock runs from the first mini-batch to where the device is done with the last one, over as many mini-batches as
take TURN seconds; the best of TURNS passes, all ways taking turns. `host` is this thread's processor time for a
mini-batch, `device` what executing one takes the device while the host waits, both in microseconds. With `--device cpu`
and TRITON_INTERPRET=1 it runs in Triton's interpreter, where no figure means anything.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from end_to_end import WORKLOADS
from gpu_gaps import device_time
from gpu_training import bound, parsed
from torch.utils.data import DataLoader

import edbc
from edbc.run.session import Net

SIZES = "tree_lstm:256:512,tree_lstm:32:128,lattice_lstm:32:128"
KINDS = 4
"""Different mini-batches, which a pass goes through again and again."""
TURNS, TURN = 3, 0.4
Way = Callable[[int], Iterator[Any]]
"""The results of so many mini-batches."""


def ways_of(
    net: Net, file: Any, config: Any, instances: Sequence[Any], size: int, workers: Sequence[int]
) -> dict[str, Way]:
    """By name."""
    captured, ways = list(net.capture_all(instances)), dict[str, Way]()

    def stream(items: list[Any]) -> Way:
        return lambda count: net.stream(
            (item for _ in range(-(-count // KINDS)) for item in items[: count * size]), size
        )

    def loaded(loader: Any) -> Way:
        def run(count: int) -> Iterator[Any]:
            for _ in range(-(-count // KINDS)):
                for batch in loader:
                    yield from net(batch)

        return run

    if hasattr(file.module, "vertex_instance"):
        ways["vertices"] = stream(list(map(file.vertex_instance(config), instances)))
    ways["captured"] = stream(captured)
    for count in workers:
        many = captured * 8  # no mini-batch of the next epoch is made before this one's end
        ways[f"workers {count}"] = loaded(DataLoader(many, size, num_workers=count, collate_fn=edbc.collate(net),
                                                     persistent_workers=True, prefetch_factor=4))  # fmt: skip
    return ways


def rate(way: Way, count: int, size: int, device: torch.device) -> tuple[float, float, int]:
    """Instances a second, microseconds of this thread per mini-batch, and how many instances came."""
    done, started, busy = 0, time.perf_counter(), time.thread_time()
    for _ in way(count):
        done += 1
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    return done / seconds, 1e6 * (time.thread_time() - busy) * size / done, done


def row(name: str, size: int, hidden: int, options: argparse.Namespace) -> dict[str, Any]:
    """All ways of one combination."""
    workload, device = next(w for w in WORKLOADS if w.model == name), torch.device(options.device)
    file, config, net, instances = bound(workload, size * KINDS, hidden, options)
    found: dict[str, Any] = {"model": name, "batch_size": size, "hidden_size": hidden}
    with torch.no_grad():
        prepared = net.prepare(net.capture_all(instances[:size]))
        net.execute(prepared)
        found["device_us"] = device_time(lambda: net.execute(prepared), device) if device.type == "cuda" else math.nan
        ways = ways_of(net, file, config, instances, size, options.workers)
        counts = {}
        for way, run in ways.items():
            first, _, _ = rate(run, KINDS, size, device)
            counts[way] = max(KINDS, min(KINDS * 64, math.ceil(options.turn * first / size)))
        for _ in range(TURNS):
            for way, run in ways.items():
                each, host, _ = rate(run, counts[way], size, device)
                if each > found.get(way, {"rate": 0.0})["rate"]:
                    found[way] = {"rate": each, "host_us": host}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """A line per way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES, help="MODEL:BATCH:HIDDEN, separated by commas")
    parser.add_argument("--workers", default="2,4", type=lambda text: [int(part) for part in text.split(",") if part])
    parser.add_argument("--turn", type=float, default=TURN, help="seconds of a pass")
    options = parsed(parser, arguments)
    rows, began = [], time.monotonic()
    for text in options.sizes.split(","):
        if time.monotonic() > began + options.seconds:
            break
        name, size, hidden = text.split(":")
        rows.append(row(name, int(size), int(hidden), options))
        device_us = rows[-1]["device_us"]
        print(f"{name}, {size} of hidden size {hidden}: device {device_us:.0f} us a mini-batch", flush=True)
        for way, at in rows[-1].items():
            if isinstance(at, dict):
                print(f"  {way:10} {at['rate']:>10,.0f} instances/s, host {at['host_us']:.0f} us", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
