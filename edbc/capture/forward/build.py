"""From a recording to the Graph of a mini-batch.

A chain of single-use additions becomes one node of the variadic type `sum` (Python's `sum(list)` runs as 0 + a + b + c;
terms keep the order in which the user's code adds them), and sums over the same operand nodes become one node with one
output each. Patterns of the plan become one node (`capture.patterns`). Everything else is renumbering, vectorised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import nn

from edbc.base.frozen import Changing, frozen
from edbc.base.garbage import NoGarbageCollection
from edbc.base.graph import Graph, GraphArrays, NodeType, ints
from edbc.capture.forward.carried import Carried, Given
from edbc.capture.forward.cutting import RunSegment
from edbc.capture.forward.fibers import MAX_READS, Reads
from edbc.capture.forward.left import Assigned, Left, recorded
from edbc.capture.forward.returned import Collected, Ints, as_longs, collect_results
from edbc.capture.forward.structures import Structure, structure_key
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.recording import Recording
from edbc.capture.record.table import Source, TypeTable
from edbc.capture.standins.standin import Slot
from edbc.errors import UnsupportedError

if TYPE_CHECKING:
    from edbc.capture.patterns.fuseloops import Matchers
    from edbc.capture.ragged.together.templates import OfSteps


@frozen
class Capture(Changing):
    """One mini-batch: its graph, the data of its externals, and what to return.

    `results[i]` is what instance i's forward returned, with a `Result` wherever a tensor goes, a `Run` for a list of
    nothing but tensors, and a `Stacked` for a stack.
    """

    graph: Graph
    sources: Sequence[Source]
    external_source: Ints  # (k,)
    external_index: Ints  # (k,)
    constants: dict[int, Any]
    """By source: a list of tensors, a table of rows, or a `Carried`."""
    result_node: Ints  # (r,) node, or -1 - external
    result_output: Ints  # (r,)
    result_slots: list[Slot]
    results: list[Any]
    detached: NDArray[np.bool_] | None = field(default=None, kw_only=True)  # (n,)
    """Nodes recorded where gradients were switched off; None when there are none."""
    num_shared: int = field(default=0, kw_only=True)
    """Nodes that this lacks because they equal one that it has."""
    has_shared: bool = field(default=False, kw_only=True)
    """True when equal nodes have been looked for."""
    is_known: bool = field(default=False, kw_only=True)
    """True when its very graph is that of an earlier mini-batch."""
    left: Sequence[Left | Assigned] = field(default=(), kw_only=True)
    """What forward left on the caller's objects, by instance where they are joined."""
    recorded_as: Ints | None = field(default=None, kw_only=True)
    """The recorded node that each node was; None where they are the same."""
    reads: Reads | None = field(default=None, kw_only=True)
    """What instances have read of earlier segments, where they have; this is the last one then."""
    given: Given | None = field(default=None, kw_only=True)
    """Results that earlier segments computed: these are not among those above."""
    in_tables: bool = field(default=False, kw_only=True)
    """True for a segment whose values are carried: each Run of `results`, which is of one class, may be a table."""
    result_ptr: Sequence[int] = field(kw_only=True)
    """From where the nest of each instance counts, the first of its results, and where the last one's end; 0 for all
    where nests count from the mini-batch's first."""
    of_steps: OfSteps | None = field(default=None, kw_only=True)
    """Where the nodes are those of the steps of programs (`ragged.together.templates`)."""
    stacks: Sequence[tuple[int, int]] = field(default=(), kw_only=True)
    """Ranges of results that leave as one tensor, with these rows, of all `Stacked`, in ascending order."""


def capture(
    shadow: nn.Module, recorder: Recorder, instances: Iterable[Any], run_segment: RunSegment | None = None,
    max_reads: int = MAX_READS,
) -> Capture:  # fmt: skip
    """Run `forward` for each instance on a recording shadow and build the graph of the mini-batch.

    Where instances read values, `run_segment` executes what has been recorded, and the mini-batch is what comes after
    the last read (`forward.fibers`); without it reading is refused.

    Raises UnsupportedError (with the user's file and line) for what cannot be batched; an exception of the user's code
    passes with a note that names the instance.
    """
    with NoGarbageCollection():
        recorder.run_segment, recorder.max_reads = run_segment, max_reads
        try:
            recording, collected = recorded(shadow, recorder, list(instances))
            reads = recorder.recorded_reads
            return build_collected(recording, collected) if reads is None else build_last(recording, collected, reads)
        finally:
            recorder.run_segment = recorder.recorded_reads = None


