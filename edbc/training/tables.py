"""Adjoints of types with sizes in bytes, as arrays: what `training.walk` reads. One set of tables serves all types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from edbc.graph import NodeType, ValueClass
from edbc.kernels.loops import constants_of, text_of
from edbc.kernels.machinecode import addresses_of
from edbc.kernels.microkernel import lanes_of
from edbc.kernels.products import Products
from edbc.kernels.steps import PIECE_FIELDS, STEP_FIELDS, Multiply, Pass, StepField
from edbc.kernels.value import V
from edbc.runtime.placement import Placement
from edbc.runtime.pool import ALIGNMENT, aligned
from edbc.trace.values import torch_dtype
from edbc.training.adjoint import Adjoint
from edbc.training.unpack import Part, parts_of
from edbc.training.walk import EXCERPT, EXTREME, MEAN, PROGRAM, SUM, Adjoints

REDUCTIONS = {"sum": SUM, "mean": MEAN, "max": EXTREME, "min": EXTREME}
"""Reductions that are differentiated natively."""
COPIES = {**REDUCTIONS, "excerpt": EXCERPT}
"""These and excerpts."""


BLOCK = 128
"""Rows of a batch that are differentiated together: few enough for workspace and weights to stay in cache."""
WEIGHT_BLOCK = 512
"""Rows of a product of weights."""
_HIDDEN_RANK = 16


def hidden_class(size: int, dtype: str) -> ValueClass:
    """The class of what a type saves, or keeps, `size` elements: one that no value of a model has."""
    return ValueClass((size, *(1,) * (_HIDDEN_RANK - 1)), dtype)


def with_hidden_outputs(node_type: NodeType, adjoint: Adjoint) -> NodeType:
    """The type with what it saves and keeps as further outputs."""
    dtype = adjoint.program.dtype
    hidden = tuple(hidden_class(size, dtype) for size in (adjoint.saved, adjoint.kept) if size)
    return replace(node_type, outputs=(*node_type.outputs, *hidden))


def workspace_stride(adjoint: Adjoint) -> int:
    """Bytes of a workspace row: whole cache lines, and no multiple of a power of two that makes rows collide."""
    size = aligned(adjoint.steps.width * torch_dtype(adjoint.program.dtype).itemsize)
    return size + ALIGNMENT if size and size % 1024 == 0 else size


def product_bytes(adjoint: Adjoint) -> int:
    """Memory for a block of the products of a type's weights: gathered inputs, and deltas."""
    width = torch_dtype(adjoint.program.dtype).itemsize
    return aligned(WEIGHT_BLOCK * (adjoint.input_width + adjoint.saved) * width) if adjoint.weights else 0


def bytes_in_training(placement: Placement, adjoints: Iterable[Adjoint]) -> int:
    """What the numbers of a forward and a backward pass take: values, gradients, and what products wait in (definitions
    (2) to (4) of `training.native`); without what the widest batch works in."""
    rows = (placement.class_rows - placement.class_externals) * placement.row_bytes
    times = np.array([1 if len(c.shape) == _HIDDEN_RANK else 2 for c in placement.classes], np.int64)
    waiting = sum(map(product_bytes, adjoints)) if len(placement.borders) > 2 else 0
    return int((rows * times).sum()) + waiting


class Places(NamedTuple):
    """Where in the tables addresses of weights stand."""

    products: list[tuple[int, int, int]]
    """Step, type and number of the weight, which is transposed there."""
    parameters: list[tuple[int, int, V]]
    """Piece, type and the parameter."""


@dataclass(frozen=True, eq=False)
class TypeTables:
    """Tables for some types, without addresses of weights, and where the products of each begin."""

    adjoints: Mapping[int, Adjoint]
    reductions: Mapping[int, str]
    first_product: Mapping[int, int]
    arrays: Adjoints
    places: Places
    scratch: int
    """Bytes of the scratch row."""
    multiply: Products
    parts: Mapping[int, tuple[Part, ...]]
    """What the gradients of each type's packed weights are."""


def tables_of(adjoints: Mapping[int, Adjoint], reductions: Mapping[int, tuple[str, int]], placement: Placement,
              products: Products) -> TypeTables:  # fmt: skip
    """Tables for types given by number; reductions by operation and number of fields."""
    return _Writer(adjoints, reductions, placement, products).tables()


