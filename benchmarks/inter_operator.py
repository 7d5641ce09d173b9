"""Static networks in stages on the CPU: what every kind of schedule takes, measured side by side.

    python benchmarks/inter_operator.py [--batch 1] [--threads 2] [--seconds 15] [--json OUT] [NETWORK ...]

Stages are measured first, as `edbc compile --profile` does, and kept in `--tables`. Then the whole network takes turns:
eager PyTorch, and our own kernels by every form of schedule (`edbc.plan.static.FORMS`). Medians, in milliseconds, and
how many times as fast as the better of one thread and all threads on one unit after the other; also what the table
says of every kind of block, and what any schedule could gain at most.
`--simulate` measures nothing: it plans on a device in formulas and tells how long planning takes from the table. For
GPUs there is `gpu_stages.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # as the command line does, before torch is loaded
import torch

from edbc.run.modelfile import import_model_file
from edbc.stages import Stages
from edbc.stages.devices import measuring
from edbc.stages.endings import members
from edbc.stages.forms import nets_of
from edbc.stages.graph import block_dag
from edbc.stages.net import StaticModel
from edbc.stages.plan_graph import Planned, schedule_graph
from edbc.stages.search import Machine
from edbc.stages.table import SUFFIX, Costs, CostTable, read_table, write_table
from edbc.stages.timing import Clock, clock, turns

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = ("inception_v3", "squeezenet", "randwire", "nasnet_a")
KINDS = ("sequential", "greedy", "merge", "concurrent", "both")


def main() -> None:
    """Measure the networks that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--tables", default="build/tables")
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    found = {}
    for name in options.networks:
        found[name] = simulate(name, options) if options.simulate else measure(name, options)
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1))


def opened(
    name: str, batch: int, device: str = "cpu", settings: dict[str, Any] | None = None
) -> tuple[StaticModel, torch.Tensor]:
    """A network with seeded weights, and a batch for it."""
    file = import_model_file(ROOT / "models" / f"{name}.py")
    config = file.config(settings or {})
    model = file.build(config, 0).to(device)
    images = [image.to(device) for image in file.sample(batch, 0, config)]
    return StaticModel(model, images[0], name), torch.cat(images)