def build(recording: Recording, fuse_sums: bool = True) -> Capture:
    """The Capture of a recording. O(nodes + operands), vectorised but for the results' nests.

    Without `fuse_sums` nodes are exactly what was recorded, an addition each, no pattern one (cells are read so).
    """
    return build_collected(recording, collect_results(recording.results), fuse_sums)


def build_last(recording: Recording, collected: Collected, reads: Reads) -> Capture:
    """The Capture of what instances recorded behind their last reads, with those of the mini-batch's externals that it
    names. Results that earlier segments computed are as they are, unless a gradient passes through them."""
    from edbc.capture.forward import buildloops

    pools = [pool if isinstance(pool := recording.constants.get(i), Carried) and not pool.requires_grad else None
             for i in range(len(recording.table.sources))]  # fmt: skip
    given = Given.of(recording, collected, pools)
    if given is not None:
        rest = given.rest
        collected = collected._replace(refs=collected.refs[rest], slots=[collected.slots[i] for i in rest])
    refs, results = as_longs(recording.refs), collected.refs
    both = np.concatenate([refs, results])
    local, foreign = buildloops.local_refs(
        both, 0, recording.first_external, np.iinfo(np.int64).max, len(recording.external_source)
    )
    if foreign < 0:
        local, used = buildloops.compact(local)
        recording = recording.changed(
            refs=local[: len(refs)],
            external_source=[recording.external_source[i] for i in used.tolist()],
            external_index=[recording.external_index[i] for i in used.tolist()],
            first_external=0,
        )
        collected = collected._replace(refs=local[len(refs) :])
    return build_collected(recording, collected).changed(reads=reads, given=given)


def build_collected(recording: Recording, collected: Collected, fuse_sums: bool = True) -> Capture:
    """The Capture of a recording whose results have been collected (which may record more: whole parameters, rows)."""
    key = structure_key(recording, collected) if fuse_sums else None
    structure: Any = None if key is None else recording.table.structures.get(key)
    is_known = structure is not None and structure.graph.types is recording.table.graph_types()
    if not is_known:
        by_steps = key is None and bool(recording.programs) and fuse_sums
        refs = collected.refs
        structure = _of_steps(recording, refs) if by_steps else structure_of(recording, refs, fuse_sums)
        if key is not None:
            recording.table.structures.add(key, structure)
    return Capture(
        structure.graph,
        recording.table.sources,
        structure.external_source,
        as_longs(recording.external_index),
        recording.constants,
        structure.result_node,
        structure.result_output,
        collected.slots,
        collected.nests,
        detached=structure.detached,
        is_known=is_known,
        left=() if collected.left is None else (collected.left,),
        recorded_as=structure.recorded_as,
        stacks=collected.stacks,
        result_ptr=collected.result_ptr,
        num_shared=recording.num_shared,
        has_shared=structure.of_steps is not None and recording.shares,
        of_steps=structure.of_steps,
    )


def fused(captured: Capture, table: TypeTable, matchers: Matchers | None) -> Capture:
    """A mini-batch that was joined of parts with patterns across these as nodes. O(nodes + operands)."""
    if matchers is None:
        return captured
    from edbc.capture.patterns import fuseloops

    graph, detached = captured.graph, captured.detached
    flags = np.zeros(graph.num_nodes, np.bool_) if detached is None else detached
    remaining, *nodes, result_node = fuseloops.fuse(*graph.arrays, captured.result_node, flags, matchers)
    if len(remaining) == graph.num_nodes:
        return captured
    arrays = GraphArrays(*(ints(array) for array in nodes))
    graph = Graph(table.graph_types(), *arrays, graph.external_class, graph.classes)
    return captured.changed(
        graph=graph, result_node=result_node, detached=None if detached is None else detached[remaining]
    )


def captured_of(structure: Structure, recorder: Recorder, external_index: Ints, slots: list[Slot],
                runs: list[Any]) -> Capture:  # fmt: skip
    """The Capture of a segment, whose results are `runs` of one class each (`forward.cutting`). What reads values of
    earlier segments hardly ever equals anything."""
    return Capture(
        structure.graph,
        recorder.table.sources,
        structure.external_source,
        external_index,
        recorder.constants,
        structure.result_node,
        structure.result_output,
        slots,
        runs,
        detached=structure.detached,
        result_ptr=[0] * (len(runs) + 1),
        has_shared=structure.reads_carried,
        is_known=True,
        recorded_as=structure.recorded_as,
        in_tables=True,
    )


