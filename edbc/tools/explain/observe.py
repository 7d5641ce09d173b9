"""What a plan does with one mini-batch: its schedule, the states behind it, and where time and bytes go.

The mini-batch runs as it is timed once to warm up and then REPEATS times, every batch timed alone, which is a little
slower than running as usual; medians count. What is copied before the first batch is no batch's. Bytes are counted, not
measured: *read* are all operand rows, *gathered* those of them that are not a contiguous run, *written* the outputs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.cells.parts import CORE
from edbc.schedule.policy import RULES, Policy, state_to_text
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import analysed, cheap_types, costs_of, encoding_code, run
from edbc.tools.report.figures import count

if TYPE_CHECKING:
    from edbc.capture.forward.fibers import Reads
    from edbc.run.passes.minibatch import MiniBatch
    from edbc.run.session import Net, Stats

REPEATS = 5
RUNS = 12
"""How many lengths of runs of segments are told."""
BASELINES = ("depth", "agenda", "sufficient", "critical")
"""Fixed rules that a plan is shown beside."""
RULE = "(rule)"
"""State text of a batch that no state of the table chose."""


@dataclass(frozen=True)
class Step:
    """One batch."""

    kind: int
    size: int
    state: str
    """The state in which the table chose it, or RULE."""
    seconds: float
    read_bytes: int
    gathered_bytes: int
    written_bytes: int

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class PartStep:
    """The batches of a type's eager part (`edbc.cells.parts`), which no schedule holds."""

    type: str
    part: str
    rows: int
    batches: int
    seconds: float

    @property
    def text(self) -> str:
        """`eager part of char, 200 rows in 3 batches`."""
        return f"{self.part} part of {self.type}, {self.rows:,} rows in {count(self.batches, 'batch', 'batches')}"


@dataclass(frozen=True)
class OnDevice:
    """The mini-batch where a step may hold batches of several types (`edbc.schedule.waves`)."""

    steps: int
    """Of the batches above."""
    least: int
    """On the longest path: no schedule has fewer, and waves have as many."""
    batches: int
    """Of waves: those of the plan where it `has_waves`, else by the rule alone."""
    has_waves: bool

    @property
    def text(self) -> str:
        """As a sentence."""
        whose = "the plan's waves" if self.has_waves else "waves by the rule"
        return (
            f"where a step holds batches of several types, as on a GPU: {self.steps:,} steps; {whose} need "
            f"{self.least:,}, the longest path, for {self.batches:,} batches"
        )


@dataclass(frozen=True)
class Observation:
    """One mini-batch under a plan."""

    source: str
    """`32 made-up instances (seed 0)`."""
    instances: int
    types: tuple[NodeType, ...]
    steps: tuple[Step, ...]
    parts: tuple[PartStep, ...]
    whole: tuple[str, ...]
    company: tuple[str, ...]
    """Of types that the plan lets run split and that did not: why."""
    shared_nodes: int
    """Nodes that equal another one (`edbc.run.passes.share`): here they run one by one, otherwise with that one. As
    found in what was recorded; joining finds equal vertices, and may share where nothing is shared of a recording."""
    least: tuple[int, ...]
    """Per type the fewest batches that any schedule needs: its longest chain of dependent nodes."""
    schedules: dict[str, tuple[tuple[int, int], ...]]
    """What the plan is compared with; batches as (type, size)."""
    lowering: dict[str, str]
    """Per type `native`, `torch` or `generic`."""
    backend: str
    construction_seconds: float
    scheduling_seconds: float
    loading_seconds: float
    """Copying look-ups and constants, and packing weights that changed: before the first batch."""
    unseen_states: int
    on_device: OnDevice
    reads: tuple[str, ...] = ()
    ragged: tuple[str, ...] = ()
    """Which classes are ragged, and which functions take ragged values whole."""
    no_nodes: tuple[str, ...] = ()
    """Calls of automatic cells that are no nodes, a line for each cell and reason."""
    """Where values were read, a line each."""
    first: Graph | None = None
    """The dataflow graph of the first instance alone."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a mini-batch's times do not say, a line each."""
        shared = (
            f"{self.shared_nodes:,} of {self.num_nodes:,} nodes equal another one; a run by --front-end record "
            "computes them once"
        )
        return (
            self.reads + self.ragged + self.no_nodes + ((shared,) if self.shared_nodes else ()) + self.whole
            + self.company
        )  # fmt: skip

    @property
    def lower_bound(self) -> int:
        """ED-Batch's Eq. 2."""
        return sum(self.least)

    @property
    def num_nodes(self) -> int:
        """Nodes of the mini-batch."""
        return sum(step.size for step in self.steps)

    @property
    def execution_seconds(self) -> float:
        """All batches, and what is copied before them."""
        return (
            self.loading_seconds + sum(step.seconds for step in self.steps) + sum(part.seconds for part in self.parts)
        )

    @property
    def table_steps(self) -> int:
        """Batches that the policy's table chose."""
        return sum(step.state != RULE for step in self.steps)

    @property
    def transitions(self) -> Counter[tuple[str, str]]:
        """How often a state followed another."""
        states = [step.state for step in self.steps]
        return Counter(pairwise(states))


