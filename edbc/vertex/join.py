"""Joining: from the instances of a mini-batch, as arrays, to its Capture.

Definitions.

(1) The *batch* is the instances one after the other (`VertexInstance.packed`); instance i starts at `start[i]` and its
    vertices, counted over all instances, are `vertex_ptr[i]` to `vertex_ptr[i + 1]`.
(2) *Joining* writes the fragment of every vertex in vertex order. Nodes and operands are numbered exactly as
    define-by-run capture numbers them when it runs the vertex functions in that order; so are externals, but for shared
    ones.
(3) An *output* is everything that was pushed under one name; its rows stand instance after instance, in vertex order.
(4) Where equal nodes shall be one (`edbc.runtime.share`), only the first of equal vertices writes its fragment, and all
    of them have its nodes.

Python runs per instance (to collect arrays) and per fragment that is new; what is done per vertex is native.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.errors import InputError
from edbc.graph import Graph
from edbc.runtime.share import MOST, worthwhile
from edbc.trace.build import Capture
from edbc.trace.table import TypeTable
from edbc.trace.values import Slot
from edbc.vertex import kernels
from edbc.vertex.inputs import Pools
from edbc.vertex.tables import SIZES, FragmentTables

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]


class Batch(NamedTuple):
    """Definition (1), and which fragment each vertex has."""

    packed: Ints
    start: Longs  # (instances,)
    vertex_ptr: Longs  # (instances + 1,)
    fragment_of: NDArray[np.uint64]  # (vertices,)


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


def write(
    batch: Batch, tables: FragmentTables, table: TypeTable, totals: Longs, columns: Longs, pools: Pools, share: bool
) -> VertexCapture:
    """The Capture of a batch whose fragments have the given `sizes` (`FragmentTables`) in sum; with equal nodes as one
    where `share` says so, that pays, and equal vertices tell which they are.

    Raises InputError for a look-up beyond a table. O(nodes + operands).
    """
    share = share and tables.are_whole
    num_outputs = len(tables.outputs)
    row_ptr = list(accumulate(totals[SIZES : SIZES + num_outputs].tolist(), initial=0))
    (
        node_type, operand_ptr, operands, operand_output, external_class, external_source, external_index, result_node,
        result_output, rows_of, column, vertex,
    ) = kernels.write(
        batch, columns, tables.contents, tables.traits, totals, np.array(row_ptr, np.int64),
        worthwhile(int(totals[0])) if share else -1, MOST,
    )  # fmt: skip
    if vertex >= 0:
        raise _beyond_table(batch, tables.columns.names[column], int(columns[column, vertex]), vertex)
    for array in (node_type, operand_ptr, operands, operand_output, external_class):
        array.setflags(write=False)
    num_shared = int(totals[0]) - len(node_type)
    graph = Graph(
        table.graph_types(), node_type, operand_ptr, operands, operand_output, external_class, table.classes()
    )
    return VertexCapture(
        graph, table.sources, external_source, external_index, pools, result_node, result_output, [], [],
        len(batch.start), _outputs(tables, row_ptr, rows_of), num_shared=num_shared, has_shared=share,
    )  # fmt: skip


def _outputs(tables: FragmentTables, row_ptr: list[int], rows_of: Longs) -> tuple[Output, ...]:
    """The outputs that have rows in this mini-batch."""
    return tuple(
        Output(name, slot, start, stop, rows_of[:, number].tolist())
        for number, ((name, slot), (start, stop)) in enumerate(zip(tables.outputs, pairwise(row_ptr), strict=True))
        if stop > start
    )


def _beyond_table(batch: Batch, name: str, row: int, vertex: int) -> InputError:
    instance = int(np.searchsorted(batch.vertex_ptr, vertex, side="right")) - 1
    return InputError(
        f"instance {instance}, vertex {vertex - batch.vertex_ptr[instance]}: input {name!r}: expected a row of its "
        f"table, got {row}; correct the input or give the table more rows"
    )
