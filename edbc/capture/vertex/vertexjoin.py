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
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.frozen import frozen
from edbc.base.graph import Graph
from edbc.capture.forward.build import Capture
from edbc.capture.record.table import TypeTable
from edbc.capture.standins.standin import Slot
from edbc.capture.vertex.automaton import FragmentTables
from edbc.capture.vertex.pulls import Pools

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]


@frozen
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


@frozen
class VertexCapture(Capture):
    """A Capture whose results are the rows of outputs; `result_slots` and `results` stay empty."""

    num_instances: int
    outputs: tuple[Output, ...]

    def split(self, rows: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """One dict per instance, from one tensor `(rows, ...)` per output; an output without rows there is left out."""
        results: list[dict[str, torch.Tensor]] = [{} for _ in range(self.num_instances)]
        for output, tensor in zip(self.outputs, rows, strict=True):
            counts = output.rows_of_instance
            for result, part, count in zip(results, output.seen(tensor).split(counts), counts, strict=True):
                if count:
                    result[output.name] = part
        return results


class Joined(NamedTuple):
    """What `kernels.join` returns."""

    status: int
    instance: int
    vertex: int
    column: int
    totals: Longs
    interfaces: Longs
    columns: Longs
    row_ptr: Longs
    arrays: Any


def capture_of(
    joined: Joined, num_instances: int, tables: FragmentTables, table: TypeTable, pools: Pools
) -> VertexCapture:
    """The Capture of what has been written."""
    (node_type, operand_ptr, operands, operand_output, external_class, external_source, external_index, result_node,
     result_output, rows_of) = joined.arrays  # fmt: skip
    for array in (node_type, operand_ptr, operands, operand_output, external_class):
        array.setflags(write=False)
    graph = Graph(
        table.graph_types(), node_type, operand_ptr, operands, operand_output, external_class, table.classes()
    )
    return VertexCapture(
        graph, table.sources, external_source, external_index, pools, result_node, result_output, [], [],
        num_instances, _outputs(tables, joined.row_ptr.tolist(), rows_of.tolist()),
    )  # fmt: skip


def _outputs(tables: FragmentTables, row_ptr: list[int], rows_of: list[list[int]]) -> tuple[Output, ...]:
    """The outputs that have rows in this mini-batch."""
    return tuple(
        Output(name, slot, start, stop, rows)
        for (name, slot), (start, stop), rows in zip(tables.outputs, pairwise(row_ptr), rows_of, strict=True)
        if stop > start
    )
