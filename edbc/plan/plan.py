"""The plan as values: what compiling hands to running, and nothing else.

A plan is frozen data. Its dataclasses check nothing: `edbc.plan.schema` says what each field may hold,
`edbc.plan.verify` what must hold between them, and both run before a plan is returned by the reader or written by the
writer. Orders are stored rather than offsets, so that one plan serves every hidden size (`docs/plan-format.md`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

FORMAT_VERSION = 1
"""The only version that this edbc reads and writes."""

Scalar: TypeAlias = int | float | str | bool


@dataclass(frozen=True)
class FileRef:
    """A file by its name alone: a plan holds no paths of the machine that compiled it."""

    name: str
    sha256: str


@dataclass(frozen=True)
class ModelRef:
    """The model file that the plan was compiled from, or the class of the object."""

    path: str
    """Relative to the plan's folder, `/`-separated, `..` only at the start: `../models/tree_lstm.py`. Of an object that
    was compiled in memory `module:Class`."""
    sha256: str
    """Of the model file and the modules that it imports from its own folder, line ends normalised. Of an object, of the
    code of its classes (`edbc.tools.compile.modelobject`)."""
    config: dict[str, Scalar]
    """Keyword arguments of the model's `build`."""
    seed: int
    """Seed of the weights."""
    weights: FileRef | None = None
    """The safetensors file beside the plan that holds the weights, where they are not seeded."""


@dataclass(frozen=True)
class TrainedOn:
    """The instances that the policy was trained on."""

    source: Literal["sample", "file", "memory"]
    """`memory`: a list of the caller's."""
    files: tuple[FileRef, ...]
    """Empty unless `source` is `file`."""
    instances: int
    seed: int
    nodes: int
    """Nodes of all the training graphs together."""


@dataclass(frozen=True)
class PlanType:
    """A type of the dataflow graph. Its index is its position in `Plan.types`."""

    name: str
    signature: str
    source: str
    """`file:line` of the user's code that first made a node of this type, or empty."""


@dataclass(frozen=True)
class PlanPolicy:
    """How the next type to execute is chosen."""

    kind: str
    """`fsm`, or a fixed rule; `edbc.schedule.policy` knows their names."""
    encoding: str | None
    """State encoding of an `fsm`; None for every other kind."""
    fallback: str
    """What chooses in a state that the table lacks."""
    beside: str | None = field(default=None, kw_only=True)
    """The fixed rule that is simulated beside the table on every mini-batch, the cheaper schedule being run."""
    table: dict[str, str]
    """State text to action, which is a type's name. Empty unless `kind` is `fsm`."""
    training: dict[str, Any]
    """Record of the training: scalars, and lists and mappings of them."""

    def __post_init__(self) -> None:
        """Lists in the training record become tuples, and keys are sorted, so that equal records are alike."""
        object.__setattr__(self, "training", _frozen(self.training))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(value[key]) for key in sorted(value)}
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class PlanWaves:
    """Which types run before they must on a device whose steps hold several (`edbc compile --objective steps`)."""

    table: dict[str, str]
    """State text to action: one more type of the step."""
    training: dict[str, Any]
    """Record of the training: scalars and lists of them."""

    def __post_init__(self) -> None:
        """As in PlanPolicy."""
        object.__setattr__(self, "training", _frozen(self.training))


@dataclass(frozen=True)
class RunAs:
    """How mini-batches run where batching does not pay (`edbc.tools.compile.worth`): one instance after the other."""

    eager: str
    """Why."""
    captured: Literal["batched"] | None = None
    """How instances that are captured once run where that is faster than eager all the same."""


@dataclass(frozen=True)
class BatchCost:
    """What a batch of one type takes, measured by `edbc compile --profile` (`edbc.tools.compile.costs`)."""

    fixed_us: int | float
    """Microseconds however many rows it has."""
    row_us: int | float
    """Microseconds more per row."""


@dataclass(frozen=True)
class PlanCell:
    """The static subgraph of one type: its operations, their batches, and the memory order of its variables."""

    operations: tuple[str, ...]
    """SSA lines in the grammar of `edbc.plan.oplines`: `i = sigmoid(v3)`."""
    batches: tuple[tuple[str, ...], ...]
    """Variables that are computed together, in execution order."""
    layout: tuple[str, ...]
    """Every variable once, in memory order."""
    weights: tuple[str, ...]
    """Order in which the parameters are packed."""
    copies: int
    """Gathers and scatters that the layout leaves."""
    eager: tuple[str, ...] = ()
    """Operands from which operations are split off and run before the schedule, where they are look-ups everywhere."""


@dataclass(frozen=True)
class Guard:
    """A limit on one metric that `edbc check` enforces."""

    value: int | float
    tolerance: float = 0
    """How far the metric may be on the wrong side of `value`."""
    direction: Literal["lower", "higher"] = "lower"
    """Which way is better."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that running a model needs beside the model file and its weights."""

    format_version: int = FORMAT_VERSION
    edbc: str
    """Version of the edbc that compiled the plan."""
    model: ModelRef
    trained_on: TrainedOn
    requirements: tuple[str, ...]
    """What the environment must offer: `torch>=2.8`."""
    types: tuple[PlanType, ...]
    policy: PlanPolicy
    waves: PlanWaves | None = None
    """Set where the objective on a device is steps; the policy above counts batches, and every CPU keeps to it."""
    run: RunAs | None = None
    """Set where mini-batches run eagerly unless somebody insists."""
    alone: Literal["eager"] | None = None
    """Set where one instance alone does, which has no company to share a batch with."""
    automatic: dict[str, str] = field(default_factory=dict)
    """Methods that are cells though nobody marked them (`edbc.capture.code.automatic`): `file:line` by dotted name."""
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns of the graph that are one type, by its name: their lines (`edbc.base.pattern`)."""
    ragged: tuple[str, ...] = ()
    """Value classes one size of which differs between instances (`edbc.capture.ragged`): `f32[n,64]`."""
    reads: tuple[str, ...] = ()
    """Lines that read values of recorded tensors (`edbc.capture.forward.fibers`): `file:line`."""
    costs: dict[str, BatchCost] = field(default_factory=dict)
    """One entry per type, by name, when the policy was chosen by cost; else empty."""
    cells: dict[str, PlanCell]
    """One entry per type, by name."""
    guards: dict[str, Guard]
    """By metric."""

    def __str__(self) -> str:
        types, training = len(self.types), self.policy.training
        how = "run: eager" if self.run is not None else f"policy {self.policy.kind}"
        bound = f"{training.get('batches', '?')} batches, lower bound {training.get('lower_bound', '?')}"
        told = f"{types} type{'s' * (types != 1)}, {how}; {self.trained_on.nodes:,} nodes in {bound}"
        return f"{self.model.path}: {told}"

    @property
    def is_of_object(self) -> bool:
        """Whether it was compiled from an object in memory, so that there is no model file."""
        return self.trained_on.source == "memory"

    def save(self, path: str | Path) -> Path:
        """Verify the plan and write it, whole or not at all. Raises PlanError, and EdbcError where it cannot be."""
        from edbc.plan.writer import write_plan

        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_plan(self, target)
        return target
