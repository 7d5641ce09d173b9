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

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.frozen import frozen
from edbc.base.graph import NodeType
from edbc.base.kept import Kept
from edbc.capture.code.shadow import ModelView
from edbc.cells.program import Program
from edbc.cells.rows.reduction import EXTREMES, ReductionKernel
from edbc.run.backend import Demand, KernelOfType, Path, Segment
from edbc.run.cuda import compiled
from edbc.run.cuda.chains import WarmUp, launches
from edbc.run.cuda.devicearenas import Binding, CudaArenas
from edbc.run.cuda.issue import Issuer, Operations, Stretch
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.stages import stages_of
from edbc.run.cuda.table import Longs, borders_of_items, steps_of_batches, vectors_of_batches, work_of_batches
from edbc.run.cuda.tritonsource import branches_of, copy_branch, extreme_branch, reduction_branches
from edbc.run.reference import ProgramKernel, counts_items, run_batch, workspace_in_torch
from edbc.run.weights.packed import PackedWeights, PacksOfAll

ELEMENTS = ("f32", "f64", "bf16", "f16")


@frozen
class Run:
    """Batches `begin` to `end` that run in steps, or the one that torch runs; what native code found of them."""

    begin: int
    end: int
    in_torch: bool
    first: Longs
    place: Longs
    steps: int


MOST_KNOWN = 64
"""Sets of types of which a back end knows what it worked out."""


@dataclass(frozen=True, eq=False)
class Known:
    """What a back end knows of the types that have nodes, and of what runs them."""

    types: tuple[NodeType, ...]
    given: tuple[Any, ...]
    """Their kernels as they were given: held, so that their addresses stay theirs."""
    kernels: dict[int, Any]
    kinds: list[int]
    """Those in steps."""
    in_torch: list[int]
    stages: Longs
    work: Longs
    """Bytes of a node's workspace."""
    transient: NDArray[np.bool_]
    variadic: NDArray[np.bool_]
    numbers: Longs
    """Of the kernels of those in steps, by type; -1 for others, and until a mini-batch runs."""
    weighted: list[TritonKernel]
    """Of these kernels, those that have weights."""
    weights: PacksOfAll
    """Theirs."""


def known_of(types: tuple[NodeType, ...], kernels: dict[int, Any], given: tuple[Any, ...]) -> Known:
    """Worked out for types by what runs them."""
    stages, work = np.zeros((2, len(types)), np.int64)
    kinds = [kind for kind, kernel in kernels.items() if isinstance(kernel, TritonKernel)]
    for kind in kinds:
        stages[kind], work[kind] = len(kernels[kind].branches), kernels[kind].row_bytes
    transient = np.array([t.transient for t in types], np.bool_)
    variadic = np.array([t.variadic and k in kernels for k, t in enumerate(types)], np.bool_)
    weighted = [kernels[kind] for kind in kinds if kernels[kind].weights is not None]
    return Known(
        types, given, kernels, kinds, [k for k in kernels if k not in kinds], stages, work, transient, variadic,
        np.full(len(types), -1, np.int64), weighted, PacksOfAll([k.weights for k in weighted if k.weights is not None]),
    )  # fmt: skip


@frozen
class StepDemand(Demand):
    """With the steps themselves, for the types that run in them."""

    runs: tuple[Run, ...] = ()
    known: Known | None = None


