"""Explaining a plan: what batches with what, what does not and why, and what that is worth.

An *explanation* has two sources. The plan alone gives types, the policy's table, layouts, and the figures recorded
when it was compiled. Running its model on one mini-batch (`edbc.tools.explain.observe`) adds counts, batches, bytes,
times and the transitions of the state machine. The model runs only when its file is the one that the plan names by
sha256; otherwise a note says why the second half is missing. Instances that the caller names must be there all the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edbc.errors import EdbcError
from edbc.plan.plan import Plan
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file, require_inputs
from edbc.tools.explain.folding import folded
from edbc.tools.explain.layouts import CellLayout, cell_layout
from edbc.tools.explain.signatures import Difference, near_types
from edbc.tools.report.figures import count, share, size_text, time_text

if TYPE_CHECKING:
    from edbc.run.session import Net
    from edbc.tools.compile.compiler import Compiled
    from edbc.tools.explain.observe import Observation, Step
    from edbc.tools.running import Bound

SCHEMA = 1
"""Version of the JSON form."""


STATES_SAY = {
    "base": "a state names the ready types",
    "max": "a state names the ready types, ^ after the one with most ready nodes",
    "sort": "a state names the ready types, those with fewer ready nodes first",
    "phase": "a state is the eighth of the nodes that runs now, and the ready types",
    "critical": "a state names the ready types; after ! p: running it lowers the bound of what remains, g: it holds "
    "the longest chain of another type, b: it blocks another type",
    "rank": "a state names the two ready types that matter most, the first one more; after ! p: running it lowers the "
    "bound of what remains",
}
"""What the texts of states mean, by encoding."""
FIGURES = ("nodes", "batches", "least", "mean", "largest", "time", "bytes", "runs")
"""Columns of `Explanation.figures`."""
STEP_FIGURES = ("size", "state", "seconds", "moved_bytes", "gathered_bytes")
"""Of a batch, in JSON."""


@dataclass(frozen=True)
class TypeFacts:
    """One type; what only a run tells is None without one."""

    name: str
    signature: str
    source: str
    generic: tuple[str, ...]
    """Functions of the operations inside it that are not of the plan's table."""
    lowering: str | None
    """`native`, `torch`, `generic` or, with the kernels of a batch, `triton, 2 per batch`."""
    nodes: int | None = None
    batches: int | None = None
    least: int | None = None
    """Length of the longest chain of dependent nodes: no schedule has fewer batches of this type."""
    largest: int | None = None
    seconds: float | None = None
    moved_bytes: int | None = None
    gathered_bytes: int | None = None

    @property
    def generic_text(self) -> str:
        """What is known of the operations that no step of a program stands for; empty when there are none."""
        if not self.generic:
            return ""
        how = "run by torch" if self.lowering in (None, "torch", "generic") else "which this back end runs natively too"
        return f"generic operations inside, {how}: {', '.join(dict.fromkeys(self.generic))}"

    @property
    def mean(self) -> float | None:
        """Nodes per batch."""
        return None if not self.batches or self.nodes is None else self.nodes / self.batches


@dataclass(frozen=True)
class StateFacts:
    """One state of the policy's table."""

    number: int
    state: str
    action: str
    visits: int | None