class _Writer:
    def __init__(self, adjoints: Mapping[int, Adjoint], reductions: Mapping[int, tuple[str, int]],
                 placement: Placement, products: Products):  # fmt: skip
        self.adjoints = adjoints
        self.reductions = reductions
        self.placement = placement
        self.multiply = products
        self.places = Places([], [])
        self.steps: list[list[int]] = []
        self.pieces: list[list[int]] = []
        self.products: list[list[int]] = []
        self.inputs: list[list[int]] = []
        self.texts: dict[int, dict[Pass, tuple[str, str]]] = {}
        for kind, adjoint in adjoints.items():
            width = _width(adjoint)
            self.texts[kind] = {step: text_of(step, width, lanes_of(width)) for step in adjoint.steps.passes()}
        self.addresses = addresses_of(dict(named for texts in self.texts.values() for named in texts.values()))

    def tables(self) -> TypeTables:
        num_types = len(self.placement.operand_class)
        code, num_operands, num_outputs, stride, input_stride = np.zeros((5, num_types), np.int64)
        saved, kept = np.full((2, num_types), -1, np.int64)
        ptr = np.zeros((3, num_types + 1), np.int64)
        first_product: dict[int, int] = {}
        for kind in range(num_types):
            adjoint = self.adjoints.get(kind)
            if kind in self.reductions:
                op, fields = self.reductions[kind]
                code[kind], num_operands[kind], num_outputs[kind] = COPIES[op], fields, fields
            elif adjoint is not None:
                first_product[kind] = len(self.products)
                code[kind], stride[kind] = PROGRAM, workspace_stride(adjoint)
                num_operands[kind], num_outputs[kind] = outputs = adjoint.slots.operands, adjoint.slots.outputs
                saved[kind] = outputs[1] if adjoint.saved else -1
                kept[kind] = outputs[1] + (adjoint.saved > 0) if adjoint.kept else -1
                input_stride[kind] = adjoint.input_width * _width(adjoint)
                self._write(kind, adjoint, _width(adjoint))
            ptr[:, kind + 1] = len(self.steps), len(self.products), len(self.inputs)
        arrays = Adjoints(
            code, num_operands, num_outputs, self.placement.operand_class, self.placement.output_class, saved, kept,
            stride, ptr[0], _matrix(self.steps, STEP_FIELDS), _matrix(self.pieces, PIECE_FIELDS), ptr[1],
            _matrix(self.products, 4), ptr[2], _matrix(self.inputs, 4), input_stride,
        )  # fmt: skip
        scratch = max(map(self._scratch, self.adjoints.values()), default=0)
        parts = {kind: parts_of(adjoint) for kind, adjoint in self.adjoints.items()}
        reductions = {kind: op for kind, (op, _) in self.reductions.items()}
        return TypeTables(self.adjoints, reductions, first_product, arrays, self.places, scratch, self.multiply, parts)

    def _scratch(self, adjoint: Adjoint) -> int:
        widest = max((packed.columns for packed in adjoint.program.weights), default=0)
        of_products = self.multiply.scratch(BLOCK, widest * _width(adjoint))
        return aligned(max(adjoint.steps.scratch * _width(adjoint), of_products))

    def _write(self, kind: int, adjoint: Adjoint, width: int) -> None:
        for step in adjoint.steps.steps:
            begin, row = len(self.pieces), [0] * STEP_FIELDS
            if isinstance(step, Multiply):
                self.places.products.append((len(self.steps), kind, step.weight))
                self.pieces += [[piece.slot, piece.offset * width, piece.size] for piece in step.pieces]
                packed = adjoint.program.weights[step.weight]
                row[: StepField.BEGIN] = [self.multiply.address(width), step.target[0], step.target[1] * width,
                                          packed.columns, packed.rows, 0, 0, -1, 0]  # fmt: skip
            else:
                row[StepField.KERNEL] = self.addresses[self.texts[kind][step][0]]
                for parameter in constants_of(step):
                    self.places.parameters.append((len(self.pieces), kind, parameter))
                    self.pieces.append([])
            row[StepField.BEGIN : StepField.END + 1] = begin, len(self.pieces)
            self.steps.append(row)
        for product in adjoint.weights:
            self.products.append([product.delta * width, product.columns, product.column * width, product.rows])
        for item in adjoint.inputs:
            self.inputs.append([item.place[0], item.place[1] * width, item.size * width, item.column * width])


def _width(adjoint: Adjoint) -> int:
    return torch_dtype(adjoint.program.dtype).itemsize


def _matrix(rows: Iterable[list[int]], fields: int) -> np.ndarray:
    """Rows padded with zeros to one length."""
    return np.array([row + [0] * (fields - len(row)) for row in rows], np.int64).reshape(-1, fields)
