"""The reference back end: every step of every program as a torch call on whole batches.

It runs any model on any device and is what other back ends are compared with. One torch call per step, plus one per
operand that needs a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.cells.compact import compact
from edbc.cells.program import Call, Copy, Map, Product, Program, Span
from edbc.graph import NodeType
from edbc.operations import OPERATIONS
from edbc.runtime.arenas import TensorArenas, arena_bytes
from edbc.runtime.backend import Demand, KernelOfType, Path, Segment
from edbc.runtime.excerpts import ExcerptKernel, run_excerpts
from edbc.runtime.reduction import ReductionKernel
from edbc.runtime.rowfunction import RowFunction
from edbc.runtime.weights import Pack, PackedWeights
from edbc.trace.shadow import ModelView
from edbc.trace.table import SharedRef
from edbc.trace.values import torch_dtype

if TYPE_CHECKING:
    from edbc.runtime.rowcode import RowKernel

Workspaces = Mapping[str, torch.Tensor]
"""By the dtypes that spans name."""
Operand = tuple[torch.Tensor, torch.Tensor | int]
"""An arena (rows, size) and either row indices (n,) or the first row of a contiguous run."""

MAPS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(torch, name, None) or getattr(torch.nn.functional, name) for name in OPERATIONS
}
"""Element-wise operations but sums."""


@cache
def _takes_out(op: str) -> bool:
    """Whether torch's function can write to a tensor that is there."""
    nothing = torch.zeros(0, device="cpu")
    try:
        MAPS[op](*[nothing] * OPERATIONS[op].operands, out=nothing)
    except TypeError:
        return False
    return True


def rows_of(operand: Operand, count: int) -> torch.Tensor:
    """The operand's rows, `(count, size)`; a view when they are contiguous."""
    arena, where = operand
    return arena[where : where + count] if isinstance(where, int) else arena.index_select(0, where)


class ReferenceBackend:
    """Batch by batch; see `edbc.runtime.backend.Backend`."""

    name = "reference"
    adds = True
    ordered_from = 0

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
        widest = 0
        for kind, count in segment.placement.widest_batches.items():
            kernel = kernel_of_type(kind)
            if isinstance(kernel, ProgramKernel):
                widest = max(widest, count * kernel.row_bytes)
        return Demand(arena_bytes(segment.placement), widest)

    def arenas(self, segment: Segment, demand: Demand) -> TensorArenas:
        """See Backend."""
        return TensorArenas(segment.placement, self.device)

    def execute(self, segment: Segment, arenas: TensorArenas, kernel_of_type: KernelOfType,
                on_batch: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """See Backend."""
        placement = segment.placement
        rows = torch.from_numpy(placement.rows).to(self.device)
        sums = torch.from_numpy(placement.segment).to(self.device)
        sizes = np.diff(segment.schedule.batch_ptr).tolist()
        for batch in range(segment.begin, segment.stop):
            kind = int(segment.schedule.batch_type[batch])
            at, num = int(placement.start[batch]), int(placement.items[batch])
            operands: list[Operand] = []
            for k, node_class in enumerate(segment.graph.types[kind].operands):
                first = int(placement.run[batch, k])
                where = first if first >= 0 else rows[at + k * num : at + (k + 1) * num]
                operands.append((arenas.tensors[placement.class_index[node_class]], where))
            outputs = [
                arenas.tensors[placement.class_index[c]].narrow(0, int(placement.output_row[batch, j]), sizes[batch])
                for j, c in enumerate(segment.graph.types[kind].outputs)
            ]
            kernel = kernel_of_type(kind)
            if isinstance(kernel, ExcerptKernel):
                run_excerpts(batch, segment, arenas, outputs[0])
            else:
                run_kernel(kernel, operands, sizes[batch], sums[at : at + num], outputs)
            if on_batch is not None:
                on_batch(batch)


def run_kernel(kernel: Any, operands: Sequence[Operand], count: int, segment: torch.Tensor,
               outputs: Sequence[torch.Tensor]) -> None:  # fmt: skip
    """One batch of `count` nodes by any torch kernel; `segment` is for reductions."""
    if isinstance(kernel, ReductionKernel):
        kernel.run([rows_of(operand, len(segment)) for operand in operands], segment, outputs)
    else:
        kernel.run(operands, count, outputs)


class ProgramKernel:
    """Runs a Program for one batch at a time."""

    by_row: RowKernel | None = None
    """What runs batches of few rows, where something does."""

    def __init__(self, program: Program, view: ModelView, dtype: torch.dtype, device: torch.device):
        self.program = compact(program)
        self.view = view
        self.device = device
        self.widths = [(name, torch_dtype(name), width) for name, width in program.widths]
        self.widths = self.widths or [("", dtype, self.program.width)]
        self.dtype = None if program.widths else dtype
        self.weights = PackedWeights(program, view, dtype, device)
        self.functions = {step: _row_function(step) for step in self.program.steps if isinstance(step, Call)}

    @property
    def row_bytes(self) -> int:
        """What a node takes of the workspaces."""
        return sum(width * dtype.itemsize for _, dtype, width in self.widths)

    def run(self, operands: Sequence[Operand], count: int, outputs: Sequence[torch.Tensor]) -> None:
        """Compute one batch of `count` nodes into `outputs`, slices of arenas, `(count, size)` each."""
        pack = self.weights.pack
        results: dict[Any, list[torch.Tensor]] = {}
        workspace = {n: torch.empty(count, width, dtype=d, device=self.device) for n, d, width in self.widths}
        for load in self.program.loads:
            _columns(workspace, load.span).copy_(rows_of(operands[load.operand], count))
        for step in self.program.steps:
            self._step(step, workspace, count, pack, results)
        for store in self.program.stores:
            outputs[store.output].copy_(_columns(workspace, store.span))

    def _step(self, step: object, workspace: Workspaces, count: int, pack: Pack,
              results: dict[Any, list[torch.Tensor]]) -> None:  # fmt: skip
        if isinstance(step, Product):
            bias = pack.biases[step.weight]
            source, result = _columns(workspace, step.source), _columns(workspace, step.result)
            matrix = pack.matrices[step.weight]
            addend = bias if step.addend is None else _columns(workspace, step.addend)
            if addend is None:
                torch.mm(source, matrix, out=result)
            else:
                torch.addmm(addend, source, matrix, out=result)
            if step.addend is not None and bias is not None:
                result += bias
        elif isinstance(step, Map):
            self._map(step, workspace, pack)
        elif isinstance(step, Copy):
            _columns(workspace, step.result).copy_(_columns(workspace, step.source))
        elif isinstance(step, Call):
            result = _columns(workspace, step.result)
            call = id(step.op.template), step.op.inputs  # what has several outputs runs once
            if call not in results:
                values = [_columns(workspace, span).reshape(count, *c.shape) for span, c in step.sources]
                results[call] = self.functions[step](values, count, self._shared)
            result.copy_(results[call][step.op.output or 0].reshape(count, step.result.size))

    def _shared(self, ref: SharedRef) -> torch.Tensor:
        return as_kernel_reads(self.view.shared(ref), self.dtype, self.device)

    def _map(self, step: Map, workspace: Workspaces, pack: Pack) -> None:
        result = _columns(workspace, step.result)
        sources = [
            _columns(workspace, s) if isinstance(s, Span)
            else pack.vectors[s] if isinstance(s, SharedRef) else s
            for s in step.sources
        ]  # fmt: skip
        if step.op == "sum":
            torch.add(sources[0], sources[1], out=result)
            for source in sources[2:]:
                result += source
        elif not _takes_out(step.op):
            result.copy_(MAPS[step.op](*sources))
        elif not any(isinstance(s, torch.Tensor) for s in sources[:1]):
            result.copy_(MAPS[step.op](torch.as_tensor(sources[0], dtype=result.dtype), *sources[1:]))
        else:
            MAPS[step.op](*sources, out=result)


def _row_function(step: Call) -> RowFunction:
    views = [source.views for source in step.op.sources if source.variable is not None]
    assert step.op.call is not None
    return RowFunction(step.op.call, step.op.template, views)


def _columns(workspace: Workspaces, span: Span) -> torch.Tensor:
    return workspace[span.dtype][:, span.offset : span.stop]


def as_kernel_reads(tensor: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
    """A parameter without its gradient, where a kernel wants it."""
    tensor = tensor.detach()
    return tensor.to(device, dtype) if tensor.is_floating_point() and dtype is not None else tensor.to(device)
