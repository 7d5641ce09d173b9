"""What a mini-batch should take on a GPU, from its own table of steps; and what the host takes, measured.

    python benchmarks/gpu_model.py [--json F] [--data DIR] [--dtype float32] [--only MODELS]

No GPU is needed, and none is used: what a mini-batch would issue is worked out on the CPU, with launches that do
nothing. The model is there to be refuted by `make gpu`, which prints it beside what is measured.

Assumptions, all of an H200 (`CARD`), published unless said:

(1) A step takes NODE, the gap between two nodes of a CUDA graph, or what its work takes beside LATENCY, if that is
    more. LATENCY is that of reads that wait for each other: row number, operand and weight, then the turns of a loop
    over factors, each behind the one before; as 168 steps of lattices and 19 of trees of hidden size 128 were measured.
(2) The work of a step is the longest of: what it moves at the memory's rate; its multiplications at the peak of the
    element type; and the slowest program, which takes its tiles one after the other, each moving its own operands and
    weights at one multiprocessor's share of the second-level cache's rate (assumed: 64 bytes per cycle) and
    multiplying at its share of the peak. Weights come from the second-level cache once a step has read them.
(3) Nothing reaches peaks: EFFICIENCY of the memory's and the caches', assumed, and OF_PEAK of multiplications', as
    trees of hidden size 512 were measured.
(4) A mini-batch takes the steps, REPLAY per launch of the host that is not hidden behind a chain (the first), and
    COPY for the table; or the host's time, if that is more, since the next mini-batch is prepared meanwhile.

(5) Eager PyTorch is bound by its host: CALL for every call of an operator that computes, counted on the CPU (views are
    free); published figures are 4 to 10 microseconds. cuDNN's LSTM over sequences of one length does the projections of
    its inputs at once, then a step per word, each LATENCY beside its work, without gaps.

The table at the end holds every target against the model; `met` is within twice what is wanted. Fixed-LSTM is `lstm_lm`
on texts of 64 words, whose scores of 256 words cuDNN does not compute.

Host time is the median processor time of joining vertices, sharing, scheduling, placing, and writing the table up to
the launches, on this machine; copies to pinned memory are copies in memory here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from end_to_end import DATA, REPOSITORY, WORKLOADS, Workload, inputs_of
from torch.utils._python_dispatch import TorchDispatchMode

import edbc
from edbc.cells.values.value import REDUCTIONS, in_order, pieces_of
from edbc.run.cuda import issue
from edbc.run.cuda.chains import NODE, REPLAY, cut
from edbc.run.cuda.cudabackend import CudaBackend
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.stages import Job
from edbc.run.modelfile import ModelFile, import_model_file
from edbc.run.session import Net

COPY, LATENCY, CALL = 6.0, 3.2, 5.0
EFFICIENCY, OF_PEAK = 0.6, 0.3
"""Microseconds, and shares; assumptions (1), (3) to (5)."""
WORDS = 64
FIXED = Workload("lstm_lm", (), (("length", WORDS),))
AGAINST_EAGER, AGAINST_CUDNN = 20.0, 1.5
"""How many times as fast as eager, and as slow as cuDNN, is wanted at most."""
COMBINATIONS = ((32, 128), (256, 512), (1, 128), (256, 128), (32, 512))
"""Batch size and hidden size."""
TARGETS = {("tree_lstm", 32, 128): 150.0, ("lattice_lstm", 32, 128): 700.0, ("tree_lstm", 256, 512): 2560.0}
"""Microseconds per mini-batch that are wanted; 2,560 are 100,000 trees per second."""


@dataclass(frozen=True)
class Card:
    """Rates per second."""

    name: str
    processors: int
    cycles: float
    memory: float
    peaks: dict[str, float]


CARD = Card("H200", 132, 1.98e9, 4.8e12, {"float32": 67e12, "tf32": 494e12, "bfloat16": 989e12, "float64": 34e12})
WIDTHS = {"float32": 4, "tf32": 4, "bfloat16": 2, "float64": 8}


@dataclass(frozen=True)
class Work:
    """Of one job: multiplications and additions, and elements moved, of a node; elements of weights."""

    flops: float
    moved: float
    weights: float


def work_of(job: Job) -> Work:
    """What the job's tiles compute, each element read once."""
    products = [(product, len(firsts) * job.v.size) for product, firsts in job.sums]
    products += [(job.v, job.v.size)] if job.v.op == "product" else []
    flops = sum(2.0 * product.sources[0].size * columns for product, columns in products)
    weights = float(sum(product.sources[0].size * columns for product, columns in products))
    if job.v.op == "matmul":
        m, k, n = job.v.arg
        flops += 2.0 * m * k * n
    if job.v.op in REDUCTIONS:
        flops += float(np.prod(job.v.arg))
    read = sum(piece.size for product, _ in products for piece in pieces_of(product.sources[0]))
    read += sum(v.size for v in in_order([s.v for s in job.stores], [p for p, _ in products]) if v.op == "load")
    return Work(flops, float(read + sum(store.size for store in job.stores)), weights)


