"""Joining: from the instances of a mini-batch, as arrays, to its Capture.

Definitions.

(1) The *batch* is the instances one after the other (`VertexInstance.packed`); instance i starts at `start[i]` and its
    vertices, counted over all instances, are `vertex_ptr[i]` to `vertex_ptr[i + 1]`.
(2) *Joining* writes the fragment of every vertex in vertex order. Nodes and operands are numbered exactly as
    define-by-run capture numbers them when it runs the vertex functions in that order; so are externals, but for shared
    ones.
(3) An *output* is everything that was pushed under one name; its rows stand instance after instance, in vertex order.

Python runs per instance (to collect arrays) and per fragment that is new; what is done per vertex is native.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.errors import InputError
from edbc.graph import Graph
from edbc.trace.build import Capture
from edbc.trace.draws import INSTANCE_BITS
from edbc.trace.table import TypeTable
from edbc.trace.values import Slot
from edbc.vertex.fragment import DRAW_BITS
from edbc.vertex.inputs import Pools
from edbc.vertex.instance import VertexInstance
from edbc.vertex.tables import FragmentTables

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
_LINE = 64
"""Bytes of a cache line: arrays of one block begin with one."""


class Batch(NamedTuple):
    """Definition (1)."""

    packed: Ints
    start: Longs  # (instances,)
    vertex_ptr: Longs  # (instances + 1,)

    @property
    def num_vertices(self) -> int:
        """Vertices of all instances."""
        return int(self.vertex_ptr[-1])


class _Out(NamedTuple):
    """What the kernels write: the arrays of Graph and Capture, and the rows of each output by instance."""

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


@dataclass(frozen=True, eq=False)
class Output:
    """Definition (3): rows `start` to `stop` of the results."""

    name: str
    slot: Slot
    start: int
    stop: int
    rows_of_instance: list[int]

    def seen(self, rows: torch.Tensor) -> torch.Tensor:
        """Values `(rows, ...)` with the output's views taken of each."""
        for step in self.slot.views:
            rows = torch.vmap(step.apply)(rows)
        return rows


