"""Gradients of packed weights as gradients of the parameters that they are blocks of.

Definitions.

(1) A *part* is a piece of a packed gradient, (out, in) as parameters are, or of a packed bias or vector, and where it
    belongs in a parameter. Blocks of one parameter that adjoin in both are one part.
(2) The first gradient that a parameter gets is a view of the packed one where it is the whole parameter and no other
    part reads the same piece; all others are added. What is added to a view later is added to a piece that no other
    parameter sees.
(3) A weight that is read transposed (`value.turned_reference`) is a vector of its own, whose gradient is turned once,
    when all nodes have added theirs: element by element for each node, that took longer than the product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from edbc.capture.record.table import SharedRef
from edbc.cells.program import Packed, Placed
from edbc.cells.values.value import before_turning, root_of
from edbc.train.backward.typeadjoint import Adjoint

Range = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """Definition (1): rows and columns of packed gradient number `source`, and of a parameter."""

    ref: SharedRef
    source: int
    """0: vectors; 2 k + 1: weight k; 2 k + 2: bias k of an adjoint's weights."""
    rows: Range
    columns: Range | None
    """None for biases and vectors, which are flat."""
    of_rows: Range
    of_columns: Range | None
    transposed: bool = False
    is_alone: bool = True
    read_as: SharedRef | None = None
    """Of a vector, which may be of the parameter transposed (`value.turned_reference`): `of_rows` are of this."""


def parts_of(adjoint: Adjoint) -> tuple[Part, ...]:
    """Every part of an adjoint's gradients."""
    parts = list(_of_vectors(adjoint))
    for k, product in enumerate(adjoint.weights):
        packed = adjoint.program.weights[product.weight]
        parts += _joined(_of_blocks(packed, 2 * k + 1))
        parts += _of_biases(packed, 2 * k + 2)
    return tuple(parts)


def _of_vectors(adjoint: Adjoint) -> Iterator[Part]:
    offset = 0
    for vector in adjoint.vectors:
        stop, of_rows = offset + vector.size, (vector.offset, vector.offset + vector.size)
        yield Part(root_of(vector.ref), 0, (offset, stop), None, of_rows, None, read_as=vector.ref)
        offset = stop


def turned_back(ref: SharedRef, first: int, piece: torch.Tensor) -> tuple[int, torch.Tensor]:
    """A piece of what a parameter is transposed, from an element on, as one of the parameter itself."""
    while (turned := before_turning(ref)) is not None:
        ref, at, rows, columns = turned
        whole = piece.new_zeros(rows * columns)
        whole[first : first + len(piece)] = piece
        first, piece = at, whole.view(columns, rows).t().reshape(-1)
    return first, piece


def _of_blocks(packed: Packed, source: int) -> list[Part]:
    places = Counter((placed.row, placed.column) for placed in packed.blocks)
    return [_of_block(placed, source, places[placed.row, placed.column] == 1) for placed in packed.blocks]


def _of_block(placed: Placed, source: int, is_alone: bool) -> Part:
    block = placed.block
    assert block.columns is not None
    rows = placed.column, placed.column + block.rows[1] - block.rows[0]
    columns = placed.row, placed.row + block.columns[1] - block.columns[0]
    return Part(block.ref, source, rows, columns, block.rows, block.columns, block.transposed, is_alone)


def _of_biases(packed: Packed, source: int) -> list[Part]:
    places = Counter(placed.column for placed in packed.biases)
    return [
        Part(placed.block.ref, source, (placed.column, placed.column + placed.block.rows[1] - placed.block.rows[0]),
             None, placed.block.rows, None, is_alone=places[placed.column] == 1)
        for placed in packed.biases
    ]  # fmt: skip


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Definition (1): blocks side by side first, then what that made one below the other."""
    for by_columns in (True, False):
        ordered = sorted(parts, key=lambda p: (p.rows, p.columns) if by_columns else (p.columns, p.rows))
        joined: list[Part] = []
        for part in ordered:
            one = _join(joined[-1], part, by_columns) if joined else None
            if one is not None:
                joined.pop()
            joined.append(one or part)
        parts = joined
    return list(parts)


def _join(left: Part, right: Part, by_columns: bool) -> Part | None:
    """Two neighbours as one part, or None."""
    if left.ref != right.ref or left.transposed or right.transposed or not (left.is_alone and right.is_alone):
        return None
    pairs = ((left.rows, right.rows), (left.of_rows, right.of_rows))
    others = ((left.columns, right.columns), (left.of_columns, right.of_columns))
    if by_columns:
        pairs, others = others, pairs  # type: ignore[assignment]
    if any(a != b for a, b in others) or any(a[1] != b[0] for a, b in pairs):
        return None
    here, there = ((a[0], b[1]) for a, b in pairs)
    if by_columns:
        return Part(left.ref, left.source, left.rows, here, left.of_rows, there)
    return Part(left.ref, left.source, here, left.columns, there, left.of_columns)
