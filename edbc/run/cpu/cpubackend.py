"""The native CPU back end: whole stretches of a schedule in one call of compiled code, torch for what it does not know.

A type runs natively when its program consists of products, element-wise operations and copies in float32 or float64, or
when it is a segment sum of those. A maximal run of native batches of one element type is one call of `walk`; other
batches go to their torch kernels in between. Externals are read where they are (rows of the embedding table), never
copied to arenas; so a mini-batch takes the memory of its cells' outputs, one block of workspace, and no more.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.base.frozen import frozen
from edbc.base.graph import Ints, NodeType
from edbc.base.kept import Once
from edbc.capture.code.shadow import ModelView
from edbc.capture.forward.carried import Carried
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.kernels.microkernel import shape_of
from edbc.cells.opgraph import CellGraph
from edbc.cells.program import Program
from edbc.cells.rows.choice import ChoiceKernel, ComparisonKernel, choice_of, comparison_of
from edbc.cells.rows.evaluation import EachRow, Evaluation
from edbc.cells.rows.reduction import ReductionKernel
from edbc.cells.rows.rowcode import RowKernel
from edbc.cells.rows.segmented import RunKernel
from edbc.cells.rows.written import Parameters
from edbc.cells.values.read import values_of
from edbc.native import ahead
from edbc.native.pointers import WORDS, record_of
from edbc.native.pool import ALIGNMENT, Pool, aligned
from edbc.run.backend import Demand, KernelOfType, Path, Segment
from edbc.run.cpu.atonce import AtOnce, Leaving, laid_out, plain
from edbc.run.cpu.segmentatonce import SegmentAtOnce
from edbc.run.cpu.team import TEAM, words
from edbc.run.cpu.walk import (
    IN_MEMORY,
    LIKE,
    ONE_ROW,
    ROWS,
    TAKEN,
    Batches,
    Memory,
    bind_tables,
    frame_of,
    record_of_memory,
    walk,
    walk_stages,
)
from edbc.run.cpu.walktables import Native, NativeKernel, Snapshot, snapshot
from edbc.run.passes.arenas import Shared, Table
from edbc.run.passes.excerptrows import ExcerptKernel, run_excerpts
from edbc.run.passes.placeloops import count_work
from edbc.run.passes.placement import Longs, Placement
from edbc.run.reference import Operand, ProgramKernel, as_kernel_reads, run_kernel
from edbc.schedule.schedule import Schedule
from edbc.schedule.waves.stages import tasks_of

if TYPE_CHECKING:
    from edbc.run.passes.minibatch import MiniBatch

BLOCK = 256
"""Rows of a batch that run together: enough for the products, few enough for the workspace to stay in cache."""
MOST_BYTES, LEAST_BLOCK = 8 << 20, 8
"""Of a workspace: where its rows are wide (maps, matrices), fewer run together, but so many at least. With 2 and with
64 MB a training step of neural_module_network takes 1.1 times as long, of mv_rnn as long."""
_BASE = IN_MEMORY * WORDS
"""Where a Memory's `base` begins in its record."""
MOST_KERNELS = 1024
"""Types whose tables are kept for mini-batches that bring others: writing those of one takes 25 microseconds."""
STACKED = 16
"""Constants of a class up to which each is read where it is: looking at one takes 0.4 microseconds, a stack 10 and 0.13
for each."""


@frozen
class Frame:
    """Where everything of a mini-batch stands in its buffer: what its placement tells."""

    size: int
    """Bytes of the buffer."""
    values: int
    """Of these, of values."""
    record: Longs
    """That of a Memory whose `base` counts from the beginning of the buffer, and whose externals are nowhere yet."""
    memory: Memory
    """What it tells of."""


def _frame_of(placement: Placement) -> Frame:
    """Class after class, each from the beginning of a cache line on."""
    base, external_start, num_externals, size, values = frame_of(
        placement.class_rows, placement.class_externals, placement.row_bytes, ALIGNMENT
    )
    memory = Memory(
        placement.row_bytes, placement.class_externals, external_start, placement.operand_class,
        placement.output_class, base, np.zeros(num_externals, np.int64),
    )  # fmt: skip
    return Frame(size, values, record_of_memory(memory), memory)