def observe(net: Net, instances: Sequence[Any], source: str) -> Observation:
    """Run a mini-batch and say what happened. Raises what `Net.run` raises."""
    from edbc.run.session import Stats

    _timed(net, _prepared(net, instances, None)[0])
    stats = [Stats() for _ in range(REPEATS)]
    prepared, reads = [_prepared(net, instances, each) for each in stats][-1]
    no_nodes = tuple(_told_of_calls(net))
    loading, *of_batches = np.median([_timed(net, prepared) for _ in range(REPEATS)], axis=0).tolist()
    captured, schedule = prepared.whole
    graph = captured.graph
    seconds = np.array(of_batches)
    states = states_of(graph, schedule, net.policy)
    executed = range(schedule.num_batches) if prepared.split is None else prepared.split.executed.tolist()
    steps = tuple(
        Step(kind, len(nodes), states[i], float(seconds[b]), *moved_bytes(prepared, b, len(nodes)))
        for i, (b, (kind, nodes)) in enumerate(zip(executed, schedule.batches(), strict=True))
    )
    if reads is not None and reads.segments:
        source = f"the largest of {reads.segments + 1:,} segments of {source}"
    return Observation(
        source=source,
        instances=len(instances),
        types=graph.types,
        steps=steps,
        parts=tuple(_parts(prepared, seconds)),
        whole=tuple(net.kept_whole(prepared)),
        company=tuple(net.depends_on_company(prepared)),
        shared_nodes=graph.num_nodes - net.shared(captured).graph.num_nodes,
        least=least_batches(graph),
        schedules=other_schedules(graph),
        lowering={graph.types[kind].name: _lowering(net, graph, kind) for kind in sorted({s.kind for s in steps})},
        backend=str(getattr(net.backend, "name", "reference")),
        construction_seconds=median(each.seconds.construction for each in stats),
        scheduling_seconds=median(each.seconds.scheduling for each in stats),
        loading_seconds=loading,
        unseen_states=schedule.unseen_states,
        on_device=_on_device(net, graph, schedule),
        first=_prepared(net, instances[:1], None)[0].whole[0].graph,
        reads=() if reads is None else tuple(_told(reads)),
        ragged=tuple(_told_of_rows(net)),
        no_nodes=no_nodes,
    )


def _told_of_calls(net: Net) -> Iterator[str]:
    """Of what was to be cells and is none in the mini-batch."""
    for name, what in sorted(net.view.given_up.items()):
        yield (
            f"{what} means something else than when the model was bound, so calls of {name} are recorded by their "
            "operations; bind it again"
        )
    for (name, why), number in sorted(net.calls_without_nodes().items()):
        what = "is no node" if number == 1 else "are no nodes"
        yield f"{count(number, 'call')} of {name} {what}: {why.partition('; ')[0]}"


def _told_of_rows(net: Net) -> Iterator[str]:
    if net.plan.ragged:
        yield f"values of {', '.join(net.plan.ragged)} are rows, as many as an instance brings, each a node"
    for name, sites in sorted(net.taken_whole().items()):
        yield f"{name} takes them whole, by a type per size: {', '.join(sorted(sites)[:3])}"


def _on_device(net: Net, graph: Graph, schedule: Schedule) -> OnDevice:
    from edbc.schedule.waves.waverun import least_steps, run_waves, steps_of
    from edbc.schedule.waves.wavetable import Waves

    planned = net.plan.waves
    names = [t.name for t in net.plan.types]
    waves = Waves() if planned is None else Waves.from_text(planned.table, names)
    return OnDevice(steps_of(schedule), least_steps(graph), run_waves(graph, waves)[0].num_batches, planned is not None)


def _prepared(net: Net, instances: Sequence[Any], stats: Stats | None) -> tuple[MiniBatch, Reads | None]:
    """A mini-batch to execute, which changes no instance; of one whose instances read values, its largest segment."""
    from edbc.capture.standins.objects import unchanged

    segments: list[MiniBatch] = []
    with unchanged(instances):
        last = net.prepare(instances, stats, without=("share",), on_segment=segments.append)
    return max(segments, default=last, key=lambda part: part.capture.graph.num_nodes), last.capture.reads


def _told(reads: Reads) -> Iterator[str]:
    """What instances read, a line each."""
    most, live = max(map(len, reads.noted), default=0), [cut.live for cut in reads.cuts]
    yield (
        f"instances read values, at most {most:,} each: building and scheduling are of all segments, batches of the "
        f"largest; {mean(live or [0]):.1f} instances wait for one"
    )
    yield "who waits, segment by segment: " + (", ".join(_runs(live)) or "nobody")
    copies = [cut for cut in reads.cuts if cut.copied_bytes]
    seconds = sum(cut.copied - cut.executed for cut in copies)
    yield (
        f"{count(len(copies), 'copy', 'copies')} of values to the host take {1e3 * seconds:.2f} ms for "
        f"{sum(cut.copied_bytes for cut in copies):,} bytes"
        if copies
        else "values are read where they were computed, on the host: nothing is copied"
    )
    yield f"suspended instances take {reads.suspended_bytes / 1024:,.0f} KiB at most"
    yield from (f"{site} reads {count(number, 'value')}" for site, number in reads.sites().items())


