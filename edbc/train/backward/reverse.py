"""The batches of a mini-batch in reverse, in torch: gradients of everything that requires one.

Definitions.

(1) A *gradient arena* has a row for every row of the arena of a class. The gradients that the loss gives are added to
    the rows of the results; then the batches run backwards, each taking the gradients of its outputs and adding those
    of its operands to their rows. A value's gradient is complete before the batch that made it runs, because all its
    consumers came later in the schedule.
(2) Rows are added in the order of the schedule, one batch after the other, so that the sums are the same bits in every
    run.
(3) Of the short floats, bfloat16 and float16, sums of many terms are added up in float32 and rounded once.
(4) Where the schedule is cut (`runtime.cut`), its segments run backwards one after the other, the values of each
    computed again before. Gradient rows of one segment at a time are then zeros again; those of what crosses stay.
(5) Only *live* nodes take part: those with a reached output (`training.reach`). What the loss does not use neither
    costs time nor lets a not-a-number through.

This is the reference: `training.recompute` gives the gradient of each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.graph import NodeType
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.rows.evaluation import BlockRows
from edbc.cells.rows.segmented import RunKernel, borders_of
from edbc.run.backend import Segment
from edbc.run.passes.arenas import Arenas
from edbc.run.passes.excerptrows import ExcerptKernel, origins_of
from edbc.run.passes.placement import Longs
from edbc.train.backward.recompute import CellGradient, Recorded, ReductionGradient, add_rows
from edbc.train.dependence import has_gradient
from edbc.train.reach import Bools, Reach

if TYPE_CHECKING:
    from edbc.train.backward.devicegradient import StepGradient

TypeGradient: TypeAlias = "CellGradient | StepGradient | ReductionGradient | ExcerptKernel | RunKernel"
Blocks: TypeAlias = Iterable[tuple[BlockRows, Recorded | None]]
"""The blocks of a batch, with what autograd recorded of them; None for those to be computed again."""
_Rows = tuple[int, Longs]
"""Rows of a class."""


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """In what gradients of a dtype are added up, definition (3)."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def rows_of(segment: Segment, reach: Reach, values: Bools, externals: Bools) -> list[Bools]:
    """For every row of every class, whether it is that of one of these values and externals."""
    placement, graph, first = segment.placement, segment.graph, reach.first_value
    found = [np.zeros(rows, np.bool_) for rows in placement.class_rows.tolist()]
    nodes = np.repeat(np.arange(graph.num_nodes), np.diff(first))
    outputs = np.arange(len(nodes)) - first[nodes]
    rows, classes = placement.value_rows(nodes, outputs), placement.value_classes(graph.node_type[nodes], outputs)
    given = externals & (placement.external_row >= 0)
    for number, of_class in enumerate(found):
        of_class[rows[values & (classes == number)]] = True
        of_class[placement.external_row[given & (placement.external_class == number)]] = True
    return found


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
    device: torch.device
    recorded: dict[int, Blocks]
    """Of batches that ran under autograd what it recorded; goes as it is used, unless the pass `keeps_graph`."""
    keeps_graph: bool
    compute_again: Callable[[Segment], None]
    """Brings the values of a segment, which may then be overwritten, definition (4)."""

    def __post_init__(self) -> None:
        self.found: dict[SharedRef, torch.Tensor] = {}
        self.rows: list[torch.Tensor | None] = [None] * len(self.segment.placement.classes)
        self._asked: list[Bools] = []

    def run(self, results: Sequence[tuple[int, Longs, torch.Tensor]]) -> None:
        """All batches; `results` are class, rows and gradient of what the loss uses."""
        for class_index, rows, gradient in results:
            self.add(class_index, rows, gradient)
        for segment in reversed(self.segment.segments()):
            self.compute_again(segment)
            self.clear()
            self.walk(segment)

    def clear(self) -> None:
        """Zeros for the gradients of rows that belong to one segment at a time."""
        for arena, kept in zip(self.rows, self.segment.placement.class_kept.tolist(), strict=True):
            if arena is not None:
                arena[kept:].zero_()

    def walk(self, segment: Segment) -> None:
        """The batches of a segment."""
        for batch in range(segment.stop - 1, segment.begin - 1, -1):
            self.batch(batch)

    def arena(self, class_index: int) -> torch.Tensor:
        """The gradient arena of a class, definition (1)."""
        arena = self.rows[class_index]
        if arena is None:
            placement, value_class = self.segment.placement, self.segment.placement.classes[class_index]
            arena = torch.zeros(int(placement.class_rows[class_index]), value_class.size,
                                dtype=sum_dtype(torch_dtype(value_class.dtype)), device=self.device)  # fmt: skip
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
        add_rows(arena, torch.from_numpy(rows).to(arena.device), gradient.reshape(len(rows), -1).to(arena.dtype))

    def batch(self, batch: int) -> None:
        """One batch, by recomputation."""
        schedule = self.segment.schedule
        nodes = schedule.nodes[schedule.batch_ptr[batch] : schedule.batch_ptr[batch + 1]]
        kind = int(schedule.batch_type[batch])
        node_type = self.segment.graph.types[kind]
        gradient = self.gradients[kind]
        if isinstance(gradient, RunKernel):
            self._run(batch, gradient, node_type, nodes)
            return
        first = self.reach.first_value[nodes]
        used = np.stack([self.reached[first + j] for j in range(len(node_type.outputs))], 1)
        live = np.flatnonzero(used.any(axis=1))
        if not len(live):
            return
        outputs = self._outputs(batch, node_type, used, live)
        if isinstance(gradient, ExcerptKernel):
            self._excerpts(batch, outputs[0], live)
        elif isinstance(gradient, ReductionGradient):
            self._reduction(batch, gradient, node_type, outputs, live)
        else:
            assert isinstance(gradient, CellGradient)
            self._cell(batch, gradient, node_type, outputs, live)

    def _outputs(self, batch: int, node_type: NodeType, used: Bools, live: Longs) -> list[_Rows | None]:
        """Class and rows of the live nodes' outputs; None for an output that is reached in none of them."""
        index, first = self.segment.placement.class_index, self.segment.placement.output_row[batch]
        return [
            (index[value_class], live + int(first[j])) if used[:, j].any() else None
            for j, value_class in enumerate(node_type.outputs)
        ]

    def _cell(self, batch: int, gradient: CellGradient, node_type: NodeType,
              outputs: Sequence[_Rows | None], live: Longs) -> None:  # fmt: skip
        num = int(self.segment.placement.items[batch])
        classes, rows, wanted = self._operands(batch, node_type, live)
        blocks = self.recorded.get(batch) if self.keeps_graph else self.recorded.pop(batch, None)
        if blocks is None or len(live) < num:
            blocks = ((block, None) for block in gradient.blocks(rows, len(live)))
        for block, recorded in blocks:
            taken = [r[block.taken(k)] for k, r in enumerate(rows)]
            given = [None if o is None else self.take(o[0], o[1][block.positions]) for o in outputs]
            if recorded is None:
                values = [self.arenas.rows(c, r) for c, r in zip(classes, taken, strict=True)]
                recorded = gradient.record(block, values, wanted, self.parameters)
            found = recorded.gradients(wanted, given, self.keeps_graph)
            for class_index, r, operand in zip(classes, taken, found.operands, strict=True):
                if operand is not None:
                    self.add(class_index, r, operand)
            for ref, parameter in found.parameters.items():
                self.add_parameter(ref, parameter)

    def _run(self, batch: int, kernel: RunKernel, node_type: NodeType, nodes: NDArray[np.integer]) -> None:
        """A batch of functions of runs: an output that is not reached has a gradient of zeros; nodes none of whose
        outputs is reached take no part."""
        placement, first = self.segment.placement, self.reach.first_value
        at, num, made = int(placement.start[batch]), int(placement.items[batch]), int(placement.made[batch])
        reached = np.concatenate([self.reached[first[v] : first[v + 1]] for v in nodes.tolist()])
        if not reached.any():
            return
        segment = placement.segment[at : at + num]
        is_live = np.zeros(len(nodes), np.bool_)
        is_live[segment[reached] if kernel.segmented else reached] = True
        items = np.flatnonzero(is_live[segment])
        ptr = borders_of((np.cumsum(is_live) - 1)[segment[items]], int(is_live.sum()))
        of_outputs = items if kernel.segmented else np.flatnonzero(is_live)
        assert len(reached) == made
        classes, rows, wanted = self._operands(batch, node_type, items)
        given = self.take(placement.class_index[node_type.outputs[0]], of_outputs + int(placement.output_row[batch, 0]))
        given[torch.from_numpy(~reached[of_outputs]).to(given.device)] = 0
        fields = [self.arenas.rows(c, r) for c, r in zip(classes, rows, strict=True)]
        for c, r, found in zip(classes, rows, kernel.gradient(fields, ptr, given, wanted), strict=True):
            if found is not None:
                self.add(c, r, found)

    def _operands(self, batch: int, node_type: NodeType, items: Longs) -> tuple[list[int], list[Longs], list[bool]]:
        """Of each operand its class, its rows for some items, and whether anybody asks for a gradient there."""
        placement = self.segment.placement
        at, num = int(placement.start[batch]), int(placement.items[batch])
        classes = [placement.class_index[c] for c in node_type.operands]
        rows = [placement.rows[at + k * num + items] for k in range(len(classes))]
        return classes, rows, [has_gradient(of) and bool(self._gets(c)[r].any())
                               for of, c, r in zip(node_type.operands, classes, rows, strict=True)]  # fmt: skip

    def _gets(self, class_index: int) -> Bools:
        """Whether anybody asks for the gradient of a row of a class, for every row."""
        if not self._asked:
            self._asked = rows_of(self.segment, self.reach, self.reached, self.given)
        return self._asked[class_index]

    def _excerpts(self, batch: int, output: _Rows | None, live: Longs) -> None:
        assert output is not None
        given = self.take(*output)
        for origin in origins_of(batch, self.segment, self.arenas, live):
            arena = self.arena(origin.class_index)
            first = torch.from_numpy(origin.rows * arena.shape[1]).to(arena.device)
            elements = (first[:, None] + origin.elements).view(-1)
            add_rows(arena.view(-1), elements, given.index_select(0, origin.positions).view(-1).to(arena.dtype))

    def _reduction(self, batch: int, gradient: ReductionGradient, node_type: NodeType, outputs: Sequence[_Rows | None],
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
            class_index, rows = output[0], placement.rows[at + field * num + items]
            result, given = self.arenas.rows(*output), self.take(*output)
            values = lambda c=class_index, r=rows: self.arenas.rows(c, r)  # noqa: E731
            self.add(class_index, rows, gradient.run(field, values, nodes.to(given.device), result, given))