@dataclass(frozen=True, eq=False)
class VertexCapture(Capture):
    """A Capture whose results are the rows of outputs; `result_slots` and `results` stay empty."""

    num_instances: int
    outputs: tuple[Output, ...]

    def split(self, rows: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """One dict per instance, from one tensor `(rows, ...)` per output; an output without rows there is left out."""
        results: list[dict[str, torch.Tensor]] = [{} for _ in range(self.num_instances)]
        for output, tensor in zip(self.outputs, rows, strict=True):
            for result, part in zip(results, output.seen(tensor).split(output.rows_of_instance), strict=True):
                if len(part):
                    result[output.name] = part
        return results


def concatenate(instances: Sequence[VertexInstance]) -> Batch:
    """The batch of some instances."""
    from edbc.vertex import kernels

    packed = np.concatenate([x.packed for x in instances]) if instances else np.zeros(0, np.int32)
    return Batch(packed, *kernels.find_instances(packed, len(instances)))


def write(
    batch: Batch,
    tables: FragmentTables,
    table: TypeTable,
    fragment_of: NDArray[np.uint64],
    times: Longs,
    columns: Longs,
    pools: Pools,
) -> VertexCapture:
    """The Capture of a batch whose vertices have the given fragments, `times[f]` of them fragment f.

    Raises InputError for a look-up beyond a table. O(nodes + operands).
    """
    from edbc.vertex import kernels

    num_nodes, num_operands, num_given, num_externals = (times @ tables.sizes).tolist()
    row_ptr = np.concatenate([[0], np.cumsum(times @ tables.push_counts)])
    num_externals += len(tables.shared.source)
    num_results, num_vertices = int(row_ptr[-1]), len(fragment_of)
    sizes = [(num_nodes, np.int32), (num_nodes + 1, np.int32), (num_operands, np.int32), (num_operands, np.int32),
             (num_externals, np.int32), (num_externals, np.int64), (num_externals, np.int64), (num_results, np.int64),
             (num_results, np.int64)]  # fmt: skip
    arrays = in_one_block(*sizes, (num_vertices, np.int32), (num_vertices, np.uint64), (num_given, np.int64))
    first_external, first_value, given_value = arrays[-3:]
    out = _Out._make([*arrays[:-3], np.zeros((len(batch.start), len(tables.outputs)), np.int64)])
    out.operand_ptr[0] = 0
    shared_number = np.full(len(tables.shared.source), -1, np.int64)
    count, column, vertex = kernels.write_externals(
        fragment_of, columns, tables.externals, tables.shared, shared_number, first_external, out
    )
    if vertex >= 0:
        raise _beyond_table(batch, tables.columns.names[column], int(columns[column, vertex]), vertex)
    _number_draws(batch, table, first_external, out.external_source[:count], out.external_index[:count])
    values = first_value, given_value
    kernels.write_nodes(
        batch, fragment_of, (first_external, shared_number), tables.nodes, tables.operands, tables.given, values, out
    )
    kernels.write_results(batch, fragment_of, values, tables.pushes, row_ptr[:-1].astype(np.uint64), out)
    graph = Graph(
        table.graph_types(), _frozen(out.node_type), _frozen(out.operand_ptr), _frozen(out.operands),
        _frozen(out.operand_output), _frozen(out.external_class[:count]), table.classes(),
    )  # fmt: skip
    return VertexCapture(
        graph, table.sources, out.external_source[:count], out.external_index[:count], pools, out.result_node,
        out.result_output, [], [], len(batch.start), _outputs(tables, row_ptr.tolist(), out.push_counts),
    )  # fmt: skip


def in_one_block(*sizes: tuple[int, Any]) -> list[NDArray[Any]]:
    """Arrays of so many items of a dtype in one block of memory, not initialised.

    An allocator hands large blocks back to the system when they are freed, and takes fresh ones, a page fault per page,
    until it has met blocks of that size: many arrays of some 100 KB cost that at every mini-batch, one block does not
    (measured: 0.085 -> 0.045 microseconds per vertex).
    """
    bytes_of = [-(-count * np.dtype(dtype).itemsize // _LINE) * _LINE for count, dtype in sizes]
    block = np.empty(sum(bytes_of), np.uint8)
    starts = accumulate(bytes_of, initial=0)
    return [block[at : at + n * np.dtype(d).itemsize].view(d) for at, (n, d) in zip(starts, sizes, strict=False)]


def _number_draws(batch: Batch, table: TypeTable, first_external: Ints, sources: Longs, index: Longs) -> None:
    """Give draws their indices (`edbc.trace.draws`): so far they are counted in each vertex."""
    draws = np.array([source.kind == "draw" for source in table.sources], np.bool_)
    if not draws.any():
        return
    which = np.flatnonzero(draws[sources])
    vertex = np.searchsorted(first_external, which, side="right") - 1
    instance = np.searchsorted(batch.vertex_ptr, vertex, side="right") - 1
    vertex -= batch.vertex_ptr[instance]
    index[which] += (instance << INSTANCE_BITS) + (vertex << DRAW_BITS)


def _frozen(array: Ints) -> Ints:
    array.setflags(write=False)
    return array


def _outputs(tables: FragmentTables, row_ptr: list[int], push_counts: Longs) -> tuple[Output, ...]:
    """The outputs that have rows in this mini-batch."""
    return tuple(
        Output(name, slot, start, stop, push_counts[:, number].tolist())
        for number, ((name, slot), (start, stop)) in enumerate(zip(tables.outputs, pairwise(row_ptr), strict=True))
        if stop > start
    )


def _beyond_table(batch: Batch, name: str, row: int, vertex: int) -> InputError:
    instance = int(np.searchsorted(batch.vertex_ptr, vertex, side="right")) - 1
    return InputError(
        f"instance {instance}, vertex {vertex - batch.vertex_ptr[instance]}: input {name!r}: expected a row of its "
        f"table, got {row}; correct the input or give the table more rows"
    )
