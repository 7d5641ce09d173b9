"""Compiling a static model: graph -> units -> blocks -> costs -> schedule -> plan, compared with eager PyTorch.

Everything but measuring is a function of edbc's version, the model file, config, seed and the cost table. Measuring
fills the table, which is written beside the plan; the plan names it by hash, and comes out the same from the table
alone.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from edbc._version import __version__
from edbc.errors import StaleError
from edbc.native.threads import num_cores
from edbc.plan.plan import FileRef, Guard, ModelRef
from edbc.plan.static import CUDA, INPUT, PlanBlock, PlanStage, PlanUnit, Static, StaticPlan
from edbc.run.backend import require_device
from edbc.run.modelfile import Config, ModelFile
from edbc.run.weights.weightsfile import Weights
from edbc.stages import Stages
from edbc.stages.capture import cast, require_stacking
from edbc.stages.cpu.execute import Wrap
from edbc.stages.devices import STREAMS, gpu_name, machine_of, measuring, net_of
from edbc.stages.forms import OPEN, chosen_form, chosen_kernels, measured_forms, measured_kernels
from edbc.stages.graph import UnitGraph
from edbc.stages.net import BatchNet, StaticModel
from edbc.stages.plan_graph import Planned, schedule_graph
from edbc.stages.search import Scheduled
from edbc.stages.table import Costs, CostTable, require_table, table_path, table_text
from edbc.stages.units.products import merge_sets
from edbc.tools.health import processor_name
from edbc.tools.parity import Eager, Parity, compared, parity_on
from edbc.tools.staged.explanation import BY_TABLE

if TYPE_CHECKING:
    from edbc.tools.compile.modelobject import ModelObject

Progress = Callable[[str, int, int, dict[str, Any]], None]
REQUIREMENTS = ("torch>=2.8",)
COMPARED = 2
"""Instances that are compared with eager execution, beside a whole batch."""
LARGEST_COMPARED = 8
"""Instances of a batch that is compared, at most."""
MOST_SECONDS = 240.0
"""Of measuring stages: of wide networks there are hundreds of thousands."""
GUARDED = ("stages", "cost_us")


@dataclass(frozen=True, eq=False)
class CompiledStatic:
    """A static plan with its cost table and the evidence that it is right."""

    plan: StaticPlan
    table: CostTable
    parity: Parity
    ended: bool
    """Whether measuring ended before the gap that was asked for was proven; the plan's is the one that is."""


def device_name(kind: str = "cpu") -> str:
    """The processor, as far as the system tells: `AMD EPYC (AVX512)`; or the GPU."""
    if kind != "cpu":
        return re.sub(r"[^ -~]", "?", gpu_name())[:200]
    name, capability = " ".join(processor_name().split()), torch.backends.cpu.get_cpu_capability()
    return re.sub(r"[^ -~]", "?", f"{name} ({capability})")[:200]


def compile_static(
    given: ModelFile | ModelObject,
    *,
    settings: dict[str, Any],
    seed: int,
    plan: str | Path,
    stages: Stages,
    dtype: str = "float32",
    table: CostTable | None = None,
    weights: Weights | None = None,
    guards: dict[str, Guard] | None = None,
    progress: Progress = lambda *_: None,
) -> CompiledStatic:
    """Compile, with the costs of a table, or measured where there is none. `plan` is where it will stand.

    Raises UnsupportedError for a model that is not static, StaleError for a table of something else, and CheckFailed
    where results are not eager's.
    """
    require_device(stages.device)
    config = given.config(settings)
    model = given.build(config, seed)
    if weights is not None:
        weights.load(model)
    on = torch.device(stages.device)
    model, threads = (
        model.to(on, getattr(torch, dtype)),
        stages.threads or (num_cores() if on.type == "cpu" else STREAMS),
    )
    some = [cast(instance, getattr(torch, dtype), on) for instance in given.sample(2, seed, config)]
    static = StaticModel(model, some[0], given.name)
    require_stacking(model, some, given.name)
    name, proven = table_path(plan).name, stages
    asked: dict[str, Any] = {
        "device": device_name(on.type), "threads": threads, "dtype": dtype, "batch_size": stages.batch
    }  # fmt: skip
    if table is None:
        costs, planned = measured_costs(static, stages, CostTable(overhead_ns=0, **asked), progress)
        proven = _proven(stages, planned)
    else:
        require_table(table, name, **asked)
        costs = Costs.of(table)
        planned = schedule_graph(static, machine_of(table.device, threads), costs, stages)
    whole = costs.table()
    made = StaticPlan(
        edbc=__version__,
        model=ModelRef(
            path=given.reference(Path(plan).parent),
            sha256=given.sha256,
            config=config,
            seed=seed,
            weights=None if weights is None else weights.reference,
        ),
        requirements=REQUIREMENTS,
        static=static_section(static.graph, planned, whole, name, proven),
    )
    made = replace(made, guards=guards_of(made, guards or {}))
    progress("parity", 0, 1, {})
    parity = parity_of(static, made, given, config)
    progress("parity", 1, 1, {"max_error": parity.max_error})
    parity.require()
    return CompiledStatic(made, whole, parity, proven != stages)


