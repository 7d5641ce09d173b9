"""What of a capture is decided beforehand, and how: automatic cells, classes whose rows stand one by one, patterns.

All are chosen on the training mini-batch by what recording and running it *costs*, a function of the model and the
mini-batch without a clock: the plan holds what was chosen.

(1) Cells are chosen with rows and without (`choose`), by the nodes and batches that they leave
    (`edbc.capture.code.automatic`, definition (4)) and calls on rows, which take RUN_US, and ROW_US for each node that
    they come to.
(2) Ragged classes (`edbc.capture.ragged`) stay where a mini-batch of instances that are new costs less with them, each
    way with its cells. What takes longest then is Python, which runs the user's forward and records: PYTHON_US for
    each call of a function, *counted* while the sample is recorded again, until that calls hardly less than the time
    before: code is kept the second or third time that it is met; TENSOR_US more where it is one of torch's, of the
    instance's own tensors. Then READ_US for each instance whose forward does not run, as it is kept (`ragged.together`)
    or as at most half of those to come are unlike any before (`capture.alike.alike`, by `to_come`); JOIN_US for each
    node, and PLACE_US for each batch, which small mini-batches of many types mostly consist of; batches, products and
    what torch runs as in (1) and (6).
(3) Patterns of what is left are mined (`tools.compile.mining`) once cells and rows are chosen. Where types per size
    cost less, but rows no more than NEAR times as much, rows are held against them with their patterns: a chain of
    functions of a row is several nodes without, and a straight line over a matrix is one anyhow.
(4) A type per size costs most where no plan has it: UNSEEN_US for each of its operations. How many are to come is told
    by how many have one node in the sample and how many have two (`to_come`): sizes of few values run out.
(5) A type per size that nobody meets again makes compiling long and plans large. Where each instance of the sample's
    last quarter brings NEW_TYPES, with the ragged classes of those before, types *do not run out*: FEW instances serve
    as the sample, and batching is measured on others (`tools.compile.worth`).
(6) A batch that torch runs costs TORCH_US, with CALL_US for each operation of it but one, and so does each node of a
    function of whole runs that torch runs, or each batch of one that it does not.

Of the 140 programs of the corpus some of whose sizes differ (`benchmarks/ordinary.py --choices`), in mini-batches of
32, (2) comes within a factor of two of what they take in nine of ten cases, and chooses the slower way for seven, five
of which take 1.2 to 1.8 times as long then. Nodes and runs in the place of calls, without what torch and Python do for
them, were off by up to 90: up to 19 times as long.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from edbc.base.pattern import Pattern
from edbc.capture.alike.alike import Alike
from edbc.capture.captured.vocabulary import Lexicon
from edbc.capture.code.automatic import (
    CALL_US,
    JOIN_US,
    NODE_US,
    PLACE_US,
    PYTHON_US,
    READ_US,
    ROW_US,
    RUN_US,
    TENSOR_US,
    TORCH_US,
    UNSEEN_US,
    Candidate,
    Trial,
    Work,
    candidates,
    choose,
    cost_of,
)
from edbc.capture.code.regions import Regions
from edbc.capture.code.shadow import ModelView, SharedTraces, recording_shadow
from edbc.capture.code.work import num_operations, work_of_call
from edbc.capture.forward.build import Capture, capture
from edbc.capture.patterns.fusions import Planned, patterns_of
from edbc.capture.ragged.value import Sizes, varying
from edbc.capture.record.numbers import lifted_calls
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.table import TypeTable
from edbc.capture.standins.objects import unchanged
from edbc.plan.plan import Plan
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run
from edbc.tools.compile.mining import mine
from edbc.tools.compile.natives import Natives
from edbc.tools.compile.unplanned import SegmentsUnplanned

LESS = 0.85
"""What rows have to cost of what types per size do: nearly all classes of a plan are read by who runs it."""
NEAR = 3.0
"""How many times what types per size cost rows may cost before their patterns are mined."""
FAR = 1.5
"""Where one of rows and types per size costs so much more than the other by (1), few of its cells are tried."""
NEW_TYPES, FEW = 4, 8
"""Definition (6)."""
AHEAD = 50
"""Mini-batches that a plan is compiled for: they share what types to come cost."""
SETTLED, MOST = 0.95, 6
"""What a recording calls at least of what the one before it did once all that is kept is kept, and how many are counted
until then."""


class Decisions(NamedTuple):
    """What of a capture is given: the names of automatic cells, ragged classes, patterns; what is None is found."""

    automatic: Collection[str] | None = None
    ragged: tuple[str, ...] | None = None
    patterns: tuple[Pattern, ...] | None = None


class Decided(NamedTuple):
    """Automatic cells by name, with the lines where their code begins, ragged classes, patterns, and calls that take
    numbers as operands (`record.numbers`)."""

    automatic: dict[str, str]
    ragged: tuple[str, ...]
    patterns: tuple[Pattern, ...] = ()
    lifted: frozenset[str] = frozenset()

    def of(self, model: nn.Module, code: Regions | None = None) -> tuple[ModelView, TypeTable]:
        """What records a model so."""
        view = ModelView(model, automatic=self.automatic, ragged=self.ragged, code=code)
        return view, TypeTable(patterns=map(Planned, self.patterns), lifted=self.lifted)


class _Recorded(NamedTuple):
    """The sample as it was recorded."""

    view: ModelView
    table: TypeTable
    recorder: Recorder
    parts: list[Capture]
    sizes: Sizes | None
    """Of values without rows and cells."""


class Sample:
    """The training mini-batch of a model, recorded once in each way."""

    def __init__(self, model: nn.Module, code: Regions, instances: Sequence[Any]):
        self.model, self.code, self.instances = model, code, instances
        self.natives = Natives()
        self._known: dict[tuple[tuple[str, ...], frozenset[str]], _Recorded] = {}
        self.traces: SharedTraces = {}
        self._kernels: dict[str, Any] = {}
        self.lifted = frozenset[str]()
        """What recording has found of numbers that differ from call to call."""

    def of(self, instances: Sequence[Any]) -> Sample:
        """Of some of the instances, with what has been made of the model."""
        some = Sample(self.model, self.code, instances)
        some.natives, some.traces, some._kernels = self.natives, self.traces, self._kernels
        some.lifted = self.lifted
        return some

    def recorded(self, ragged: tuple[str, ...] = (), names: frozenset[str] = frozenset()) -> _Recorded:
        """With these classes ragged and the methods of these names as cells."""
        known = self._known.get((ragged, names))
        if known is None:
            known = self._known[ragged, names] = self._recorded(ragged, names)
        return known

    def _recorded(self, ragged: tuple[str, ...], names: frozenset[str]) -> _Recorded:
        view = ModelView(self.model, automatic=names, ragged=ragged, code=self.code)
        view.share_traces(self.traces)
        sizes: Sizes | None = None if ragged or names else {}
        recorded = self.recorded_by(view, TypeTable(lifted=self.lifted), sizes)
        found = lifted_calls(recorded.recorder)
        if found <= self.lifted:
            return recorded
        self.lifted |= found
        return self._recorded(ragged, names)

    def taken(self, decided: Decided) -> _Recorded:
        """As has been decided but for patterns; the table may get more types, so nobody else is given the same. Cells
        may be traced as in another trial (`ModelView.share_traces`)."""
        way = decided.ragged, frozenset(decided.automatic)
        self.recorded(*way)
        return self._known.pop(way)

    def recorded_by(self, view: ModelView, table: TypeTable, sizes: Sizes | None = None) -> _Recorded:
        """By a view and into a table, in segments."""
        shadow, recorder = recording_shadow(view, table)
        recorder.sizes = sizes
        return _Recorded(view, table, recorder, self.recorded_with(shadow, recorder, view), sizes)

    def recorded_with(self, shadow: Any, recorder: Recorder, view: ModelView) -> list[Capture]:
        """By a model's shadow and its recorder, which may have done so before."""
        with unchanged(self.instances):
            run_segment = SegmentsUnplanned(self.model, view, recorder.table, self._kernels)
            return run_segment.taken(capture(shadow, recorder, self.instances, run_segment))


