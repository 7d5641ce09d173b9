"""The batches of a mini-batch in reverse, in torch: gradients of everything that requires one.

Definitions.

(1) A *gradient arena* has a row for every row of the arena of a class. The gradients that the loss gives are added to
    the rows of the results; then the batches run backwards, each taking the gradients of its outputs and adding those
    of its operands to their rows. A value's gradient is complete before the batch that made it runs, because all its
    consumers came later in the schedule.
(2) Rows are added in the order of the schedule, one batch after the other, so that the sums are the same bits in every
    run.
(3) Of the short floats, bfloat16 and float16, sums of many terms are added up in float32 and rounded once.
(4) Only *live* nodes take part: those with a reached output (`training.reach`). What the loss does not use neither
    costs time nor lets a not-a-number through.

This is the reference: `training.recompute` gives the gradient of each batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from edbc.graph import NodeType
from edbc.runtime.arenas import Arenas
from edbc.runtime.backend import Segment
from edbc.runtime.placement import Longs
from edbc.trace.table import SharedRef
from edbc.trace.values import torch_dtype
from edbc.training.dependence import is_float
from edbc.training.reach import Bools, Reach
from edbc.training.recompute import CellGradient, MaybeTensors, ReductionGradient

TypeGradient = CellGradient | ReductionGradient


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """In what gradients of a dtype are added up, definition (3)."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


@dataclass(eq=False)
class Reversal:
    """One backward pass over a segment. `reached` tells which values get a gradient, `given` which externals."""

    segment: Segment
    arenas: Arenas
    gradients: Mapping[int, TypeGradient]
    reach: Reach
    reached: Bools
    given: Bools
    parameters: Mapping[SharedRef, torch.Tensor]

    def __post_init__(self) -> None:
        self.found: dict[SharedRef, torch.Tensor] = {}
        self.rows: list[torch.Tensor | None] = [None] * len(self.segment.placement.classes)

    def run(self, results: Sequence[tuple[int, Longs, torch.Tensor]]) -> None:
        """All batches; `results` are class, rows and gradient of what the loss uses."""
        for class_index, rows, gradient in results:
            self.add(class_index, rows, gradient)
        for batch in range(self.segment.stop - 1, self.segment.begin - 1, -1):
            self.batch(batch)

    def arena(self, class_index: int) -> torch.Tensor:
        """The gradient arena of a class, definition (1)."""
        arena = self.rows[class_index]
        if arena is None:
            placement, value_class = self.segment.placement, self.segment.placement.classes[class_index]
            device = next((p.device for p in self.parameters.values()), torch.device("cpu"))
            arena = torch.zeros(int(placement.class_rows[class_index]), value_class.size,
                                dtype=sum_dtype(torch_dtype(value_class.dtype)), device=device)  # fmt: skip
            self.rows[class_index] = arena
        return arena

    def add_parameter(self, ref: SharedRef, gradient: torch.Tensor) -> None:
        """Add to the gradient of a parameter."""
        known = self.found.get(ref)
        gradient = gradient.to(sum_dtype(gradient.dtype))
        self.found[ref] = gradient if known is None else known + gradient

    def take(self, class_index: int, rows: Longs) -> torch.Tensor:
        """Gradients of rows of a class, `(len(rows), size)`."""
        arena = self.arena(class_index)
        dtype = torch_dtype(self.segment.placement.classes[class_index].dtype)
        return arena.index_select(0, torch.from_numpy(rows).to(arena.device)).to(dtype)

    def add(self, class_index: int, rows: Longs, gradient: torch.Tensor) -> None:
        """Add to gradients of rows of a class, in order."""
        arena = self.arena(class_index)
        arena.index_add_(0, torch.from_numpy(rows).to(arena.device), gradient.reshape(len(rows), -1).to(arena.dtype))

    def batch(self, batch: int) -> None:
        """One batch, by recomputation."""
        schedule = self.segment.schedule
        nodes = schedule.nodes[schedule.batch_ptr[batch] : schedule.batch_ptr[batch + 1]]
        kind = int(schedule.batch_type[batch])
        node_type = self.segment.graph.types[kind]
        first = self.reach.first_value[nodes]
        used = np.stack([self.reached[first + j] for j in range(len(node_type.outputs))], 1)
        live = np.flatnonzero(used.any(axis=1))
        if not len(live):
            return
        outputs = self._output_gradients(batch, node_type, used, live)
        gradient = self.gradients[kind]
        if isinstance(gradient, ReductionGradient):
            self._reduction(batch, gradient, node_type, outputs, live)
        else:
            self._cell(batch, gradient, node_type, outputs, live)

    def _output_gradients(self, batch: int, node_type: NodeType, used: Bools, live: Longs) -> MaybeTensors:
        """Of the live nodes; None for an output that is reached in none of them."""
        gradients: MaybeTensors = []
        for j, value_class in enumerate(node_type.outputs):
            if not used[:, j].any():
                gradients.append(None)
                continue
            rows = live + int(self.segment.placement.output_row[batch, j])
            gradients.append(self.take(self.segment.placement.class_index[value_class], rows))
        return gradients

    def _cell(self, batch: int, gradient: CellGradient, node_type: NodeType, outputs: MaybeTensors,
              live: Longs) -> None:  # fmt: skip
        placement = self.segment.placement
        at, num = int(placement.start[batch]), int(placement.items[batch])
        classes = [placement.class_index[c] for c in node_type.operands]
        rows = [placement.rows[at + k * num + live] for k in range(len(classes))]
        values = [self.arenas.rows(c, r) for c, r in zip(classes, rows, strict=True)]
        wanted = [is_float(c) for c in node_type.operands]
        found = gradient.run(values, wanted, self.parameters, outputs)
        for class_index, r, operand in zip(classes, rows, found.operands, strict=True):
            if operand is not None:
                self.add(class_index, r, operand)
        for ref, parameter in found.parameters.items():
            self.add_parameter(ref, parameter)

    def _reduction(self, batch: int, gradient: ReductionGradient, node_type: NodeType, outputs: MaybeTensors,
                   live: Longs) -> None:  # fmt: skip
        placement = self.segment.placement
        at, num = int(placement.start[batch]), int(placement.items[batch])
        position = np.full(int(placement.segment[at : at + num].max()) + 1, -1, np.int64)
        position[live] = np.arange(len(live))
        segment = position[placement.segment[at : at + num]]
        items = np.flatnonzero(segment >= 0)
        nodes = torch.from_numpy(segment[items])
        for field, output in enumerate(outputs):
            if output is None:
                continue
            class_index = placement.class_index[node_type.operands[field]]
            rows = placement.rows[at + field * num + items]
            result = self.arenas.rows(class_index, live + int(placement.output_row[batch, field]))
            values = lambda c=class_index, r=rows: self.arenas.rows(c, r)  # noqa: E731
            self.add(class_index, rows, gradient.run(field, values, nodes.to(output.device), result, output))
