"""From a recording to the Graph of a mini-batch.

A chain of single-use additions becomes one node of the variadic type `sum` (Python's `sum(list)` runs as 0 + a + b + c;
terms keep the order in which the user's code adds them), and sums over the same operand nodes become one node with one
output each. Everything else is renumbering, vectorised.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edbc.errors import UnsupportedError
from edbc.graph import Graph, NodeType
from edbc.trace.forward import no_garbage_collection, record
from edbc.trace.lazy import Extreme
from edbc.trace.recorder import Recorder
from edbc.trace.recording import Recording
from edbc.trace.shapes import flat
from edbc.trace.table import Source, TypeTable
from edbc.trace.values import Lazy, Shared, Slot, Symbol, Value

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Capture:
    """One mini-batch: its graph, the data of its externals, and what to return.

    `results[i]` is what instance i's forward returned, with a `Result` wherever a tensor goes and a `Run` for a list of
    nothing but tensors.
    """

    graph: Graph
    sources: Sequence[Source]
    external_source: Ints  # (k,)
    external_index: Ints  # (k,)
    constants: dict[int, list[torch.Tensor]]
    result_node: Ints  # (r,) node, or -1 - external
    result_output: Ints  # (r,)
    result_slots: list[Slot]
    results: list[Any]
    detached: NDArray[np.bool_] | None = field(default=None, kw_only=True)  # (n,)
    """Nodes recorded where gradients were switched off; None when there are none."""


class Result:
    """Place of output tensor `index` in what an instance returns."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index

    def __eq__(self, other: object) -> bool:
        return type(other) is Result and self.index == other.index

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Run:
    """Place of a list of output tensors, `start` to `stop`: what most models return, one object for all of them."""

    start: int
    stop: int


def capture(shadow: nn.Module, recorder: Recorder, instances: Iterable[Any]) -> Capture:
    """Run `forward` for each instance on a recording shadow and build the graph of the mini-batch.

    Raises UnsupportedError (with the user's file and line) for what cannot be batched; an exception of the user's code
    passes with a note that names the instance.
    """
    with no_garbage_collection():
        return build(record(shadow, recorder, list(instances)))


def build(recording: Recording, fuse_sums: bool = True) -> Capture:
    """The Capture of a recording. O(nodes + operands), vectorised but for the results' nests.

    Without `fuse_sums` nodes are exactly what was recorded, an addition each (cells are read so).
    """
    return build_collected(recording, collect_results(recording.results), fuse_sums)


def build_collected(recording: Recording, collected: Collected, fuse_sums: bool = True) -> Capture:
    """The Capture of a recording whose results have been collected (which may record more: whole parameters, rows)."""
    from edbc.trace import kernels

    table = recording.table
    result_refs, result_slots, results = collected
    entries = np.asarray(recording.entries, np.int64)
    of_entry = table.arrays()
    ptr, value_base, value_node, value_output = kernels.number_values(
        entries, of_entry.num_operands, of_entry.num_outputs
    )
    refs = local_refs(recording, recording.refs, int(value_base[-1]), ptr)
    result_refs = local_refs(recording, result_refs, int(value_base[-1]))
    detached = np.zeros(len(entries), np.bool_)
    detached[np.asarray(recording.detached, np.int64)] = True
    if recording.aborted != (0, 0):
        kept = _without_aborted(recording, refs, result_refs, ptr, value_base)
        detached = detached[kept]
        entries, refs, result_refs = _only(kept, entries, refs, result_refs, ptr, value_base)
        ptr, value_base, value_node, value_output = kernels.number_values(
            entries, of_entry.num_operands, of_entry.num_outputs
        )
    node_type = of_entry.type_index[entries]
    is_sum = of_entry.is_sum[entries] & ~detached
    if fuse_sums and is_sum.any():
        detached, node_type, ptr, refs, value_node, value_output = _fuse_sums(
            detached, table, entries, node_type, is_sum, ptr, refs, value_base, value_node, value_output, result_refs
        )
    operands, operand_output = kernels.as_operands(refs, value_node, value_output)
    result_node, result_output = kernels.as_operands(result_refs, value_node, value_output)
    source = np.asarray(recording.external_source, np.int64)
    graph = Graph(
        table.graph_types(),
        _frozen(node_type),
        _frozen(ptr),
        _frozen(operands),
        _frozen(operand_output),
        _frozen(of_entry.source_class[source]),
        table.classes(),
    )
    return Capture(
        graph,
        table.sources,
        source,
        np.asarray(recording.external_index, np.int64),
        recording.constants,
        result_node,
        result_output,
        result_slots,
        results,
        detached=detached if detached.any() else None,
    )