def runs_out(sample: Sample) -> bool:
    """Whether the types of instances that are to come are mostly those of the sample: definition (6). Three recordings
    more, of parts, where the sample has many types."""
    count = len(sample.instances)
    if count <= FEW or len(sample.recorded().table.types) < NEW_TYPES * count:
        return True
    border = 3 * count // 4
    first, last = sample.of(sample.instances[:border]), sample.of(sample.instances[border:])
    recorded = first.recorded(ragged_classes(first))
    known = len(recorded.table.types)
    last.recorded_by(recorded.view, recorded.table)
    return len(recorded.table.types) - known < NEW_TYPES * (count - border)


def decide(sample: Sample, given: Decisions) -> Decided:
    """What a capture of a sample is to do, by what is known of the model's code. O(recordings of it); see `choose` for
    how many."""
    decided = _cells_and_rows(sample, given)
    patterns = (decided.patterns or _mined(sample, decided)) if given.patterns is None else given.patterns
    return decided._replace(patterns=patterns, lifted=sample.lifted)


def patterns_in(plan: Plan) -> tuple[Pattern, ...]:
    """What a plan says of patterns, for `Decisions`."""
    return tuple(p.pattern for p in patterns_of([(t.name, t.signature) for t in plan.types], plan.fused))


def _cells_and_rows(sample: Sample, given: Decisions) -> Decided:
    if given.ragged is not None:
        return Decided(_automatic(sample, given.automatic, given.ragged), given.ragged)
    ragged = ragged_classes(sample)
    if not ragged:
        return Decided(_automatic(sample, given.automatic, ()), ())
    ways = [(classes, cache(partial(trial, sample, classes))) for classes in ((), ragged)]
    if given.automatic is None:
        every = frozenset(c.name for c in _candidates(sample, None))
        ways.sort(key=lambda way: way[1](every).cost)
    chosen, least = dict[tuple[str, ...], Decided](), math.inf
    for classes, attempt in ways:
        automatic, cost = _chosen(sample, given.automatic, attempt, FAR * least)
        chosen[classes], least = Decided(automatic, classes), min(least, cost)
    whole, rows = chosen[()], chosen[ragged]
    cost, of_rows = cost_of_new(sample, whole), cost_of_new(sample, rows)
    if of_rows < cost * LESS:
        return rows
    if given.patterns is None and of_rows < NEAR * cost:
        fused = rows._replace(patterns=_mined(sample, rows))
        if fused.patterns and cost_of_new(sample, fused) < cost * LESS:
            return fused
    return whole