@frozen
class CpuDemand(Demand):
    """A Demand with all that executing needs and no mini-batch of the same structure would find otherwise."""

    kernels: dict[int, Native] = field(kw_only=True)
    """Of the types that run natively."""
    stretches: list[tuple[int, int, torch.dtype | None]] = field(kw_only=True)
    batches: Batches = field(kw_only=True)
    record: Longs = field(kw_only=True)
    """That of the batches."""
    frame: Frame = field(kw_only=True)
    block: int = field(kw_only=True)
    """Rows of a batch that run together."""
    tasks: Longs | None = field(kw_only=True)
    """Of a schedule in stages that is native throughout (`edbc.schedule.waves.stages`)."""

    @cached_property
    def room(self) -> int:
        """Bytes of the buffer with what stands behind the values, wherever it begins."""
        return self.frame.size + self.workspace + self.scratch + ALIGNMENT

    @cached_property
    def as_lists(self) -> list[list[Any]]:
        """Of every batch its type, and of a schedule and its placement `batch_ptr`, `start`, `items`, `output_row` and
        `run`."""
        batches = self.batches
        arrays = batches.batch_type, batches.batch_ptr, batches.start, batches.items, batches.output_row, batches.run
        return [array.tolist() for array in arrays]


class CpuArenas(Leaving):
    """Outputs of batches in one buffer, class after class; externals by address. See
    `edbc.run.passes.arenas.Arenas`."""

    def __init__(self, placement: Placement, pool: Pool, demand: CpuDemand):
        super().__init__(placement, demand.frame.record.copy())
        self.shared: Shared = {}
        self.demand = demand
        self._pool = pool
        self._tables: list[Any] = []
        self._buffer = pool.take(demand.room)
        unaligned = self._buffer.data_ptr()
        address = aligned(unaligned)
        self._first = address - unaligned
        self.workspace = address + demand.frame.size
        self.scratch = self.workspace + demand.workspace
        base = self._base
        base += address
        self.snapshot: Snapshot | None = None
        """The weights with which the first batches ran: those of all others, also when they are computed again."""

    @property
    def _base(self) -> Longs:
        return self.record[_BASE : _BASE + len(self.placement.row_bytes)]

    @property
    def _external_address(self) -> Longs:
        return self.record[_BASE + len(self.placement.row_bytes) :]

    @cached_property
    def _parameters(self) -> dict[torch.dtype | None, Parameters]:
        return {}

    @cached_property
    def _classes(self) -> dict[int, tuple[list[int], list[int]]]:
        return {}

    @property
    def memory(self) -> Memory:
        """Where the rows are."""
        return self.demand.frame.memory._replace(base=self._base, external_address=self._external_address)

    def bind(self, class_index: int, rows: Longs, table: torch.Tensor, index: Longs) -> None:
        """See Arenas."""
        self.bind_tables(rows, index, [(class_index, 0, len(rows), table)])

    def bind_tables(self, rows: Longs, index: Longs, tables: Sequence[Table]) -> None:
        """See Arenas: keeps the tables and the rows' addresses."""
        told = []
        for c, begin, end, table in tables:
            if type(table) is Carried:
                if table.in_tables:
                    self._tables.append(table)
                    told.append((c, begin, end, *table.where()))
                else:
                    self.bind_each(c, rows[begin:end], [table[i] for i in index[begin:end].tolist()])
                continue
            assert isinstance(table, torch.Tensor)
            table = laid_out(table, self.dtypes[c])
            self._tables.append(table)
            told.append((c, begin, end, table.data_ptr(), ROWS if table.shape[0] > 1 else ONE_ROW))
        if told:
            bind_tables(rows, index, np.array(told, np.int64), self.record, 0)

    def bind_each(self, class_index: int, rows: Longs, tensors: Sequence[torch.Tensor]) -> None:
        """See Arenas: keeps the tensors and their addresses; of many, which are stacked sooner, one table."""
        if len(tensors) > STACKED:
            self.bind(class_index, rows, torch.stack(list(tensors)), np.arange(len(tensors)))
            return
        dtype = self.dtypes[class_index]
        each = [plain(tensor, dtype) for tensor in tensors]
        self._tables += each
        addresses = [tensor.data_ptr() for tensor in each]
        self._external_address[rows + self.demand.frame.memory.external_start[class_index]] = addresses

    def expect(self, class_index: int, rows: Longs) -> None:
        """See Arenas: nothing to prepare."""

    def classes(self, kind: int, node_type: NodeType) -> tuple[list[int], list[int]]:
        """The classes of a type's operands, and of its outputs."""
        known = self._classes.get(kind)
        if known is None:
            of_operands, of_outputs = self.placement.operand_class[kind], self.placement.output_class[kind]
            known = self._classes[kind] = (
                of_operands[: len(node_type.operands)].tolist(), of_outputs[: len(node_type.outputs)].tolist()
            )  # fmt: skip
        return known

    def addresses(self, class_index: int, rows: Sequence[int]) -> list[int]:
        """Of rows of a class."""
        externals, start, base, stride = self._where[class_index]
        outside = self._external_address
        return [base + row * stride if row >= externals else int(outside[start + row]) for row in rows]

    @cached_property
    def _where(self) -> list[tuple[int, int, int, int]]:
        memory = self.memory
        columns = (memory.externals, memory.external_start, memory.base, memory.stride)
        return list(zip(*(column.tolist() for column in columns), strict=False))

    def parameters(self, view: ModelView, dtype: torch.dtype | None) -> Mapping[SharedRef, torch.Tensor]:
        """A model's parameters as kernels of a dtype read them, looked up once."""
        found = self._parameters.get(dtype)
        if found is None:
            found = self._parameters[dtype] = _parameters_of(view, dtype, torch.device("cpu"))
        return found

    def outputs(self, class_index: int, first: int, count: int) -> torch.Tensor:
        """Rows of outputs as a view, `(count, size)`."""
        stride, size = int(self.placement.row_bytes[class_index]), self.placement.classes[class_index].size
        begin = self._first + int(self.demand.frame.memory.base[class_index]) + first * stride
        flat = self._buffer[begin : begin + count * stride].view(self.dtypes[class_index])
        return flat.view(count, size)

    def release(self) -> None:
        """See Arenas."""
        self._tables, self.snapshot = [], None
        self._pool.give(self._buffer)