def local_refs(recording: Recording, refs: Sequence[int] | Ints, num_values: int, ptr: Ints | None = None) -> Ints:
    """Refs counted from the start of the mini-batch. Raises UnsupportedError for one that is not of this mini-batch.

    `ptr` says which node each operand belongs to; without it the refs are results.
    """
    from edbc.trace import kernels

    local, foreign = kernels.local_refs(
        np.asarray(refs, np.int64), recording.first_value, recording.first_external, num_values,
        len(recording.external_source),
    )  # fmt: skip
    if foreign >= 0:
        _refuse_foreign(recording, int(foreign), ptr)
    return local


def _refuse_foreign(recording: Recording, at: int, ptr: Ints | None) -> NoReturn:
    where = "a result"
    if ptr is not None:
        node = int(np.searchsorted(ptr, at, side="right")) - 1
        table = recording.table
        node_type = table.graph_types()[table.entries[int(np.asarray(recording.entries)[node])].type_index]
        instance = int(np.searchsorted(recording.instance_ends, node, side="right"))
        where = f"{node_type.source}: an operand of {node_type.name} (instance {instance})"
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
        np.where(refs >= 0, new_value[refs], refs),
        np.where(result_refs >= 0, new_value[result_refs], result_refs),
    )


def _frozen(array: Ints) -> NDArray[np.int32]:
    result = np.ascontiguousarray(array, dtype=np.int32)
    result.setflags(write=False)
    return result