def _proven(stages: Stages, planned: Sequence[Planned]) -> Stages:
    """The options with the gap that is proven of every block, where the one that is asked for is not."""
    largest = math.ceil(1e4 * max(p.scheduled.gap for p in planned)) / 1e4
    return stages._replace(gap=max(stages.gap, largest))


def measured_costs(static: StaticModel, stages: Stages, head: CostTable,
                   progress: Progress) -> tuple[Costs, list[Planned]]:  # fmt: skip
    """A table that is measured now, and the schedule that it gives."""
    machine = machine_of(head.device, head.threads)
    head = replace(head, kernels=measured_kernels(static, head.batch_size))
    with measuring(static, head.batch_size, head.threads, chosen_kernels(head.kernels)) as measurement:
        costs = Costs(replace(head, overhead_ns=measurement.overhead()))

        def report(done: int, total: int, scheduled: Scheduled | None) -> None:
            facts = {} if scheduled is None else {"measured": scheduled.measured, "stages": scheduled.distinct}
            progress("profile", done, total, {"name": "kinds of blocks", **facts})

        planned = schedule_graph(static, machine, costs, stages, measurement.stage, report, MOST_SECONDS)
    costs.head = replace(costs.head, forms=measured_forms(static, planned, head))
    return costs, planned


def static_section(graph: UnitGraph, planned: Sequence[Planned], table: CostTable, costs_name: str,
                   limits: Stages) -> Static:  # fmt: skip
    """What a plan holds of a schedule."""
    names, form = [unit.name for unit in graph.units], chosen_form(table.forms)
    sha256 = hashlib.sha256(table_text(table).encode()).hexdigest()
    return Static(
        batch_size=table.batch_size,
        dtype=table.dtype,
        device=table.device,
        threads=table.threads,
        costs=FileRef(costs_name, sha256),
        r=limits.r,
        s=limits.s,
        gap=limits.gap,
        form=form,
        kernels=chosen_kernels(table.kernels),
        measured=table.forms,
        units=plan_units(graph),
        blocks=tuple(_plan_block(block, names, form) for block in planned),
    )


def plan_units(graph: UnitGraph) -> tuple[PlanUnit, ...]:
    """The units as a plan names them."""
    return tuple(
        PlanUnit(unit.name, tuple(INPUT if r < 0 else graph.units[r].name for r in unit.reads), unit.text)
        for unit in graph.units
    )


def _plan_block(planned: Planned, names: list[str], form: str) -> PlanBlock:
    s, units = planned.scheduled, planned.block.units
    return PlanBlock(
        states=s.states,
        transitions=s.transitions,
        distinct=s.distinct,
        measured=s.measured,
        gap=round(s.gap, 4),
        note="; ".join(note for note in (planned.block.note, s.note) if note),
        **{f"{name}_ns": s.cost_of(name) for name in BY_TABLE},
        stages=tuple(
            PlanStage(stage.run, tuple(tuple(names[units[u]] for u in group) for group in stage.groups), stage.median)
            for stage in s.forms[form]
        ),
    )