class CellKernel:
    """What torch runs of a type that native code does not know, by `edbc.cells.rows.evaluation`."""

    def __init__(self, cell: CellGraph, view: ModelView, dtype: torch.dtype | None, device: torch.device):
        """`dtype` is None where a cell has several."""
        self.evaluation = Evaluation(cell)
        self.by_row = RowKernel(cell)
        """What runs batches of few rows."""
        self.view, self.dtype, self._device = view, dtype, device

    def run(self, rows: Sequence[Longs], count: int, take: Callable[[int, Longs], torch.Tensor],
            outputs: Sequence[torch.Tensor]) -> None:  # fmt: skip
        """A batch of `count` nodes into `outputs`, `(count, size)` each; `rows[k]` says where its operands k stand, and
        `take` gives those of some positions, `(positions, size)`."""
        parameters = _parameters_of(self.view, self.dtype, self._device)
        for block in self.evaluation.blocks(rows, count):
            operands = [take(k, block.taken(k)) for k in range(len(rows))]
            where = torch.from_numpy(block.positions)
            for output, value in zip(outputs, self.evaluation.outputs(block, operands, parameters), strict=True):
                output.index_copy_(0, where, value)


def _parameters_of(view: ModelView, dtype: torch.dtype | None, device: torch.device) -> Parameters:
    """A model's parameters as kernels read them, looked up when they are asked for."""
    return Once(lambda ref: as_kernel_reads(view.shared(ref), dtype, device))