def _fuse_sums(
    detached: NDArray[np.bool_],
    table: TypeTable,
    entries: Ints,
    node_type: Ints,
    is_sum: NDArray[np.bool_],
    ptr: Ints,
    refs: Ints,
    value_base: Ints,
    value_node: Ints,
    value_output: Ints,
    result_refs: Ints,
) -> tuple[NDArray[np.bool_], Ints, Ints, Ints, Ints, Ints]:
    """Chains of additions into segment sums; returns which nodes of the graph that remains are detached, and its
    arrays, values still numbered as before but with their new node and output."""
    from edbc.trace import kernels

    uses = np.bincount(refs[refs >= 0], minlength=len(value_node))
    np.add.at(uses, result_refs[result_refs >= 0], 1)
    absorber = kernels.absorbed_sums(is_sum, ptr, refs, value_node, uses)
    start, terms = kernels.chain_terms(is_sum, absorber, ptr, refs, value_node)
    leader, field, num_fields = kernels.merge_sums(start, terms, value_node)
    fused_of_value = np.full(len(value_node), -1, np.int64)
    kept, new_ptr, new_refs = kernels.write_nodes(
        leader, absorber, num_fields, field, start, terms, ptr, refs, value_base, fused_of_value
    )
    position = np.full(len(entries), -1, np.int64)
    position[kept] = np.arange(len(kept))
    fused = fused_of_value >= 0
    new_node = np.where(fused, fused_of_value // kernels.MAX_FIELDS, position[value_node])
    new_output = np.where(fused, fused_of_value % kernels.MAX_FIELDS, value_output)
    new_type = node_type[kept].copy()
    _retype_merged(table, entries, kept, leader, field, num_fields, new_type)
    return detached[kept], new_type, new_ptr, new_refs, new_node, new_output


def _retype_merged(
    table: TypeTable, entries: Ints, kept: Ints, leader: Ints, field: Ints, num_fields: Ints, new_type: Ints
) -> None:
    """Give sums of several fields the type that says so, one per combination of classes."""
    merged = np.flatnonzero(num_fields[kept] > 1)
    if not len(merged):
        return
    members = np.flatnonzero(leader >= 0)
    members = members[num_fields[leader[members]] > 1]
    fields = np.full((len(leader), int(num_fields.max())), -1, np.int64)
    fields[leader[members], field[members]] = table.arrays().output_class[entries[members]]
    kinds, kind_of = np.unique(fields[kept[merged]], axis=0, return_inverse=True)
    summed = np.unique(table.arrays().type_index[entries[members]]).tolist()
    sites = [site for index in summed for site in table.graph_types()[index].sites]
    all_classes = table.classes()
    types = []
    for kind in kinds:
        classes = tuple(all_classes[c] for c in kind.tolist() if c >= 0)
        types.append(table.add_type(NodeType("sum", "sum", classes, classes, variadic=True), sites))
    new_type[merged] = np.asarray(types)[kind_of.reshape(-1)]


class Collected(NamedTuple):
    """Values in what instances returned: refs, slots, and the nests with a Result in each value's place."""

    refs: Ints
    slots: list[Slot]
    nests: list[Any]


def collect_results(nests: Sequence[Any]) -> Collected:
    """Values in what the instances returned, in order, and the nests with a Result in each place."""
    refs: list[int] = []
    slots: list[Slot] = []

    def run(values: list[Value]) -> Run:
        refs.extend([value.ref for value in values])
        slots.extend([value.slot for value in values])
        return Run(len(refs) - len(values), len(refs))

    def walk(item: Any) -> Any:
        kind = type(item)
        if kind is Value:
            refs.append(item.ref)
            slots.append(item.slot)
            return Result(len(refs) - 1)
        if kind is list:
            return run(item) if item and set(map(type, item)) == {Value} else [walk(x) for x in item]
        if kind is tuple:
            return tuple([walk(x) for x in item])
        if kind is dict:
            return {key: walk(value) for key, value in item.items()}
        if kind is Shared:
            return walk(item.rec.whole(item))
        if issubclass(kind, Lazy):
            return walk(item.materialise())
        return _walk_other(item, walk)

    results = [walk(item) for item in nests]
    return Collected(np.asarray(refs, np.int64), slots, results)


def shifted_results(nest: Any, offset: int) -> Any:
    """The nest with every Result moved by `offset`."""

    def walk(item: Any) -> Any:
        kind = type(item)
        if kind is Result:
            return Result(item.index + offset)
        if kind is Run:
            return Run(item.start + offset, item.stop + offset)
        if kind is list or kind is tuple:
            return kind([walk(x) for x in item])
        if kind is dict:
            return {key: walk(value) for key, value in item.items()}
        return _walk_other(item, walk)

    return walk(nest)


def _walk_other(item: Any, walk: Callable[[Any], Any]) -> Any:
    """Results that are neither tensors nor plain lists, tuples and dicts."""
    if isinstance(item, torch.Tensor):
        return item
    if isinstance(item, tuple):
        return type(item)(*map(walk, item)) if hasattr(item, "_fields") else tuple(map(walk, item))
    if isinstance(item, Extreme):
        return tuple(map(walk, item))
    if isinstance(item, Mapping):
        return {key: walk(value) for key, value in item.items()}
    if isinstance(item, list | set | frozenset | deque):
        return [walk(x) for x in item]
    if hasattr(item, "__dataclass_fields__") and not isinstance(item, type):
        result = copy.copy(item)
        for name in item.__dataclass_fields__:
            object.__setattr__(result, name, walk(getattr(item, name)))
        return result
    if any(isinstance(x, Symbol) for x in flat(getattr(item, "__dict__", {}))):
        raise UnsupportedError(
            f"forward returned an object of class {type(item).__name__} that holds recorded tensors; return the "
            "tensors in lists, tuples, dicts, named tuples or dataclasses"
        )
    return item
