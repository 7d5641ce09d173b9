"""Types that run natively, with their weights, in one set of tables: what `walk` reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.capture.code.shadow import ModelView
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.kernels.microkernel import shape_of
from edbc.cells.kernels.steps import steps_of
from edbc.cells.kernels.steptables import Rendered, StepTable, table_of
from edbc.cells.program import Program
from edbc.cells.rows.choice import COMPARISONS, ChoiceKernel, ComparisonKernel
from edbc.cells.rows.reduction import OPS, ReductionKernel
from edbc.cells.values.value import V
from edbc.native.pointers import record_of
from edbc.run.cpu.walk import COMPARISON, EXCERPT, LARGEST, PROGRAM, REDUCTION, SMALLEST, Tables
from edbc.run.passes.excerptrows import ExcerptKernel
from edbc.run.weights.packed import Pack, PackedWeights, PacksOfAll


class NativeKernel:
    """A program as values, their steps, and its weights."""

    def __init__(self, program: Program, values: Sequence[V], view: ModelView, constants: Iterable[V] = ()):
        """`constants` are packed though the steps do not read them: a backward pass does."""
        self.program = program
        self.values = values
        self.dtype = torch_dtype(program.dtype)
        width = self.dtype.itemsize
        sizes = tuple((packed.rows, packed.columns) for packed in program.weights)
        self.rendered = Rendered(steps_of(values, len(program.loads)), width, sizes)
        shape = shape_of(width)
        assert shape is not None, "native types are of elements that the processor multiplies"
        self.shape = shape
        """How weights are packed."""
        read = dict.fromkeys(v.arg[0] for v in (*constants, *self.rendered.constants))
        self.weights = PackedWeights(program, view, self.dtype, torch.device("cpu"), read, self.shape)

    def transposed(self, pack: Pack, weight: int) -> torch.Tensor:
        """A packed weight transposed, packed too; made once per pack."""
        if weight not in pack.transposed:
            packed, matrix = self.program.weights[weight], pack.matrices[weight]
            pack.transposed[weight] = self.shape.pack(self.shape.unpack(matrix, packed.rows, packed.columns).t())
        return pack.transposed[weight]


Native = NativeKernel | ReductionKernel | ExcerptKernel | ChoiceKernel | ComparisonKernel


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Tables for some types with some weights. Never changes: threads share it, a change of weights makes a new one."""

    tables: Tables
    record: NDArray[np.int64]
    """That of the tables."""
    kernels: dict[int, Native]
    packs: dict[int, Pack]
    weights: PacksOfAll
    """That `packs` are of."""
    found: tuple[Pack, ...]
    """What they were."""
    table: StepTable
    work: NDArray[np.float64]
    """Per type, multiplications that a node's products take; see `placeloops.count_work`."""

    def holds(self, kernels: dict[int, Native]) -> bool:
        """True when the tables hold these kernels."""
        return kernels.items() <= self.kernels.items()

    def serves(self, kernels: dict[int, Native]) -> bool:
        """True when the tables hold these kernels with their weights as they are now."""
        return self.holds(kernels) and self.weights.packs is self.found

    def renewed(self) -> Snapshot:
        """The same tables with the weights as they are now."""
        found = self.weights.packs
        packs = dict(zip(self.packs, found, strict=True))
        steps, pieces = _filled(self.table, packs)
        tables = self.tables._replace(steps=steps, pieces=pieces)
        return replace(self, tables=tables, record=record_of(tables), packs=packs, found=found)


def _filled(table: StepTable, packs: dict[int, Pack]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return table.filled(lambda kind, weight: _addresses(packs[kind], weight),
                        lambda kind, parameter: address_of_parameter(packs[kind], parameter))  # fmt: skip


def _addresses(pack: Pack, weight: int) -> tuple[int, int]:
    """Of a matrix and its bias, 0 for none."""
    bias = pack.biases[weight]
    return pack.matrices[weight].data_ptr(), bias.data_ptr() if bias is not None else 0


def address_of_parameter(pack: Pack, parameter: V) -> int:
    """Of the elements that a value reads."""
    reference, offset = parameter.arg
    found = pack.vectors[reference]
    return found.data_ptr() + offset * found.itemsize


def snapshot(kernels: dict[int, Native]) -> Snapshot:
    """Tables for types given by number."""
    num_types = max(kernels, default=-1) + 1
    code, num_operands, num_outputs, stride = np.zeros((4, num_types), np.int64)
    work, number = np.zeros((2, num_types))
    rendered: dict[int, Rendered] = {}
    for kind, kernel in kernels.items():
        if isinstance(kernel, ReductionKernel):
            code[kind] = REDUCTION + OPS.index(kernel.op)
            num_operands[kind] = num_outputs[kind] = kernel.num_fields
        elif isinstance(kernel, ExcerptKernel):
            code[kind], num_operands[kind], num_outputs[kind] = EXCERPT, 2, 1
        elif isinstance(kernel, ChoiceKernel):
            code[kind] = LARGEST if kernel.op == "argmax" else SMALLEST
            num_operands[kind] = num_outputs[kind] = 1
        elif isinstance(kernel, ComparisonKernel):
            code[kind] = COMPARISON + COMPARISONS.index(kernel.op)
            num_operands[kind], num_outputs[kind] = 1 + (kernel.number is None), 1
            number[kind] = kernel.number or 0
        else:
            one = rendered[kind] = kernel.rendered
            code[kind], stride[kind] = PROGRAM, one.stride
            num_operands[kind], num_outputs[kind] = one.steps.num_operands, one.steps.num_outputs
            work[kind] = sum(rows * columns for rows, columns in one.sizes)
    weighted = {kind: kernel.weights for kind, kernel in kernels.items() if isinstance(kernel, NativeKernel)}
    first: dict[int, int] = {}
    leaders = {kind: first.setdefault(of.number, kind) for kind, of in weighted.items()}
    table = table_of(rendered, num_types, leaders)
    weights = PacksOfAll([*weighted.values()])
    packs = dict(zip(weighted, found := weights.packs, strict=True))
    tables = Tables(code, num_operands, num_outputs, table.ptr, *_filled(table, packs), stride, number)
    return Snapshot(tables, record_of(tables), dict(kernels), packs, weights, found, table, work)
