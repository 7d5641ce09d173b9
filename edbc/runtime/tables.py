"""Steps with sizes in bytes and addresses filled in: what `walk` reads. One set of tables serves all types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.cells.program import Program
from edbc.kernels.loops import constants_of, text_of
from edbc.kernels.machinecode import addresses_of
from edbc.kernels.microkernel import lanes_of
from edbc.kernels.products import Products
from edbc.kernels.steps import PIECE_FIELDS, STEP_FIELDS, Multiply, Pass, Place, StepField, steps_of
from edbc.kernels.value import V
from edbc.runtime.excerpts import ExcerptKernel
from edbc.runtime.pool import ALIGNMENT, aligned
from edbc.runtime.reduction import OPS, ReductionKernel
from edbc.runtime.walk import EXCERPT, PROGRAM, REDUCTION, Tables
from edbc.runtime.weights import Pack, PackedWeights
from edbc.trace.shadow import ModelView
from edbc.trace.values import torch_dtype

_WEIGHT = int(StepField.WEIGHT)
"""The bias is in the next field."""


class NativeKernel:
    """A program as values, their steps, and its weights."""

    def __init__(self, program: Program, values: Sequence[V], view: ModelView, products: Products,
                 constants: Iterable[V] = ()):  # fmt: skip
        """`constants` are packed though the steps do not read them: a backward pass does."""
        self.program = program
        self.values = values
        self.steps = steps_of(values, len(program.loads))
        self.products = products
        self.dtype = torch_dtype(program.dtype)
        width = self.dtype.itemsize
        self.texts = {step: text_of(step, width, lanes_of(width)) for step in self.steps.passes()}
        """Name and LLVM's text of every pass."""
        self.shape = products.shape(width)
        """How weights are packed; None: as matrices."""
        read = [v.arg[0] for v in (*constants, *(v for step in self.texts for v in constants_of(step)))]
        self.weights = PackedWeights(program, view, self.dtype, torch.device("cpu"), dict.fromkeys(read), self.shape)
        size = aligned(self.steps.width * width)
        self.stride = size + ALIGNMENT if size and size % 1024 == 0 else size
        """Bytes of a workspace row: whole cache lines, and no multiple of a power of two that makes rows collide."""
        self._scratch = self.steps.scratch * width
        self._inputs = max((packed.rows for packed in program.weights), default=0) * width

    def transposed(self, pack: Pack, weight: int) -> torch.Tensor:
        """A packed weight transposed, packed too; made once per pack."""
        if weight not in pack.transposed:
            packed, matrix = self.program.weights[weight], pack.matrices[weight]
            if self.shape is None:
                pack.transposed[weight] = matrix.t().contiguous()
            else:
                pack.transposed[weight] = self.shape.pack(self.shape.unpack(matrix, packed.rows, packed.columns).t())
        return pack.transposed[weight]

    def scratch(self, rows: int) -> int:
        """Bytes of the scratch row, which products of so many rows use too."""
        return aligned(max(self._scratch, self.products.scratch(rows, self._inputs)))


