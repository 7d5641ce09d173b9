"""The compiler: model file and instances in, plan out.

    capture -> graphs -> per type: batches, layout (PQ tree) -> costs -> policy (Q-learning) -> plan -> parity

Everything is a function of edbc's version, the model file, config, seed, instances and the table of what batches cost;
nothing depends on time, hash seeds or the number of threads, so compiling twice gives the same bytes. Three things a
clock decides, and they stand in the plan: a cost table that is measured anew (`profile`), that learning was stopped
(`time_limit`, which work bounded beforehand keeps from being reached: `schedule.train.affordable`), and `run: eager`,
which a wide margin keeps from depending on the day (`edbc.tools.compile.worth`).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edbc._version import __version__
from edbc.base.arguments import OBJECTIVES, POLICIES, require_count, require_name, require_rate, require_setting
from edbc.base.graph import RUN, Graph, NodeType, ints
from edbc.capture.captured.structurecache import structure_cache
from edbc.capture.code.closed import Closed
from edbc.capture.code.regions import Regions
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import Capture, capture
from edbc.capture.forward.repeat import require_repeatable
from edbc.capture.forward.states import attributes_unchanged
from edbc.capture.record.table import TypeTable
from edbc.capture.semantics.autocast import entered
from edbc.capture.semantics.modes import on_host
from edbc.capture.standins.objects import unchanged
from edbc.cells.batching import batch_operations, plan_cell_layout
from edbc.cells.celltext import block_text
from edbc.cells.lower import lower
from edbc.cells.opgraph import CellGraph
from edbc.cells.parts import splittable
from edbc.errors import InputError, ModelError
from edbc.native import ahead
from edbc.plan.plan import (
    BatchCost,
    FileRef,
    Guard,
    ModelRef,
    Plan,
    PlanCell,
    PlanPolicy,
    PlanType,
    PlanWaves,
    RunAs,
    TrainedOn,
)
from edbc.run.modelfile import Config, ModelFile, file_sha256, import_model_file
from edbc.run.passes.eagerparts import external_operands
from edbc.run.passes.placement import place
from edbc.run.session import Net, cell_of, plan_costs, policy_of
from edbc.run.weights.weightsfile import Weights
from edbc.schedule.policy import ENCODINGS, Policy
from edbc.schedule.scheduler import lower_bound, run, total_cost
from edbc.tools.compile.decisions import FEW, Decisions, Sample, decide, runs_out
from edbc.tools.compile.modelobject import ModelObject
from edbc.tools.compile.unplanned import SegmentsUnplanned
from edbc.tools.compile.worth import (
    alone_gain_of,
    captured_gain_of,
    gain_of,
    is_eager_better,
    reason,
    reason_of_new,
    unseen_gain_of,
)
from edbc.tools.parity import Eager, Parity, parity_of
from edbc.tools.report.figures import count

BATCH = 32
"""Instances of a training mini-batch, as in the paper."""
TRAINING_SEEDS = 100
"""From one made-up training mini-batch to the next: more than the offsets of VALIDATION."""
VALIDATION = ((1, 1), (2, 8), (3, 64), (4, 256))
"""Seed offset and size of the fresh mini-batches on which policies are compared (made-up instances)."""
MOST_MINI_BATCHES = 64
"""Training mini-batches at most."""
CELLS = ("auto", "marked")
TIME_LIMIT = 30.0
"""Seconds of processor time for learning, unless the caller says otherwise."""
REQUIREMENTS = ("torch>=2.8",)

Progress = Callable[[str, int, int, dict[str, Any]], None]
"""Called with stage, done, total and facts (`batches`, `lower_bound`)."""


@dataclass(frozen=True, eq=False)
class Captured:
    """What compiling starts from: the model, the graphs of its mini-batches, and all types in them."""

    file: ModelFile | ModelObject
    config: Config
    model: nn.Module
    view: ModelView
    table: TypeTable
    instances: list[Any]
    training: list[Graph]
    validation: list[Graph]
    segments: list[Capture]
    """Of the training mini-batch: one, unless instances read values."""
    types: tuple[NodeType, ...]
    """The plan's types: those with a node in some mini-batch, in the order of their first recording."""
    table_index: tuple[int, ...]
    """Index in `table` of each of them."""
    trained_on: TrainedOn
    automatic: dict[str, str] = field(default_factory=dict)
    """See `Plan`."""
    ragged: tuple[str, ...] = ()
    """See `Plan`."""
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """See `Plan`."""
    reads: tuple[str, ...] = ()
    """Lines that read values."""
    unseen: list[Any] = field(default_factory=list)
    """Some that nothing was learned from, where types do not run out (`tools.compile.decisions`, definition (6))."""
    split: bool = True
    """Whether eager parts are looked for."""
    fresh: list[Any] = field(default_factory=list)
    """The instances of validation."""