class CudaBackend:
    """See the module's docstring and `edbc.run.backend.Backend`. `use_triton=False` leaves everything to torch.

    The device may be a CPU where Triton's interpreter is on (TRITON_INTERPRET=1), or without Triton: for tests.
    """

    name = "cuda"
    mixes = False  # which rows leave goes up by class
    issues = True

    def __init__(self, device: torch.device, use_triton: bool = True):
        self.device = device
        self.why_not = compiled.missing(device.type) if use_triton else "Triton is switched off"
        """Why no type runs in Triton, or None."""
        self.warm_up = WarmUp()
        self.forward = Issuer(device, self.warm_up)
        self.backward = Issuer(device, self.warm_up)
        self._reductions: WeakKeyDictionary[ReductionKernel, TritonKernel | None] = WeakKeyDictionary()
        self._copies: dict[tuple[int, str, str], TritonKernel] = {}
        self._known_types: Kept[tuple[int, ...], Known] = Kept(MOST_KNOWN)
        self._lock = threading.Lock()

    @property
    def in_steps(self) -> bool:
        """Whether steps count, not batches, so that schedules are waves: not where torch runs every batch."""
        return self.why_not is None

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
        """What copies rows; with another `op`, what fills rows of a table, gives each item of a mean its share, sums
        items up, or gives a maximum's or minimum's gradient to the items that are it."""
        key = size, dtype, op
        with self._lock:
            if key not in self._copies:
                if op == "sum":
                    jobs = reduction_branches(op, [size], dtype)
                else:
                    made = extreme_branch if op in EXTREMES else copy_branch
                    jobs = ((made(size, dtype, op),),)
                self._copies[key] = TritonKernel((jobs,), dtype)
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
        known = self._known(segment, kernel_of_type)
        runs, workspace = self._runs(segment, known)
        in_torch = workspace_in_torch(segment, ((kind, kernel_of_type(kind)) for kind in known.in_torch))
        workspace = max(workspace, in_torch)
        in_steps = [run.steps for run in runs if not run.in_torch]
        if in_steps:  # the first one fills rows of externals
            in_steps = [*([1] if runs[0].in_torch else []), in_steps[0] + (not runs[0].in_torch), *in_steps[1:]]
        return StepDemand(int(segment.placement.begins[-1]), -(-workspace // 16) * 16, steps=sum(in_steps),
                          launches=sum(map(launches, in_steps)), runs=runs, known=known)  # fmt: skip

    def _known(self, segment: Segment, kernel_of_type: KernelOfType) -> Known:
        """What is known of the types of a segment, remembered for the very same ones with the very same kernels."""
        types, kinds = segment.graph.types, segment.placement.widest.nonzero()[0].tolist()
        kernels = list(map(kernel_of_type, kinds))
        key = id(types), *kinds, *map(id, kernels)
        known = self._known_types.get(key)
        if known is None:
            runs = {k: self._triton(types[k], kernel) or kernel for k, kernel in zip(kinds, kernels, strict=True)}
            known = self._known_types.add(key, known_of(types, runs, tuple(kernels)))
        return known

    def _runs(self, segment: Segment, known: Known, apart: bool = False) -> tuple[tuple[Run, ...], int]:
        """The stretches of a segment, and bytes of workspace; `apart` gives each batch its own."""
        schedule = segment.schedule
        if segment.stop == segment.begin:
            return (), 0
        borders = [segment.begin, segment.stop]
        if apart:
            borders = list(range(segment.begin, segment.stop + 1))
        elif known.in_torch:
            in_torch = known.stages[schedule.batch_type[segment.begin : segment.stop]] == 0
            cuts = np.flatnonzero(in_torch[1:] | in_torch[:-1]) + segment.begin + 1
            borders = sorted({segment.begin, *cuts.tolist(), segment.stop})
        found, most = [], 0
        for begin, end in itertools.pairwise(borders):
            if known.in_torch and known.stages[schedule.batch_type[begin]] == 0:
                found.append(Run(begin, end, True, _NONE, _NONE, 0))
                continue
            first = self._first_steps(segment, known, begin, end)
            place, size, steps = work_of_batches(begin, end, schedule.batch_type, schedule.batch_ptr, first,
                                                 known.stages, known.work)  # fmt: skip
            found.append(Run(begin, end, False, first, place, int(steps)))
            most = max(most, int(size))
        return tuple(found), most

    def _first_steps(self, segment: Segment, known: Known, begin: int, end: int) -> Longs:
        """Of batches begin to end: those that scheduling found, where they are all of the batches."""
        graph, schedule = segment.graph, segment.schedule
        if schedule.step is not None and end - begin == schedule.num_batches:
            return schedule.step
        first: Longs
        first, _ = steps_of_batches(
            begin, end, schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands,
            segment.placement.batch_of, known.stages, known.transient,
        )  # fmt: skip
        return first

    def arenas(self, segment: Segment, demand: Demand) -> CudaArenas:
        """See Backend."""
        return CudaArenas(segment.placement, self.device, demand)

    def execute(self, segment: Segment, arenas: CudaArenas, kernel_of_type: KernelOfType,
                on_batch: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """See Backend. Where somebody watches batches, each has steps of its own."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            _Execution(self, segment, arenas, kernel_of_type).run(on_batch)


class _Execution:
    """One call of `execute`."""

    def __init__(self, backend: CudaBackend, segment: Segment, arenas: CudaArenas, kernel_of_type: KernelOfType):
        self.backend, self.segment, self.arenas = backend, segment, arenas
        self.placement, self.schedule, demand = segment.placement, segment.schedule, arenas.demand
        known = demand.known if isinstance(demand, StepDemand) else None
        self.known = known or backend._known(segment, kernel_of_type)

    def run(self, on_batch: Callable[[int], None] | None) -> None:
        """All batches."""
        arenas, demand, known = self.arenas, self.arenas.demand, self.known
        if known.kinds or arenas.indices is None:
            arenas.open()
        is_whole = self.segment.stop - self.segment.begin == self.schedule.num_batches
        if is_whole and on_batch is None and isinstance(demand, StepDemand):
            self.runs = demand.runs
        else:
            self.runs, workspace = self.backend._runs(self.segment, known, apart=on_batch is not None)
            arenas.make_room(workspace)
        self._note_indices()
        self.fills, arenas.bindings = _divided(arenas, bool(known.kinds))
        self.copies = [self._copy_kernel(binding) for binding in self.fills]
        library = self.backend.forward.library
        if known.kinds and known.numbers[known.kinds[-1]] < 0:
            known.numbers[known.kinds] = library.numbers([known.kernels[kind] for kind in known.kinds])
        else:
            library.refresh(known.weighted, known.weights.packs)
        self.copy_numbers = np.array(library.numbers(self.copies), np.int64)
        stretches, batches = self._stretches()

        def done(number: int) -> None:
            if on_batch is not None and batches[number] is not None:
                on_batch(batches[number])  # type: ignore[arg-type]

        self.backend.forward.issue(arenas.upload, stretches, self._vectors, arenas.send, done)

    def _note_indices(self) -> None:
        """Operand rows go up with the first steps, with the table borders of the items of variadic batches; and what
        was noted before."""
        arenas, placement, known = self.arenas, self.placement, self.known
        arenas.note()
        if arenas.indices is None:
            arenas.indices = arenas.upload.indices(placement.rows)
            if any(counts_items(known.kernels[kind]) for kind in known.in_torch):
                arenas.segment = arenas.upload.data(torch.from_numpy(placement.segment))
        if known.kinds:
            self.borders, borders = borders_of_items(
                self.segment.begin, self.segment.stop, self.schedule.batch_type, self.schedule.batch_ptr,
                known.variadic, placement.segment, placement.start, placement.items,
            )  # fmt: skip
            self.border_part = arenas.upload.indices(borders)

    def _copy_kernel(self, binding: Binding) -> TritonKernel:
        value_class = self.placement.classes[binding.class_index]
        return self.backend.copies(value_class.size, value_class.dtype, "fill")

    def _stretches(self) -> tuple[list[Stretch], list[int | None]]:
        """What to issue, and which batch is over with it."""
        stretches: list[Stretch] = []
        batches: list[int | None] = []
        if self.fills and (not self.runs or self.runs[0].in_torch):
            stretches.append(self._operations(Run(0, 0, False, _NONE, _NONE, 0), is_first=True))
            batches.append(None)
        for number, run in enumerate(self.runs):
            if run.in_torch:
                stretches.append(lambda batch=run.begin: self._run_in_torch(batch))  # type: ignore[misc]
            else:
                stretches.append(self._operations(run, is_first=number == 0))
            batches.append(run.end - 1)
        return stretches, batches

    def _operations(self, run: Run, is_first: bool) -> Operations:
        """Those of a run's batches, the first ones behind a step that fills rows of externals."""
        at = len(self.fills) if is_first else 0
        total, fills = at + run.end - run.begin, min(at, 1)
        kernel, count, step = np.empty((3, total), np.int64)
        if at:
            kernel[:at], count[:at], step[:at] = self.copy_numbers, [binding.count for binding in self.fills], 0
        ptr = self.schedule.batch_ptr[run.begin : run.end + 1]
        self.known.numbers.take(self.schedule.batch_type[run.begin : run.end], out=kernel[at:], mode="clip")
        np.subtract(ptr[1:], ptr[:-1], out=count[at:])
        np.add(run.first, fills, out=step[at:])
        return Operations(kernel, count, step, run.steps + fills)

    def _vectors(self, out: Longs) -> None:
        """Those of copies, then those of batches, in the order of the stretches."""
        arenas, placement = self.arenas, self.placement
        library = self.backend.forward.library
        addresses = arenas.addresses
        for k, (binding, kernel) in enumerate(zip(self.fills, self.copies, strict=True)):
            assert binding.table is not None
            assert binding.part is not None
            rows = binding.part.address
            told = {"a0": binding.table.data_ptr(), "at0": rows + 4 * binding.count, "at1": rows,
                    "o0": addresses[binding.class_index]}  # fmt: skip
            out[k, : len(kernel.names)] = [told[name] for name in kernel.names]
        in_steps = [run for run in self.runs if not run.in_torch]
        if not in_steps:
            return
        tables, at = library.tables, len(self.fills)
        assert arenas.indices is not None
        for run in in_steps:
            vectors_of_batches(
                run.begin, run.end, self.known.numbers, tables.kinds, tables.numbers, tables.constants,
                self.schedule.batch_type, placement.operand_class, placement.output_class, placement.output_row,
                placement.start, placement.items, self.borders, run.place, addresses, arenas.indices.address,
                self.border_part.address, arenas.workspace, out[at:],
            )  # fmt: skip
            at += run.end - run.begin

    def _run_in_torch(self, batch: int) -> None:
        """One batch by torch calls on the device, with indices that are there already."""
        arenas, kind = self.arenas, int(self.schedule.batch_type[batch])
        arenas.send()
        assert arenas.indices is not None
        items = None if arenas.segment is None else arenas.segment.tensor
        run_batch(batch, self.segment, arenas, self.known.kernels[kind], arenas.indices.tensor, items)


_NONE = np.zeros(0, np.int64)


def _divided(arenas: CudaArenas, in_steps: bool) -> tuple[list[Binding], list[Binding]]:
    """The bindings that a step fills, and the others."""
    copies, others = list[Binding](), list[Binding]()
    for binding in arenas.bindings:
        dtype = arenas.placement.classes[binding.class_index].dtype
        is_filled = in_steps and dtype in ELEMENTS and binding.is_copy(dtype)
        (copies if is_filled else others).append(binding)
    return copies, others
