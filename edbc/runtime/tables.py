"""Encoded programs with sizes in bytes and addresses filled in: what `walk` reads. One set of tables serves all
types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.cells.program import Program
from edbc.runtime.dimensions import ALONG, address_of_along
from edbc.runtime.excerpts import ExcerptKernel
from edbc.runtime.phases import (
    INSTRUCTION_FIELDS,
    PASS,
    PHASE_FIELDS,
    PRODUCT,
    SHARED,
    Constant,
    Encoded,
    Instruction,
    Multiply,
    Place,
    ProductField,
)
from edbc.runtime.pool import ALIGNMENT, aligned
from edbc.runtime.products import Products
from edbc.runtime.reduction import OPS, ReductionKernel
from edbc.runtime.walk import CODES, EXCERPT, PROGRAM, REDUCTION, Tables
from edbc.runtime.weights import Pack, PackedWeights
from edbc.trace.shadow import ModelView
from edbc.trace.values import torch_dtype

_WEIGHT = int(ProductField.WEIGHT)
"""The bias is in the next field."""
_CODE_OF_OPERATION = {name: code for code, name in enumerate(CODES)}


class NativeKernel:
    """An encoded program and its weights."""

    def __init__(self, program: Program, encoded: Encoded, view: ModelView, products: Products):
        self.program = program
        self.encoded = encoded
        self.products = products
        self.dtype = torch_dtype(program.dtype)
        self.shape = products.shape(self.dtype.itemsize)
        """How weights are packed; None: as matrices."""
        self.weights = PackedWeights(program, view, self.dtype, torch.device("cpu"), encoded.parameters(), self.shape)
        size = aligned(encoded.width * self.dtype.itemsize)
        self.stride = size + ALIGNMENT if size and size % 1024 == 0 else size
        """Bytes of a workspace row: whole cache lines, and no multiple of a power of two that makes rows collide."""
        self._scratch = encoded.scratch * self.dtype.itemsize
        self._inputs = max((packed.rows for packed in program.weights), default=0) * self.dtype.itemsize

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
    vectors: list[torch.Tensor] = field(repr=False)
    """Keeps alive what the tables hold the addresses of."""
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
        phases, instructions = tables.phases.copy(), tables.instructions.copy()
        for row, kind, weight in places.products:
            phases[row, _WEIGHT : _WEIGHT + 2] = _addresses(packs[kind], weight)
        for row, column, kind, vector in places.vectors:
            instructions[row, column] = _address(packs[kind], vector)
        renewed = tables._replace(phases=phases, instructions=instructions)
        return Snapshot(renewed, self.kernels, packs, self.vectors, places, self.products)


class _Places(NamedTuple):
    """Where in the tables addresses of packed weights stand."""

    products: list[tuple[int, int, int]]
    """Phase, type and number of the weight."""
    vectors: list[tuple[int, int, int, Constant]]
    """Instruction, field, type and the constant."""


def snapshot(kernels: dict[int, Native]) -> Snapshot:
    """Tables for types given by number."""
    return _Writer(kernels).snapshot()


def _packs_of(kernels: dict[int, Native]) -> dict[int, Pack]:
    return {kind: kernel.weights.pack for kind, kernel in kernels.items() if isinstance(kernel, NativeKernel)}


def _addresses(pack: Pack, weight: int) -> tuple[int, int]:
    """Of a matrix and its bias, 0 for none."""
    bias = pack.biases[weight]
    return pack.matrices[weight].data_ptr(), bias.data_ptr() if bias is not None else 0


def _address(pack: Pack, vector: Constant) -> int:
    found = pack.vectors[vector.value]  # type: ignore[index]
    return found.data_ptr() + vector.offset * found.itemsize


class _Writer:
    def __init__(self, kernels: dict[int, Native]):
        self.kernels = kernels
        self.packs = _packs_of(kernels)
        self.places = _Places([], [])
        self.phases: list[list[int]] = []
        self.instructions: list[list[int]] = []
        self.vectors: list[torch.Tensor] = []

    def snapshot(self) -> Snapshot:
        num_types = max(self.kernels, default=-1) + 1
        code, num_operands, num_outputs, stride = np.zeros((4, num_types), np.int64)
        phase_ptr = np.zeros(num_types + 1, np.int64)
        for kind in range(num_types):
            kernel = self.kernels.get(kind)
            if isinstance(kernel, ReductionKernel):
                code[kind] = REDUCTION + OPS.index(kernel.op)
                num_operands[kind] = num_outputs[kind] = kernel.num_fields
            elif isinstance(kernel, ExcerptKernel):
                code[kind], num_operands[kind], num_outputs[kind] = EXCERPT, 2, 1
            elif kernel is not None:
                code[kind], stride[kind] = PROGRAM, kernel.stride
                num_operands[kind], num_outputs[kind] = kernel.encoded.num_operands, kernel.encoded.num_outputs
                self._write(kind, kernel)
            phase_ptr[kind + 1] = len(self.phases)
        tables = Tables(code, num_operands, num_outputs, phase_ptr, _matrix(self.phases, PHASE_FIELDS),
                        _matrix(self.instructions, INSTRUCTION_FIELDS), stride)  # fmt: skip
        return Snapshot(tables, dict(self.kernels), self.packs, self.vectors, self.places, self._products(num_types))

    def _products(self, num_types: int) -> NDArray[np.float64]:
        found = np.zeros((num_types, 2))
        for kind, kernel in self.kernels.items():
            if isinstance(kernel, NativeKernel):
                weights = kernel.program.weights
                found[kind] = sum(packed.rows * packed.columns for packed in weights), len(weights)
        return found

    def _write(self, kind: int, kernel: NativeKernel) -> None:
        for phase in kernel.encoded.phases:
            if isinstance(phase, Multiply):
                row = self._multiply(phase, kind, kernel)
            else:
                is_along = any(instruction.op in ALONG for instruction in phase)
                row = [PASS, len(self.instructions), len(self.instructions) + len(phase)]
                if is_along:
                    row.append(address_of_along(kernel.dtype.itemsize))
                for instruction in phase:
                    self.instructions.append(self._instruction(instruction, kind, kernel.dtype))
            self.phases.append(row)

    def _multiply(self, phase: Multiply, kind: int, kernel: NativeKernel) -> list[int]:
        self.places.products.append((len(self.phases), kind, phase.weight))
        width, weight = kernel.dtype.itemsize, kernel.program.weights[phase.weight]
        begin = len(self.instructions)
        self.instructions += [[piece.slot, piece.offset * width, piece.size] for piece in phase.pieces]
        addend = (-1, 0) if phase.addend is None else _bytes(phase.addend, kernel.dtype)
        return [PRODUCT, kernel.products.address(width), *_bytes(phase.target, kernel.dtype), weight.rows,
                weight.columns, *_addresses(self.packs[kind], phase.weight), *addend, begin,
                len(self.instructions)]  # fmt: skip

    def _instruction(self, instruction: Instruction, kind: int, dtype: torch.dtype) -> list[int]:
        row = [_CODE_OF_OPERATION[instruction.op], instruction.size]
        for place in (instruction.target, *instruction.sources):
            if isinstance(place, Constant):
                row += [SHARED, self._constant(place, kind, len(row) + 1, dtype)]
            else:
                row += _bytes(place, dtype)
        if not any(instruction.shape):
            return row
        return [*row, *[0] * (8 - len(row)), *instruction.shape]

    def _constant(self, constant: Constant, kind: int, column: int, dtype: torch.dtype) -> int:
        if isinstance(constant.value, int | float):
            vector = torch.full((constant.size,), constant.value, dtype=dtype)
            self.vectors.append(vector)
            return vector.data_ptr()
        self.places.vectors.append((len(self.instructions), column, kind, constant))
        return _address(self.packs[kind], constant)


def _bytes(place: Place, dtype: torch.dtype) -> Place:
    return place[0], place[1] * dtype.itemsize


def _matrix(rows: Iterable[list[int]], fields: int) -> np.ndarray:
    """Rows padded with zeros to one length."""
    return np.array([row + [0] * (fields - len(row)) for row in rows], np.int64).reshape(-1, fields)