@dataclass(frozen=True, eq=False)
class Compiled:
    """A plan with the evidence that it is right."""

    plan: Plan
    parity: Parity
    captured: Captured
    gain: float | None = None
    """Eager's time over edbc's, if it was measured. A clock's figure: no plan holds it."""
    captured_gain: float | None = None
    """The same with instances captured beforehand, where batching as they come loses."""
    alone_gain: float | None = None
    """The same of instances that run alone, where batching does not lose."""


@entered(None)
@on_host
def compile_model(
    path: str | Path | ModelObject,
    *,
    inputs: Sequence[str | Path] = (),
    settings: dict[str, str | int | float | bool] | None = None,
    seed: int = 0,
    plan_folder: str | Path = ".",
    encoding: str | None = None,
    policy: str = "fsm",
    trials: int = 1000,
    objective: str = "batches",
    time_limit: float | None = TIME_LIMIT,
    split: bool = True,
    mini_batches: int = 1,
    costs: Mapping[str, BatchCost] | None = None,
    profile: bool = False,
    weights: Weights | None = None,
    guards: dict[str, Guard] | None = None,
    measure_gain: bool = True,
    stood: Plan | None = None,
    cells: str = "auto",
    progress: Progress | None = None,
) -> Compiled:
    """Compile a model file, which executes it, or an object with its instances (`edbc.tools.compile.modelobject`).

    Without `encoding` every state encoding is trained, with two seeds, on `mini_batches` mini-batches, and what
    generalises best is kept. With `costs`, what batches of each type take, or `profile`, which measures them, best
    means cheapest. With the `objective` "steps" the plan also has waves, for devices whose steps hold batches of
    several types (`edbc.schedule.waves`). Without `split` the plan names no eager parts. `plan_folder` is
    where the plan will stand: the model's path in it is relative to that. `weights` are loaded, and recorded in the
    plan. `guards` are limits that survive recompiling. `cells` is "auto", or "marked" for no others
    (`code.automatic`). With `measure_gain` the plan
    says `run: eager` where batching does not pay (`edbc.tools.compile.worth`); `stood` is the plan that is
    written over.

    Raises ModelError, InputError, UnsupportedError, StaleError for weights of another model, and CheckFailed when
    batched outputs differ from eager.
    """
    require_count("seed", seed, 0)
    require_name("policy", policy, POLICIES)
    require_name("objective", objective, OBJECTIVES)
    require_name("cells", cells, CELLS)
    require_count("trials", trials, 1, 1_000_000)
    if time_limit is not None:
        require_rate("time_limit", time_limit)
    require_count("mini_batches", mini_batches, 1, MOST_MINI_BATCHES)
    if encoding is not None:
        require_name("encoding", encoding, ENCODINGS)
    report = progress or (lambda *_: None)
    if policy == "fsm":
        ahead.begin(ahead.LEARNING)
    names = Decisions(() if cells == "marked" else None, patterns=() if cells == "marked" else None)
    captured = capture_for_compiling(path, inputs, settings or {}, seed, report, mini_batches, weights, names)
    captured = replace(captured, split=split)
    plan = Plan(
        edbc=__version__,
        model=ModelRef(
            path=captured.file.reference(Path(plan_folder)),
            sha256=captured.file.sha256,
            config=captured.config,
            seed=seed,
            weights=None if weights is None else weights.reference,
        ),
        trained_on=captured.trained_on,
        requirements=REQUIREMENTS,
        types=tuple(PlanType(t.name, t.signature, t.source) for t in captured.types),
        policy=PlanPolicy("critical", None, "critical", {}, {}),
        costs=_costs(captured, costs or {}),
        automatic=captured.automatic,
        fused=captured.fused,
        ragged=captured.ragged,
        reads=captured.reads,
        cells=plan_cells(captured, report),
        guards={},
    )
    report("parity", 0, 1, {"name": "one instance"})
    eager = Eager(captured.model)
    check_parity(plan, captured, [captured.instances[:1]], eager).require()
    if profile:
        plan = replace(plan, costs=_profiled(plan, captured, report))
    learned = learn(captured, seed, encoding, policy, trials, report, plan_costs(plan), time_limit)
    learned = replace(learned, training={**learned.training, **yardsticks(captured.training)})
    plan = replace(plan, policy=learned)
    if objective == "steps":
        plan = replace(plan, waves=learn_plan_waves(captured, seed))
    plan = replace(plan, guards=guards_of(measure(plan, captured), guards or {}))
    report("parity", 0, 1, {})
    parity = check_parity(plan, captured, eager=eager)
    report("parity", 1, 1, {"max_error": parity.max_error})
    parity.require()
    compiled = Compiled(plan, parity, captured)
    return _worth_of(compiled, eager, stood, report) if measure_gain else compiled


