"""Adjoints of types as arrays: what `training.walk` reads. One set of tables serves all types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edbc.base.graph import HIDDEN_RANK, NodeType, ValueClass
from edbc.cells.kernels.steptables import StepTable, matrix, table_of
from edbc.native.pool import aligned
from edbc.run.passes.placement import Placement
from edbc.train.backward.backwalk import EXCERPT, EXTREME, FIRST, MEAN, PROGRAM, SUM, Adjoints
from edbc.train.backward.typeadjoint import Adjoint
from edbc.train.backward.unpack import Part, parts_of

REDUCTIONS = {"sum": SUM, "mean": MEAN, "amax": EXTREME, "amin": EXTREME, "max": FIRST, "min": FIRST}
"""Reductions that are differentiated natively."""
COPIES = {**REDUCTIONS, "excerpt": EXCERPT}
"""These and excerpts."""


BLOCK = 128
"""Rows of a batch that are differentiated together: few enough for workspace and weights to stay in cache."""
WEIGHT_BLOCK = 512
"""Rows of a product of weights."""


def hidden_class(size: int, dtype: str) -> ValueClass:
    """The class of what a type saves, or keeps, `size` elements: one that no value of a model has."""
    return ValueClass((size, *(1,) * (HIDDEN_RANK - 1)), dtype)


def with_hidden_outputs(node_type: NodeType, adjoint: Adjoint) -> NodeType:
    """The type with what it saves and keeps as further outputs."""
    dtype = adjoint.program.dtype
    hidden = tuple(hidden_class(size, dtype) for size in (adjoint.saved, adjoint.kept) if size)
    return replace(node_type, outputs=(*node_type.outputs, *hidden))


def product_bytes(adjoint: Adjoint) -> int:
    """Memory for a block of the products of a type's weights: gathered inputs, and deltas."""
    row = (adjoint.input_width + adjoint.saved) * adjoint.rendered.width
    return aligned(WEIGHT_BLOCK * row) if adjoint.weights else 0


def bytes_in_training(placement: Placement, adjoints: Iterable[Adjoint]) -> int:
    """What the numbers of a forward and a backward pass take: values, gradients, and what products wait in (definitions
    (2) to (4) of `training.native`); without what the widest batch works in."""
    rows = (placement.class_rows - placement.class_externals) * placement.row_bytes
    times = np.array([1 if len(c.shape) == HIDDEN_RANK else 2 for c in placement.classes], np.int64)
    waiting = sum(map(product_bytes, adjoints)) if len(placement.borders) > 2 else 0
    return int((rows * times).sum()) + waiting


@dataclass(frozen=True, eq=False)
class TypeTables:
    """Tables for some types, without addresses of weights, and where the products of each begin."""

    adjoints: Mapping[int, Adjoint]
    reductions: Mapping[int, str]
    first_product: Mapping[int, int]
    arrays: Adjoints
    steps: StepTable
    scratch: int
    """Bytes of the scratch row."""
    parts: Mapping[int, tuple[Part, ...]]
    """What the gradients of each type's packed weights are."""
    leaders: Mapping[int, int]
    """Of each type the first whose packed weights are the same: their gradients add up in the same memory."""


def tables_of(
    adjoints: Mapping[int, Adjoint], reductions: Mapping[int, tuple[str, int]], placement: Placement
) -> TypeTables:
    """Tables for types given by number; reductions by operation and number of fields."""
    num_types = len(placement.operand_class)
    code, num_operands, num_outputs, stride, input_stride = np.zeros((5, num_types), np.int64)
    saved, kept = np.full((2, num_types), -1, np.int64)
    ptr = np.zeros((2, num_types + 1), np.int64)
    first_product: dict[int, int] = {}
    of_products: list[list[int]] = []
    of_inputs: list[list[int]] = []
    for kind in range(num_types):
        adjoint = adjoints.get(kind)
        if kind in reductions:
            op, fields = reductions[kind]
            code[kind], num_operands[kind], num_outputs[kind] = COPIES[op], fields, fields
        elif adjoint is not None:
            width, slots = adjoint.rendered.width, adjoint.slots
            first_product[kind] = len(of_products)
            code[kind], stride[kind] = PROGRAM, adjoint.rendered.stride
            num_operands[kind], num_outputs[kind] = slots.operands, slots.outputs
            saved[kind] = slots.outputs if adjoint.saved else -1
            kept[kind] = slots.outputs + (adjoint.saved > 0) if adjoint.kept else -1
            input_stride[kind] = adjoint.input_width * width
            of_products += ([p.delta * width, p.columns, p.column * width, p.rows] for p in adjoint.weights)
            of_inputs += ([i.place[0], i.place[1] * width, i.size * width, i.column * width] for i in adjoint.inputs)
        ptr[:, kind + 1] = len(of_products), len(of_inputs)
    rendered = {kind: adjoint.rendered for kind, adjoint in adjoints.items()}
    parts = {kind: parts_of(adjoint) for kind, adjoint in adjoints.items()}
    first: dict[Any, int] = {}
    leaders = {kind: first.setdefault((parts[kind], *_weights(adjoint)), kind) for kind, adjoint in adjoints.items()}
    steps = table_of(rendered, num_types, leaders)
    arrays = Adjoints(
        code, num_operands, num_outputs, placement.operand_class, placement.output_class, saved, kept, stride,
        steps.ptr, steps.steps, steps.pieces, ptr[0], matrix(of_products, 4), ptr[1], matrix(of_inputs, 4),
        input_stride,
    )  # fmt: skip
    scratch = max((one.scratch for one in rendered.values()), default=0)
    of_reductions = {kind: op for kind, (op, _) in reductions.items()}
    return TypeTables(adjoints, of_reductions, first_product, arrays, steps, scratch, parts, leaders)


def _weights(adjoint: Adjoint) -> tuple[Any, ...]:
    """What it packs, and the sizes of the gradients of that."""
    sizes = tuple((product.weight, product.columns, product.rows) for product in adjoint.weights)
    return adjoint.program.dtype, tuple(adjoint.program.weights), sizes, sum(vector.size for vector in adjoint.vectors)
