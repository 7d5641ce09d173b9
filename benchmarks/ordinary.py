"""The corpus of ordinary code (`tests/ordinary`), one row per program, worst first.

    python benchmarks/ordinary.py [--hidden 16] [--batch 32] [--rounds 3] [--programs NAME,...]
                                  [--cells auto|unmined|marked] [--sample 0.34 --seed 0] [--train]
                                  [--compare | --choices] [--json FILE]

A row: types, nodes and batches of one mini-batch; milliseconds of processor time of it by eager and by edbc, forward
without gradients, the least of rounds that alternate in one process with one thread, after some mini-batches that warm
it up; the gain with instances as they come, as a plan runs it (eager where batching loses), and with instances captured
once. Every round is of instances that nobody has seen, the same for all ways; captured ones are drawn from four
mini-batches in other company each time. With `--train` also the gain of a step, forward and backward, of instances as
they come, where a result has a gradient. Microseconds of recording (Python and building the graph) per node; and of
edbc's time the shares of recording, scheduling (with placing), and execution. A refused program says why.

With `--compare` a row is what automatic cells change, worst first: nodes, batches and milliseconds of the program as
written (no cells), with automatic cells (without mined patterns), and with both, which take turns; the gains over
eager; and the time as written over that with both. With `--choices` a row is a program some of whose sizes differ, the
worst choice first: milliseconds with a type per size and with rows, as compiling believes
(`edbc.tools.compile.decisions`, definition (2)) and as measured, what it chooses, and what that takes over the better.
`--sample` draws a share of the corpus by `--seed`.
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
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import bound  # noqa: E402
from ordinary.registry import Program, load_all  # noqa: E402

from edbc.capture.code.closed import Closed  # noqa: E402
from edbc.capture.code.regions import Regions  # noqa: E402
from edbc.capture.record.recorder import LOOKS  # noqa: E402
from edbc.errors import EdbcError, UnsupportedError  # noqa: E402
from edbc.plan import RunAs  # noqa: E402
from edbc.run.session import Net, Stats  # noqa: E402
from edbc.tools.compile.decisions import Decisions, Sample, cost_of_new, decide, ragged_classes  # noqa: E402
from edbc.tools.health import processor_name  # noqa: E402

COLUMNS = ("program", "field", "types", "nodes", "batches", "eager ms", "edbc ms", "gain", "as run", "captured",
           "trained", "us a node", "recording", "scheduling", "execution")  # fmt: skip
GAINS = {"recorded": "gain", "as run": "gain_as_run", "captured": "gain_captured", "trained": "gain_trained"}
MISSING = {"gain_captured": "refused", "gain_trained": ""}
"""What a row says in the place of a gain."""
WAYS = ("marked", "unmined", "auto")
REPEATS = 7
WARM = LOOKS + 6
"""Mini-batches before any is measured: those that are asked for lines, and more for what recurs to have come."""
MEASURED, COUNTED = 1000, 2000
"""Seeds of the first mini-batch that is measured, and counted."""
PARTS = ("construction", "scheduling", "execution")


def main() -> None:
    """Print the table and its summary; with `--json` also keep them as data."""
    options = parse()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    every = sorted(load_all().values(), key=lambda program: program.name)
    drawn = Random(options.seed).sample(every, round(options.sample * len(every)))
    chosen = [p for p in drawn if not options.programs or p.name in options.programs.split(",")]
    if options.compare or options.choices:
        (compare if options.compare else choices)(chosen, options)
        return
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
    parser.add_argument("--cells", choices=WAYS, default="auto", help="automatic cells, without patterns, or none")
    parser.add_argument("--train", action="store_true", help="measure training steps too")
    parser.add_argument("--compare", action="store_true", help="all three, in turn")
    parser.add_argument("--choices", action="store_true", help="rows and types, in turn")
    parser.add_argument("--sample", type=float, default=1.0, help="share of the corpus")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--json", default=None)
    return parser.parse_args()


@torch.no_grad()
def measure(program: Program, options: argparse.Namespace) -> dict[str, Any]:
    """One program."""
    row: dict[str, Any] = {"program": program.name, "field": program.field}
    model = program.build(options.hidden)

    fresh = partial(program.instances, count=options.batch)
    started = time.perf_counter()
    try:
        net = warmed(model, fresh, options.cells)
    except EdbcError as error:
        return row | {"refused": str(error)}
    row["binding_seconds"] = time.perf_counter() - started
    ways = {"eager": (lambda instances: [model(instance) for instance in instances], fresh), "edbc": (net, fresh)}
    captured = [item for seed in range(4) for item in net.capture_each(fresh(seed))]
    refused = next((str(item) for item in captured if isinstance(item, UnsupportedError)), None)
    if refused is None:
        ways["captured"] = (net, lambda seed: Random(seed).sample(captured, options.batch))
    took = least(ways, options.rounds)
    if took["eager"] < took["edbc"]:
        as_planned = Net(replace(net.plan, run=RunAs("it was measured so")), model)
        took |= least({"eager again": ways["eager"], "as run": (as_planned, fresh)}, options.rounds)
    row |= counts(net, fresh) | figures(took) | {"not_captured": refused}
    return row | trained(model, net, fresh, options.rounds) if options.train else row


@torch.enable_grad()
def trained(model: Any, net: Net, fresh: Callable[[int], list[Any]], rounds: int) -> dict[str, Any]:
    """Steps of a model with gradients, eagerly and by a net that has seen as many."""

    def step(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], None]:
        def both(instances: list[Any]) -> None:
            results = [x for x in tree_leaves(run(instances)) if isinstance(x, torch.Tensor) and x.requires_grad]
            if results:
                torch.cat([x.flatten() for x in results]).square().mean().backward()
            model.zero_grad()

        return both

    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in tree_leaves([model(i) for i in fresh(0)])):
        return {}
    for seed in range(WARM):
        step(net)(fresh(seed))
    took = least(
        {"eager": (step(lambda instances: [model(i) for i in instances]), fresh), "edbc": (step(net), fresh)}, rounds
    )
    return {
        "step_ms": 1e3 * took["edbc"],
        "eager_step_ms": 1e3 * took["eager"],
        "gain_trained": took["eager"] / took["edbc"],
    }


def warmed(model: Any, fresh: Callable[[int], list[Any]], cells: str, rows: bool | None = False) -> Net:
    """A net that has seen some mini-batches."""
    net = bound(model, fresh(0), cells, rows)
    for seed in range(WARM):
        net(fresh(seed))
    return net


@torch.no_grad()
def compare(programs: list[Program], options: argparse.Namespace) -> None:
    """Print what automatic cells change, program by program, and a line over all."""
    rows = []
    for program in programs:
        model = program.build(options.hidden)
        fresh = partial(program.instances, count=options.batch)
        ways: dict[str, Any] = {"eager": (lambda instances, model=model: [model(x) for x in instances], fresh)}
        try:
            for way in WAYS:
                ways[way] = warmed(model, fresh, way), fresh
        except EdbcError as error:
            print(f"{program.name} is refused: {error}")
            continue
        sizes = [Stats() for _ in WAYS]
        for way, stats in zip(WAYS, sizes, strict=True):
            ways[way][0].run(fresh(COUNTED), stats)
        rows.append((program.name, sizes, least(ways, options.rounds)))
    print(f"{processor_name()}, hidden size {options.hidden}, mini-batches of {options.batch}")
    print("| program | nodes | batches | eager ms | as written, unmined, auto | gains | auto |\n" + "|---" * 7 + "|")
    for name, sizes, took in sorted(rows, key=lambda row: row[2]["marked"] / row[2]["auto"]):
        eager, *of_ways = (1e3 * took[way] for way in ("eager", *WAYS))
        print(
            f"| {name} | {', '.join(f'{s.nodes:,}' for s in sizes)} | {', '.join(str(s.batches) for s in sizes)} | "
            f"{eager:.2f} | {', '.join(f'{t:.2f}' for t in of_ways)} | "
            f"{', '.join(f'{eager / t:.2f}' for t in of_ways)} | {took['marked'] / took['auto']:.2f} x |"
        )  # fmt: skip
    for way in WAYS:
        print(f"{way}: geometric mean {mean([took['eager'] / took[way] for *_, took in rows]):.2f} x of {len(rows)}")
    ratios = [took["marked"] / took["auto"] for *_, took in rows]
    print(f"auto over as written: geometric mean {mean(ratios):.2f} x, {sum(r < 0.95 for r in ratios)} below 0.95 x")


@torch.no_grad()
def choices(programs: list[Program], options: argparse.Namespace) -> None:
    """Print both ways of the programs that have two, and a line over all."""
    rows = []
    for program in programs:
        model = program.build(options.hidden).eval()
        fresh = partial(program.instances, count=options.batch)
        sample = Sample(model, Regions(model, Closed(model)), fresh(0))
        ragged = ragged_classes(sample)
        if not ragged:
            continue
        both = [decide(sample, Decisions(ragged=classes)) for classes in ((), ragged)]
        told = [1e-3 * cost_of_new(sample, decided) for decided in both]
        chosen = int(bool(decide(sample, Decisions()).ragged))
        ways = {str(way): (warmed(model, fresh, "auto", way or None), fresh) for way in (False, True)}
        took = [1e3 * seconds for seconds in least(ways, options.rounds).values()]
        rows.append((took[chosen] / min(took), program.name, told, took, ("types", "rows")[chosen]))
    print(f"{processor_name()}, hidden size {options.hidden}, mini-batches of {options.batch}")
    print("| program | told, types and rows | ms, types and rows | chosen | over the better |\n" + "|---" * 5 + "|")
    for over, name, told, took, way in sorted(rows, reverse=True):
        figures = (f"{types:.2f}, {with_rows:.2f}" for types, with_rows in (told, took))
        print(f"| {name} | {' | '.join(figures)} | {way} | {over:.2f} x |")
    print(f"{len(rows)} programs, geometric mean {mean([over for over, *_ in rows]):.3f} x of the better way, "
          f"{sum(over > 1.2 for over, *_ in rows)} above 1.2 x")  # fmt: skip


def mean(ratios: list[float]) -> float:
    """Geometric."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def least(ways: dict[str, Any], rounds: int) -> dict[str, float]:
    """Seconds that each way takes, the least of rounds in which they alternate."""
    turns = [[seconds(*way, MEASURED + 2 * turn) for way in ways.values()] for turn in range(rounds + 1)][1:]
    return dict(zip(ways, map(min, zip(*turns, strict=True)), strict=True))