def metrics_of(plan: StaticPlan) -> dict[str, int | float]:
    """What `check` tells and guards; deterministic given the table."""
    blocks = plan.static.blocks
    stages = [stage for block in blocks for stage in block.stages]
    return {
        "units": len(plan.static.units),
        "blocks": len(blocks),
        "stages": len(stages),
        "merged": sum(stage.run == "merge" for stage in stages),
        "cost_us": round(sum(stage.cost_ns for stage in stages) / 1000, 1),
        "sequential_us": round(sum(block.sequential_ns for block in blocks) / 1000, 1),
    }


def guards_of(plan: StaticPlan, kept: dict[str, Guard]) -> dict[str, Guard]:
    """A guard per metric of GUARDED; tolerance and direction of those that exist are kept."""
    metrics = metrics_of(plan)
    return {n: replace(kept[n], value=metrics[n]) if n in kept else Guard(metrics[n]) for n in GUARDED}


def parity_of(static: StaticModel, plan: StaticPlan, given: ModelFile | ModelObject, config: Config) -> Parity:
    """Staged execution compared with eager: a batch, and a single instance."""
    instances = given.sample(min(max(COMPARED, plan.static.batch_size), LARGEST_COMPARED), plan.model.seed, config)
    instances = [cast(instance, getattr(torch, plan.static.dtype), static.device) for instance in instances]
    parity, eager = parity_on(static.device), Eager(static.model)

    def add(to: Parity) -> None:
        with bound_net(static, plan) as net, eager.at_its_best(instances):
            for some in (instances, instances[:1]):
                to.add_all(net(some), None, eager, some)

    compared(parity, add)
    return parity


def require_kind_of_device(plan: StaticPlan, path: Path, here: str, warn: Callable[[str], None]) -> None:
    """Raise StaleError for a plan that was measured on a GPU where a CPU runs, or the reverse; warn of another one of
    the kind, on which schedules are right and may be slow."""
    measured = plan.static.device
    if measured.startswith(CUDA) != here.startswith(CUDA):
        kind, option = ("a GPU", " --device cuda") if here.startswith(CUDA) else ("a CPU", "")
        raise StaleError(
            f"{path.name}: expected stages that were measured on {kind}, as this is {here}, got ones of {measured}; "
            f"measure here with 'edbc compile --profile{option}', or run it where it was measured"
        )
    if measured != here:
        warn(
            f"{path.name}: its stages were measured on {measured}, this is {here}; measure here with 'edbc compile "
            "--profile'"
        )


def bound_net(static: StaticModel, plan: StaticPlan, wrap: Wrap | None = None) -> BatchNet[Any]:
    """The plan bound to a model. Raises StaleError where the model's units are not the plan's, and where it merges what
    cannot be merged."""
    _require_units(static.graph, plan)
    number = {unit.name: i for i, unit in enumerate(static.graph.units)}
    schedule = []
    for stage in (stage for block in plan.static.blocks for stage in block.stages):
        groups = tuple(tuple(number[name] for name in group) for group in stage.groups)
        _require_strategy(static, [u for group in groups for u in group], stage)
        schedule.append((groups, stage.run))
    return net_of(static, schedule, plan.static.threads, plan.static.form != OPEN, plan.static.kernels, wrap)


def _require_units(graph: UnitGraph, plan: StaticPlan) -> None:
    have, want = plan_units(graph), plan.static.units
    for mine, theirs in zip(have, want, strict=False):
        if mine != theirs:
            what = next(f for f in ("name", "reads", "text") if getattr(mine, f) != getattr(theirs, f))
            raise StaleError(
                f"unit {theirs.name!r}: expected the plan's {what}, got another one of the model; run 'edbc compile' "
                "again"
            )
    if len(have) != len(want):
        raise StaleError(f"model: expected the plan's {len(want)} units, got {len(have)}; run 'edbc compile' again")


def _require_strategy(static: StaticModel, units: list[int], stage: PlanStage) -> None:
    everything = (1 << len(units)) - 1
    if stage.run == "merge" and everything not in merge_sets(static.graph, units, static.bound.layers):
        raise StaleError(
            f"stage of {', '.join(static.graph.units[u].name for u in units)}: expected products that can be one, got "
            "others; run 'edbc compile' again"
        )