Native = NativeKernel | ReductionKernel | ExcerptKernel


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Tables for some types with some weights. Never changes: threads share it, a change of weights makes a new one."""

    tables: Tables
    kernels: dict[int, Native]
    packs: dict[int, Pack]
    places: _Places
    products: NDArray[np.float64]
    """Per type, (types, 2): multiplications that a node's products take, and how many products a batch has; see
    `kernels.count_work`."""

    def holds(self, kernels: dict[int, Native]) -> bool:
        """True when the tables hold these kernels."""
        return all(self.kernels.get(kind) is kernel for kind, kernel in kernels.items())

    def serves(self, kernels: dict[int, Native]) -> bool:
        """True when the tables hold these kernels with their weights as they are now."""
        return self.holds(kernels) and all(
            not isinstance(kernel, NativeKernel) or kernel.weights.pack is self.packs[kind]
            for kind, kernel in kernels.items()
        )

    def renewed(self) -> Snapshot:
        """The same tables with the weights as they are now."""
        packs = _packs_of(self.kernels)
        tables, places = self.tables, self.places
        steps, pieces = tables.steps.copy(), tables.pieces.copy()
        for row, kind, weight in places.products:
            steps[row, _WEIGHT : _WEIGHT + 2] = _addresses(packs[kind], weight)
        for row, kind, parameter in places.parameters:
            pieces[row, 0] = address_of_parameter(packs[kind], parameter)
        return Snapshot(tables._replace(steps=steps, pieces=pieces), self.kernels, packs, places, self.products)


class _Places(NamedTuple):
    """Where in the tables addresses of packed weights stand."""

    products: list[tuple[int, int, int]]
    """Step, type and number of the weight."""
    parameters: list[tuple[int, int, V]]
    """Piece, type and the parameter."""


def snapshot(kernels: dict[int, Native]) -> Snapshot:
    """Tables for types given by number."""
    return _Writer(kernels).snapshot()


def _packs_of(kernels: dict[int, Native]) -> dict[int, Pack]:
    return {kind: kernel.weights.pack for kind, kernel in kernels.items() if isinstance(kernel, NativeKernel)}


def _addresses(pack: Pack, weight: int) -> tuple[int, int]:
    """Of a matrix and its bias, 0 for none."""
    bias = pack.biases[weight]
    return pack.matrices[weight].data_ptr(), bias.data_ptr() if bias is not None else 0


def address_of_parameter(pack: Pack, parameter: V) -> int:
    """Of the elements that a value reads."""
    reference, offset = parameter.arg
    found = pack.vectors[reference]
    return found.data_ptr() + offset * found.itemsize


class _Writer:
    def __init__(self, kernels: dict[int, Native]):
        self.kernels = kernels
        self.packs = _packs_of(kernels)
        self.places = _Places([], [])
        self.steps: list[list[int]] = []
        self.pieces: list[list[int]] = []
        native = [kernel for kernel in kernels.values() if isinstance(kernel, NativeKernel)]
        self.addresses = addresses_of(dict(named for kernel in native for named in kernel.texts.values()))

    def snapshot(self) -> Snapshot:
        num_types = max(self.kernels, default=-1) + 1
        code, num_operands, num_outputs, stride = np.zeros((4, num_types), np.int64)
        step_ptr = np.zeros(num_types + 1, np.int64)
        for kind in range(num_types):
            kernel = self.kernels.get(kind)
            if isinstance(kernel, ReductionKernel):
                code[kind] = REDUCTION + OPS.index(kernel.op)
                num_operands[kind] = num_outputs[kind] = kernel.num_fields
            elif isinstance(kernel, ExcerptKernel):
                code[kind], num_operands[kind], num_outputs[kind] = EXCERPT, 2, 1
            elif kernel is not None:
                code[kind], stride[kind] = PROGRAM, kernel.stride
                num_operands[kind], num_outputs[kind] = kernel.steps.num_operands, kernel.steps.num_outputs
                self._write(kind, kernel)
            step_ptr[kind + 1] = len(self.steps)
        tables = Tables(code, num_operands, num_outputs, step_ptr, _matrix(self.steps, STEP_FIELDS),
                        _matrix(self.pieces, PIECE_FIELDS), stride)  # fmt: skip
        return Snapshot(tables, dict(self.kernels), self.packs, self.places, self._products(num_types))

    def _products(self, num_types: int) -> NDArray[np.float64]:
        found = np.zeros((num_types, 2))
        for kind, kernel in self.kernels.items():
            if isinstance(kernel, NativeKernel):
                weights = kernel.program.weights
                found[kind] = sum(packed.rows * packed.columns for packed in weights), len(weights)
        return found

    def _write(self, kind: int, kernel: NativeKernel) -> None:
        for step in kernel.steps.steps:
            begin = len(self.pieces)
            row = [0] * STEP_FIELDS
            if isinstance(step, Multiply):
                self._multiply(row, step, kind, kernel)
            else:
                self._pass(row, step, kind, kernel)
            row[StepField.BEGIN : StepField.END + 1] = begin, len(self.pieces)
            self.steps.append(row)

    def _multiply(self, row: list[int], step: Multiply, kind: int, kernel: NativeKernel) -> None:
        self.places.products.append((len(self.steps), kind, step.weight))
        width, weight = kernel.dtype.itemsize, kernel.program.weights[step.weight]
        self.pieces += [[piece.slot, piece.offset * width, piece.size] for piece in step.pieces]
        addend = (-1, 0) if step.addend is None else _bytes(step.addend, kernel.dtype)
        row[: StepField.BEGIN] = [kernel.products.address(width), *_bytes(step.target, kernel.dtype), weight.rows,
                                  weight.columns, *_addresses(self.packs[kind], step.weight), *addend]  # fmt: skip

    def _pass(self, row: list[int], step: Pass, kind: int, kernel: NativeKernel) -> None:
        row[StepField.KERNEL] = self.addresses[kernel.texts[step][0]]
        for parameter in constants_of(step):
            self.places.parameters.append((len(self.pieces), kind, parameter))
            self.pieces.append([address_of_parameter(self.packs[kind], parameter)])


def _bytes(place: Place, dtype: torch.dtype) -> Place:
    return place[0], place[1] * dtype.itemsize


def _matrix(rows: Iterable[list[int]], fields: int) -> np.ndarray:
    """Rows padded with zeros to one length."""
    return np.array([row + [0] * (fields - len(row)) for row in rows], np.int64).reshape(-1, fields)
