"""Static networks in stages on the CPU: what every kind of schedule takes, measured side by side.

    python benchmarks/inter_operator.py [--batch 1] [--threads 2] [--rounds 15] [--json OUT] [NETWORK ...]

Stages are measured first, as `edbc compile --profile` does. Then the whole network takes turns: eager PyTorch and our
own kernels one after the other, with one thread and with all of torch's own, and the schedules greedy, merge only,
concurrent only, both, and both without barriers. Medians, in milliseconds.
`--simulate` measures nothing: it plans on a device in formulas and tells how long planning takes from the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # as the command line does, before torch is loaded
import torch

from edbc.run.modelfile import import_model_file
from edbc.stages.cpu.execute import Team
from edbc.stages.cpu.lifetimes import Schedule
from edbc.stages.cpu.measure import Measurement
from edbc.stages.cpu.net import StagedNet, StaticModel, sequential
from edbc.stages.plan_graph import Limits, Planned, schedule_graph, whole_schedule
from edbc.stages.search import Machine
from edbc.stages.table import SPLIT, Costs, CostTable

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = ("inception_v3", "squeezenet", "randwire", "nasnet_a")
KINDS = ("greedy", "merge", "concurrent")


def main() -> None:
    """Measure the networks that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    found = {}
    for name in options.networks:
        found[name] = simulate(name, options) if options.simulate else measure(name, options)
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1))


def opened(name: str, batch: int) -> tuple[StaticModel, torch.Tensor]:
    """A network with seeded weights, and a batch for it."""
    file = import_model_file(ROOT / "models" / f"{name}.py")
    config = file.config({})
    model = file.build(config, 0)
    return StaticModel(model, file.sample(1, 0, config)[0], name), torch.cat(file.sample(batch, 0, config))


def simulate(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Plan on the simulated device, then again from the table alone."""
    sys.path.append(str(ROOT / "tests" / "stages"))
    from simulated import MACHINE, NAME, OVERHEAD, measured, unit_costs

    static, _ = opened(name, 1)
    costs = unit_costs(static.graph, options.batch)
    table = Costs(CostTable(device=NAME, threads=1, dtype="float32", batch_size=options.batch, overhead_ns=OVERHEAD))
    limits = Limits(gap=options.gap)
    planned = schedule_graph(static, MACHINE, table, limits, lambda *stage: measured(costs, *stage))
    started = time.perf_counter()
    schedule_graph(static, MACHINE, table, limits)
    seconds = time.perf_counter() - started
    measured_stages, distinct = totals_of(planned)
    print(f"{name}: {measured_stages:,} of {distinct:,} stages measured; planned again in {seconds:.2f} s")
    costs_of = {kind: sum(p.scheduled.baseline(kind) for p in planned) / 1e6 for kind in ("sequential", *KINDS)}
    costs_of["both"] = sum(p.scheduled.cost for p in planned) / 1e6
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
    """Profile a network, then let all kinds of schedules take turns."""
    static, batch = opened(name, options.batch)
    team = Team(options.threads)
    measurement = Measurement(static, options.batch, team)
    head = CostTable(device="cpu", threads=options.threads, dtype="float32", batch_size=options.batch,
                     overhead_ns=measurement.overhead())  # fmt: skip
    started = time.perf_counter()
    machine = Machine(options.threads, options.threads > 1)
    planned = schedule_graph(static, machine, Costs(head), Limits(gap=options.gap), measurement.stage)
    seconds = time.perf_counter() - started
    team.close()
    measured_stages, distinct = totals_of(planned)
    print(f"{name}, batches of {options.batch}: {measured_stages:,} of {distinct:,} stages in {seconds:.0f} s")
    times = turns(static, batch, planned, options)
    best_single = min(times["one thread"], times["torch's threads"])
    for kind, ms in times.items():
        print(f"  {kind:<18}{ms:>9.2f} ms   {best_single / ms:>5.2f}")
    blocks = {p.block.text: p for p in planned}.values()
    for p in blocks:
        s = p.scheduled
        print(
            f"    {static.graph.units[p.block.units[-1]].name:<24}{s.baseline('sequential') / s.cost:.2f} x one by one"
        )
    sys.stdout.flush()
    return {"measured": measured_stages, "distinct": distinct, "profile_seconds": seconds, "ms": times}


def turns(
    static: StaticModel, batch: torch.Tensor, planned: list[Planned], options: argparse.Namespace
) -> dict[str, float]:
    """The median of every way of running, all taking turns."""
    graph, threads = static.graph, options.threads
    spread = [(((u,),), SPLIT) for u in range(len(graph.units))]
    nets = {
        "one thread": StagedNet(static, sequential(graph), 1),
        "torch's threads": StagedNet(static, spread, threads),
        **{kind: StagedNet(static, schedule_of(planned, kind), threads) for kind in KINDS},
        "both": StagedNet(static, whole_schedule(planned), threads),
        "no barriers": StagedNet(static, whole_schedule(planned), threads, barriers=False),
    }
    runs: dict[str, Callable[[], Any]] = {f"eager, {t} threads": _eager(static, batch, t) for t in (1, threads)}
    runs |= {kind: (lambda net=net: net.batch(batch)) for kind, net in nets.items()}
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(options.rounds + 1):
        for kind, run in runs.items():
            time.sleep(0.005)  # what torch's threads spin for
            started = time.perf_counter()
            run()
            times[kind].append(1e3 * (time.perf_counter() - started))
    for net in nets.values():
        net.close()
    return {kind: statistics.median(found[1:]) for kind, found in times.items()}


def schedule_of(planned: list[Planned], kind: str) -> Schedule:
    """A baseline's stages, in the graph's unit numbers."""
    return [
        (tuple(tuple(p.block.units[u] for u in group) for group in stage.groups), stage.run)
        for p in planned
        for stage in p.scheduled.baselines[kind]
    ]


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