def cost_of_new(sample: Sample, decided: Decided) -> float:
    """Definition (2), microseconds: of instances like those of the sample, but new."""
    view, table = decided._replace(lifted=sample.lifted).of(sample.model, sample.code)
    view.share_traces(sample.traces)
    shadow, recorder = recording_shadow(view, table)
    sample.recorded_with(shadow, recorder, view)
    recorder.look_seldom()
    costs: list[float] = []
    while len(costs) < 2 or (len(costs) < MOST and costs[-1] < SETTLED * costs[-2]):
        read = recorder.read_forwards
        with counted() as calls:
            parts = sample.recorded_with(shadow, recorder, view)
        costs.append(READ_US * (recorder.read_forwards - read) + calls.cost)
    recording = costs[-1] if decided.ragged else min(costs[-1], _recording_alike(sample, decided, costs[-1]))
    joining = JOIN_US * sum(part.graph.num_nodes for part in parts)
    return recording + joining + _executing(sample, view, table, parts, PLACE_US)


def _recording_alike(sample: Sample, decided: Decided, recording: float) -> float:
    """What it costs where one of many that are alike is recorded; infinite where that does not pay."""
    view, table = decided._replace(lifted=sample.lifted).of(sample.model, sample.code)
    if not view.closed.is_forward_told:
        return math.inf
    alike = Alike(view, Lexicon(table, view, _nobody, _nobody), lambda: recording_shadow(view, table))
    with unchanged(sample.instances):
        if alike.capture(sample.instances) is None:
            return math.inf
        with counted() as calls:
            alike.capture(sample.instances)
    count, times = len(sample.instances), [*Counter(alike.keys(sample.instances)).values()]
    new = to_come(times.count(1), times.count(2))
    if new > count / 2:
        return math.inf
    return READ_US * count + TENSOR_US * calls.of_tensors + recording * new / count


class _Calls:
    """How many calls of functions there were, of Python's and C's, and of these of torch's functions of tensors."""

    count = of_tensors = 0

    def note(self, frame: Any, event: str, function: Any) -> None:
        """Of `sys.setprofile`."""
        if event == "c_call":
            self.count += 1
            if function.__module__ == "torch":
                self.of_tensors += 1
        elif event == "call":
            self.count += 1

    @property
    def cost(self) -> float:
        """Microseconds."""
        return PYTHON_US * self.count + TENSOR_US * self.of_tensors


@contextmanager
def counted() -> Iterator[_Calls]:
    """Count calls: none where somebody else profiles."""
    calls = _Calls()
    if sys.getprofile() is not None:
        yield calls
        return
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def _nobody() -> Any:
    raise AssertionError("what is recorded here stays here")


def _mined(sample: Sample, decided: Decided) -> tuple[Pattern, ...]:
    """Definition (3)."""
    view, table, _, parts, _ = sample.taken(decided)
    return mine(table, view, parts)


def _chosen(
    sample: Sample, names: Collection[str] | None, attempt: Callable[[frozenset[str]], Trial], enough: float = math.inf
) -> tuple[dict[str, str], float]:
    """The automatic cells by name, those of the names or what is chosen, with the lines where their code begins; and
    what the instances cost with them."""
    found = _candidates(sample, names)
    if names is None and found:
        found, best = choose(found, attempt, enough)
    else:
        best = attempt(frozenset(c.name for c in found))
    return {c.name: c.location for c in found}, best.cost