def _worth_of(compiled: Compiled, eager: Eager, stood: Plan | None, report: Progress) -> Compiled:
    """With what batching gains, where that is measured, and `run: eager` or `alone: eager` where it is nothing."""
    plan, captured = compiled.plan, compiled.captured
    net = Net(plan, captured.model)
    if net.dtype is not torch.float32 or structure_cache(captured.file.module) is not None:
        return compiled
    report("gain", 0, 1, {"name": "batched and eager take turns"})
    gains = gain_of(net, eager, captured.instances, captured.fresh) if not captured.unseen else (
        unseen_gain_of(net, eager, captured.unseen))  # fmt: skip
    found = replace(compiled, gain=statistics.median(gains))
    if is_eager_better(gains, None if stood is None else stood.run is not None):
        if captured.unseen:
            why = reason_of_new(len(captured.instances), len(captured.types))
            return replace(found, plan=replace(plan, run=RunAs(why, None)))
        metrics = measure(plan, captured)
        why = reason(len(captured.instances), int(metrics["nodes"]), int(metrics["batches"]))
        of_captured = captured_gain_of(net, eager, captured.instances)
        was_eager = None if stood is None else stood.run is not None and stood.run.captured is None
        pays = bool(of_captured) and not is_eager_better(of_captured, was_eager)
        found = replace(found, plan=replace(plan, run=RunAs(why, "batched" if pays else None)),
                        captured_gain=statistics.median(of_captured) if of_captured else None)  # fmt: skip
    else:
        of_one = alone_gain_of(net, eager, captured.instances)
        is_eager = is_eager_better(of_one, None if stood is None else stood.alone is not None)
        found = replace(found, plan=replace(plan, alone="eager" if is_eager else None),
                        alone_gain=statistics.median(of_one))  # fmt: skip
    report("gain", 1, 1, {})
    return found


def _costs(captured: Captured, costs: Mapping[str, BatchCost]) -> dict[str, BatchCost]:
    from edbc.tools.compile.costs import require_costs

    return require_costs(costs, [t.name for t in captured.types], f"costs for {captured.file.name}")


