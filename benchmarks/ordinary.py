"""The corpus of ordinary code (`tests/ordinary`), one row per program, worst first.

    python benchmarks/ordinary.py [--hidden 16] [--batch 32] [--rounds 3] [--programs NAME,...]
                                  [--cells auto|marked] [--json FILE]

A row: types, nodes and batches of one mini-batch; milliseconds of processor time of it by eager and by edbc, forward
without gradients, the least of rounds that alternate in one process with one thread, after the mini-batches that are
asked for lines; the gain; and of edbc's time the shares of recording (Python and building the graph), scheduling (with
placing), and execution. A refused program says why.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import bound  # noqa: E402
from ordinary.registry import Program, load_all  # noqa: E402

from edbc.capture.record.recorder import LOOKS  # noqa: E402
from edbc.errors import EdbcError  # noqa: E402
from edbc.run.session import Net, Stats  # noqa: E402
from edbc.tools.health import processor_name  # noqa: E402

COLUMNS = ("program", "field", "types", "nodes", "batches", "eager ms", "edbc ms", "gain", "recording", "scheduling",
           "execution")  # fmt: skip
PARTS = ("construction", "scheduling", "execution")


def main() -> None:
    """Print the table and its summary; with `--json` also keep them as data."""
    options = parse()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = [p for p in load_all().values() if not options.programs or p.name in options.programs.split(",")]
    rows = sorted((measure(p, options) for p in chosen), key=lambda row: row.get("gain", 0.0))
    print(f"{processor_name()}, hidden size {options.hidden}, mini-batches of {options.batch}")
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    print("\n".join(map(as_text, rows)))
    print(summary(rows))
    if options.json:
        Path(options.json).write_text(
            json.dumps({"schema": 1, "processor": processor_name(), "rows": rows}, indent=1) + "\n"
        )


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", default="")
    parser.add_argument("--cells", choices=("auto", "marked"), default="auto", help="automatic cells, or none")
    parser.add_argument("--json", default=None)
    return parser.parse_args()


@torch.no_grad()
def measure(program: Program, options: argparse.Namespace) -> dict[str, Any]:
    """One program. Mini-batches are made anew for every run, as programs may write on their instances."""
    row: dict[str, Any] = {"program": program.name, "field": program.field}
    model = program.build(options.hidden)

    def fresh() -> list[Any]:
        return program.instances(1, options.batch)

    started = time.perf_counter()
    try:
        net = bound(model, fresh(), options.cells)
        for _ in range(LOOKS + 1):
            net(fresh())
    except EdbcError as error:
        return row | {"refused": str(error)}
    row["binding_seconds"] = time.perf_counter() - started
    one_by_one = lambda instances: [model(instance) for instance in instances]  # noqa: E731
    pairs = [(seconds(one_by_one, fresh), seconds(net, fresh)) for _ in range(options.rounds + 1)][1:]
    eager, ours = map(min, zip(*pairs, strict=True))
    return row | counts(net, fresh()) | {"eager_ms": 1e3 * eager, "edbc_ms": 1e3 * ours, "gain": eager / ours}


def seconds(function: Callable[[list[Any]], Any], fresh: Callable[[], list[Any]]) -> float:
    """Of processor time for one mini-batch, the best of two: machines are shared, and all of it is in one thread."""
    times = []
    for _ in range(2):
        instances = fresh()
        started = time.thread_time()
        function(instances)
        times.append(time.thread_time() - started)
    return min(times)


def counts(net: Net, instances: list[Any]) -> dict[str, Any]:
    """What the mini-batch is made of, and where its time goes."""
    stats = Stats()
    _, prepared = net.run(instances, stats)
    graph = prepared.whole[0].graph
    found = {"types": int((graph.counts() > 0).sum()), "nodes": stats.nodes, "batches": stats.batches}
    return found | {part: getattr(stats.seconds, part) / stats.seconds.total for part in PARTS}


def as_text(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "refused" in row:
        return f"| {row['program']} | {row['field']} | refused: {row['refused'].partition('; ')[0]} |"
    cells = [row["program"], row["field"], *(f"{row[key]:,}" for key in ("types", "nodes", "batches"))]
    cells += [f"{row['eager_ms']:.2f}", f"{row['edbc_ms']:.2f}", f"{row['gain']:.2f} x"]
    return "| " + " | ".join([*cells, *(f"{100 * row[part]:.0f} %" for part in PARTS)]) + " |"


def summary(rows: list[dict[str, Any]]) -> str:
    """One line over all programs."""
    gains = [row["gain"] for row in rows if "gain" in row]
    mean = math.exp(statistics.fmean(map(math.log, gains))) if gains else 0.0
    return (
        f"{len(rows)} programs: {len(rows) - len(gains)} refused; geometric mean {mean:.2f} x, "
        f"{sum(gain < 1 for gain in gains)} below 1.0 x"
    )


if __name__ == "__main__":
    main()