def structure_of(recording: Recording, result_refs: Ints, fuse_sums: bool = True) -> Structure:
    """What a recording tells but for its data and results."""
    from edbc.capture.forward import buildloops

    table = recording.table
    entries = as_longs(recording.entries)
    of_entry = table.arrays()
    ptr, value_base, value_node, value_output = buildloops.number_values(
        entries, of_entry.num_operands, of_entry.num_outputs
    )
    refs = local_refs(recording, recording.refs, int(value_base[-1]), ptr)
    result_refs = local_refs(recording, result_refs, int(value_base[-1]))
    detached = np.zeros(len(entries), np.bool_)
    detached[np.asarray(recording.detached, np.int64)] = True
    formed = np.zeros(len(entries), np.bool_) if recording.formed is None else recording.formed
    if recording.aborted != (0, 0):
        kept = _without_aborted(recording, refs, result_refs, ptr, value_base)
        detached, formed = detached[kept], formed[kept]
        entries, refs, result_refs = _only(kept, entries, refs, result_refs, ptr, value_base)
        ptr, value_base, value_node, value_output = buildloops.number_values(
            entries, of_entry.num_operands, of_entry.num_outputs
        )
    node_type = of_entry.type_index[entries]
    is_sum = of_entry.is_sum[entries] & ~(detached | formed)
    recorded_as: Ints | None = None
    if fuse_sums and is_sum.any():
        remaining, node_type, ptr, refs, value_node, value_output = _fuse_sums(
            table, entries, is_sum, ptr, refs, value_base, value_node, value_output, result_refs
        )
        detached, formed, recorded_as = detached[remaining], formed[remaining], remaining
    operands, operand_output = buildloops.as_operands(refs, value_node, value_output)
    result_node, result_output = buildloops.as_operands(result_refs, value_node, value_output)
    nodes = tuple(map(ints, (node_type, ptr, operands, operand_output)))
    matchers = table.fusions.matchers() if fuse_sums else None
    if matchers is not None and not formed.all():
        from edbc.capture.patterns import fuseloops

        kinds, *others = nodes
        looked_at = ints(np.where(formed, -1, kinds)) if formed.any() else kinds
        remaining, *fused_nodes, result_node = fuseloops.fuse(looked_at, *others, result_node, detached, matchers)
        if len(remaining) < len(detached):
            new_kinds, *others = fused_nodes
            nodes = (np.where(formed[remaining], kinds[remaining], new_kinds), *others)
            detached = detached[remaining]
            recorded_as = remaining if recorded_as is None else recorded_as[remaining]
    source = as_longs(recording.external_source)
    arrays = GraphArrays(*(ints(array) for array in nodes))
    graph = Graph(
        table.graph_types(),
        *arrays,
        ints(of_entry.source_class[source]),
        table.classes(),
    )
    return Structure(
        graph, source, result_node, result_output, detached if detached.any() else None, recorded_as,
        any(table.sources[number].kind == "carried" for number in np.flatnonzero(np.bincount(source)).tolist()),
    )  # fmt: skip


def _of_steps(recording: Recording, result_refs: Ints) -> Structure:
    """The same of runs of programs whose sums and patterns are steps."""
    from edbc.capture.forward import buildloops
    from edbc.capture.ragged.together.templates import OfSteps, template_of

    table = recording.table
    of_entry = table.arrays()
    source = as_longs(recording.external_source)
    arrays, result_node, result_output, foreign, foreign_result = buildloops.numbered(
        recording.entries, recording.refs, result_refs, recording.first_value, recording.first_external, len(source),
        of_entry.type_index, of_entry.num_operands, of_entry.num_outputs,
    )  # fmt: skip
    if foreign >= 0:
        refuse_foreign(recording, int(foreign), arrays[1])
    if foreign_result >= 0:
        refuse_foreign(recording, int(foreign_result), None)
    nodes = GraphArrays(*map(ints, arrays))
    template, step_ptr = template_of(table, recording.programs), recording.step_ptr
    graph = Graph(table.graph_types(), *nodes, ints(of_entry.source_class[source]), table.classes())
    of_steps = None if template is None or step_ptr is None else OfSteps(template, step_ptr)
    return Structure(graph, source, result_node, result_output, None, None, False, of_steps)


