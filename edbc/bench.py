"""Measuring a plan: instances per second, where the time goes, and how far it is from what is possible.

Definitions.

(1) A *round* is one pass over all mini-batches, in which everything that is compared takes turns on each mini-batch. The
    figures are medians over mini-batches and rounds; `spread` is the distance between the quartiles of the total, as a part
    of its median.
(2) The *GEMM floor* of a mini-batch: for every batch of a type with products, in the order of the schedule, one
    `torch.mm(out=)` with all gates side by side over the longest of the products' inputs; nothing hoisted, nothing gathered, no
    activation. *Own products* are the plan's own, one `torch.mm(out=)` each. Same process, same threads.
(3) *Eager* is the unmodified model, instance by instance, without gradients; it takes part in the first round only.
(4) `peak_bytes` is what the largest mini-batch takes for values and workspace, known before it executes.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edbc.check import model_path
from edbc.errors import InputError
from edbc.modelfile import Config, ModelFile, import_model_file
from edbc.parity import Eager
from edbc.plan.plan import Plan
from edbc.runtime.session import Net, Prepared, Stats

BASELINES = ("eager", "depth", "agenda", "sufficient", "critical")


@dataclass(frozen=True)
class Row:
    """One measured combination; `seconds` are per mini-batch."""

    name: str
    front_end: str
    backend: str
    policy: str
    batch_size: int
    hidden_size: int | None
    threads: int
    instances_per_second: float
    spread: float
    seconds: dict[str, float]
    batches: float
    gemm_floor_ratio: float | None
    own_products_ratio: float | None
    eager_ratio: float | None
    peak_bytes: int
    cell_output_bytes: int

    def as_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return asdict(self)


@dataclass
class _Samples:
    """One contestant's times, mini-batch after mini-batch."""

    construction: list[float] = field(default_factory=list)
    scheduling: list[float] = field(default_factory=list)
    execution: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    cell_output_bytes: int = 0

    @property
    def total(self) -> list[float]:
        return [sum(x) for x in zip(self.construction, self.scheduling, self.execution, strict=True)]


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    batch_size: int = 32
    against: tuple[str, ...] = ("eager",)
    limit: int = 256
    rounds: int = 3
    dtype: str = "float32"
    backend: str | None = None


def bench_plan(path: Path, plan: Plan, inputs: Sequence[str], settings: dict[str, Any], setting: Setting,
               model: str | None = None) -> list[Row]:  # fmt: skip
    """Measure a plan with one config and batch size; a row for the plan's policy, then one per baseline.

    Without inputs the model's `sample` gives the instances. Raises InputError when there are none.
    """
    file = import_model_file(model_path(path, plan, model))
    config = file.config({**plan.model.config, **settings})
    net_model = file.build(config, plan.model.seed).to(getattr(torch, setting.dtype))
    instances = list(file.load(inputs, config, setting.limit)) if inputs else file.sample(setting.limit, 1, config)
    if not instances:
        raise InputError(f"{inputs[0] if inputs else file.path}: expected instances to measure, got none")
    rebind = config != plan.model.config or None
    policies = [plan.policy.kind, *(p for p in setting.against if p not in ("eager", plan.policy.kind))]
    nets = {policy: Net(plan, net_model, policy=policy, backend=setting.backend, rebind=rebind) for policy in policies}
    batches = _batches(instances, setting.batch_size)
    eager = Eager(net_model) if "eager" in setting.against else None
    return _rows(_name(path, file), config, nets, eager, batches, setting)


def _name(path: Path, file: ModelFile) -> str:
    return path.stem or file.path.stem


def _batches(instances: Sequence[Any], size: int) -> list[list[Any]]:
    """Full mini-batches; a rest counts only when it is all there is."""
    whole = [list(instances[i : i + size]) for i in range(0, len(instances) - size + 1, size)]
    return whole or [list(instances)]


def _rows(name: str, config: Config, nets: dict[str, Net], eager: Eager | None, batches: list[list[Any]],
          setting: Setting) -> list[Row]:  # fmt: skip
    samples = {policy: _Samples() for policy in nets}
    eager_seconds: list[float] = []
    for net in nets.values():
        for batch in batches:
            net(batch)
    gc.collect()
    for turn in range(setting.rounds):
        for batch in batches:
            for policy, net in nets.items():
                _measure(net, batch, samples[policy])
            if eager is not None and turn == 0:
                eager_seconds.append(_seconds(lambda batch=batch: eager.run(batch)))  # type: ignore[misc]
    sizes = [len(batch) for batch in batches]
    rows = [_row(name, config, nets[policy], policy, samples[policy], sizes, eager_seconds, setting) for policy in nets]
    return rows if not eager_seconds else [*rows, _eager_row(name, config, eager_seconds, sizes, setting)]