def _profiled(plan: Plan, captured: Captured, report: Progress) -> dict[str, BatchCost]:
    from edbc.tools.compile.costs import measure_costs

    report("profile", 0, 1, {})
    with unchanged(captured.instances):
        costs = measure_costs(Net(plan, captured.model), captured.instances)
    report("profile", 1, 1, {})
    return costs


def capture_for_compiling(
    path: str | Path | ModelObject,
    inputs: Sequence[str | Path],
    settings: dict[str, Any],
    seed: int,
    report: Progress,
    mini_batches: int = 1,
    weights: Weights | None = None,
    decided: Decisions | None = None,
) -> Captured:
    """Import and build the model, and capture the training and validation mini-batches, as has been `decided`."""
    file = path if isinstance(path, ModelObject) else import_model_file(path)
    config = file.config(settings)
    for key, value in config.items():
        require_setting(f"{file.name}: build's {key!r}", value)
    model = file.build(config, seed)
    if weights is not None:
        weights.load(model)
    if inputs or isinstance(file, ModelObject):
        training, fresh = _loaded(file, inputs, config, mini_batches)
    else:
        training, fresh = _made_up(file, config, seed, mini_batches)
    refs = tuple(FileRef(Path(p).name, file_sha256(p)) for p in inputs)
    report("cells", 0, 1, {})
    code = Regions(model, Closed(model))
    sample = Sample(model, code, training[0])
    unseen: list[Any] = []
    with attributes_unchanged(model):
        if not runs_out(sample):
            unseen = training[0][FEW : 2 * FEW]
            training, fresh = [training[0][:FEW]], [batch for batch in fresh if len(batch) <= FEW]
            sample = sample.of(training[0])
        found = decide(sample, decided or Decisions())
    view, table = found.of(model, code)
    shadow, recorder = recording_shadow(view, table)
    captures: list[list[Capture]] = []
    run_segment = SegmentsUnplanned(model, view, table)
    for number, batch in enumerate([*training, *fresh]):
        report("capture", number, len(training) + len(fresh), {"name": count(len(batch), "instance")})
        with unchanged(batch), attributes_unchanged(model):
            captures.append(run_segment.taken(capture(shadow, recorder, batch, run_segment)))
    report("capture", len(captures), len(captures), {})
    if not any(part.graph.num_nodes for part in captures[0]):
        raise ModelError(f"{file.name}: expected cells or torch operations in forward, got none to compile")
    segments = [[part for part in parts if part.graph.num_nodes] for parts in captures]
    types, table_index = planned_types(table, [part.graph for parts in segments for part in parts])
    segments = [
        [replace(part, graph=_with_types(part.graph, types, table_index).lint()) for part in parts]
        for parts in segments
    ]
    some = len(training)
    learned_on, held_out = (_some(list(itertools.chain(*of))) for of in (segments[:some], segments[some:]))
    source: Literal["sample", "file", "memory"] = "sample" if isinstance(file, ModelFile) else "memory"
    trained_on = TrainedOn(
        "file" if inputs else source, refs, sum(map(len, training)), seed, sum(g.num_nodes for g in learned_on)
    )
    require_repeatable(view, table, (shadow, recorder), training[0], run_segment)
    sites = dict.fromkeys(site for parts in captures if (reads := parts[-1].reads) for site in reads.sites())
    return Captured(
        file, config, model, view, table, training[0], learned_on, held_out, segments[0], types, table_index,
        trained_on, found.automatic, found.ragged, fused_lines(table, types, table_index), tuple(sorted(sites)),
        unseen, fresh=list(itertools.chain(*fresh)),
    )  # fmt: skip