class CpuBackend:
    """See `edbc.run.backend.Backend`."""

    name = "cpu"
    mixes = True
    issues = False

    def __init__(self) -> None:
        ahead.begin()
        self.pool = Pool()
        self._lock = threading.Lock()
        self._snapshot = snapshot({})

    def program_kernel(self, program: Program, view: ModelView, dtype: torch.dtype,
                       device: torch.device) -> Native | CellKernel | ProgramKernel:  # fmt: skip
        """See Backend."""
        native = self._native_kernel(program, view)
        if native is None and program.cell is not None:
            native = choice_of(program.cell) or comparison_of(program.cell)
        if native is not None:
            return native
        if program.cell is None:
            return ProgramKernel(program, view, dtype, device)
        return CellKernel(program.cell, view, None if program.widths else dtype, device)

    def _native_kernel(self, program: Program, view: ModelView) -> Native | None:
        """None where there is none, or nothing to compute. bfloat16 is native where the processor multiplies it, in
        pairs."""
        spans = [*[load.span for load in program.loads], *[store.span for store in program.stores]]
        if not all(span.size for span in spans):
            return None
        is_short = program.dtype == "bf16"
        if program.dtype not in ("f32", "f64") and not (is_short and shape_of(2) is not None):
            return None
        values = values_of(program, lambda ref: view.shared(ref).shape)
        kernel = None if values is None else NativeKernel(program, values, view)
        return None if kernel is None or (is_short and not kernel.rendered.steps.has_pairs) else kernel

    def runs_natively(self, node_type: NodeType, kernel: Any) -> bool:
        """See Backend."""
        if isinstance(kernel, (ReductionKernel, ExcerptKernel)):
            dtype, *others = {c.dtype for c in node_type.outputs}
            return not others and torch_dtype(dtype) in LIKE
        return isinstance(kernel, (NativeKernel, ChoiceKernel, ComparisonKernel))

    def path(self, node_type: NodeType, kernel: Any) -> Path:
        """See Backend."""
        is_own = kernel.is_native if isinstance(kernel, RunKernel) else self.runs_natively(node_type, kernel)
        return Path("native" if is_own else "torch")

    def demand(self, segment: Segment, kernel_of_type: KernelOfType) -> Demand:
        """See Backend."""
        sizes: list[tuple[int, int, int]] = []
        schedule, placement, types = segment.schedule, segment.placement, segment.graph.types
        kernels: dict[int, Native] = {}
        elements: dict[int, torch.dtype | None] = {}
        for kind, count in placement.widest_batches.items():
            kernel = kernel_of_type(kind)
            if type(kernel) is NativeKernel:
                elements[kind], kernels[kind], rendered = kernel.dtype, kernel, kernel.rendered
                sizes.append((rendered.stride, rendered.scratch, count))
                continue
            elements[kind] = element = self._element_type(types[kind], kernel)
            if element is not None:
                kernels[kind] = kernel
        stride, scratch, _ = map(max, zip(*sizes, strict=True)) if sizes else (0, 0, 0)
        block = block_of(stride, BLOCK)
        workspace = max((stride * min(count, block) for stride, _, count in sizes), default=0)
        batches = Batches(schedule.batch_type, schedule.batch_ptr, placement.start, placement.items, placement.run,
                          placement.rows, placement.segment, placement.origin, placement.output_row)  # fmt: skip
        stretches, tasks = list(stretches_of(schedule.batch_type, elements)), None
        if schedule.staged and len(stretches) == 1 and stretches[0][2] is not None:
            cuts = np.array([isinstance(kernels.get(k), NativeKernel) for k in range(len(types))])
            tasks = tasks_of(schedule, TEAM.threads, cuts)
        frame = _frame_of(placement)
        return CpuDemand(frame.values, workspace, scratch, block=block, kernels=kernels, stretches=stretches,
                         batches=batches, record=record_of(batches), frame=frame, tasks=tasks)  # fmt: skip

    def arenas(self, segment: Segment, demand: Demand) -> CpuArenas:
        """See Backend."""
        assert isinstance(demand, CpuDemand)
        return CpuArenas(segment.placement, self.pool, demand)

    def execute(self, segment: Segment, arenas: CpuArenas, kernel_of_type: KernelOfType,
                on_batch: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """See Backend."""
        demand, schedule = arenas.demand, segment.schedule
        whole, shot = schedule.num_batches, arenas.snapshot
        if shot is None or not shot.holds(demand.kernels):
            shot = arenas.snapshot = self.snapshot_of(demand.kernels, arenas.shared)
        for first, last, dtype in demand.stretches:
            begin, end = max(first, segment.begin), last if segment.end is None else min(last, segment.end)
            if begin >= end:
                continue
            if dtype is None:
                _run_in_torch(begin, segment, arenas, kernel_of_type)
                if on_batch is not None:
                    on_batch(begin)
                continue
            step = 1 if on_batch is not None else end - begin
            if step == whole and demand.tasks is not None and self._in_stages(segment, arenas, shot, dtype):
                continue
            for b in range(begin, end, step):
                part = (b, b + step)
                self.walk(part, schedule, demand, shot, arenas.workspace, arenas.record, dtype)
                if on_batch is not None:
                    on_batch(b)

    def walk(self, batches: tuple[int, int], schedule: Schedule, demand: CpuDemand, shot: Snapshot, workspace: int,
             memory: Longs, dtype: torch.dtype) -> None:  # fmt: skip
        """Run native batches, as many threads as pay for them. Memory is a record; behind the workspace is that of the
        scratch row."""
        with self.helped(batches, schedule, demand, shot, dtype) as team:
            walk(*batches, demand.block, workspace, workspace + demand.workspace, dtype.itemsize, demand.record, memory,
                 shot.record, LIKE[dtype], team)  # fmt: skip

    def helped(self, batches: tuple[int, int], schedule: Schedule, demand: CpuDemand, shot: Snapshot,
               dtype: torch.dtype) -> AbstractContextManager[int]:  # fmt: skip
        """As many threads as pay for native batches."""
        work = partial(count_work, *batches, schedule.batch_type, schedule.batch_ptr, shot.work)
        return TEAM.helping(work, dtype.itemsize, demand.scratch)

    def at_once(self, batch: MiniBatch) -> AtOnce | None:
        """What runs mini-batches of the structure of a placed one from now on; None where `execute` has to."""
        demand = batch.demand
        assert isinstance(demand, CpuDemand)
        if SegmentAtOnce.serves(batch, demand):
            return SegmentAtOnce(self, batch, demand)
        return AtOnce(self, batch, demand) if AtOnce.serves(batch, demand) else None

    @property
    def threads(self) -> int:
        """That may run a schedule in stages."""
        return TEAM.threads

    def _in_stages(self, segment: Segment, arenas: CpuArenas, shot: Snapshot, dtype: torch.dtype) -> bool:
        """The whole schedule in its stages; False where no helpers are to be had."""
        demand, schedule = arenas.demand, segment.schedule
        assert demand.tasks is not None
        work = partial(count_work, 0, schedule.num_batches, schedule.batch_type, schedule.batch_ptr, shot.work)
        with TEAM.lent(work) as count:
            if count == 0:
                return False
            shared, room = words(TAKEN // 8 + len(demand.tasks)), aligned(demand.workspace)

            def run(lane: int, workspace: int, scratch: int) -> None:
                walk_stages(lane, demand.block, workspace, scratch, dtype.itemsize, demand.record, arenas.record,
                            shot.record, LIKE[dtype], demand.tasks, shared.ctypes.data)  # fmt: skip

            for lane in range(1, count + 1):
                TEAM.call(lane, partial(_in_lane, run, lane, room), room + aligned(demand.scratch))
            run(0, arenas.workspace, arenas.scratch)
        return True

    def snapshot_of(self, kernels: dict[int, Native], shared: Shared) -> Snapshot:
        """Tables that hold at least these kernels: those of earlier segments, or with their weights as they are now."""
        shot: Snapshot | None = shared.get("snapshot")
        if shot is None or not shot.holds(kernels):
            shot = shared["snapshot"] = self._tables_for(kernels)
        return shot

    def _tables_for(self, kernels: dict[int, Native]) -> Snapshot:
        """Tables that hold at least these kernels, with their weights as they are now."""
        shot = self._snapshot
        if not shot.serves(kernels):
            with self._lock:
                shot = self._snapshot
                known = shot.kernels if len(shot.kernels) <= MOST_KERNELS else {}
                every = {**_of_same_model(known, kernels), **kernels}
                shot = shot.renewed() if shot.holds(kernels) else snapshot(every)
                self._snapshot = shot
        return shot

    def _element_type(self, node_type: NodeType, kernel: Any) -> torch.dtype | None:
        """That of what a type computes with, which of a choice or comparison is not its result's; None where torch runs
        it."""
        if not self.runs_natively(node_type, kernel):
            return None
        of = node_type.operands if isinstance(kernel, ChoiceKernel | ComparisonKernel) else node_type.outputs
        return torch_dtype(of[0].dtype)


def block_of(stride: int, most: int) -> int:
    """Rows that run together, `most` at most, in a workspace that takes so many bytes for one."""
    return most if stride * most <= MOST_BYTES else max(LEAST_BLOCK, MOST_BYTES // stride)


def _of_same_model(known: dict[int, Native], kernels: dict[int, Native]) -> dict[int, Native]:
    """Those of the model that these kernels are of: packs are shared by the names of parameters, which another model
    (a copy of a net) has too."""
    of = {id(kernel.weights.view.model) for kernel in kernels.values() if isinstance(kernel, NativeKernel)}
    return {
        kind: kernel
        for kind, kernel in known.items()
        if not of or not isinstance(kernel, NativeKernel) or id(kernel.weights.view.model) in of
    }


def stretches_of(
    batch_type: Ints, elements: Mapping[int, torch.dtype | None]
) -> Iterator[tuple[int, int, torch.dtype | None]]:
    """Runs of batches (begin, end, element type) that one call of `walk` could execute, single batches with None for
    torch, by the element types of all types that run."""
    found = set(elements.values())
    if len(found) == 1 and None not in found:
        yield 0, len(batch_type), found.pop()
        return
    order = [None, *LIKE]
    group = np.zeros(max(elements, default=0) + 1, np.int64)
    for kind, dtype in elements.items():
        group[kind] = order.index(dtype)
    of_batch = group[batch_type]
    changes = (np.diff(of_batch) != 0) | (of_batch[1:] == 0)
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), len(of_batch)] if len(of_batch) else []
    for first, last in itertools.pairwise(borders):
        yield first, last, order[of_batch[first]]


def _in_lane(run: Callable[[int, int, int], None], lane: int, room: int, memory: int) -> None:
    """In a helper: a workspace, and a scratch row behind it."""
    run(lane, memory, memory + room)


def _run_in_torch(batch: int, segment: Segment, arenas: CpuArenas, kernel_of_type: KernelOfType) -> None:
    """One batch by its torch kernel: operands are views where their rows are a run of outputs, copies elsewhere."""
    placement = segment.placement
    kinds, ptr, starts, items, output_rows, runs = arenas.demand.as_lists
    kind, count, at, num = kinds[batch], ptr[batch + 1] - ptr[batch], starts[batch], items[batch]
    classes, of_outputs = arenas.classes(kind, segment.graph.types[kind])
    outputs_at = list(zip(of_outputs, output_rows[batch], strict=False))
    kernel = kernel_of_type(kind)
    rows = [placement.rows[at + k * num : at + (k + 1) * num] for k in range(len(classes))]
    if type(kernel) is CellKernel:  # what records for autograd takes blocks
        evaluation, by_row = kernel.evaluation, kernel.by_row.pays(count)
        if count > 1 and evaluation.is_small(rows, count):
            if evaluation.is_sure:
                values = [
                    arenas.outputs(c, first, num) if first >= placement.class_externals[c] else arenas.rows(c, r)
                    for c, r, first in zip(classes, rows, runs[batch], strict=False)
                ]
                found = evaluation.values(EachRow(count), values, arenas.parameters(kernel.view, kernel.dtype))
                for (c, first), value in zip(outputs_at, found, strict=True):
                    arenas.outputs(c, first, count).view_as(value).copy_(value)
                return
            by_row = by_row and not evaluation.waits
        if by_row:
            of_operands = placement.rows[at : at + len(classes) * num].tolist()
            addresses = [arenas.addresses(c, of_operands[k * num : (k + 1) * num]) for k, c in enumerate(classes)]
            addresses += [arenas.addresses(c, range(first, first + count)) for c, first in outputs_at]
            kernel.by_row.run(arenas.parameters(kernel.view, kernel.dtype), count, *addresses)
            return
    outputs = [arenas.outputs(c, first, int(placement.made[batch])) for c, first in outputs_at]
    if isinstance(kernel, ExcerptKernel):
        run_excerpts(batch, segment, arenas, outputs[0])
        return
    if isinstance(kernel, CellKernel):
        kernel.run(rows, count, lambda k, positions: arenas.rows(classes[k], rows[k][positions]), outputs)
        return
    operands: list[Operand] = []
    for k, (c, r) in enumerate(zip(classes, rows, strict=True)):
        first = runs[batch][k]
        in_place = first >= placement.class_externals[c]
        operands.append((arenas.outputs(c, first, num) if in_place else arenas.rows(c, r), 0))
    run_kernel(kernel, operands, count, torch.from_numpy(placement.segment[at : at + num]), outputs)
