"""The zoo with its marks and without: what automatic cells (`edbc/capture/code/automatic.py`) make of files that mark
none.

    python benchmarks/unmarked.py [--hidden 128] [--batch 32] [--rounds 7] [--models NAME,...]

A row: nodes and batches of one mini-batch of the model's sample, milliseconds of processor time of it by eager and by
edbc, forward without gradients in one thread, medians of rounds in which all take turns: marked, unmarked, unmarked
without automatic cells; the gains over eager; recording's share of eager's time, unmarked, both by the wall clock in
the same round: all of making the mini-batch's graph but executing segments whose values are read meanwhile. The
unmarked files are made here, by leaving out the lines `@edbc.cell`.
"""

from __future__ import annotations

import argparse
import gc
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from helpers import bound  # noqa: E402

from edbc.capture.record.recorder import LOOKS  # noqa: E402
from edbc.capture.standins.objects import unchanged  # noqa: E402
from edbc.run.modelfile import import_model_file  # noqa: E402
from edbc.run.segments import Segments  # noqa: E402
from edbc.tools.health import processor_name  # noqa: E402

MARK = re.compile(r"^@edbc\.cell\n", re.MULTILINE)
SIZES = ("hidden_size", "hidden", "size")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.models.split(",") if options.models else sorted(
        p.stem for p in (ROOT / "models").glob("*.py") if MARK.search(p.read_text()) and not p.stem.startswith("_")
    )  # fmt: skip
    print(f"{processor_name()}, hidden size {options.hidden}, mini-batches of {options.batch}")
    print("| model | nodes (no cells) | batches | eager ms | marked | unmarked | no cells | gains | recording |")
    print("|---" * 9 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for path in (ROOT / "models").glob("*.py"):
            (Path(folder) / path.name).write_text(MARK.sub("", path.read_text()))
        for name in names:
            print(row(name, Path(folder), options), flush=True)


@torch.no_grad()
def row(name: str, unmarked: Path, options: argparse.Namespace) -> str:
    """One model."""
    nets, instances = [], []
    for folder, cells in ((ROOT / "models", "marked"), (unmarked, "auto"), (unmarked, "marked")):
        file = import_model_file(folder / f"{name}.py")
        size = next((key for key in SIZES if key in file.config({})), None)
        config = file.config({} if size is None else {size: options.hidden})
        instances.append(file.sample(options.batch, 0, config))
        nets.append(bound(file.build(config, 0), instances[-1], cells))
    recording, inside = Clock(), Clock()
    nets[1].mini_batch = recording.around(nets[1].mini_batch)  # type: ignore[method-assign]
    ways: list[Callable[[Sequence[Any]], Any]] = [lambda batch: [nets[0].model(x) for x in batch], *nets]
    inputs = [instances[0], *instances]
    for way, batch in zip(ways[1:], inputs[1:], strict=True):
        for _ in range(LOOKS + 1):
            with unchanged(batch):
                way(batch)
    times: list[list[tuple[float, float]]] = [[] for _ in ways]
    recorded: list[float] = []
    again, run = Segments.again, Segments.__call__
    with patch.multiple(Segments, again=inside.around(again), __call__=inside.around(run)):
        for _ in range(options.rounds):
            for found, way, batch in zip(times, ways, inputs, strict=True):
                before = recording.seconds - inside.seconds
                found.append(seconds(way, batch))
                if way is nets[1]:
                    recorded.append(recording.seconds - inside.seconds - before)
    eager, *ours = (1e3 * statistics.median(own for own, _ in found) for found in times)
    walls = [wall for _, wall in times[0]]
    share = statistics.median(a / b for a, b in zip(recorded, walls, strict=True))
    captured = [net.prepare(batch).capture.graph for net, batch in zip(nets, inputs[1:], strict=True)]
    batches = [net.prepare(batch).schedule.num_batches for net, batch in zip(nets, inputs[1:], strict=True)]
    return (
        f"| {name} | {captured[0].num_nodes:,}, {captured[1].num_nodes:,} ({captured[2].num_nodes:,}) | "
        f"{batches[0]}, {batches[1]} ({batches[2]}) | {eager:.1f} | " + " | ".join(f"{x:.2f}" for x in ours)
        + " | " + ", ".join(f"{eager / x:.1f}" for x in ours) + f" | {share:.2f} |"
    )  # fmt: skip


class Clock:
    """Seconds of the wall clock in functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def seconds(way: Callable[[Sequence[Any]], Any], batch: Sequence[Any]) -> tuple[float, float]:
    """Processor time, and the wall clock's, of one mini-batch that leaves its instances as they were."""
    with unchanged(batch):
        gc.collect(0)  # what was noted of the instances would be walked at the end of what is timed
        started, began = time.process_time(), time.perf_counter()
        way(batch)
        return time.process_time() - started, time.perf_counter() - began


if __name__ == "__main__":
    main()
