"""Joining: from the instances of a mini-batch, as arrays, to its Capture.

Definitions.

(1) The *batch* is the instances one after the other: vertices of instance i are `vertex_ptr[i]` to `vertex_ptr[i + 1]`,
    its edges start at `edge_start[i]` and count vertices from its first, and its own `edge_ptr`, one entry longer than
    its vertices, starts at `vertex_ptr[i] + i`.
(2) *Joining* writes the fragment of every vertex in vertex order. Nodes, operands and externals are numbered exactly as
    define-by-run capture numbers them when it runs the vertex functions in that order.
(3) An *output* is everything that was pushed under one name; its rows stand instance after instance, in vertex order.

Python runs per instance (to collect arrays) and per fragment that is new; what is done per vertex is native.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.errors import InputError
from edbc.graph import Graph, NodeType, ValueClass
from edbc.trace.build import Capture
from edbc.trace.values import Slot
from edbc.vertex.instance import VertexInstance
from edbc.vertex.tables import FragmentTables

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]


class Batch(NamedTuple):
    """Definition (1)."""

    vertex_ptr: Longs  # (instances + 1,)
    edge_start: Longs  # (instances,)
    types: Ints  # (n,)
    edge_ptr: Ints  # (n + instances,)
    edges: Ints  # (m,)


class _Out(NamedTuple):
    node_type: Ints
    operand_ptr: Ints
    operands: Ints
    operand_output: Ints
    external_class: Ints
    external_source: Longs
    external_index: Longs
    result_node: Longs
    result_output: Longs
    push_counts: Longs  # (instances, outputs)


class _Scratch(NamedTuple):
    field_start: Longs  # (n,) where the scattered values of each vertex stand in the next two
    field_node: Ints
    field_output: Ints
    numbers: Longs  # externals of one fragment
    class_number: Longs  # -1 until used
    num_classes: Longs  # (1,)
    shared_number: Longs  # -1 until used
    shared_index: Longs
    push_at: Longs  # next row of each output


@dataclass(frozen=True, eq=False)
class Output:
    """Definition (3): rows `start` to `stop` of the results."""

    name: str
    slot: Slot
    start: int
    stop: int
    rows_of_instance: list[int]


@dataclass(frozen=True, eq=False)
class VertexCapture(Capture):
    """A Capture whose results are the rows of outputs; `result_slots` and `results` stay empty."""

    outputs: tuple[Output, ...]

    def split(self, rows: Sequence[torch.Tensor], num_instances: int) -> list[dict[str, torch.Tensor]]:
        """One dict per instance, from one tensor `(rows, ...)` per output; an output without rows there is left out."""
        results: list[dict[str, torch.Tensor]] = [{} for _ in range(num_instances)]
        for output, tensor in zip(self.outputs, rows, strict=True):
            for step in output.slot.views:
                tensor = torch.vmap(step.apply)(tensor)
            for result, part in zip(results, tensor.split(output.rows_of_instance), strict=True):
                if len(part):
                    result[output.name] = part
        return results


def concatenate(instances: Sequence[VertexInstance]) -> Batch:
    """The batch of some instances."""
    return Batch(
        _starts([len(x.types) for x in instances]),
        _starts([len(x.edges) for x in instances])[:-1],
        _concatenated([x.types for x in instances], np.int32),
        _concatenated([x.edge_ptr for x in instances], np.int32),
        _concatenated([x.edges for x in instances], np.int32),
    )


def _starts(sizes: Sequence[int] | Longs) -> Longs:
    result = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=result[1:])
    return result


def _concatenated(arrays: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


class Written(NamedTuple):
    """The arrays of a mini-batch's graph and of its results."""

    graph: Graph
    external_source: Longs
    external_index: Longs
    result_node: Longs
    result_output: Longs
    outputs: tuple[Output, ...]


def write(batch: Batch, tables: FragmentTables, types: Sequence[NodeType], fragment_of: Longs,
          columns: Longs) -> Written:  # fmt: skip
    """The graph of a batch whose vertices have the given fragments. Raises InputError for a look-up beyond a table."""
    from edbc.vertex import kernels

    times = np.bincount(fragment_of, minlength=len(tables.sizes))
    num_nodes, num_operands, num_externals, num_fields = (times @ tables.sizes).tolist()
    result_ptr = _starts(times @ tables.push_counts)
    out = _Out(
        np.empty(num_nodes, np.int32), np.zeros(num_nodes + 1, np.int32), np.empty(num_operands, np.int32),
        np.empty(num_operands, np.int32), np.empty(num_externals, np.int32), np.empty(num_externals, np.int64),
        np.empty(num_externals, np.int64), np.empty(result_ptr[-1], np.int64), np.empty(result_ptr[-1], np.int64),
        np.zeros((len(batch.edge_start), len(tables.outputs)), np.int64),
    )  # fmt: skip
    scratch = _Scratch(
        np.empty(len(fragment_of), np.int64), np.empty(num_fields, np.int32), np.empty(num_fields, np.int32),
        np.empty(tables.sizes[:, 2].max(initial=0), np.int64), np.full(len(tables.classes), -1, np.int64),
        np.zeros(1, np.int64), np.full(len(tables.shared), -1, np.int64),
        np.array([index for _, index in tables.shared], np.int64), result_ptr[:-1].copy(),
    )  # fmt: skip
    count, column, vertex = kernels.write_graph(batch, tables.arrays, fragment_of, columns, out, scratch)
    if vertex >= 0:
        raise _beyond_table(batch, tables.columns.names[column], int(columns[column, vertex]), int(vertex))
    graph = Graph(
        tuple(types), _frozen(out.node_type), _frozen(out.operand_ptr), _frozen(out.operands),
        _frozen(out.operand_output), _frozen(out.external_class[:count]), _classes(tables, scratch.class_number),
    )  # fmt: skip
    outputs = tuple(
        Output(name, slot, start, stop, out.push_counts[:, i].tolist())
        for i, ((name, slot), (start, stop)) in enumerate(
            zip(tables.outputs, pairwise(result_ptr.tolist()), strict=True)
        )
        if stop > start
    )
    return Written(
        graph, out.external_source[:count], out.external_index[:count], out.result_node, out.result_output, outputs
    )


def _frozen(array: Ints) -> Ints:
    array.setflags(write=False)
    return array


def _classes(tables: FragmentTables, class_number: Longs) -> tuple[ValueClass, ...]:
    """The classes in use, by the numbers that the kernel gave them."""
    used = sorted((number, i) for i, number in enumerate(class_number.tolist()) if number >= 0)
    return tuple(tables.classes[i] for _, i in used)


def locate(batch: Batch, vertex: int) -> tuple[int, int]:
    """Instance of a vertex that is counted over all instances, and its number there."""
    instance = int(np.searchsorted(batch.vertex_ptr, vertex, side="right")) - 1
    return instance, vertex - int(batch.vertex_ptr[instance])


def _beyond_table(batch: Batch, name: str, row: int, vertex: int) -> InputError:
    instance, number = locate(batch, vertex)
    return InputError(
        f"instance {instance}, vertex {number}: input {name!r}: expected a row of its table, got {row}; "
        "correct the input or give the table more rows"
    )