def _measure(net: Net, batch: list[Any], samples: _Samples) -> None:
    stats = Stats()
    _, prepared = net.run(batch, stats)
    samples.construction.append(stats.seconds.construction)
    samples.scheduling.append(stats.seconds.scheduling)
    samples.execution.append(stats.seconds.execution)
    samples.batches.append(stats.batches)
    samples.floor.append(_products_seconds(net, prepared, together=True))
    samples.own.append(_products_seconds(net, prepared, together=False))
    if stats.arena_bytes > samples.peak_bytes:
        samples.peak_bytes = stats.arena_bytes
        samples.cell_output_bytes = _output_bytes(net, prepared)


def _products_seconds(net: Net, prepared: Prepared, together: bool) -> float:
    """Definition (2)."""
    calls = list(_products(net, prepared, together))

    def run() -> None:
        for a, b, c in calls:
            torch.mm(a, b, out=c)

    return _seconds(run)


def _products(
    net: Net, prepared: Prepared, together: bool
) -> Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    schedule = prepared.schedule
    counts = np.diff(schedule.batch_ptr).tolist()
    memory: dict[Any, torch.Tensor] = {}

    def matrix(role: Any, rows: int, columns: int) -> torch.Tensor:
        key = (role, rows, columns)
        if key not in memory:
            memory[key] = torch.rand(rows, columns, dtype=net.dtype)
        return memory[key]

    most = max(counts, default=0)
    for kind, count in zip(schedule.batch_type.tolist(), counts, strict=True):
        program = getattr(net.kernel(kind), "program", None)
        packed = program.weights if program is not None else ()
        shapes = [(p.rows, p.columns) for p in packed]
        if together and shapes:
            shapes = [(max(rows for rows, _ in shapes), sum(columns for _, columns in shapes))]
        for number, (rows, columns) in enumerate(shapes):
            a, c = matrix("in", most, rows)[:count], matrix("out", most, columns)[:count]
            yield a, matrix((kind, number), rows, columns), c


def _output_bytes(net: Net, prepared: Prepared) -> int:
    from edbc.runtime.arenas import arena_bytes

    return arena_bytes(prepared.placement, externals=False)


def _seconds(function: Callable[[], Any]) -> float:
    with torch.no_grad():
        started = time.perf_counter()
        function()
        return time.perf_counter() - started


def _ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Median of quotients taken mini-batch by mini-batch."""
    quotients = [a / b for a, b in zip(above, itertools.cycle(below), strict=False) if b > 0] if below else []
    return statistics.median(quotients) if quotients else None


def _row(name: str, config: Config, net: Net, policy: str, samples: _Samples, sizes: list[int],
         eager_seconds: list[float], setting: Setting) -> Row:  # fmt: skip
    has_products = any(seconds > 1e-6 for seconds in samples.floor)
    total = samples.total
    return Row(
        name, "record", net.backend.name, policy, setting.batch_size, _hidden(config), torch.get_num_threads(),
        instances_per_second=statistics.median(n / t for n, t in zip(itertools.cycle(sizes), total, strict=False)),
        spread=_spread(total),
        seconds={
            "construction": statistics.median(samples.construction),
            "scheduling": statistics.median(samples.scheduling),
            "execution": statistics.median(samples.execution),
            "total": statistics.median(total),
        },
        batches=statistics.median(samples.batches),
        gemm_floor_ratio=_ratio(samples.execution, samples.floor) if has_products else None,
        own_products_ratio=_ratio(samples.execution, samples.own) if has_products else None,
        eager_ratio=_ratio(eager_seconds, total[: len(eager_seconds)]) if eager_seconds else None,
        peak_bytes=samples.peak_bytes,
        cell_output_bytes=samples.cell_output_bytes,
    )  # fmt: skip


def _eager_row(name: str, config: Config, seconds: list[float], sizes: list[int], setting: Setting) -> Row:
    median = statistics.median(seconds)
    return Row(
        name, "none", "eager", "eager", setting.batch_size, _hidden(config), torch.get_num_threads(),
        instances_per_second=statistics.median(n / t for n, t in zip(sizes, seconds, strict=True)),
        spread=_spread(seconds),
        seconds={"construction": 0.0, "scheduling": 0.0, "execution": median, "total": median},
        batches=0, gemm_floor_ratio=None, own_products_ratio=None, eager_ratio=1.0, peak_bytes=0, cell_output_bytes=0,
    )  # fmt: skip


def _hidden(config: Config) -> int | None:
    value = config.get("hidden_size")
    return value if isinstance(value, int) else None


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle
