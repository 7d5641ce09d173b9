"""Executing segments on the device: generated kernels batch by batch on one stream, torch for what they do not know.

What happens in a mini-batch: one copy carries indices, borders of sums, data of externals and wanted rows; one gather
per table fills the rows of externals; then every batch is one to three launches (`edbc.run.cuda.launches`), each
of which gathers its operands, multiplies and writes outputs into the arenas' slices. The host computes every argument
from the schedule, so it never waits for the device, and runs ahead of it.

Sums of generated kernels add items in their order, so that runs are equal bit for bit; torch's on a GPU are not.

A type runs in torch when its cell has a step outside the operation table, when dtypes are mixed, or when Triton is
missing; `path` says so per type, and `edbc run` reports it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from edbc.base.graph import NodeType
from edbc.capture.code.shadow import ModelView
from edbc.cells.program import Program
from edbc.cells.rows.reduction import ReductionKernel
from edbc.run.backend import Demand, KernelOfType, Path, Segment
from edbc.run.cuda import compiled
from edbc.run.cuda.devicearenas import CudaArenas, Indices
from edbc.run.cuda.launches import Launches, launches_of
from edbc.run.cuda.tritonsource import Kernel, kernels_of, reduction_kernel, row_tile
from edbc.run.passes.arenas import arena_bytes
from edbc.run.passes.excerptrows import ExcerptKernel, run_excerpts
from edbc.run.reference import Operand, ProgramKernel, run_kernel
from edbc.run.weights.packed import Pack, PackedWeights

ELEMENTS = ("f32", "f64", "bf16", "f16")


@dataclass(frozen=True, eq=False)
class TritonKernel:
    """A type's launches, and the weights that they read."""

    kernels: tuple[Kernel, ...]
    dtype: str
    program: Program | None = None
    launches: Launches | None = None
    weights: PackedWeights | None = None

    @property
    def row_bytes(self) -> int:
        """Workspace of one node."""
        return 0 if self.launches is None else self.launches.workspace * (8 if self.dtype == "f64" else 4)

    def shared(self, pack: Pack | None) -> dict[str, torch.Tensor]:
        """Arguments that are the same for every batch: weights, biases, parameters."""
        if pack is None or self.launches is None:
            return {}
        found = {f"w{i}": matrix for i, matrix in enumerate(pack.matrices)}
        found |= {f"b{i}": bias for i, bias in enumerate(pack.biases) if bias is not None}
        return found | {f"p{i}": pack.vectors[ref] for i, ref in enumerate(self.launches.parameters)}


@dataclass(eq=False)
class _Run:
    """One call of `execute`: what its batches share."""

    segment: Segment
    arenas: CudaArenas
    indices: Indices
    kernels: dict[int, Any]
    shared: dict[int, dict[str, torch.Tensor]]
    work: dict[str, torch.Tensor]
    """The workspace as the types that kernels compute in."""

    def __post_init__(self) -> None:
        self.ix = self.indices.ix.tensor
        schedule, placement = self.segment.schedule, self.segment.placement
        self.kinds = schedule.batch_type.tolist()
        self.counts = np.diff(schedule.batch_ptr).tolist()
        self.start, self.items = placement.start.tolist(), placement.items.tolist()
        self.output_row = placement.output_row.tolist()
        classes = placement.class_index
        self.operands = [[classes[c] for c in t.operands] for t in self.segment.graph.types]
        self.outputs = [[classes[c] for c in t.outputs] for t in self.segment.graph.types]