@dataclass(frozen=True)
class Explanation:
    """See the module's docstring. `str()` is text for terminals; notebooks show the page."""

    name: str
    plan: Plan
    observed: Observation | None
    notes: tuple[str, ...]
    types: tuple[TypeFacts, ...]
    apart: tuple[Difference, ...]
    states: tuple[StateFacts, ...]
    layouts: tuple[CellLayout, ...]

    @property
    def model_text(self) -> str:
        """The plan's model and config, in words; empty where the name says as much already."""
        config = ", ".join(f"{key}={value}" for key, value in self.plan.model.config.items())
        path = "" if self.plan.model.path == self.name else self.plan.model.path
        return f"{path} with {config}".strip() if config else path

    def figures(self, facts: TypeFacts) -> list[str]:
        """What a run says of a type, as words: see FIGURES."""
        if facts.nodes is None:
            return ["-"] * len(FIGURES)
        return [
            f"{facts.nodes:,}",
            f"{facts.batches:,}",
            f"{facts.least:,}",
            f"{facts.mean:.1f}" if facts.mean is not None else "-",
            f"{facts.largest:,}",
            share(facts.seconds or 0, sum(t.seconds or 0 for t in self.types)),
            share(facts.moved_bytes or 0, sum(t.moved_bytes or 0 for t in self.types)),
            facts.lowering or "-",
        ]

    def text(self, width: int = 80) -> str:
        """For a terminal of `width` columns."""
        from edbc.tools.explain.terminal import explanation_text

        return explanation_text(folded(self), width)

    def html(self) -> str:
        """One page that needs nothing from the network."""
        from edbc.tools.explain.page import explanation_page

        return explanation_page(folded(self))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from edbc.tools.explain.page import explanation_fragment

        return explanation_fragment(folded(self))

    @property
    def comparison(self) -> dict[str, int]:
        """Batches on one mini-batch: lower bound, this plan, the best schedule that search found, other policies."""
        training = self.plan.policy.training
        if self.observed is not None:
            observed = self.observed
            others = {kind: len(batches) for kind, batches in observed.schedules.items()}
            return {"lower bound": observed.lower_bound, "this plan": len(observed.steps), **others}
        known = {
            "lower bound": training.get("lower_bound"),
            "this plan": training.get("batches"),
            **_recorded(training),
        }
        return {name: value for name, value in known.items() if isinstance(value, int)}

    @property
    def times(self) -> list[list[str]]:
        """Where the time of the mini-batch goes, as words: on what, how long, which share."""
        o, ways = self.observed, sorted({t.lowering for t in self.types if t.lowering})
        if o is None:
            return []
        parts = [("building the graph", o.construction_seconds), ("scheduling", o.scheduling_seconds)]
        parts.append(("before the first batch", o.loading_seconds))
        parts += [(f"running {way}", sum(t.seconds or 0 for t in self.types if t.lowering == way)) for way in ways]
        parts += [(part.text, part.seconds) for part in o.parts]
        total = o.construction_seconds + o.scheduling_seconds + o.execution_seconds
        return [[name, time_text(seconds), share(seconds, total)] for name, seconds in parts]

    @property
    def moved(self) -> str:
        """How much memory batches read and write."""
        moved, gathered = sum(t.moved_bytes or 0 for t in self.types), sum(t.gathered_bytes or 0 for t in self.types)
        return f"{size_text(moved)} read and written, {size_text(gathered)} of it gathered row by row"

    @property
    def distinct_layouts(self) -> list[tuple[str, CellLayout]]:
        """Names of the cells that look alike, and one of them; in the order of the types."""
        alike: dict[CellLayout, list[str]] = {}
        for layout in self.layouts:
            alike.setdefault(replace(layout, name=""), []).append(layout.name)
        return [(", ".join(names), layout) for layout, names in alike.items()]

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON's types."""
        plan, observed = self.plan, self.observed
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "plan": self.name,
            "model": {"path": plan.model.path, "sha256": plan.model.sha256, "config": plan.model.config},
            "notes": list(self.notes),
            "observed": None,
            "types": [_type_json(facts) for facts in self.types],
            "apart": [{"types": list(d.types), "reason": d.reason} for d in self.apart],
            "policy": {
                "kind": plan.policy.kind,
                "encoding": plan.policy.encoding,
                "fallback": plan.policy.fallback,
                "states": [{"state": s.state, "action": s.action, "visits": s.visits} for s in self.states],
                "training": plan.policy.training,
            },
            "comparison": self.comparison,
            "layouts": [_layout_json(layout) for layout in self.layouts],
        }
        if observed is not None:
            content["observed"] = _observed_json(observed)
            content["policy"]["transitions"] = [
                {"from": a, "to": b, "count": n} for (a, b), n in observed.transitions.items()
            ]
        return content


def _recorded(training: dict[str, Any]) -> dict[str, Any]:
    """What the training record says of the beam and of other policies."""
    beam = training.get("beam")
    baselines = training.get("baselines")
    return {**({"beam": beam} if isinstance(beam, int) else {}), **(baselines if isinstance(baselines, dict) else {})}


def _type_json(facts: TypeFacts) -> dict[str, Any]:
    return {**asdict(facts), "generic": list(facts.generic), "mean": facts.mean}


def _layout_json(layout: CellLayout) -> dict[str, Any]:
    return {
        "cell": layout.name,
        "operations": layout.num_operations,
        "before": list(layout.before),
        "after": list(layout.after),
        "copies": layout.copies,
        "eager": list(layout.eager),
        "misplaced": {"before": layout.misplaced_before, "after": layout.misplaced_after},
        "batches": [
            {
                "operation": batch.operation,
                "width": batch.width,
                "operands": [
                    {
                        "role": o.role,
                        "variables": list(o.variables),
                        "in_place": {"before": o.in_place_before, "after": o.in_place_after},
                    }
                    for o in batch.operands
                ],
            }
            for batch in layout.batches
        ],
    }


