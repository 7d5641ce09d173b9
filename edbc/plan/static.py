"""Plans of static models: units, blocks and stages in place of types, a policy and cells.

A static plan is a document of its own kind, with the same head as other plans and the section `static`. It is read as
strictly, by the same reader. What must hold between its fields:

(1) Units are named once, and read inputs or units before them.
(2) Blocks hold consecutive stages: together every unit once. A unit runs after those that it reads: in a later stage,
    or later in the same group. Units of different groups of one stage do not read each other.
(3) `merge` is of at least two groups of one unit each that read the same and are the same kind of product; `split` is
    of one unit.
(4) The cost table stands beside the plan: a plain name that ends in `.costs.yaml`.
(5) Each form of schedule is measured once.

Whether units are those of the model, and whether kernels that are merged can be, is checked when the plan is bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from edbc.base.files import one_line
from edbc.errors import PlanError
from edbc.plan.events import REMEDY
from edbc.plan.plan import FORMAT_VERSION, FileRef, Guard, ModelRef, Plan
from edbc.plan.reader import is_static, parse_as, parse_plan, place_in, read_bytes
from edbc.plan.scalars import shorten
from edbc.plan.schema import (
    FILE,
    GUARD,
    METRIC,
    MODEL,
    REQUIREMENT,
    VERSION,
    Choice,
    Integer,
    Kind,
    ListOf,
    MapOf,
    Number,
    Record,
    Text,
)
from edbc.plan.verify import IN_MEMORY, Place, in_memory, is_plain_name, verify_model_path
from edbc.plan.writer import document_text, write_document

Where = Callable[[], str]
"""Gives the place of a fault, which takes a pass over the text."""
MOST_UNITS = 10_000
INPUT = "input"
"""What units read that are not units."""
CUDA = "cuda: "
"""How the name of a GPU begins, as a device of stages."""
STRATEGIES = ("split", "merge", "concurrent")
"""In the order in which ties are decided."""
PRODUCTS = ("Conv2d(", "Linear(")
FORMS = ("one thread", "all threads", "sequential", "merge", "greedy", "concurrent", "both", "no barriers")
"""Schedules of a whole network, the plainest first: each unit in one thread; in all threads; each by the cheaper of the
two; products of one input merged; everything that is ready at once; the cheapest stages without merges; the cheapest
of all; the same where units wait for what they read alone."""
KERNELS = (
    *(f"channels {at} and relu {how}" for at in ("last", "first") for how in ("fused", "apart")),
    "channels last and relu fused and own pools",
)
"""Which kernels run units on a GPU: how values of images stand there, whether a convolution has its relu inside, and
whether pools are the library's or edbc's own. The first runs unless another is faster."""


@dataclass(frozen=True)
class PlanUnit:
    """Operators that always run together."""

    name: str
    reads: tuple[str, ...]
    """Names of units, or `input`."""
    text: str
    """Operations with their constants and shapes; no names, no weights."""


@dataclass(frozen=True)
class PlanStage:
    """Groups of units that run side by side."""

    run: str
    """`concurrent`, `split` (all threads on one unit) or `merge` (one product)."""
    groups: tuple[tuple[str, ...], ...]
    cost_ns: int


@dataclass(frozen=True)
class FormCost:
    """What the whole network takes by one form of schedule, measured in turns with the others."""

    form: str
    median_ns: int
    spread_ns: int


@dataclass(frozen=True)
class KernelCost:
    """What the whole network takes by one of KERNELS, one unit after the other, measured in turns with the others."""

    kernels: str
    median_ns: int
    spread_ns: int


@dataclass(frozen=True)
class PlanBlock:
    """Units that were scheduled together, and what else was possible."""

    states: int
    transitions: int
    distinct: int
    """Distinct stages."""
    measured: int
    gap: int | float
    """At most this share of the block's cost could be saved, by the bounds of stages that were not measured."""
    note: str
    """What was cut or pruned; empty for nothing."""
    sequential_ns: int
    greedy_ns: int
    merge_ns: int
    concurrent_ns: int
    both_ns: int
    """The cheapest stages; the other figures are of the same block by other forms of schedule (FORMS)."""
    stages: tuple[PlanStage, ...]
    """Of the plan's form."""


