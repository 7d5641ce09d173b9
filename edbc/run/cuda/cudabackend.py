"""Executing segments on the device: steps of one generated kernel, torch for what it does not know.

What happens in a mini-batch: one copy carries the table of steps, operand rows, borders of sums, data of externals and
wanted rows; then a few chains of steps run everything (`edbc.run.cuda.issue`). The first step fills the rows of
externals; every other one executes the batches that are ready together, each of which gathers its operands,
multiplies, applies its gates and writes outputs into the arenas' slices. The host computes the table from the schedule,
in native code, so it never waits for the device, and runs ahead of it.

Sums of generated kernels add items in their order, so that runs are equal bit for bit; torch's on a GPU are not.

A type runs in torch when its cell has a step outside the operation table, when dtypes are mixed, or when Triton is
missing; `path` says so per type, and `edbc run` reports it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from edbc.base.graph import NodeType
from edbc.capture.code.shadow import ModelView
from edbc.cells.program import Program
from edbc.cells.rows.reduction import ReductionKernel
from edbc.run.backend import Demand, KernelOfType, Path, Segment
from edbc.run.cuda import compiled
from edbc.run.cuda.chains import WarmUp, launches
from edbc.run.cuda.devicearenas import Binding, CudaArenas
from edbc.run.cuda.issue import Issuer, Operations, Stretch
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.stages import stages_of
from edbc.run.cuda.table import Longs, item_borders, steps_of_batches, vectors_of_batches, work_places
from edbc.run.cuda.tritonsource import branches_of, copy_branch, reduction_branches
from edbc.run.passes.arenas import arena_bytes
from edbc.run.passes.excerptrows import ExcerptKernel, run_excerpts
from edbc.run.reference import Operand, ProgramKernel, run_kernel
from edbc.run.weights.packed import PackedWeights

ELEMENTS = ("f32", "f64", "bf16", "f16")


@dataclass(frozen=True, eq=False)
class Run:
    """Batches `begin` to `end` that run in steps, or the one that torch runs; what native code found of them."""

    begin: int
    end: int
    in_torch: bool
    first: Longs
    place: Longs
    steps: int


@dataclass(frozen=True)
class StepDemand(Demand):
    """With the steps themselves, for the types that run in them."""

    runs: tuple[Run, ...] = ()


class CudaBackend:
    """See the module's docstring and `edbc.run.backend.Backend`. `use_triton=False` leaves everything to torch.

    The device may be a CPU where Triton's interpreter is on (TRITON_INTERPRET=1), or without Triton: for tests.
    """

    name = "cuda"
    in_steps = True
    """Steps count here, so that a plan's waves are its schedules."""
    adds = True
    ordered_from = sys.maxsize  # operand rows are read by number anyway, and ordering takes a tenth of the host's time

    def __init__(self, device: torch.device, use_triton: bool = True):
        self.device = device
        self.why_not = compiled.missing(device.type) if use_triton else "Triton is switched off"
        """Why no type runs in Triton, or None."""
        self.warm_up = WarmUp()
        self.forward = Issuer(device, self.warm_up)
        self.backward = Issuer(device, self.warm_up)
        self._reductions: WeakKeyDictionary[ReductionKernel, TritonKernel | None] = WeakKeyDictionary()
        self._copies: dict[tuple[int, str, str], TritonKernel] = {}
        self._lock = threading.Lock()

    # --- kernels ---------------------------------------------------------------------------------------------------

    def program_kernel(self, program: Program, view: ModelView, dtype: torch.dtype,
                       device: torch.device) -> TritonKernel | ProgramKernel:  # fmt: skip
        """See Backend."""
        runs = self.why_not is None and program.dtype in ELEMENTS
        stages = stages_of(program, lambda ref: view.shared(ref).shape) if runs else None
        if stages is None:
            return ProgramKernel(program, view, dtype, device)
        weights = PackedWeights(program, view, dtype, device, stages.parameters)
        return TritonKernel(branches_of(stages), program.dtype, program, stages, weights)

    def _triton(self, node_type: NodeType, kernel: Any) -> TritonKernel | None:
        """What runs a type without torch, or None."""
        if not isinstance(kernel, ReductionKernel):
            return kernel if isinstance(kernel, TritonKernel) else None
        with self._lock:
            if kernel not in self._reductions:
                self._reductions[kernel] = self._reduction(kernel.op, node_type)
            return self._reductions[kernel]

    def _reduction(self, op: str, node_type: NodeType) -> TritonKernel | None:
        dtypes = {c.dtype for c in node_type.outputs}
        if self.why_not is not None or len(dtypes) > 1 or not dtypes <= set(ELEMENTS):
            return None
        dtype = next(iter(dtypes))
        return TritonKernel((reduction_branches(op, [c.size for c in node_type.outputs], dtype),), dtype)

    def copies(self, size: int, dtype: str, op: str = "copy") -> TritonKernel:
        """What copies rows; with another `op`, what fills rows of a table, gives each item of a mean its share, or sums
        items up."""
        key = size, dtype, op
        with self._lock:
            if key not in self._copies:
                summed = reduction_branches(op, [size], dtype) if op == "sum" else None
                self._copies[key] = TritonKernel((summed or ((copy_branch(size, dtype, op),),),), dtype)
            return self._copies[key]

    def runs_natively(self, node_type: NodeType, kernel: Any) -> bool:
        """See Backend."""
        return self._triton(node_type, kernel) is not None

    def path(self, node_type: NodeType, kernel: Any) -> Path:
        """See Backend."""
        triton = self._triton(node_type, kernel)
        return Path("torch") if triton is None else Path("triton", len(triton.branches))

    # --- mini-batches ----------------------------------------------------------------------------------------------

    def demand(self, segment: Segment, kernel_of_type: KernelOfType) -> Demand:
        """See Backend. What torch allocates inside a call is not counted."""
        runs, workspace = self._runs(segment, self._kernels(segment, kernel_of_type))
        for kind, count in segment.placement.widest_batches.items():
            kernel = kernel_of_type(kind)
            if isinstance(kernel, ProgramKernel):
                workspace = max(workspace, count * kernel.row_bytes)
        in_steps = [run.steps for run in runs if not run.in_torch]
        if in_steps:  # the first one fills rows of externals
            in_steps = [*([1] if runs[0].in_torch else []), in_steps[0] + (not runs[0].in_torch), *in_steps[1:]]
        return StepDemand(arena_bytes(segment.placement), -(-workspace // 16) * 16, steps=sum(in_steps),
                          launches=sum(map(launches, in_steps)), runs=runs)  # fmt: skip

    def _kernels(self, segment: Segment, kernel_of_type: KernelOfType) -> dict[int, Any]:
        """What runs each type."""
        types = segment.graph.types
        return {k: self._triton(types[k], kernel := kernel_of_type(k)) or kernel
                for k in segment.placement.widest_batches}  # fmt: skip

    def _runs(self, segment: Segment, kernels: dict[int, Any], apart: bool = False) -> tuple[tuple[Run, ...], int]:
        """The stretches of a segment, and bytes of workspace; `apart` gives each batch its own."""
        graph, schedule = segment.graph, segment.schedule
        stages, work = np.zeros((2, graph.num_types), np.int64)
        for kind, kernel in kernels.items():
            if isinstance(kernel, TritonKernel):
                stages[kind], work[kind] = len(kernel.branches), kernel.row_bytes
        transient = np.array([t.transient for t in graph.types], np.bool_)
        in_torch = stages[schedule.batch_type[segment.begin : segment.stop]] == 0
        borders = np.array([segment.begin, segment.stop] if segment.stop > segment.begin else [], np.int64)
        if apart:
            borders = np.arange(segment.begin, segment.stop + 1)
        elif in_torch.any():
            cuts = np.flatnonzero(in_torch[1:] | in_torch[:-1]) + segment.begin + 1
            borders = np.unique([segment.begin, *cuts, segment.stop])
        found, most = [], 0
        for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            if in_torch[begin - segment.begin]:
                found.append(Run(begin, end, True, _NONE, _NONE, 0))
                continue
            first, steps = steps_of_batches(
                begin, end, schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands,
                segment.placement.batch_of, stages, transient,
            )  # fmt: skip
            kinds = schedule.batch_type[begin:end]
            sizes = np.diff(schedule.batch_ptr[begin : end + 1]) * work[kinds]
            place, size = work_places(first, stages[kinds], sizes, steps)
            found.append(Run(begin, end, False, first, place, int(steps)))
            most = max(most, int(size))
        return tuple(found), most

    def arenas(self, segment: Segment, demand: Demand) -> CudaArenas:
        """See Backend."""
        return CudaArenas(segment.placement, self.device, demand)

    def execute(self, segment: Segment, arenas: CudaArenas, kernel_of_type: KernelOfType,
                on_batch: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """See Backend. Where somebody watches batches, each has steps of its own."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            _Execution(self, segment, arenas, self._kernels(segment, kernel_of_type)).run(on_batch)


class _Execution:
    """One call of `execute`."""

    def __init__(self, backend: CudaBackend, segment: Segment, arenas: CudaArenas, kernels: dict[int, Any]):
        self.backend, self.segment, self.arenas, self.kernels = backend, segment, arenas, kernels
        self.placement, self.schedule = segment.placement, segment.schedule
        self.classes = self.placement.class_index

    def run(self, on_batch: Callable[[int], None] | None) -> None:
        """All batches."""
        arenas, demand, schedule = self.arenas, self.arenas.demand, self.schedule
        kinds = [kind for kind, kernel in self.kernels.items() if isinstance(kernel, TritonKernel)]
        if kinds or arenas.indices is None:
            arenas.open()
        is_whole = (self.segment.begin, self.segment.stop) == (0, schedule.num_batches)
        if is_whole and on_batch is None and isinstance(demand, StepDemand):
            self.runs = demand.runs
        else:
            self.runs, workspace = self.backend._runs(self.segment, self.kernels, apart=on_batch is not None)
            if workspace > len(arenas.workspace):
                arenas.workspace = torch.empty(workspace, dtype=torch.uint8, device=arenas.device)
        self._note_indices()
        if kinds:
            self._note_borders()
        self.fills, arenas.bindings = _divided(arenas, bool(kinds))
        copied = [self._copy_kernel(binding) for binding in self.fills]
        numbers = self.backend.forward.library.numbers([*copied, *(self.kernels[kind] for kind in kinds)])
        self.kernel_of_type = np.full(self.segment.graph.num_types, -1, np.int64)
        self.kernel_of_type[kinds] = numbers[len(copied) :]
        self.copy_numbers = np.array(numbers[: len(copied)], np.int64)
        stretches, batches = self._stretches()

        def done(number: int) -> None:
            if on_batch is not None and batches[number] is not None:
                on_batch(batches[number])  # type: ignore[arg-type]

        self.backend.forward.issue(arenas.upload, stretches, self._vectors, arenas.send, done)

    def _note_indices(self) -> None:
        """Operand rows go up with the first steps."""
        arenas, placement = self.arenas, self.placement
        if arenas.indices is None:
            arenas.indices = arenas.upload.indices(placement.rows)
            in_torch = [k for k, kernel in self.kernels.items() if isinstance(kernel, ReductionKernel)]
            if in_torch:
                arenas.segment = arenas.upload.data(torch.from_numpy(placement.segment))

    def _note_borders(self) -> None:
        """Those of the items of variadic batches go up with the table."""
        placement, arenas = self.placement, self.arenas
        self.variadic = np.array([t.variadic for t in self.segment.graph.types], np.bool_)
        of_items = self.variadic[self.schedule.batch_type]
        of_items[: self.segment.begin], of_items[self.segment.stop :] = False, False
        batches = np.flatnonzero(of_items)
        self.borders = np.zeros(len(of_items), np.int64)
        sizes = np.diff(self.schedule.batch_ptr)[batches]
        out = np.empty(int(sizes.sum()) + len(batches), np.int32)
        self.borders[batches] = item_borders(
            batches, self.schedule.batch_ptr, placement.segment, placement.start, placement.items, out
        )
        self.border_part = arenas.upload.indices(out)

    def _copy_kernel(self, binding: Binding) -> TritonKernel:
        value_class = self.placement.classes[binding.class_index]
        return self.backend.copies(value_class.size, value_class.dtype, "fill")

    def _stretches(self) -> tuple[list[Stretch], list[int | None]]:
        """What to issue, and which batch is over with it."""
        counts = np.diff(self.schedule.batch_ptr)
        stretches: list[Stretch] = []
        batches: list[int | None] = []
        if self.fills:
            sizes = np.array([binding.count for binding in self.fills], np.int64)
            stretches.append(Operations(self.copy_numbers, sizes, np.zeros(len(sizes), np.int64), 1))
            batches.append(None)
        for number, run in enumerate(self.runs):
            if run.in_torch:
                stretches.append(lambda batch=run.begin: self._run_in_torch(batch))  # type: ignore[misc]
            else:
                kinds = self.schedule.batch_type[run.begin : run.end]
                operations = Operations(self.kernel_of_type[kinds], counts[run.begin : run.end], run.first, run.steps)
                if number == 0 and stretches:
                    operations = stretches.pop().then(operations)  # type: ignore[union-attr]
                    batches.pop()
                stretches.append(operations)
            batches.append(run.end - 1)
        return stretches, batches

    def _vectors(self, out: Longs) -> None:
        """Those of copies, then those of batches, in the order of the stretches."""
        arenas, segment, placement = self.arenas, self.segment, self.placement
        library, graph = self.backend.forward.library, segment.graph
        addresses = np.array([tensor.data_ptr() for tensor in arenas.tensors], np.int64)
        for k, binding in enumerate(self.fills):
            assert binding.table is not None
            told = {"a0": binding.table.data_ptr(), "at0": binding.source.address,
                    "o0": int(addresses[binding.class_index]), "at1": binding.rows.address}  # fmt: skip
            names = self._copy_kernel(binding).names
            out[k, : len(names)] = [told[name] for name in names]
        in_steps = [run for run in self.runs if not run.in_torch]
        if not in_steps:
            return
        batches = np.concatenate([np.arange(run.begin, run.end) for run in in_steps])
        place = np.concatenate([run.place for run in in_steps])
        tables = library.tables
        assert arenas.indices is not None
        vectors_of_batches(
            batches, self.kernel_of_type[self.schedule.batch_type[batches]], tables.kinds, tables.numbers,
            tables.constants, self.schedule.batch_type, placement.operand_class[: graph.num_types],
            placement.output_class[: graph.num_types], placement.output_row, placement.start, placement.items,
            self.borders, place, addresses, arenas.indices.address, self.border_part.address,
            arenas.workspace.data_ptr(), out[len(self.fills) :],
        )  # fmt: skip

    def _run_in_torch(self, batch: int) -> None:
        """One batch by torch calls on the device, with indices that are there already."""
        segment, placement, arenas = self.segment, self.placement, self.arenas
        arenas.send()
        node_type = segment.graph.types[kind := int(self.schedule.batch_type[batch])]
        count = int(self.schedule.batch_ptr[batch + 1] - self.schedule.batch_ptr[batch])
        at, num = int(placement.start[batch]), int(placement.items[batch])
        assert arenas.indices is not None
        ix, operands = arenas.indices.tensor, list[Operand]()
        for k, value_class in enumerate(node_type.operands):
            first = int(placement.run[batch, k])
            where = first if first >= 0 else ix[at + k * num : at + (k + 1) * num]
            operands.append((arenas.tensors[self.classes[value_class]], where))
        outputs = [
            arenas.tensors[self.classes[c]].narrow(0, int(placement.output_row[batch, j]), count)
            for j, c in enumerate(node_type.outputs)
        ]
        if isinstance(self.kernels[kind], ExcerptKernel):
            run_excerpts(batch, segment, arenas, outputs[0])
            return
        segments = ix[:0] if arenas.segment is None else arenas.segment.tensor[at : at + num]
        run_kernel(self.kernels[kind], operands, count, segments, outputs)


_NONE = np.zeros(0, np.int64)


def _divided(arenas: CudaArenas, in_steps: bool) -> tuple[list[Binding], list[Binding]]:
    """The bindings that a step fills, and the others."""
    copies = [b for b in arenas.bindings if in_steps and b.is_copy(arenas.tensors[b.class_index])
              and arenas.placement.classes[b.class_index].dtype in ELEMENTS]  # fmt: skip
    return copies, [binding for binding in arenas.bindings if binding not in copies]
