"""What autograd recorded of the batches that torch runs, kept from the forward pass to the backward pass.

A type that native code does not know runs by `runtime.evaluation`, forward and, under autograd, for its gradient. So it
may as well run under autograd at once: its gradient then needs no second evaluation. What autograd saves stays in
memory until the backward pass, as it does in eager execution.

It is more than eager saves, where rows that share an operand are spread. So only blocks that make up KEPT of the bytes
are recorded, the ones that run last: when the backward pass comes to the others, it has freed those. The others are
computed again (`training.recompute`), and so are batches of which the loss does not reach all nodes, and all of them
where schedules are cut for less memory (`runtime.cut`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.record.table import SharedRef
from edbc.cells.rows.evaluation import BlockRows
from edbc.run.backend import Segment
from edbc.run.cpu.cpubackend import CellKernel
from edbc.train.backward.recompute import CellGradient, Recorded
from edbc.train.backward.reverse import Blocks
from edbc.train.dependence import has_gradient
from edbc.train.inputs import Parameters

if TYPE_CHECKING:
    from edbc.train.reach import Bools, Longs
    from edbc.train.trainer import Trainer

KEPT = 0.75
"""Of the bytes of the cells' variables; see the module's docstring."""


class _Unrecorded:
    """Bytes of variables of the blocks that are still to run without being recorded."""

    def __init__(self, left: float):
        self.left = left


class Tape:
    """The recordings of one mini-batch, which go when it does: nothing here refers back to who refers to it. `asked`
    tells for every row of every class whether its gradient may be asked for; only where torch runs anything."""

    def __init__(self, trainer: Trainer, segment: Segment, inputs: Mapping[SharedRef, torch.Tensor],
                 asked: Callable[[], list[Bools]]):  # fmt: skip
        self._trainer, self._segment = trainer, segment
        self._ask = asked
        self._kernels: dict[int, _RecordingKernel] = {}
        self._parameters = Parameters(trainer.net.view, inputs)

    @cached_property
    def asked(self) -> list[Bools]:
        """See the class."""
        return self._ask()

    @cached_property
    def _unrecorded(self) -> _Unrecorded:
        total = 0
        counts = self._segment.graph.counts()
        for kind in np.unique(self._segment.schedule.batch_type).tolist():
            if isinstance(self._trainer.kernel(kind), CellKernel):
                gradient = self._trainer.gradient(kind)
                total += int(counts[kind]) * gradient.row_bytes if isinstance(gradient, CellGradient) else 0
        return _Unrecorded((1 - KEPT) * total)

    def kernel(self, kind: int) -> Any:
        """The forward kernel of a type, one that records where torch would run it."""
        known = self._kernels.get(kind)
        if known is not None:
            return known
        kernel = self._trainer.kernel(kind)
        gradient = self._trainer.gradient(kind) if isinstance(kernel, CellKernel) else None
        if not isinstance(gradient, CellGradient):
            return kernel
        node_type, index = self._segment.graph.types[kind], self._segment.placement.class_index
        asked = [self.asked[index[c]] if has_gradient(c) else None for c in node_type.operands]
        return self._kernels.setdefault(kind, _RecordingKernel(gradient, self._parameters, asked, self._unrecorded))

    @cached_property
    def recorded(self) -> dict[int, Blocks]:
        """The blocks of batches that torch ran."""
        kinds = self._segment.schedule.batch_type.tolist()
        remaining = {kind: iter(kernel.batches) for kind, kernel in self._kernels.items()}
        return {batch: next(remaining[kind]) for batch, kind in enumerate(kinds) if kind in remaining}


class _RecordingKernel(CellKernel):
    """Keeps what autograd recorded of every batch, in the order in which they ran."""

    def __init__(self, gradient: CellGradient, parameters: Parameters, asked: Sequence[Bools | None],
                 unrecorded: _Unrecorded):  # fmt: skip
        self._gradient, self._parameters, self._asked, self._unrecorded = gradient, parameters, asked, unrecorded
        self.batches: list[list[tuple[BlockRows, Recorded | None]]] = []

    def run(self, rows: Sequence[Longs], count: int, take: Callable[[int, Longs], torch.Tensor],
            outputs: Sequence[torch.Tensor]) -> None:  # fmt: skip
        wanted = [a is not None and bool(a[r].any()) for a, r in zip(self._asked, rows, strict=True)]
        gradient, parameters = self._gradient, self._parameters
        blocks: list[tuple[BlockRows, Recorded | None]] = []
        for block in gradient.blocks(rows, count):
            operands = [take(k, block.taken(k)) for k in range(len(rows))]
            recorded = None
            if self._unrecorded.left > 0:
                self._unrecorded.left -= len(block.positions) * gradient.row_bytes
                values = gradient.outputs(block, operands, parameters)
            else:
                recorded = gradient.record(block, operands, wanted, parameters)
                values = [value.detach() for value in recorded.results]
            where = torch.from_numpy(block.positions)
            for output, value in zip(outputs, values, strict=True):
                output.index_copy_(0, where, value)
            blocks.append((block, recorded))
        self.batches.append(blocks)