@dataclass(frozen=True)
class Static:
    """The graph, the schedule, and what it was chosen by."""

    batch_size: int
    dtype: str
    device: str
    threads: int
    """On a GPU, streams."""
    costs: FileRef
    r: int
    s: int
    gap: int | float
    form: str
    """The one of FORMS that runs: none that is plainer was as fast."""
    measured: tuple[FormCost, ...]
    """The whole network by every form, what the form was chosen by; empty where nothing could run."""
    units: tuple[PlanUnit, ...]
    blocks: tuple[PlanBlock, ...]
    kernels: str | None = None
    """One of KERNELS; None on a CPU, and where the table has none: the first."""

    @property
    def workers(self) -> str:
        """What groups run in. `8 streams`."""
        return f"{self.threads} {'streams' if self.device.startswith(CUDA) else 'threads'}"


@dataclass(frozen=True, kw_only=True)
class StaticPlan:
    """Everything that running a static model needs beside the model file and its weights."""

    format_version: int = FORMAT_VERSION
    edbc: str
    model: ModelRef
    requirements: tuple[str, ...]
    static: Static
    guards: dict[str, Guard] = field(default_factory=dict)

    @property
    def is_of_object(self) -> bool:
        """Whether it was compiled from an object in memory, so that there is no model file."""
        return IN_MEMORY.fullmatch(self.model.path) is not None

    def save(self, path: str | Path) -> Path:
        """Verify the plan and write it, whole or not at all. Raises PlanError, and EdbcError where it cannot be."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_static_plan(self, target)
        return target


UNIT_NAME = Text("a unit's name", r"[A-Za-z0-9_][A-Za-z0-9_.~-]*", 300)
_TIME = Integer(high=10**15)


def _costs_by(name: str, words: tuple[str, ...], kind: type) -> ListOf:
    fields: dict[str, Kind] = {name: Choice(words), "median_ns": Integer(low=1, high=10**15), "spread_ns": _TIME}
    return ListOf(Record(kind, fields, flow=True), len(words))


FORM_COSTS, KERNEL_COSTS = _costs_by("form", FORMS, FormCost), _costs_by("kernels", KERNELS, KernelCost)
STATIC = Record(
    Static,
    {
        "batch_size": Integer(low=1, high=1_000_000),
        "dtype": Choice(("float32", "float64", "bfloat16", "float16")),
        "device": Text("the name of a device", r"[ -~]+", 200),
        "threads": Integer(low=1, high=1024),
        "costs": replace(FILE, flow=True),
        "r": Integer(high=63),
        "s": Integer(high=63),
        "gap": Number(low=0, high=1),
        "form": Choice(FORMS),
        "kernels": Choice(KERNELS),
        "measured": FORM_COSTS,
        "units": ListOf(
            Record(
                PlanUnit,
                {
                    "name": UNIT_NAME,
                    "reads": ListOf(UNIT_NAME, 1_000, least=0),
                    "text": Text("operations", r"[ -~]+", 20_000),
                },
            ),
            MOST_UNITS,
            least=1,
        ),
        "blocks": ListOf(
            Record(
                PlanBlock,
                {
                    "states": Integer(low=2),
                    "transitions": Integer(low=1),
                    "distinct": Integer(low=1),
                    "measured": Integer(low=1),
                    "gap": Number(low=0, high=1),
                    "note": Text("a note", r"[ -~]*", 500, shortest=0),
                    **{f"{form}_ns": _TIME for form in ("sequential", "greedy", "merge", "concurrent", "both")},
                    "stages": ListOf(
                        Record(
                            PlanStage,
                            {
                                "run": Choice(STRATEGIES),
                                "groups": ListOf(ListOf(UNIT_NAME, 1_000, least=1), 1_000, least=1),
                                "cost_ns": Integer(low=1, high=10**12),
                            },
                            flow=True,
                        ),
                        MOST_UNITS,
                        least=1,
                    ),
                },
            ),
            MOST_UNITS,
            least=1,
        ),
    },
    optional=("kernels",),
)
STATIC_PLAN = Record(
    StaticPlan,
    {
        "format_version": Integer(low=1),
        "edbc": VERSION,
        "model": MODEL,
        "requirements": ListOf(REQUIREMENT, 100),
        "static": STATIC,
        "guards": MapOf(METRIC, GUARD, 1_000, least=1),
    },
)


def read_any_plan(path: str | os.PathLike[str]) -> Plan | StaticPlan:
    """The plan in a file, verified, whichever kind it is. Raises PlanError, or StaleError."""
    where = one_line(path)
    data = read_bytes(path, where)
    return parse_static_plan(data, where) if is_static(data) else parse_plan(data, where)


def parse_static_plan(text: bytes | str, where: str) -> StaticPlan:
    """The static plan that `text` states, verified."""
    plan: StaticPlan = parse_as(text, where, STATIC_PLAN, "a plan")
    return verify_static_plan(plan, place_in(text, where))


def verify_static_plan(plan: StaticPlan, place: Place = in_memory) -> StaticPlan:
    """Check (1) to (5) and return the plan. O(size of the plan). Raises PlanError that names the place."""
    verify_model_path(plan.model.path, plan.is_of_object, place)
    name = plan.static.costs.name
    if not is_plain_name(name) or not name.endswith(".costs.yaml"):
        _fail(
            partial(place, "static", "costs", "name"),
            "a file name without a folder that ends in .costs.yaml",
            shorten(name),
        )
    verify_forms(plan.static.measured, partial(place, "static", "measured"))
    units: dict[str, PlanUnit] = {}
    for position, unit in enumerate(plan.static.units):
        where = partial(place, "static", "units", position)
        if unit.name in units or unit.name == INPUT:
            _fail(where, "each unit once", f"{shorten(unit.name)} again")
        for other in unit.reads:
            if other != INPUT and other not in units:
                _fail(where, f"what {shorten(unit.name)} reads before it", shorten(other))
        units[unit.name] = unit
    _verify_stages(plan, units, place)
    return plan


def verify_forms(forms: tuple[FormCost, ...], where: Where) -> None:
    """Check (5), of a plan or a cost table. Raises PlanError."""
    require_once([cost.form for cost in forms], "form of schedule", where)


def require_once(names: Sequence[str], kind: str, where: Where) -> None:
    """Raise PlanError where a name is there twice."""
    for name in names:
        if names.count(name) > 1:
            _fail(where, f"each {kind} once", f"'{name}' again")


def _fail(where: Where, expected: str, got: str) -> NoReturn:
    raise PlanError(f"{where()}: expected {expected}, got {got}; {REMEDY}")


def _verify_stages(plan: StaticPlan, units: dict[str, PlanUnit], place: Place) -> None:
    """Checks (2) and (3)."""
    done = {INPUT}
    for b, block in enumerate(plan.static.blocks):
        for s, stage in enumerate(block.stages):
            where = partial(place, "static", "blocks", b, "stages", s)
            unknown = next((name for group in stage.groups for name in group if name not in units), None)
            if unknown is not None:
                _fail(where, "units of the plan", shorten(unknown))
            _verify_strategy(stage, units, where)
            before = frozenset(done)
            for group in stage.groups:
                here = set(before)
                for name in group:
                    if name in done:
                        _fail(where, "each unit in one stage", f"{shorten(name)} again")
                    late = next((other for other in units[name].reads if other not in here), None)
                    if late is not None:
                        _fail(where, f"{shorten(late)} in an earlier stage, or earlier in the group of {shorten(name)}",
                              "it later or beside it")  # fmt: skip
                    here.add(name)
                    done.add(name)
    for name in units:
        if name not in done:
            _fail(partial(place, "static", "blocks"), f"a stage for {shorten(name)}", "none")


def _verify_strategy(stage: PlanStage, units: dict[str, PlanUnit], where: Where) -> None:
    """Check (3)."""
    singles = [units[group[0]] for group in stage.groups if len(group) == 1]
    if stage.run == "split" and [len(group) for group in stage.groups] != [1]:
        _fail(where, "one unit that all threads work on", f"{sum(map(len, stage.groups))} units")
    if stage.run != "merge":
        return
    if len(singles) < 2 or len(singles) != len(stage.groups):
        _fail(where, "at least two units to merge, each a group", f"{len(stage.groups)} groups")
    products = {next((p for p in PRODUCTS if unit.text.startswith(p)), "") for unit in singles}
    if len(products) != 1 or "" in products or len({unit.reads for unit in singles}) != 1:
        _fail(where, "products of one kind that read the same, to merge them", shorten(singles[0].text))


def static_plan_text(plan: StaticPlan) -> str:
    """The text of a static plan; `parse_static_plan` gives an equal one back."""
    return document_text(STATIC_PLAN, plan)


def write_static_plan(plan: StaticPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan whole or not at all. Raises PlanError for one that is not valid or cannot be written."""
    write_document(path, static_plan_text(plan), lambda text, where: parse_static_plan(text, where) == plan)