def _automatic(sample: Sample, names: Collection[str] | None, ragged: tuple[str, ...]) -> dict[str, str]:
    """The automatic cells by name, with the lines where their code begins: those that are worth it on the instances, or
    those of the names that may be."""
    if names is None:
        return _chosen(sample, names, partial(trial, sample, ragged))[0]
    return {c.name: c.location for c in _candidates(sample, names)}


def _candidates(sample: Sample, names: Collection[str] | None) -> list[Candidate]:
    """All of them, or those of the names."""
    if names is not None and not names:
        return []
    found, _ = candidates(sample.model, sample.code.closed, sample.code)
    return [c for c in found if names is None or c.name in names]


def ragged_classes(sample: Sample) -> tuple[str, ...]:
    """The classes whose leading size differs within the instances (`capture.ragged`); none for a model that does with
    rows what rows cannot follow."""
    found = varying(sample.recorded().sizes or {})
    return found if not found or sample.recorded(found).recorder.ragged else ()


def trial(sample: Sample, ragged: tuple[str, ...], names: frozenset[str]) -> Trial:
    """What a mini-batch costs with the methods of these names as cells."""
    return Trial(names, *_cost_of(sample, sample.recorded(ragged, names), names, ragged))


def _cost_of(sample: Sample, recorded: _Recorded, names: frozenset[str],
             ragged: tuple[str, ...]) -> tuple[float, dict[str, int]]:  # fmt: skip
    """What a recording costs, and how many types each cell has that was used."""
    view, table, recorder, parts, _ = recorded
    used = {name: 0 for name in recorder.taken if not recorder.is_outgrown(name)}
    types = table.graph_types()
    for kind in np.unique(np.concatenate([part.graph.node_type for part in parts])).tolist():
        name = types[kind].op.removeprefix("cell ")
        if name in names and not recorder.is_outgrown(name):
            used[name] = used.get(name, 0) + 1
    of_runs = min(recorder.nodes_of_runs, sum(part.graph.num_nodes for part in parts))  # patterns leave fewer
    cost = RUN_US * recorder.num_runs - (NODE_US - ROW_US) * of_runs
    cost += NODE_US * sum(part.graph.num_nodes for part in parts)
    return cost + _executing(sample, view, table, parts), used


def _executing(
    sample: Sample, view: ModelView, table: TypeTable, parts: Sequence[Capture], placing: float = 0.0
) -> float:
    """What batches under a fixed rule take, with what `placing` each does, products, what torch runs, and types that
    are to come."""
    types, cost = table.graph_types(), 0.0
    for part in parts:
        schedule = run(part.graph.lint(), Policy("critical"))
        batches, nodes = np.bincount(schedule.batch_type, minlength=len(types)), part.graph.counts()
        for kind in np.flatnonzero(nodes).tolist():
            entry = table.operation_of_type.get(kind)  # reductions of vertex functions have none
            work = Work(0, 0) if entry is None else work_of_call(entry, view)
            cost += cost_of(work, int(nodes[kind]), int(batches[kind])) + placing * int(batches[kind])
            cost += _in_torch(table, kind, view, sample.natives, int(nodes[kind]), int(batches[kind]))
    counts = np.bincount(np.concatenate([part.graph.node_type for part in parts]))
    once, twice = (
        sum(_num_operations(table, kind, view) for kind in np.flatnonzero(counts == times).tolist()) for times in (1, 2)
    )
    return cost + UNSEEN_US * to_come(once, twice)


def _in_torch(table: TypeTable, kind: int, view: ModelView, natives: Natives, nodes: int, batches: int) -> float:
    """What calls of torch take for a type of so many nodes and batches, definition (6)."""
    node_type, entry = table.types[kind], table.operation_of_type.get(kind)
    assert node_type is not None
    if node_type.is_run and entry is not None:
        return TORCH_US * (batches if natives.run(table, kind, view) else nodes)
    if entry is None or not node_type.has_program or natives.run(table, kind, view):
        return 0.0
    return batches * (TORCH_US + CALL_US * (num_operations(entry, view) - 1))


def _num_operations(table: TypeTable, kind: int, view: ModelView) -> int:
    entry = table.operation_of_type.get(kind)
    return 1 if entry is None else num_operations(entry, view)


def to_come(once: int, twice: int) -> float:
    """Of AHEAD mini-batches the mean number of types that are new, by how many have one node and two in a sample (or of
    keys of instances).

    Chao's estimate of all that are to come ("Nonparametric estimation of the number of classes in a population", 1984)
    and how they come (Shen, Chao and Lin, "Predicting the number of new species in further taxonomic sampling", Ecology
    2003): as many in the next mini-batch as have one node, and fewer by then on as fewer are left. Where none has two
    nothing tells that they run out.
    """
    if not once or not twice:
        return once
    left = once**2 / (2 * twice)
    return left / AHEAD * -math.expm1(-AHEAD * once / left)