def figures(took: dict[str, float]) -> dict[str, Any]:
    """Milliseconds and gains."""
    found: dict[str, Any] = {"eager_ms": 1e3 * took["eager"], "edbc_ms": 1e3 * took["edbc"]}
    found["gain"] = found["gain_as_run"] = took["eager"] / took["edbc"]
    if "as run" in took:
        found["gain_as_run"] = took["eager again"] / took["as run"]
    if "captured" in took:
        found |= {"captured_ms": 1e3 * took["captured"], "gain_captured": took["eager"] / took["captured"]}
    return found


def seconds(function: Callable[[list[Any]], Any], fresh: Callable[[int], list[Any]], first: int) -> float:
    """Of processor time for one mini-batch, the best of two: machines are shared, and all of it is in one thread."""
    times = []
    for seed in (first, first + 1):
        instances = fresh(seed)
        started = time.thread_time()
        function(instances)
        times.append(time.thread_time() - started)
    return min(times)


def counts(net: Net, fresh: Callable[[int], list[Any]]) -> dict[str, Any]:
    """What the mini-batch is made of, and where the time of the fastest of some goes."""
    stats: Stats | None = None
    for turn in range(REPEATS):
        now = Stats()
        _, prepared = net.run(fresh(COUNTED + turn), now)
        stats = now if stats is None or now.seconds.total < stats.seconds.total else stats
    graph = prepared.whole[0].graph
    found = {"types": int((graph.counts() > 0).sum()), "nodes": stats.nodes, "batches": stats.batches}
    found["us_a_node"] = 1e6 * stats.seconds.construction / max(stats.nodes, 1)
    return found | {part: getattr(stats.seconds, part) / stats.seconds.total for part in PARTS}


