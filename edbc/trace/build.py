"""From a recording to the Graph of a mini-batch.

A chain of single-use additions becomes one node of the variadic type `sum` (Python's `sum(list)` runs as 0 + a + b + c;
terms keep the order in which the user's code adds them), and sums over the same operand nodes become one node with one
output each. Everything else is renumbering, vectorised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edbc.errors import UnsupportedError
from edbc.graph import Graph, ValueClass
from edbc.trace.deep import run_deep
from edbc.trace.recorder import Recorder, Recording, call_user_code
from edbc.trace.table import Source, TypeTable
from edbc.trace.values import Rows, Shared, Slot, Value

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Capture:
    """One mini-batch: its graph, the data of its externals, and what to return.

    `results[i]` is what instance i's forward returned, with a `Result` wherever a tensor goes.
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


class Result:
    """Place of output tensor `index` in what an instance returns."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


def capture(shadow: nn.Module, recorder: Recorder, instances: Iterable[Any]) -> Capture:
    """Run `forward` for each instance on a recording shadow and build the graph of the mini-batch.

    Raises UnsupportedError (with the user's file and line) for what cannot be batched; an exception of the user's code
    passes with a note that names the instance.
    """
    batch = list(instances)
    return build(run_deep(lambda: record(shadow, recorder, batch)))


def record(shadow: nn.Module, recorder: Recorder, instances: Sequence[Any]) -> Recording:
    """Run `forward` for each instance; see `capture`."""
    recorder.begin()
    forward: Callable[[Any], Any] = shadow.forward
    results = []
    for number, instance in enumerate(instances):
        try:
            results.append(forward(instance))
        except RecursionError:
            raise
        except Exception as error:
            raised = error
            call_user_code(f"instance {number}", lambda error=raised: _raise(error))  # type: ignore[misc]
    return recorder.finish(results)


def _raise(error: Exception) -> None:
    raise error


def build(recording: Recording, fuse_sums: bool = True) -> Capture:
    """The Capture of a recording. O(nodes + operands), vectorised but for the results' nests.

    Without `fuse_sums` nodes are exactly what was recorded, an addition each (cells are read so).
    """
    table = recording.table
    entries = np.asarray(recording.entries, np.int64)
    refs = np.asarray(recording.refs, np.int64)
    of_entry = _entry_arrays(table)
    num_operands, num_outputs = of_entry.num_operands[entries], of_entry.num_outputs[entries]
    ptr = _offsets(num_operands)
    value_base = _offsets(num_outputs)
    if len(refs) and (refs.max() >= value_base[-1] or refs.min() < -len(recording.external_source)):
        raise UnsupportedError(
            "the model used a tensor that an earlier mini-batch computed (kept on the model or on an instance); "
            "clear such caches before each forward"
        )
    result_refs, result_slots, results = _collect_results(recording)
    value_node = np.repeat(np.arange(len(entries)), num_outputs)
    node_type = of_entry.type_index[entries]
    is_sum = of_entry.is_sum[entries]
    value_output = np.arange(value_base[-1]) - value_base[value_node]
    if fuse_sums and is_sum.any():
        node_type, ptr, refs, value_node, value_output = _fuse_sums(
            table, entries, node_type, is_sum, ptr, refs, value_base, value_node, value_output, result_refs
        )
    operands, operand_output = _as_operands(refs, value_node, value_output)
    result_node, result_output = _as_operands(result_refs, value_node, value_output)
    classes, external_class = _external_classes(recording.external_slot)
    graph = Graph(
        table.graph_types(), _frozen(node_type), _frozen(ptr), _frozen(operands), _frozen(operand_output),
        _frozen(external_class), classes,
    )  # fmt: skip
    return Capture(graph, table.sources, np.asarray(recording.external_source, np.int64),
                   np.asarray(recording.external_index, np.int64), recording.constants, result_node, result_output,
                   result_slots, results)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _EntryArrays:
    type_index: Ints
    num_operands: Ints
    num_outputs: Ints
    is_sum: NDArray[np.bool_]


def _entry_arrays(table: TypeTable) -> _EntryArrays:
    entries = table.entries
    return _EntryArrays(
        np.array([e.type_index for e in entries], np.int64),
        np.array([e.num_operands for e in entries], np.int64),
        np.array([len(e.output_slots) for e in entries], np.int64),
        np.array([e.is_sum for e in entries], np.bool_),
    )


def _offsets(counts: Ints) -> Ints:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _frozen(array: Ints) -> NDArray[np.int32]:
    result = np.ascontiguousarray(array, dtype=np.int32)
    result.setflags(write=False)
    return result


def _as_operands(refs: Ints, value_node: Ints, value_output: Ints) -> tuple[Ints, Ints]:
    """Values as pairs (node, output); externals stay negative."""
    internal = refs >= 0
    safe = np.where(internal, refs, 0)
    if not len(value_node):
        return refs, np.zeros_like(refs)
    return np.where(internal, value_node[safe], refs), np.where(internal, value_output[safe], 0)


def _external_classes(slots: list[Slot]) -> tuple[tuple[ValueClass, ...], Ints]:
    index_of: dict[ValueClass, int] = {}
    numbers = [index_of.setdefault(slot.base, len(index_of)) for slot in slots]
    return tuple(index_of), np.asarray(numbers, np.int64)


def _fuse_sums(table: TypeTable, entries: Ints, node_type: Ints, is_sum: NDArray[np.bool_], ptr: Ints, refs: Ints,
               value_base: Ints, value_node: Ints, value_output: Ints,
               result_refs: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:  # fmt: skip
    """Chains of additions into segment sums; returns the arrays of the graph that remains, values still numbered as
    before but with their new node and output."""
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
    _retype_merged(table, entries, kept, leader, num_fields, new_type)
    return new_type, new_ptr, new_refs, new_node, new_output


def _retype_merged(table: TypeTable, entries: Ints, kept: Ints, leader: Ints, num_fields: Ints, new_type: Ints) -> None:
    """Give sums of several fields the type that says so, one per combination of classes."""
    merged = np.flatnonzero(num_fields[kept] > 1)
    if not len(merged):
        return
    members: dict[int, list[int]] = {int(kept[i]): [] for i in merged}
    for v in np.flatnonzero(leader >= 0):
        if int(leader[v]) in members:
            members[int(leader[v])].append(int(v))
    type_of_fields: dict[tuple[int, ...], int] = {}
    for i in merged:
        fields = tuple(int(entries[v]) for v in members[int(kept[i])])
        if fields not in type_of_fields:
            classes = tuple(table.entries[e].output_slots[0].base for e in fields)
            source = table.graph_types()[table.entries[fields[0]].type_index].source
            type_of_fields[fields] = table.add_type("sum", "sum", classes, classes, variadic=True, source=source)
        new_type[i] = type_of_fields[fields]


def _collect_results(recording: Recording) -> tuple[Ints, list[Slot], list[Any]]:
    """Values in what the instances returned, in order, and the nests with a Result in each place."""
    refs: list[int] = []
    slots: list[Slot] = []

    def walk(item: Any) -> Any:
        kind = type(item)
        if kind is Value:
            refs.append(item.ref)
            slots.append(item.slot)
            return Result(len(refs) - 1)
        if kind is list:
            return [walk(x) for x in item]
        if kind is tuple:
            return tuple([walk(x) for x in item])
        if kind is dict:
            return {key: walk(value) for key, value in item.items()}
        if kind is Shared:
            return walk(item.rec.whole(item))
        if kind is Rows:
            return walk(item.materialise())
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return kind(*map(walk, item))
        if hasattr(item, "__dataclass_fields__"):
            return _walk_dataclass(item, walk)
        return item

    results = [walk(item) for item in recording.results]
    return np.asarray(refs, np.int64), slots, results


def _walk_dataclass(item: Any, walk: Callable[[Any], Any]) -> Any:
    import copy

    result = copy.copy(item)
    for name in item.__dataclass_fields__:
        object.__setattr__(result, name, walk(getattr(item, name)))
    return result
