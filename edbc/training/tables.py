"""Adjoints of types with sizes in bytes, as arrays: what `training.walk` reads. One set of tables serves all types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edbc.graph import NodeType, ValueClass
from edbc.runtime.placement import Placement
from edbc.runtime.pool import ALIGNMENT, aligned
from edbc.runtime.rowops import OPERATIONS
from edbc.trace.values import torch_dtype
from edbc.training.adjoint import Adjoint
from edbc.training.derivatives import GRADIENTS
from edbc.training.instructions import MATRIX_GRADIENTS, WORKSPACE, BackProduct, Instruction, Phase
from edbc.training.unpack import Part, parts_of
from edbc.training.walk import (
    EXCERPT,
    EXTREME,
    FIRST_GRADIENT,
    FIRST_MATRIX,
    MEAN,
    PASS,
    PRODUCT,
    PROGRAM,
    SUM,
    Adjoints,
)

_OPERATION = {name: code for code, name in enumerate(OPERATIONS)}
_GRADIENT = {name: code for code, name in enumerate(GRADIENTS)}
REDUCTIONS = {"sum": SUM, "mean": MEAN, "max": EXTREME, "min": EXTREME}
"""Reductions that are differentiated natively."""
COPIES = {**REDUCTIONS, "excerpt": EXCERPT}
"""These and excerpts."""


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
    size = aligned(adjoint.width * torch_dtype(adjoint.program.dtype).itemsize)
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


@dataclass(frozen=True, eq=False)
class TypeTables:
    """Tables for some types, and where the products of each begin."""

    adjoints: Mapping[int, Adjoint]
    reductions: Mapping[int, str]
    first_product: Mapping[int, int]
    arrays: Adjoints
    parts: Mapping[int, tuple[Part, ...]]
    """What the gradients of each type's packed weights are."""


def tables_of(adjoints: Mapping[int, Adjoint], reductions: Mapping[int, tuple[str, int]],
              placement: Placement) -> TypeTables:  # fmt: skip
    """Tables for types given by number; reductions by operation and number of fields."""
    return _Writer(adjoints, reductions, placement).tables()


class _Writer:
    def __init__(self, adjoints: Mapping[int, Adjoint], reductions: Mapping[int, tuple[str, int]],
                 placement: Placement):  # fmt: skip
        self.adjoints = adjoints
        self.reductions = reductions
        self.placement = placement
        self.slots: list[int] = []
        self.phases: list[list[int]] = []
        self.instructions: list[list[int]] = []
        self.products: list[list[int]] = []
        self.inputs: list[list[int]] = []

    def tables(self) -> TypeTables:
        num_types = len(self.placement.operand_class)
        code, num_operands, num_outputs, stride, input_stride = np.zeros((5, num_types), np.int64)
        saved, kept = np.full((2, num_types), -1, np.int64)
        ptr = np.zeros((4, num_types + 1), np.int64)
        first_product: dict[int, int] = {}
        for kind in range(num_types):
            adjoint = self.adjoints.get(kind)
            if kind in self.reductions:
                op, fields = self.reductions[kind]
                code[kind], num_operands[kind], num_outputs[kind] = COPIES[op], fields, fields
            elif adjoint is not None:
                first_product[kind] = len(self.products)
                width = torch_dtype(adjoint.program.dtype).itemsize
                code[kind], stride[kind] = PROGRAM, workspace_stride(adjoint)
                num_operands[kind], num_outputs[kind] = adjoint.num_operands, adjoint.num_outputs
                saved[kind] = adjoint.num_outputs if adjoint.saved else -1
                kept[kind] = adjoint.num_outputs + (adjoint.saved > 0) if adjoint.kept else -1
                input_stride[kind] = adjoint.input_width * width
                self._write(adjoint, width)
            ptr[:, kind + 1] = len(self.slots), len(self.phases), len(self.products), len(self.inputs)
        arrays = Adjoints(
            code, num_operands, num_outputs, self.placement.operand_class, self.placement.output_class, saved, kept,
            stride, ptr[0], np.array(self.slots, np.int64), ptr[1], _matrix(self.phases, 6),
            _matrix(self.instructions, 14), ptr[2], _matrix(self.products, 4), ptr[3], _matrix(self.inputs, 4),
            input_stride,
        )  # fmt: skip
        return TypeTables(self.adjoints, {k: op for k, (op, _) in self.reductions.items()}, first_product, arrays,
                          {kind: parts_of(adjoint) for kind, adjoint in self.adjoints.items()})  # fmt: skip

    def _write(self, adjoint: Adjoint, width: int) -> None:
        rank = {product.weight: number for number, product in enumerate(adjoint.weights)}
        for phase in adjoint.phases:
            if isinstance(phase, BackProduct):
                product = adjoint.weights[rank[phase.weight]]
                self.phases.append([PRODUCT, phase.delta * width, product.columns, phase.target * width, product.rows,
                                    rank[phase.weight]])  # fmt: skip
            else:
                self.phases.append([PASS, len(self.instructions), len(self.instructions) + len(phase)])
                self.instructions += [_instruction(item, width) for item in phase]
        self.slots += sorted(_slots(adjoint.phases) - {WORKSPACE})
        for product in adjoint.weights:
            self.products.append([product.delta * width, product.columns, product.column * width, product.rows])
        for item in adjoint.inputs:
            self.inputs.append([item.place[0], item.place[1] * width, item.size * width, item.column * width])


def _instruction(item: Instruction, width: int) -> list[int]:
    if item.shape:
        code = FIRST_MATRIX + 2 * MATRIX_GRADIENTS.index(item.op) + item.adds
    else:
        code = FIRST_GRADIENT + 2 * _GRADIENT[item.op] + item.adds if item.is_gradient else _OPERATION[item.op]
    row = [code, item.size]
    for slot, offset in (item.target, *item.sources):
        row += [slot, offset * width]
    return [*row, 0, 0, *item.shape] if item.shape else row


def _slots(phases: Iterable[Phase]) -> set[int]:
    items = [item for phase in phases if not isinstance(phase, BackProduct) for item in phase]
    return {place[0] for item in items for place in (item.target, *item.sources)}


def _matrix(rows: Iterable[list[int]], fields: int) -> np.ndarray:
    """Rows padded with zeros to one length."""
    return np.array([row + [0] * (fields - len(row)) for row in rows], np.int64).reshape(-1, fields)