class CudaBackend:
    """See the module's docstring and `edbc.run.backend.Backend`. `use_triton=False` leaves everything to torch.

    The device may be a CPU where Triton's interpreter is on (TRITON_INTERPRET=1), or without Triton: for tests.
    """

    name = "cuda"
    adds = True
    ordered_from = 0

    def __init__(self, device: torch.device, use_triton: bool = True):
        self.device = device
        self.why_not = compiled.missing(device.type) if use_triton else "Triton is switched off"
        """Why no type runs in Triton, or None."""
        self._reductions: dict[tuple[str, NodeType], TritonKernel | None] = {}
        self._lock = threading.Lock()

    # --- kernels ---------------------------------------------------------------------------------------------------

    def program_kernel(self, program: Program, view: ModelView, dtype: torch.dtype,
                       device: torch.device) -> TritonKernel | ProgramKernel:  # fmt: skip
        """See Backend."""
        runs = self.why_not is None and program.dtype in ELEMENTS
        launches = launches_of(program, lambda ref: view.shared(ref).shape) if runs else None
        if launches is None:
            return ProgramKernel(program, view, dtype, device)
        weights = PackedWeights(program, view, dtype, device, launches.parameters)
        return TritonKernel(kernels_of(launches), program.dtype, program, launches, weights)

    def _triton(self, node_type: NodeType, kernel: Any) -> TritonKernel | None:
        """What runs a type without torch, or None."""
        if not isinstance(kernel, ReductionKernel):
            return kernel if isinstance(kernel, TritonKernel) else None
        key = (kernel.op, node_type)
        with self._lock:
            if key not in self._reductions:
                self._reductions[key] = self._reduction(kernel.op, node_type)
            return self._reductions[key]

    def _reduction(self, op: str, node_type: NodeType) -> TritonKernel | None:
        dtypes = {c.dtype for c in node_type.outputs}
        if self.why_not is not None or len(dtypes) > 1 or not dtypes <= set(ELEMENTS):
            return None
        dtype = next(iter(dtypes))
        return TritonKernel((reduction_kernel(op, [c.size for c in node_type.outputs], dtype),), dtype)

    def runs_natively(self, node_type: NodeType, kernel: Any) -> bool:
        """See Backend."""
        return self._triton(node_type, kernel) is not None

    def path(self, node_type: NodeType, kernel: Any) -> Path:
        """See Backend."""
        triton = self._triton(node_type, kernel)
        return Path("torch") if triton is None else Path("triton", len(triton.kernels))

    # --- mini-batches ----------------------------------------------------------------------------------------------

    def demand(self, segment: Segment, kernel_of_type: KernelOfType) -> Demand:
        """See Backend. What torch allocates inside a call is not counted."""
        widest = 0
        for kind, count in segment.placement.widest_batches.items():
            kernel = kernel_of_type(kind)
            if isinstance(kernel, TritonKernel | ProgramKernel):
                widest = max(widest, count * kernel.row_bytes)
        return Demand(arena_bytes(segment.placement), -(-widest // 8) * 8)

    def arenas(self, segment: Segment, demand: Demand) -> CudaArenas:
        """See Backend."""
        return CudaArenas(segment.placement, self.device, demand)

    def execute(self, segment: Segment, arenas: CudaArenas, kernel_of_type: KernelOfType,
                on_batch: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """See Backend."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            run = self._begin(segment, arenas, kernel_of_type)
            for batch in range(segment.begin, segment.stop):
                if isinstance(run.kernels[run.kinds[batch]], TritonKernel):
                    self._launch(run, batch)
                else:
                    self._run_in_torch(run, batch)
                if on_batch is not None:
                    on_batch(batch)

    def _begin(self, segment: Segment, arenas: CudaArenas, kernel_of_type: KernelOfType) -> _Run:
        kernels: dict[int, Any] = {}
        for kind in np.unique(segment.schedule.batch_type[segment.begin : segment.stop]).tolist():
            kernel = kernel_of_type(kind)
            kernels[kind] = self._triton(segment.graph.types[kind], kernel) or kernel
        if arenas.indices is None:
            arenas.indices = _indices(segment, arenas, self.why_not is None)
        arenas.send()
        triton = {kind: k for kind, k in kernels.items() if isinstance(k, TritonKernel)}
        shared = {kind: k.shared(k.weights.pack if k.weights is not None else None) for kind, k in triton.items()}
        work = {"f64": arenas.workspace.view(torch.float64), "f32": arenas.workspace.view(torch.float32)}
        return _Run(segment, arenas, arenas.indices, kernels, shared, work)

    def _launch(self, run: _Run, batch: int) -> None:
        """One batch by generated kernels."""
        kind, count = run.kinds[batch], run.counts[batch]
        kernel = run.kernels[kind]
        work = run.work["f64" if kernel.dtype == "f64" else "f32"]
        values: dict[str, Any] = {"ix": run.ix, "count": count, "work": work, **run.shared[kind]}
        for k, c in enumerate(run.operands[kind]):
            values[f"a{k}"] = run.arenas.tensors[c]
            values[f"at{k}"] = run.start[batch] + k * run.items[batch]
        for j, c in enumerate(run.outputs[kind]):
            values[f"o{j}"] = run.arenas.tensors[c]
            values[f"row{j}"] = run.output_row[batch][j]
        values["seg"] = run.indices.borders.get(batch, 0)
        self.start(kernel, count, values)

    def start(self, kernel: TritonKernel, count: int, values: Mapping[str, Any]) -> None:
        """The launches of a type for so many nodes, with arguments by name."""
        rows = row_tile(count, kernel.dtype)
        for launch in kernel.kernels:
            self._start(launch, launch.programs(count, rows), rows, [values[n] for n in launch.names])

    def _start(self, launch: Kernel, programs: int, rows: int, values: list[Any]) -> None:
        """One launch; an empty one is none."""
        if programs:
            compiled.FUNCTIONS.of(launch.text)[(programs,)](*values, BM=rows, PRECISION=compiled.precision())

    def _run_in_torch(self, run: _Run, batch: int) -> None:
        """One batch by torch calls on the device, with indices that are there already."""
        segment, kind, count = run.segment, run.kinds[batch], run.counts[batch]
        at, num = run.start[batch], run.items[batch]
        operands: list[Operand] = []
        for k, c in enumerate(run.operands[kind]):
            first = int(segment.placement.run[batch, k])
            where = first if first >= 0 else run.ix[at + k * num : at + (k + 1) * num]
            operands.append((run.arenas.tensors[c], where))
        outputs = [
            run.arenas.tensors[c].narrow(0, run.output_row[batch][j], count) for j, c in enumerate(run.outputs[kind])
        ]
        if isinstance(run.kernels[kind], ExcerptKernel):
            run_excerpts(batch, segment, run.arenas, outputs[0])
            return
        segment_part = run.indices.segment
        segments = run.ix[:0] if segment_part is None else segment_part.tensor[at : at + num]
        run_kernel(run.kernels[kind], operands, count, segments, outputs)


def _indices(segment: Segment, arenas: CudaArenas, in_triton: bool) -> Indices:
    """Operand rows and borders of items as one array of the upload; `segment` where reductions may run in torch."""
    placement, schedule = segment.placement, segment.schedule
    variadic = np.array([t.variadic for t in segment.graph.types], np.bool_)
    sums = np.flatnonzero(variadic[schedule.batch_type]).tolist() if len(variadic) else []
    parts, borders, size = [placement.rows], {}, len(placement.rows)
    for batch in sums:
        at, num = int(placement.start[batch]), int(placement.items[batch])
        count = int(schedule.batch_ptr[batch + 1] - schedule.batch_ptr[batch])
        borders[batch] = size
        parts.append(np.searchsorted(placement.segment[at : at + num], np.arange(count + 1)))
        size += count + 1
    part = arenas.upload.indices(np.concatenate(parts))
    mixed = not in_triton or any(len({c.dtype for c in t.outputs}) > 1 for t in segment.graph.types if t.variadic)
    longs = arenas.upload.data(torch.from_numpy(placement.segment)) if sums and mixed else None
    return Indices(part, borders, longs)