@dataclass(frozen=True)
class Record:
    """A job of a batch."""

    work: Work
    count: int
    tiles: int
    key: tuple[int, int, int]
    """Type, stage and job, of which all batches read the same weights."""


def records_of(net: Net, prepared: Any) -> list[list[Record]]:
    """Those of every step."""
    backend: Any = net.backend
    programs = issue.PER_PROCESSOR * CARD.processors
    (run,) = prepared.demand.runs
    steps: list[list[Record]] = [[] for _ in range(run.steps)]
    counts = np.diff(prepared.schedule.batch_ptr).tolist()
    types = prepared.capture.graph.types
    for batch, kind in enumerate(prepared.schedule.batch_type.tolist()):
        kernel = backend._triton(types[kind], net.kernel(kind))
        for stage, jobs in enumerate(kernel.branches):
            for number, variants in enumerate(jobs):
                tiles = [branch.tiles(counts[batch]) for branch in variants]
                chosen = max((v for v, n in enumerate(tiles) if n >= programs), default=0)
                work = _work(kernel, stage, number, prepared, batch)
                record = Record(work, counts[batch], tiles[chosen], (kind, stage, number))
                steps[int(run.first[batch]) + stage].append(record)
    return steps


def floor(steps: Sequence[Sequence[Record]], dtype: str) -> float:
    """Microseconds that no schedule can beat: each weight read once, all else moved as often as jobs do, at the
    memory's full rate; or all multiplications at the full peak."""
    records = [record for of_step in steps for record in of_step]
    weights = {record.key: record.work.weights for record in records}
    moved = WIDTHS[dtype] * (sum(r.work.moved * r.count for r in records) + sum(weights.values()))
    return 1e6 * max(moved / CARD.memory, sum(r.work.flops * r.count for r in records) / CARD.peaks[dtype])