def local_refs(recording: Recording, refs: Sequence[int] | Ints, num_values: int, ptr: Ints | None = None) -> Ints:
    """Refs counted from the start of the mini-batch. Raises UnsupportedError for one that is not of this mini-batch.

    `ptr` says which node each operand belongs to; without it the refs are results.
    """
    from edbc.capture.forward import buildloops

    local, foreign = buildloops.local_refs(
        as_longs(refs), recording.first_value, recording.first_external, num_values,
        len(recording.external_source),
    )  # fmt: skip
    if foreign >= 0:
        refuse_foreign(recording, int(foreign), ptr)
    return local


def refuse_foreign(recording: Recording, at: int, ptr: Ints | None) -> NoReturn:
    """Raise UnsupportedError for ref `at` of the operands, or of the results without `ptr`."""
    where = "a result"
    if ptr is not None:
        node = int(np.searchsorted(ptr, at, side="right")) - 1
        table = recording.table
        node_type = table.graph_types()[table.entries[int(np.asarray(recording.entries)[node])].type_index]
        instance = int(np.searchsorted(recording.instance_ends, node, side="right"))
        which = f" (instance {instance})" if recording.instance_ends else ""
        where = f"{node_type.source}: an operand of {node_type.name}{which}"
    raise UnsupportedError(
        f"{where} is a tensor that an earlier mini-batch computed, kept on the model or on an instance; clear such "
        "caches at the start of forward, and return from forward what you want to read"
    )


def _without_aborted(
    recording: Recording, refs: Ints, result_refs: Ints, ptr: Ints, value_base: Ints
) -> NDArray[np.bool_]:
    """All nodes but those of an aborted first attempt that nothing reads; rare, hence plain Python."""
    first, last = recording.aborted
    used = np.zeros(value_base[-1] + 1, np.bool_)  # the last place takes what externals mark
    used[np.maximum(np.concatenate([refs[: ptr[first]], refs[ptr[last] :], result_refs]), -1)] = True
    used[-1] = False
    kept = np.ones(len(ptr) - 1, np.bool_)
    for node in range(last - 1, first - 1, -1):
        kept[node] = used[value_base[node] : value_base[node + 1]].any()
        if kept[node]:
            read = refs[ptr[node] : ptr[node + 1]]
            used[read[read >= 0]] = True
    return kept


def _only(
    kept: NDArray[np.bool_], entries: Ints, refs: Ints, result_refs: Ints, ptr: Ints, value_base: Ints
) -> tuple[Ints, Ints, Ints]:
    """The nodes that are kept, numbered anew: entries, operands and results."""
    kept_value = np.repeat(kept, np.diff(value_base))
    new_value = np.append(np.cumsum(kept_value) - 1, 0)
    refs = refs[np.repeat(kept, np.diff(ptr))]
    return (
        entries[kept],
        np.where(refs >= 0, new_value[np.maximum(refs, 0)], refs),
        np.where(result_refs >= 0, new_value[np.maximum(result_refs, 0)], result_refs),
    )


def _fuse_sums(
    table: TypeTable,
    entries: Ints,
    is_sum: NDArray[np.bool_],
    ptr: Ints,
    refs: Ints,
    value_base: Ints,
    value_node: Ints,
    value_output: Ints,
    result_refs: Ints,
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """Chains of additions into segment sums: of the graph that remains, which of the old nodes its nodes are, their
    types and operands, the latter as values of before; and the node and output there of all such values."""
    from edbc.capture.forward import buildloops

    leader, field, num_fields, (kept, new_ptr, new_refs, new_node, new_output) = buildloops.fuse_sums(
        is_sum, ptr, refs, result_refs, value_base, value_node, value_output
    )
    of_entry = table.arrays()
    node_type = of_entry.type_index[entries]
    new_type = node_type[kept]
    if num_fields.max() > 1:
        kinds, kind_of = buildloops.kinds_of_sums(kept, leader, field, num_fields, of_entry.output_class[entries])
        types = _types_of_sums(table, kinds, node_type[leader >= 0])
        new_type = np.where(kind_of < 0, new_type, types[kind_of])
    return kept, new_type, new_ptr, new_refs, new_node, new_output


def _types_of_sums(table: TypeTable, kinds: Ints, summed: Ints) -> Ints:
    """The types of sums of several fields: one per combination of classes, from the call sites of all sums."""
    all_types, all_classes = table.graph_types(), table.classes()
    sites = [site for index in np.flatnonzero(np.bincount(summed)).tolist() for site in all_types[index].sites]
    types = []
    for kind in kinds:
        classes = tuple(all_classes[c] for c in kind.tolist() if c >= 0)
        types.append(table.add_type(NodeType("sum", "sum", classes, classes, variadic=True), sites))
    return np.array(types, np.int64)
