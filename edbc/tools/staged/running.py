"""Running a static plan: what `edbc run` does with one, and the report of it.

Instances are stacked to batches of the plan's size unless told otherwise; another size runs by the same schedule, and
the report says so. Options that only batches of nodes have are refused.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edbc.errors import InputError, StaleError
from edbc.plan.static import StaticPlan
from edbc.run.backend import require_device, wait_for
from edbc.run.modelfile import Config, ModelFile, import_model_file
from edbc.run.weights.weightsfile import model_of_plan
from edbc.stages.capture import cast, stacked
from edbc.stages.cuda.net import DeviceNet, Span
from edbc.stages.net import BatchNet, StaticModel
from edbc.stages.units.tasks import Task
from edbc.tools.checking import model_path
from edbc.tools.parity import Eager, Parity, compared, parity_on
from edbc.tools.report.timeline import named, write_events
from edbc.tools.running import (
    Setting,
    Tell,
    Warn,
    batches_of,
    instances_of,
    require_model,
    require_targets,
    write_outputs,
)
from edbc.tools.staged.compiling import bound_net, device_name, require_kind_of_device

MADE_UP = 32
"""Instances where neither files nor a limit are given."""


@dataclass
class StaticReport:
    """What a run did; `str()` is for people."""

    plan: StaticPlan
    setting: Setting
    batch_size: int
    instances: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of every batch."""
    eager_seconds: float = 0.0
    parity: Parity | None = None

    @property
    def total(self) -> float:
        """Seconds of all batches."""
        return sum(self.seconds)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON's types."""
        content = {
            "instances": self.instances,
            "source": "input" if self.setting.inputs else "sample",
            "batch_size": self.batch_size,
            "ran": "stages",
            "stages": sum(len(block.stages) for block in self.plan.static.blocks),
            "units": len(self.plan.static.units),
            "seconds": self.total,
            "batch_ms": 1e3 * statistics.median(self.seconds) if self.seconds else 0.0,
            "instances_per_second": self.instances / self.total if self.total else 0.0,
            "device": self.setting.device,
            "dtype": self.setting.dtype,
        }
        if self.parity is not None:
            content |= {**self.parity.as_json(), "parity": self.parity.holds, "eager_seconds": self.eager_seconds}
        return content

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        static, made_up = self.plan.static, "" if self.setting.inputs else ", made up by the model's sample"
        stages = sum(len(block.stages) for block in static.blocks)
        yield f"{self.instances:,} instances in batches of {self.batch_size}{made_up}"
        yield f"  schedule     {len(static.units)} units in {stages} stages, {static.workers}"
        if self.seconds:
            rate, each = self.instances / self.total, 1e3 * statistics.median(self.seconds)
            yield f"  throughput   {rate:,.1f} instances/s, {each:,.2f} ms per batch"
        if self.eager_seconds:
            gain = self.eager_seconds / self.total
            rate = self.instances / self.eager_seconds
            yield f"  eager        {rate:,.1f} instances/s one by one: stages are {gain:.1f} times as fast"
        if self.parity is not None:
            yield f"  parity       {self.parity.errors}{self.parity.remark}"


def run_static(path: Path, plan: StaticPlan, setting: Setting, batch_size: int | None, warn: Warn,
               tell: Tell = lambda text: None) -> StaticReport:  # fmt: skip
    """Bind and run; outputs and timeline are written as the setting says."""
    _require_possible(setting)
    require_targets(path, plan, setting, (path.parent / plan.static.costs.name,))
    file, config, net, lanes = _bind(path, plan, setting, warn)
    size = batch_size or plan.static.batch_size
    if size != plan.static.batch_size:
        warn(f"{path.name}: scheduled for batches of {plan.static.batch_size}, run on batches of {size}")
    report = StaticReport(plan, setting, size)
    with net:
        tell(f"memory: {net.memory(size)} for the values of a batch of {size}")
        _run(report, file, config, net, lanes)
    return report


def _require_possible(setting: Setting) -> None:
    require_device(setting.device)
    wishes = {
        "--policy": setting.policy, "--backend": setting.backend, "--layout": setting.layout != "plan",
        "--front-end": setting.front_end != "record", "--no-split": not setting.split, "--no-share": not setting.share,
        "--epochs": setting.epochs != 1, "--recapture": setting.recapture, "--max-reads": setting.max_reads,
    }  # fmt: skip
    for option, wish in wishes.items():
        if wish:
            raise InputError(f"{option}: expected a plan of batches, got one of stages, which has none; leave it away")


def _bind(path: Path, plan: StaticPlan, setting: Setting,
          warn: Warn) -> tuple[ModelFile, Config, BatchNet[Any], Lanes | None]:  # fmt: skip
    file, config, model, example = model_and_example(path, plan, setting, warn)
    static = StaticModel(model, example, file.path.name)
    if setting.trace is None:
        return file, config, bound_net(static, plan), None
    lanes = Lanes(static)
    return file, config, bound_net(static, plan, lanes.wrap), lanes