def _observed_json(observed: Observation) -> dict[str, Any]:
    names = [t.name for t in observed.types]
    return {
        "source": observed.source,
        "instances": observed.instances,
        "nodes": observed.num_nodes,
        "batches": len(observed.steps),
        "lower_bound": observed.lower_bound,
        "device_steps": asdict(observed.on_device),
        "table_steps": observed.table_steps,
        "unseen_states": observed.unseen_states,
        "backend": observed.backend,
        "seconds": {
            "construction": observed.construction_seconds,
            "scheduling": observed.scheduling_seconds,
            "execution": observed.execution_seconds,
        },
        "parts": [asdict(part) for part in observed.parts],
        "schedule": [
            {"type": names[step.kind], **{name: getattr(step, name) for name in STEP_FIGURES}}
            for step in observed.steps
        ],
    }


def explain_plan(name: str, plan: Plan, observed: Observation | None = None, notes: Sequence[str] = ()) -> Explanation:
    """Explain a plan, with what a run of it showed if there was one."""
    layouts = tuple(cell_layout(kind.name, plan.cells[kind.name]) for kind in plan.types)
    return Explanation(
        name,
        plan,
        observed,
        (*notes, *_run_notes(plan)),
        _types(plan, observed, layouts),
        tuple(near_types(plan.types, plan.cells)),
        _states(plan, observed),
        layouts,
    )


def _run_notes(plan: Plan) -> Iterator[str]:
    """That the plan runs eagerly, and what would help."""
    if plan.run is not None:
        from edbc.tools.compile.worth import what_would_help

        yield f"run: eager, because {plan.run.eager}; --force batches"
        if plan.run.captured is not None:
            yield "captured instances run batched, which is faster than eager: keep them (edbc.CapturedDataset)"
        yield from (f"what would help: {line}" for line in what_would_help(plan))
    if plan.alone is not None:
        yield "one instance alone: eager, as it shares a batch with nobody; --force batches"


def _types(plan: Plan, observed: Observation | None, layouts: Sequence[CellLayout]) -> tuple[TypeFacts, ...]:
    generic = {layout.name: layout.generic for layout in layouts}
    known = [(t.name, t.signature, t.source) for t in plan.types]
    if observed is None:
        return tuple(TypeFacts(*row, generic[row[0]], "torch, in parts" if generic[row[0]] else None) for row in known)
    steps: dict[int, list[Step]] = {}
    for step in observed.steps:
        steps.setdefault(step.kind, []).append(step)
    unseen = [
        (t.name, t.signature, t.source) for kind, t in enumerate(observed.types) if kind >= len(known) and kind in steps
    ]
    numbers = [*range(len(known)), *(kind for kind in steps if kind >= len(known))]
    return tuple(
        _observed_type(row, generic.get(row[0], ()), observed, kind, steps.get(kind, []))
        for kind, row in zip(numbers, [*known, *unseen], strict=True)
    )


def _observed_type(
    row: tuple[str, str, str], generic: tuple[str, ...], observed: Observation, kind: int, steps: Sequence[Step]
) -> TypeFacts:
    return TypeFacts(
        *row,
        generic,
        observed.lowering.get(row[0]),
        least=observed.least[kind] if kind < len(observed.least) else 0,
        nodes=sum(s.size for s in steps),
        batches=len(steps),
        largest=max((s.size for s in steps), default=0),
        seconds=sum(s.seconds for s in steps),
        moved_bytes=sum(s.moved_bytes for s in steps),
        gathered_bytes=sum(s.gathered_bytes for s in steps),
    )


def _states(plan: Plan, observed: Observation | None) -> tuple[StateFacts, ...]:
    """The table, states of the mini-batch first and in the order of their first visit."""
    table = plan.policy.table
    visits: Counter[str] = Counter() if observed is None else Counter(step.state for step in observed.steps)
    order = [*(state for state in visits if state in table), *(state for state in table if state not in visits)]
    return tuple(
        StateFacts(number, state, table[state], None if observed is None else visits[state])
        for number, state in enumerate(order, 1)
    )