def _some(captures: list[Capture]) -> list[Graph]:
    """Graphs of at most MOST_MINI_BATCHES of them, of reading models segments, from the first to the last."""
    step = max(1, -(-len(captures) // MOST_MINI_BATCHES))
    return [captured.graph for captured in captures[::step]]


MiniBatches = list[list[Any]]


def _made_up(file: ModelFile, config: Config, seed: int, mini_batches: int) -> tuple[MiniBatches, MiniBatches]:
    """Training and validation mini-batches from the model's `sample`."""
    training = [file.sample(BATCH, seed + TRAINING_SEEDS * i, config) for i in range(mini_batches)]
    fresh = [file.sample(size, seed + offset, config) for offset, size in VALIDATION]
    return training, [batch for batch in fresh if batch]


def _loaded(
    file: ModelFile | ModelObject, inputs: Sequence[str | Path], config: Config, mini_batches: int
) -> tuple[MiniBatches, MiniBatches]:
    """Training mini-batches from the start of the data, then those of VALIDATION's sizes, as far as the data goes."""
    sizes = [BATCH] * mini_batches + [size for _, size in VALIDATION]
    stream: Iterator[Any] = iter(file.load(inputs, config, limit=sum(sizes)))
    batches = [list(itertools.islice(stream, size)) for size in sizes]
    if not batches[0]:
        raise InputError(f"{inputs[0]}: expected instances to compile on, got none; give a file with at least one")
    return [b for b in batches[:mini_batches] if b], [b for b in batches[mini_batches:] if b]


def planned_types(table: TypeTable, graphs: Sequence[Graph]) -> tuple[tuple[NodeType, ...], tuple[int, ...]]:
    """Types that some node has, or a member of a pattern that some node has, and their indices in the table. (A sum
    that is always merged with another has none.)

    Names are numbered again, so that the one `sum` that is left is not called `sum.2`.
    """
    every = table.graph_types()
    present = np.zeros(len(every), bool)
    for graph in graphs:
        present[graph.node_type] = True
    for planned, kind in table.fusions.types():
        if present[kind]:
            present[[i for m in planned.pattern.members if (i := table.index_of(m.kind)) is not None]] = True
    kept = tuple(np.flatnonzero(present).tolist())
    taken: set[str] = set()
    names: dict[str, Iterator[str]] = {}
    renamed: list[NodeType] = []
    for i in kept:
        base, _, number = every[i].name.rpartition(".")
        base = base if number.isdigit() else every[i].name
        name = next(name for name in names.setdefault(base, _numbered(base)) if name not in taken)
        taken.add(name)
        renamed.append(replace(every[i], name=name))
    return tuple(renamed), kept


def _numbered(base: str) -> Iterator[str]:
    yield base
    yield from (f"{base}.{number}" for number in itertools.count(2))


def fused_lines(table: TypeTable, types: Sequence[NodeType], table_index: Sequence[int]) -> dict[str, tuple[str, ...]]:
    """The patterns of the plan's types, as it writes them (`Plan.fused`)."""
    name_of = {kind.signature: kind.name for kind in types}
    names = dict(zip(table_index, name_of.values(), strict=True))
    return {
        names[kind]: planned.pattern.named(name_of.__getitem__).lines()
        for planned, kind in table.fusions.types()
        if kind in names
    }


def _with_types(graph: Graph, types: tuple[NodeType, ...], table_index: tuple[int, ...]) -> Graph:
    """The graph with its nodes' types numbered as in the plan."""
    new_index = np.full(max(table_index) + 1, -1, np.int32)
    new_index[list(table_index)] = np.arange(len(table_index), dtype=np.int32)
    return replace(graph, types=types, node_type=ints(new_index[graph.node_type]))


def learn(
    captured: Captured,
    seed: int,
    encoding: str | None,
    kind: str,
    trials: int,
    report: Progress,
    cost: tuple[float, ...] = (),
    time_limit: float | None = None,
) -> PlanPolicy:
    """The policy: of all encodings what generalises best, or a table over one encoding, or a fixed rule."""
    from edbc.schedule.learn.train import measure as measure_policy

    if kind == "fsm":
        policy, record = _learn_table(captured, seed, encoding, trials, report, cost, time_limit)
    else:
        policy = Policy(kind, cost=cost)
        record = {"seed": seed, **measure_policy(policy, captured.training)}
    table = policy.states_to_text([t.name for t in captured.types])
    return PlanPolicy(policy.kind, policy.encoding, policy.fallback, table, record, beside=policy.beside)


def _learn_table(
    captured: Captured, seed: int, encoding: str | None, trials: int, report: Progress, cost: tuple[float, ...],
    time_limit: float | None,
) -> tuple[Policy, dict[str, Any]]:  # fmt: skip
    """`max_trials` in the record is what `affordable` leaves of `trials`; a table that was asked for by its encoding
    gets one round at least."""
    from edbc.schedule.learn.train import CHECK, ENCODINGS, affordable, select, train

    tables = 1 if encoding is not None else 2 * len(ENCODINGS)
    least = 0 if encoding is None else min(trials, CHECK)
    trials = affordable(captured.training, tables, trials) or least
    candidates = max(1, tables * trials)
    seen = itertools.count(1)

    def on_check(done: int, batches: int, bound: int) -> None:
        report("train", min(next(seen) * CHECK, candidates), candidates, {"batches": batches, "lower_bound": bound})

    settings: dict[str, Any] = {"trials": trials, "validation": captured.validation, "cost": cost}
    if encoding is None:
        encodings = ENCODINGS if trials else ()
        result = select(captured.training, seeds=(seed, seed + 1), encodings=encodings, progress=on_check,
                        time_limit=time_limit, **settings)  # fmt: skip
    else:
        result = train(captured.training, encoding=encoding, seed=seed, progress=on_check, **settings)
    report("train", candidates, candidates, {k: result.record[k] for k in ("batches", "lower_bound")})
    return result.policy, {**result.record, "max_trials": trials}


def learn_plan_waves(captured: Captured, seed: int) -> PlanWaves:
    """Which types run before they must, where steps count."""
    from edbc.schedule.learn.learnwaves import learn_waves

    waves, record = learn_waves(captured.training, captured.validation, seed)
    return PlanWaves(waves.to_text([t.name for t in captured.types]), record)


def yardsticks(graphs: Sequence[Graph]) -> dict[str, Any]:
    """What a beam needs on the training mini-batches in sum; nothing where one is too large to search."""
    from edbc.schedule.learn.search import beam, is_small

    return {"beam": sum(beam(graph).num_batches for graph in graphs)} if all(map(is_small, graphs)) else {}


def retrain(captured: Captured, recorded: PlanPolicy, cost: tuple[float, ...]) -> PlanPolicy:
    """What training with the recorded encoding, seed and number of trials gives now; comparison and beam stay."""
    training = recorded.training
    renewed = learn(
        captured,
        int(training["seed"]),
        recorded.encoding,
        recorded.kind,
        int(training.get("max_trials", 1)),
        lambda *_: None,
        cost,
    )
    names = ("compared", "beam", "encoding", "max_trials", "time_limit")
    kept: dict[str, Any] = {key: training[key] for key in names if key in training}
    return replace(renewed, training={**renewed.training, **kept})


def plan_cells(captured: Captured, report: Progress = lambda *_: None) -> dict[str, PlanCell]:
    """Operations, batches and memory order of every type, by its name."""
    graphs = (*captured.training, *captured.validation)
    external = np.logical_and.reduce([external_operands(graph) for graph in graphs])
    cells: dict[str, PlanCell] = {}
    for kind, node_type in enumerate(captured.types):
        report("layouts", kind, len(captured.types), {"name": node_type.name, "unit": "types"})
        cells[node_type.name] = _plan_cell(captured, kind, external)
    report("layouts", len(cells), len(cells), {"unit": "types"})
    return cells


def _plan_cell(captured: Captured, kind: int, external: NDArray[np.bool_]) -> PlanCell:
    node_type = captured.types[kind]
    if node_type.is_run or not node_type.has_program:
        return _cell_without_layout(node_type)
    cell = cell_of(captured.table.operation_of_type[captured.table_index[kind]], captured.view)
    batches = batch_operations(cell)
    order = plan_cell_layout(cell, batches).order if cell.is_uniform() else tuple(cell.classes())
    eager = splittable(cell, batches, order, external[kind].tolist()) if captured.split else ()
    return PlanCell(cell.lines(), batches, order, *packed_weights(cell, batches, order), eager)


def packed_weights(
    cell: CellGraph, batches: Sequence[Sequence[str]], order: Sequence[str]
) -> tuple[tuple[str, ...], int]:
    """Parameters in the order in which products pack them, and the copies that the order leaves."""
    if not cell.is_uniform():
        return (), 0
    program = lower(cell, batches, order)
    blocks = [placed.block for packed in program.weights for placed in (*packed.blocks, *packed.biases)]
    return tuple(dict.fromkeys(block_text(block, cell.prefix) for block in blocks)), program.num_copies


def _cell_without_layout(node_type: NodeType) -> PlanCell:
    """An excerpt or a function of runs is one operation of all operands; a reduction (of any arity) has one per
    field."""
    operands = [f"x{i}" for i in range(len(node_type.operands))]
    if node_type.is_run or node_type.is_excerpt:
        operations = [f'generic({", ".join(operands)}, function="{node_type.op.removeprefix(RUN)}", output=0)']
    else:
        operations = [f"{node_type.op}({x}, output={i})" for i, x in enumerate(operands)]
    results = [f"y{i}" for i in range(len(operations))]
    lines = [f"{name} = input(index={i})" for i, name in enumerate(operands)]
    lines += [f"{name} = {operation}" for name, operation in zip(results, operations, strict=True)]
    return PlanCell(tuple(lines), (tuple(results),), (*operands, *results), (), 0)


def measure(plan: Plan, captured: Captured) -> dict[str, int | float]:
    """The metrics that `check` guards, on the mini-batches that the plan was compiled on. Deterministic."""
    policy = policy_of(plan)
    schedules = [run(part.graph, policy) for part in captured.segments]
    placements = [
        place(part.graph, schedule, part.result_node)
        for part, schedule in zip(captured.segments, schedules, strict=True)
    ]
    fresh = [run(graph, policy) for graph in captured.validation]
    cost = {"fresh_cost": round(sum(total_cost(s.batch_type, policy.cost) for s in fresh), 4)} if policy.cost else {}
    return {
        **cost,
        "nodes": sum(part.graph.num_nodes for part in captured.segments),
        "batches": sum(schedule.num_batches for schedule in schedules),
        "lower_bound": sum(lower_bound(part.graph) for part in captured.segments),
        "fresh_batches": sum(s.num_batches for s in fresh),
        "fresh_unseen_states": sum(s.unseen_states for s in fresh),
        "gathered_rows": sum(placement.gathered_rows for placement in placements),
        "copies": sum(cell.copies for cell in plan.cells.values()),
        "kernels": sum(len(cell.batches) for cell in plan.cells.values()),
    }


_GUARDED = ("batches", "fresh_batches", "fresh_cost", "fresh_unseen_states", "gathered_rows", "copies", "kernels")


def guards_of(metrics: dict[str, int | float], kept: dict[str, Guard]) -> dict[str, Guard]:
    """A guard per metric; tolerance and direction of guards that exist already are kept."""
    return {
        name: replace(kept[name], value=metrics[name]) if name in kept else Guard(metrics[name])
        for name in _GUARDED
        if name in metrics
    }


def check_parity(
    plan: Plan, captured: Captured, batches: MiniBatches | None = None, eager: Eager | None = None
) -> Parity:
    """Compare batched with eager outputs, on the training mini-batch and its first instance alone unless told which."""
    batches = batches or [captured.instances, captured.instances[:1]]
    return parity_of(Net(plan, captured.model), batches, eager or Eager(captured.model))