def model_and_example(path: Path, plan: StaticPlan, setting: Setting,
                      warn: Warn) -> tuple[ModelFile, Config, nn.Module, Any]:  # fmt: skip
    """The plan's model file, its config, the model as built, and an instance."""
    model_file = model_path(path, plan, setting.model)
    require_model(plan, model_file, setting.trust_changed_model, warn)
    require_kind_of_device(plan, path, device_name(setting.device), warn)
    file = import_model_file(model_file)
    config = file.config({**plan.model.config, **setting.config})
    if config != plan.model.config:
        raise StaleError(
            f"{path.name}: expected the plan's config, got another; a static plan's costs are of one size: compile "
            "with --set and --profile"
        )
    model = model_of_plan(file, config, plan, path, setting.seed, setting.weights)
    dtype = getattr(torch, setting.dtype)
    example = cast(file.sample(1, plan.model.seed, config)[0], dtype, setting.device)
    return file, config, model.to(setting.device, dtype), example


def _run(report: StaticReport, file: ModelFile, config: Config, net: BatchNet[Any], lanes: Lanes | None) -> None:
    from edbc.run.outputs import OutputFile

    setting, dtype = report.setting, getattr(torch, report.setting.dtype)
    verifier = Verifier(net, report.plan) if setting.verify else None
    outputs = OutputFile()
    instances = (cast(instance, dtype, setting.device) for instance in instances_of(file, config, setting, MADE_UP))
    for batch in batches_of(instances, report.batch_size):
        if not report.seconds:
            net(batch)  # packs weights
            if lanes is not None:
                lanes.begin()
        started = time.perf_counter()
        results = net(batch)
        wait_for(net.static.device)
        report.seconds.append(time.perf_counter() - started)
        report.instances += len(batch)
        if setting.output is not None:
            for result in results:
                outputs.add(result)
        if verifier is not None:
            verifier.verify(batch, results)
    if verifier is not None:
        report.parity, report.eager_seconds = verifier.parity, verifier.eager_seconds
        verifier.close()
    if setting.output is not None:
        write_outputs(outputs, setting.output)
    if lanes is not None and setting.trace is not None:
        lanes.write(setting.trace, net.spans(stacked(batch)) if isinstance(net, DeviceNet) else ())


class Verifier:
    """Compares results with eager's; where torch may multiply in tf32, those of a second net in IEEE float32 too."""

    def __init__(self, net: BatchNet[Any], plan: StaticPlan):
        self.parity, self.eager_seconds = parity_on(net.static.device), 0.0
        self._eager = Eager(net.static.model)
        self._second = None if self.parity.in_ieee is None else bound_net(net.static, plan)

    def verify(self, batch: list[Any], results: list[Any]) -> None:
        """A batch, with what the net gave for it."""

        def add(to: Parity) -> None:
            to.add_all(results if to is self.parity else self._again(batch), None, self._eager, batch)

        with self._eager.at_its_best(batch), torch.no_grad():
            started = time.perf_counter()
            self._eager.run(batch)
            self.eager_seconds += time.perf_counter() - started
            compared(self.parity, add)

    def _again(self, batch: list[Any]) -> list[Any]:
        assert self._second is not None
        return self._second(batch)

    def close(self) -> None:
        """End what it holds."""
        if self._second is not None:
            self._second.close()


class Lanes:
    """A timeline with a track per thread or stream, in Chrome's trace format, which Perfetto opens: what runs beside
    what."""

    def __init__(self, static: StaticModel):
        self._names = [unit.name for unit in static.graph.units]
        self._kinds = [unit.kind for unit in static.graph.units]
        self._events: list[tuple[Sequence[int], int, int, int]] = []
        self._origin: int | None = None

    def begin(self) -> None:
        """Forget what has run so far."""
        self._events.clear()
        self._origin = time.perf_counter_ns()

    def wrap(self, units: Sequence[int], task: Task) -> Task:
        """A task that is recorded, under the names of all units that are merged in it."""
        import threading

        def run() -> None:
            started = time.perf_counter_ns()
            task()
            self._events.append((units, threading.get_ident(), started, time.perf_counter_ns()))

        return run

    def write(self, path: str | Path, spans: Sequence[Span] = ()) -> None:
        """The file, whole or not at all; of the spans of a GPU's streams where there are some."""
        found = spans or self._events
        tracks = {thread: i for i, thread in enumerate(dict.fromkeys(event[1] for event in found))}
        events = [named("thread_name", f"{'stream' if spans else 'thread'} {i}", i) for i in tracks.values()]
        origin = 0 if spans else self._origin or 0
        for units, thread, start, end in found:
            times = {"ts": (start - origin) / 1000, "dur": (end - start) / 1000}
            name, kind = " + ".join(self._names[unit] for unit in units), self._kinds[units[0]]
            events.append({"name": name, "cat": kind, "ph": "X", "pid": 1, "tid": tracks[thread], **times})
        write_events(events, path)