def explain_file(
    path: str | Path,
    *,
    model: str | None = None,
    inputs: Sequence[str | Path] = (),
    config: Mapping[str, Any] | None = None,
    run: bool = True,
) -> Explanation:
    """Explain a plan file, or compile a model file in memory and explain that (which executes it).

    `run` False leaves the model alone. Raises PlanError for a broken plan, and what running raises on `inputs` that are
    named. A model that is missing, changed or broken only leaves a note, unless `config` asks for a model of other
    sizes.
    """
    path = Path(path)
    settings = dict(config or {})
    if path.suffix == ".py":
        return _explain_model(path, inputs, settings)
    plan = read_plan(path)
    if not run:
        return explain_plan(path.name, plan, notes=["the model was not run, so counts and times are missing"])
    require_inputs(inputs)
    try:
        bound = _bind(plan, path, model, settings)
        made_up = None if inputs else _observe(bound, plan, inputs)
    except EdbcError as error:
        if settings:
            raise
        return explain_plan(path.name, plan, notes=[f"the model was not run: {error}"])
    return explain_plan(path.name, plan, *(made_up or _observe(bound, plan, inputs)))


def _bind(plan: Plan, path: Path, model: str | None, settings: dict[str, Any]) -> Bound:
    from edbc.run.instances import AS_BUILT
    from edbc.run.session import Net, check_requirements
    from edbc.run.weights.weightsfile import model_of_plan
    from edbc.tools.checking import model_path, require_same_model
    from edbc.tools.running import Bound

    file = model_path(path, plan, model)
    require_same_model(plan, file)
    check_requirements(plan.requirements)
    imported = import_model_file(file)
    config = imported.config({**plan.model.config, **settings})
    rebind = config != plan.model.config or None
    return Bound(imported, config, Net(plan, model_of_plan(imported, config, plan, path), rebind=rebind), AS_BUILT)


def _observe(bound: Bound, plan: Plan, inputs: Sequence[str | Path]) -> tuple[Observation, list[str]]:
    """What one mini-batch shows, and notes on it."""
    from edbc.tools.explain.foundcells import cell_notes
    from edbc.tools.explain.observe import observe

    file, config, net, _ = bound
    number, seed = plan.trained_on.instances, plan.trained_on.seed
    notes = []
    if inputs:
        instances = list(file.load(inputs, config, limit=number))
        source = f"the first {count(len(instances), 'instance')} of {', '.join(Path(p).name for p in inputs)}"
    else:
        instances = file.sample(number, seed, config)
        source = _made_up(number, seed)
        if plan.trained_on.source == "file":
            names = ", ".join(f.name for f in plan.trained_on.files)
            notes.append(f"the plan was trained on {names}; name it with --input to see its first mini-batch")
    if config != plan.model.config:
        notes.append(f"run with {', '.join(f'{k}={v}' for k, v in config.items() if plan.model.config.get(k) != v)}")
    observed = observe(net, instances, source)
    return observed, [*notes, *cell_notes(plan, net.model, observed)]


def _explain_model(path: Path, inputs: Sequence[str | Path], settings: dict[str, Any]) -> Explanation:
    from edbc.tools.compile.compiler import compile_model

    compiled = compile_model(path, inputs=inputs, settings=settings, plan_folder=path.parent)
    return explain_compiled(path.name, compiled, ["compiled in memory; no plan was written"])


def explain_compiled(name: str, compiled: Compiled, notes: Sequence[str] = ()) -> Explanation:
    """Explain what compiling has just given, on the mini-batch that it was compiled on."""
    from edbc.run.session import Net

    captured, trained_on = compiled.captured, compiled.plan.trained_on
    number = len(captured.instances)
    given = {"file": " of the data", "memory": " given"}.get(trained_on.source)
    source = _made_up(number, trained_on.seed) if given is None else count(number, "instance") + given
    return explain_net(Net(compiled.plan, captured.model), captured.instances, source, name, notes)


def _made_up(number: int, seed: int) -> str:
    return f"{count(number, 'made-up instance')} (the model's sample, seed {seed})"


def explain_net(net: Net, instances: Sequence[Any], source: str, name: str | None = None,
                notes: Sequence[str] = ()) -> Explanation:  # fmt: skip
    """Explain a bound plan on a mini-batch; `source` says in words what its instances are."""
    from edbc.tools.explain.foundcells import cell_notes
    from edbc.tools.explain.observe import observe

    observed = observe(net, instances, source)
    notes = [*notes, *cell_notes(net.plan, net.model, observed)]
    return explain_plan(net.plan.model.path if name is None else name, net.plan, observed, notes)
