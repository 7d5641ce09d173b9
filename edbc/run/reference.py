"""The reference back end: the values of every program in torch, on whole batches.

It runs any model on any device and is what other back ends are compared with. One torch call per value
(`edbc.cells.values.evaluate`), plus one per operand that needs a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from edbc.base.graph import NodeType
from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.program import Call, Program
from edbc.cells.rows.reduction import ReductionKernel
from edbc.cells.rows.rowfunction import RowFunction
from edbc.cells.rows.segmented import RunKernel, borders_of
from edbc.cells.values.evaluate import Batch, Interpreter
from edbc.cells.values.read import values_in_torch
from edbc.run.backend import Demand, KernelOfType, Path, Segment
from edbc.run.passes.arenas import TensorArenas, arena_bytes
from edbc.run.passes.excerptrows import ExcerptKernel, run_excerpts
from edbc.run.weights.packed import PackedWeights

Operand = tuple[torch.Tensor, torch.Tensor | int]
"""An arena (rows, size) and either row indices (n,) or the first row of a contiguous run."""


def rows_of(operand: Operand, count: int) -> torch.Tensor:
    """The operand's rows, `(count, size)`; a view when they are contiguous."""
    arena, where = operand
    return arena[where : where + count] if isinstance(where, int) else arena.index_select(0, where)


class ReferenceBackend:
    """Batch by batch; see `edbc.run.backend.Backend`."""

    name = "reference"
    mixes = True
    issues = False

    def __init__(self, device: torch.device):
        self.device = device

    def program_kernel(
        self, program: Program, view: ModelView, dtype: torch.dtype, device: torch.device
    ) -> ProgramKernel:
        """See Backend."""
        return ProgramKernel(program, view, dtype, device)

    def runs_natively(self, node_type: NodeType, kernel: Any) -> bool:
        """See Backend."""
        return False

    def path(self, node_type: NodeType, kernel: Any) -> Path:
        """See Backend."""
        return Path("torch")

    def demand(self, segment: Segment, kernel_of_type: KernelOfType) -> Demand:
        """See Backend. What torch allocates inside a call is not counted."""
        widest = workspace_in_torch(segment, ((k, kernel_of_type(k)) for k in segment.placement.widest_batches))
        return Demand(arena_bytes(segment.placement), widest)

    def arenas(self, segment: Segment, demand: Demand) -> TensorArenas:
        """See Backend."""
        return TensorArenas(segment.placement, self.device)

    def execute(self, segment: Segment, arenas: TensorArenas, kernel_of_type: KernelOfType,
                on_batch: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """See Backend."""
        rows = torch.from_numpy(segment.placement.rows).to(self.device)
        items = torch.from_numpy(segment.placement.segment).to(self.device)
        for batch in range(segment.begin, segment.stop):
            kernel = kernel_of_type(int(segment.schedule.batch_type[batch]))
            run_batch(batch, segment, arenas, kernel, rows, items)
            if on_batch is not None:
                on_batch(batch)


def workspace_in_torch(segment: Segment, kernels: Iterable[tuple[int, Any]]) -> int:
    """Bytes for the values of the widest batch of these types, those that have a program."""
    widest = segment.placement.widest_batches
    return max((widest[k] * kernel.row_bytes for k, kernel in kernels if isinstance(kernel, ProgramKernel)), default=0)


def run_batch(batch: int, segment: Segment, arenas: TensorArenas, kernel: Any, rows: torch.Tensor,
              items: torch.Tensor | None) -> None:  # fmt: skip
    """One batch by its torch kernel. `rows` are the placement's, `items` say of which node of its batch each is, where
    there are `counts_items`, both where the arenas are."""
    placement, schedule = segment.placement, segment.schedule
    kind, at, num = int(schedule.batch_type[batch]), int(placement.start[batch]), int(placement.items[batch])
    operands: list[Operand] = []
    for k, value_class in enumerate(segment.graph.types[kind].operands):
        first = int(placement.run[batch, k])
        where = first if first >= 0 else rows[at + k * num : at + (k + 1) * num]
        operands.append((arenas.tensors[placement.class_index[value_class]], where))
    outputs = [
        arenas.tensors[placement.class_index[c]].narrow(
            0, int(placement.output_row[batch, j]), int(placement.made[batch])
        )
        for j, c in enumerate(segment.graph.types[kind].outputs)
    ]
    if isinstance(kernel, ExcerptKernel):
        run_excerpts(batch, segment, arenas, outputs[0])
        return
    count = int(schedule.batch_ptr[batch + 1] - schedule.batch_ptr[batch])
    run_kernel(kernel, operands, count, rows[:0] if items is None else items[at : at + num], outputs)


def counts_items(kernel: Any) -> bool:
    """Whether a torch kernel asks of which node its items are."""
    return isinstance(kernel, ReductionKernel | RunKernel)


def run_kernel(kernel: Any, operands: Sequence[Operand], count: int, segment: torch.Tensor,
               outputs: Sequence[torch.Tensor]) -> None:  # fmt: skip
    """One batch of `count` nodes by any torch kernel; `segment` is for variadic types."""
    if isinstance(kernel, ReductionKernel):
        kernel.run([rows_of(operand, len(segment)) for operand in operands], segment, outputs)
    elif isinstance(kernel, RunKernel):
        items = [rows_of(operand, len(segment)) for operand in operands]
        kernel.run(items, borders_of(segment.cpu().numpy(), count), outputs[0])
    else:
        kernel.run(operands, count, outputs)


class ProgramKernel:
    """Runs the values of a Program for one batch at a time."""

    def __init__(self, program: Program, view: ModelView, dtype: torch.dtype, device: torch.device):
        self.program = program
        self.view = view
        self.device = device
        self.dtype = None if program.widths else dtype
        self.weights = PackedWeights(program, view, dtype, device)
        self.functions = {step: _row_function(step) for step in program.steps if isinstance(step, Call)}
        self._interpreter = Interpreter(values_in_torch(program))
        self._like = torch.empty(0, dtype=self.dtype or torch.float64, device=device)

    @property
    def row_bytes(self) -> int:
        """What all values of a node take, more than are there at one time."""
        widths = self.program.widths or ((self.program.dtype, self.program.width),)
        return sum(width * torch_dtype(name).itemsize for name, width in widths)

    def run(self, operands: Sequence[Operand], count: int, outputs: Sequence[torch.Tensor]) -> None:
        """Compute one batch of `count` nodes into `outputs`, slices of arenas, `(count, size)` each."""
        pack = self.weights.pack
        weights = list(zip(pack.matrices, pack.biases, strict=True))
        rows = [rows_of(operand, count) for operand in operands]
        batch = Batch(count, self._like, rows, weights, pack.vectors.__getitem__, self._called)
        for output, value in zip(outputs, self._interpreter.run(batch), strict=True):
            output.copy_(value)

    def _called(self, step: Call, operands: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
        return self.functions[step](operands, count, self._shared)

    def _shared(self, ref: SharedRef) -> torch.Tensor:
        return as_kernel_reads(self.view.shared(ref), self.dtype, self.device)


def _row_function(step: Call) -> RowFunction:
    views = [source.views for source in step.op.sources if source.variable is not None]
    assert step.op.call is not None
    return RowFunction(step.op.call, step.op.template, views)


def as_kernel_reads(tensor: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
    """A parameter without its gradient, where a kernel wants it."""
    tensor = tensor.detach()
    return tensor.to(device, dtype) if tensor.is_floating_point() and dtype is not None else tensor.to(device)