def step_times(steps: Sequence[Sequence[Record]], dtype: str) -> Iterator[float]:
    """Microseconds of every step by assumptions (1) to (3)."""
    width, peak, programs = WIDTHS[dtype], CARD.peaks[dtype] * OF_PEAK, issue.PER_PROCESSOR * CARD.processors
    cache = 64 * CARD.cycles * EFFICIENCY
    for records in steps:
        moved = sum(width * (r.work.moved * r.count + r.work.weights) for r in records)
        flops = sum(r.work.flops * r.count for r in records)
        slowest = 0.0
        for r in records:
            each = -(-r.tiles // programs) / r.tiles
            of_tile = width * (r.work.moved * r.count + r.work.weights * _rows_of_tiles(r)) / cache
            slowest = max(slowest, each * max(of_tile, r.work.flops * r.count * CARD.processors / peak))
        seconds = max(moved / (CARD.memory * EFFICIENCY), flops / peak, slowest)
        yield max(NODE, LATENCY + 1e6 * seconds)


def _rows_of_tiles(record: Record) -> float:
    """How many rows of tiles read all weights."""
    return max(1.0, min(record.count / 16, float(record.tiles))) if record.work.weights else 0.0


def _work(kernel: TritonKernel, stage: int, number: int, prepared: Any, batch: int) -> Work:
    if kernel.stages is not None:
        return work_of(kernel.stages.jobs[stage][number])
    placement = prepared.placement  # a reduction of items
    size = placement.classes[int(placement.output_class[prepared.schedule.batch_type[batch], number])].size
    count = int(np.diff(prepared.schedule.batch_ptr)[batch])
    items = float(placement.items[batch]) / max(count, 1)
    return Work(size * items, size * (items + 1), 0.0)


# --- the host ------------------------------------------------------------------------------------------------------


def without_launches(net: Net) -> None:
    """Let a net's back end issue nothing, and capture nothing: launches are where measuring the host ends."""
    backend: Any = net.backend
    for issuer in (backend.forward, backend.backward):
        issuer._capture = lambda *_: lambda: None
        issuer._function = lambda _: {(issue.ON_HOST,): lambda *_, **__: None}


def host_times(net: Net, vertices: Sequence[Any], repeat: int) -> dict[str, float]:
    """Median microseconds of processor time; joining and scheduling are parts of preparing."""
    parts: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = call()
        parts.setdefault(name, []).append(1e6 * (time.process_time() - started))
        return result

    for _ in range(repeat):
        captured = timed("join", lambda: net.mini_batch(vertices))
        timed("schedule", lambda c=captured: net.schedule(c))
        prepared = timed("prepare", lambda: net.prepare(vertices))
        timed("issue", lambda p=prepared: issued(net, p))
    found = {name: statistics.median(times) for name, times in parts.items()}
    return {**found, "total": found["prepare"] + found["issue"]}


def issued(net: Net, prepared: Any) -> None:
    """Everything up to the launches, memory and externals counted in; results are gathered by launches behind them."""
    with net.executing(prepared) as execution:
        execution.run()


# --- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One combination; times in microseconds per mini-batch."""

    model: str
    batch_size: int
    hidden_size: int
    dtype: str
    nodes: int
    batches: int
    steps: int
    launches: int
    device: float
    floor: float
    host: dict[str, float]
    target: float | None
    eager: float | None = None
    """By assumption (5)."""

    @property
    def time(self) -> float:
        """Assumption (4)."""
        return max(self.device, self.host["total"])

    def __str__(self) -> str:
        rate = 1e6 * self.batch_size / self.time
        against = f"{self.time / self.target:8.2f}" if self.target else " " * 8
        sizes = f"{self.model:20} {self.batch_size:>5} {self.hidden_size:>6} {self.batches:>7} {self.steps:>5}"
        times = f"{self.device:>9.0f} {self.floor:>8.1f} {self.host['total']:>8.0f}"
        return f"{sizes} {self.launches:>8} {times} {rate:>11,.0f} {against}"


HEADER = f"{'model':20} batch hidden batches steps launches device us floor us  host us instances/s of target"


def row(workload: Workload, batch_size: int, hidden_size: int, options: argparse.Namespace) -> Row:
    """Bind, prepare one mini-batch of the data, work it out."""
    file = import_model_file(REPOSITORY / "models" / f"{workload.model}.py")
    config = file.config({"hidden_size": hidden_size, "vocab_size": 256, **dict(workload.settings)})
    inputs = inputs_of(workload, Path(options.data))
    loaded = file.load([str(path) for path in inputs], config) if inputs else iter(file.sample(batch_size, 1, config))
    instances = [instance for instance, _ in zip(loaded, range(batch_size), strict=False)]
    backend = CudaBackend(torch.device("cpu"))
    backend.why_not = None
    plan = edbc.load(REPOSITORY / "plans" / f"{workload.model}.yaml").plan
    net = Net(plan, file.build(config, 0), backend=backend, rebind=True)
    without_launches(net)
    with torch.no_grad():
        vertices = vertices_of(net, file, config, instances)
        net.run(vertices)
        host = host_times(net, vertices, options.repeat)
        prepared = net.prepare(vertices)
    steps = records_of(net, prepared)
    device = sum(step_times(steps, options.dtype)) + NODE + REPLAY + COPY
    demand: Any = prepared.demand
    empty = sum(cut(demand.steps)) - demand.steps
    return Row(workload.model, batch_size, hidden_size, options.dtype, prepared.capture.graph.num_nodes,
               prepared.schedule.num_batches, demand.runs[0].steps, demand.launches, device + NODE * empty,
               floor(steps, options.dtype), host,
               TARGETS.get((workload.model, batch_size, hidden_size)),
               eager_time(net.model, instances) if (batch_size, hidden_size) == COMBINATIONS[0] else None)  # fmt: skip


def vertices_of(net: Net, file: ModelFile, config: Any, instances: Sequence[Any]) -> list[Any]:
    """Instances as vertices, or captured where the model has no vertex functions."""
    if not hasattr(file.module, "vertex_instance"):
        return list(net.capture_all(instances))
    return list(map(file.vertex_instance(config), instances))


# --- what others take, and targets -----------------------------------------------------------------------------------


class Calls(TorchDispatchMode):
    """Counts calls of operators that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def eager_time(model: torch.nn.Module, instances: Sequence[Any]) -> float:
    """Assumption (5)."""
    with torch.no_grad(), Calls() as calls:
        for instance in instances:
            model(instance)
    return CALL * calls.count


def cudnn_time(batch_size: int, hidden_size: int, dtype: str) -> float:
    """Assumption (5), of `WORDS` words."""
    gates, weights = 4 * hidden_size, 4.0 * hidden_size**2

    def step(rows: int) -> Iterator[float]:
        work = Work(2.0 * weights, float(hidden_size + gates), weights)
        yield from step_times([[Record(work, rows, -(-rows // 64) * -(-gates // 64), (0, 0, 0))]], dtype)

    return sum(step(WORDS * batch_size)) + WORDS * sum(step(batch_size))


def targets_of(rows: Sequence[Row]) -> Iterator[str]:
    """A line per target."""
    yield f"{'target':44} wanted us  model us  model / wanted"
    for row in rows:
        sizes = f"{row.model}, batch {row.batch_size}, hidden {row.hidden_size}"
        wanted = {"": row.target, f": eager / {AGAINST_EAGER:g}": row.eager and row.eager / AGAINST_EAGER}
        if row.model == FIXED.model:
            cudnn = cudnn_time(row.batch_size, row.hidden_size, row.dtype)
            wanted = {f": cuDNN x {AGAINST_CUDNN:g}": AGAINST_CUDNN * cudnn}
        for name, least in wanted.items():
            if least:
                met = "met" if row.time <= least else "met within twice" if row.time <= 2 * least else "missed"
                yield f"{sizes + name:44} {least:>9.0f} {row.time:>9.0f} {row.time / least:>9.2f}  {met}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default=None, help="where the rows go")
    parser.add_argument("--data", default=DATA, help="folder with the shared data sets; without it, samples")
    parser.add_argument(
        "--dtype", choices=list(WIDTHS), default="float32", help="tf32: float32 on tensor cores, where torch is told to"
    )
    parser.add_argument("--only", default="", help="models, separated by commas")
    parser.add_argument("--sizes", type=int, default=len(COMBINATIONS), help="so many of the combinations")
    parser.add_argument("--repeat", type=int, default=15, help="turns of measuring the host")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """All combinations of all workloads."""
    options = parse(arguments)
    torch.set_num_threads(1)
    rows = []
    print(HEADER)
    for workload in (*WORKLOADS, FIXED):
        if options.only and workload.model not in options.only.split(","):
            continue
        for sizes in COMBINATIONS[: min(options.sizes, 2) if workload is FIXED else options.sizes]:
            rows.append(row(workload, *sizes, options))
            print(rows[-1], flush=True)
    print(*targets_of(rows), sep="\n")
    if options.json:
        assumed = {"copy": COPY, "latency": LATENCY, "efficiency": EFFICIENCY, "of_peak": OF_PEAK}
        found = {"card": asdict(CARD), "assumed": assumed,
                 "rows": [{**asdict(r), "time": r.time} for r in rows]}  # fmt: skip
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