def as_text(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "refused" in row:
        return f"| {row['program']} | {row['field']} | refused: {row['refused'].partition('; ')[0]} |"
    cells = [row["program"], row["field"], *(f"{row[key]:,}" for key in ("types", "nodes", "batches"))]
    cells += [f"{row['eager_ms']:.2f}", f"{row['edbc_ms']:.2f}"]
    cells += [f"{row[gain]:.2f} x" if gain in row else MISSING[gain] for gain in GAINS.values()]
    cells.append(f"{row['us_a_node']:.2f}")
    return "| " + " | ".join([*cells, *(f"{100 * row[part]:.0f} %" for part in PARTS)]) + " |"


def summary(rows: list[dict[str, Any]]) -> str:
    """A line over all programs, and one per way of running them."""
    run = [row for row in rows if "gain" in row]
    lines = [f"{len(rows)} programs, {len(rows) - len(run)} refused"]
    if run:
        lines[0] += f"; {statistics.median(row['us_a_node'] for row in run):.2f} us of recording a node in the median"
    for way, name in GAINS.items():
        gains = [row[name] for row in run if name in row]
        if gains:
            below = f"{sum(gain < 1 for gain in gains)} below 1.0 x, least {min(gains):.2f} x"
            lines.append(f"{way}: geometric mean {mean(gains):.2f} x of {len(gains)}, {below}")
    best = [max(row["gain_as_run"], row.get("gain_captured", 0.0)) for row in run]
    if best:
        lines.append(f"captured or as run: geometric mean {mean(best):.2f} x")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