def simulate(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Plan on the simulated device, then again from the table alone."""
    sys.path.append(str(ROOT / "tests" / "stages"))
    from simulated import MACHINE, NAME, OVERHEAD, measured, unit_costs

    static, _ = opened(name, 1)
    costs = unit_costs(static.graph, options.batch)
    table = Costs(CostTable(device=NAME, threads=1, dtype="float32", batch_size=options.batch, overhead_ns=OVERHEAD))
    limits = Stages(gap=options.gap)
    planned = schedule_graph(static, MACHINE, table, limits, lambda *stage: measured(costs, *stage))
    started = time.perf_counter()
    schedule_graph(static, MACHINE, table, limits)
    seconds = time.perf_counter() - started
    measured_stages, distinct = totals_of(planned)
    print(f"{name}: {measured_stages:,} of {distinct:,} stages measured; planned again in {seconds:.2f} s")
    costs_of = {kind: sum(p.scheduled.cost_of(kind) for p in planned) / 1e6 for kind in KINDS}
    print("  " + ", ".join(f"{kind} {cost:.3f}" for kind, cost in costs_of.items()))
    widest = max(reversed(planned), key=lambda p: (p.scheduled.distinct, planned.index(p)))
    print(f"  {len(widest.block.units)} units up to {static.graph.units[widest.block.units[-1]].name}:")
    for stage in widest.scheduled.stages:
        names = [" then ".join(static.graph.units[widest.block.units[u]].name for u in g) for g in stage.groups]
        print(f"    {stage.median / 1e3:>8.1f} us {stage.run:<10} {' | '.join(names)}")
    return {"measured": measured_stages, "distinct": distinct, "seconds": seconds, "ms": costs_of}


def totals_of(planned: list[Planned]) -> tuple[int, int]:
    """Stages that were measured, and all: equal blocks once."""
    kinds = {p.block.text: p.scheduled for p in planned}.values()
    return sum(s.measured for s in kinds), sum(s.distinct for s in kinds)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Profile a network, or plan from its table of an earlier call; then all forms of schedules take turns."""
    static, batch = opened(name, options.batch)
    threads, path = options.threads, Path(options.tables) / f"{name}.{options.batch}{SUFFIX}"
    costs, machine, limits = Costs(head_of(options, 0)), Machine(threads, threads > 1), Stages(gap=options.gap)
    started = time.perf_counter()
    if path.exists():
        planned = schedule_graph(static, machine, Costs.of(read_table(path)), limits)
    else:
        with measuring(static, options.batch, threads) as measurement:
            costs.head = head_of(options, measurement.overhead())
            planned = schedule_graph(static, machine, costs, limits, measurement.stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(costs.table(), path)
    seconds = time.perf_counter() - started
    measured_stages, distinct = totals_of(planned)
    print(f"{name}, batches of {options.batch}: {measured_stages:,} of {distinct:,} stages in {seconds:.0f} s")
    times = measured_times(static, batch, planned, options)
    plain = min(times["one thread"], times["all threads"])
    for kind, ms in times.items():
        print(f"  {kind:<18}{ms:>9.2f} ms   {plain / ms:>5.2f}")
    most = told_by_table(static, planned, threads)
    return {"measured": measured_stages, "distinct": distinct, "profile_seconds": seconds, "ms": times, "most": most}


def told_by_table(static: StaticModel, planned: list[Planned], threads: int) -> float:
    """Print what the table says of every kind of block, in milliseconds; how many times as fast as all threads on one
    unit after the other any schedule can be."""
    kinds = {p.block.text: p for p in planned}
    print("  by the table, ms:  units  blocks  one thread  all threads   both  least   both is   at most")
    total = [0.0] * 4
    for text, p in kinds.items():
        blocks = sum(other.block.text == text for other in planned)
        row = [p.scheduled.cost_of(f) / 1e6 for f in ("one thread", "all threads", "both")]
        row.append(least_of(static, p, threads) / 1e6)
        total = [t + blocks * ms for t, ms in zip(total, row, strict=True)]
        print(_row(p.block.kind[:8], len(p.block.units), blocks, row))
    print(_row("all", len(static.graph.units), len(planned), total), flush=True)
    return total[1] / total[3]


def _row(name: str, units: int, blocks: int, row: list[float]) -> str:
    one, split, both, least = row
    costs = f"{one:>12.2f}{split:>13.2f}{both:>7.2f}{least:>7.2f}"
    return f"  {name:<18}{units:>6}{blocks:>8}{costs}{split / both:>8.2f} x{split / least:>8.2f} x"


def head_of(options: argparse.Namespace, overhead: int) -> CostTable:
    """A table without entries."""
    return CostTable(device="cpu", threads=options.threads, dtype="float32", batch_size=options.batch,
                     overhead_ns=overhead)  # fmt: skip


def least_of(static: StaticModel, planned: Planned, threads: int) -> float:
    """What no schedule of a block's units can beat, in nanoseconds by the table: all work of single threads over all of
    them, and the longest path with every unit at its fastest."""
    forms, dag = planned.scheduled.forms, block_dag(static.graph, planned.block)
    one, split = ([stage.median for stage in forms[form]] for form in ("one thread", "all threads"))
    path = [0] * len(one)
    for unit in range(len(one)):
        path[unit] = min(one[unit], split[unit]) + max((path[u] for u in members(dag.reads[unit])), default=0)
    return max(sum(one) / threads, *path)


def measured_times(
    static: StaticModel, batch: torch.Tensor, planned: list[Planned], options: argparse.Namespace
) -> dict[str, float]:
    """The median of every way of running, all taking turns, in milliseconds."""
    with nets_of(static, planned, options.threads) as nets:
        clocks: dict[str, Clock] = {
            f"eager, {threads} threads": clock(_eager(static, batch, threads)) for threads in (1, options.threads)
        }
        clocks |= {form: net.clock(batch) for form, net in nets.items()}
        return {kind: cost.median / 1e6 for kind, cost in turns(clocks, options.seconds).items()}


def _eager(static: StaticModel, batch: torch.Tensor, threads: int) -> Callable[[], Any]:
    def run() -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        with torch.no_grad():
            result = static.model(batch)
        torch.set_num_threads(before)
        return result

    return run


if __name__ == "__main__":
    main()