def _runs(live: Sequence[int]) -> Iterator[str]:
    """Numbers of instances with how many segments they wait for: `32 for 12`; the last ones together beyond RUNS."""
    runs = [(number, len(list(group))) for number, group in groupby(live)]
    yield from (f"{number} for {length}" for number, length in runs[:RUNS])
    if len(runs) > RUNS:
        yield f"fewer or others for {sum(length for _, length in runs[RUNS:])}"


def _timed(net: Net, prepared: MiniBatch) -> list[float]:
    """Seconds before the first batch, and of every batch."""
    moments = [time.perf_counter()]
    with net.executing(prepared) as execution:
        execution.run(until=0)  # what is done once, not per batch
        moments.append(time.perf_counter())
        execution.run(on_batch=lambda _: moments.append(time.perf_counter()))
    return np.diff(moments).tolist()


def _parts(prepared: MiniBatch, seconds: NDArray[np.float64]) -> Iterator[PartStep]:
    split = prepared.split
    if split is None:
        return
    types, schedule = prepared.capture.graph.types, prepared.schedule
    for whole, variant in split.variants.items():
        for part, kind in variant.type_of_part.items():
            if part != CORE:
                of_part = schedule.batch_type == kind
                rows, batches = int(np.diff(schedule.batch_ptr)[of_part].sum()), int(of_part.sum())
                yield PartStep(types[whole].name, part, rows, batches, float(seconds[of_part].sum()))


def least_batches(graph: Graph) -> tuple[int, ...]:
    """Per type its term of the lower bound."""
    from edbc.schedule.analysis import analyse, terms

    dag = analyse(graph.node_type, graph.operand_ptr, graph.operands, graph.num_types, False, True, False)
    return tuple(terms(dag).tolist())


def other_schedules(graph: Graph) -> dict[str, tuple[tuple[int, int], ...]]:
    """What the plan is compared with, as (type, size) per batch: a beam search, then the fixed rules."""
    from edbc.schedule.learn.search import beam, is_small

    found = {"beam": beam(graph)} if graph.num_nodes and is_small(graph) else {}
    found |= {kind: run(graph, Policy(kind)) for kind in BASELINES}
    return {name: tuple((kind, len(nodes)) for kind, nodes in schedule.batches()) for name, schedule in found.items()}


def states_of(graph: Graph, schedule: Schedule, policy: Policy) -> list[str]:
    """Per batch of the policy's schedule the state that chose it, or RULE."""
    encoding = encoding_code(policy)
    if encoding < 0 or schedule.by_rule:
        return [RULE] * schedule.num_batches
    from edbc.schedule.schedulewalk import walk

    table, actions = policy.compiled
    rule, cost = RULES.index(policy.rule), costs_of(policy.cost, graph.num_types)
    rows = walk(analysed(graph, policy), encoding, table, actions, rule, cheap_types(graph), cost)[3]
    names = [kind.name for kind in graph.types]
    texts = {
        row: state_to_text(policy.encoding or "", tuple(table.words[row, : table.num_words[row]].tolist()), names)
        for row in set(rows.tolist())
        if row >= 0
    }
    return [texts.get(row, RULE) for row in rows.tolist()]


def moved_bytes(prepared: MiniBatch, batch: int, size: int) -> tuple[int, int, int]:
    """Bytes that an executed batch of `size` nodes reads, gathers and writes."""
    kind, placement = int(prepared.schedule.batch_type[batch]), prepared.placement
    node_type = prepared.capture.graph.types[kind]
    items = int(placement.items[batch])
    operands = [(items * row_bytes(c), int(placement.run[batch, k]) < 0) for k, c in enumerate(node_type.operands)]
    written = size * sum(map(row_bytes, node_type.outputs))
    return sum(n for n, _ in operands), sum(n for n, is_gathered in operands if is_gathered), written


def row_bytes(value_class: ValueClass) -> int:
    """Bytes of one value."""
    from edbc.capture.standins.standin import torch_dtype

    return value_class.size * torch_dtype(value_class.dtype).itemsize


def _lowering(net: Net, graph: Graph, kind: int) -> str:
    from edbc.run.cpu.cpubackend import CellKernel
    from edbc.run.reference import ProgramKernel

    kernel = net.kernel(kind)
    if isinstance(kernel, CellKernel | ProgramKernel) and kernel.dtype is None:  # several
        return "generic"
    return str(net.backend.path(graph.types[kind], kernel))
