"""Packing by one native call equals placing block after block."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.capture.record.table import SharedRef
from edbc.cells.opgraph import Block
from edbc.cells.program import Packed, Placed
from edbc.run.weights.packing import can_move, moves_of

CPU = torch.device("cpu")
Case = tuple[Packed, dict[SharedRef, torch.Tensor]]


@st.composite
def packings(draw: st.DrawFn) -> Case:
    """A grid of blocks, some missing, some shared by two parameters, cut from larger parameters or whole; a bias."""
    heights = draw(st.lists(st.integers(1, 37), min_size=1, max_size=3))
    widths = draw(st.lists(st.integers(1, 37), min_size=1, max_size=3))
    tensors: dict[SharedRef, torch.Tensor] = {}
    blocks, biases = [], []
    for i, height in enumerate(heights):
        for j, width in enumerate(widths):
            for _ in range(draw(st.integers(0, 2))):
                transposed, (top, left) = draw(st.booleans()), draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
                ref, whole = SharedRef(f"w{len(tensors)}"), (width + top, height + left)
                tensors[ref] = torch.randn(whole[::-1] if transposed else whole, dtype=torch.float64)
                block = Block(ref, (top, top + width), (left, left + height), transposed, whole[0])
                blocks.append(Placed(block, sum(heights[:i]), sum(widths[:j])))
    for j, width in enumerate(widths):
        for _ in range(draw(st.integers(0, 2))):
            ref = SharedRef(f"b{len(tensors)}")
            tensors[ref] = torch.randn(width + 1, dtype=torch.float64)
            biases.append(Placed(Block(ref, (1, width + 1), None, False, width + 1), 0, sum(widths[:j])))
    return Packed(sum(heights), sum(widths), tuple(blocks), tuple(biases)), tensors


def reference(packed: Packed, tensors: dict[SharedRef, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition of Packed."""
    matrix, bias = torch.zeros(packed.rows, packed.columns), torch.zeros(packed.columns)
    matrix, bias = matrix.double(), bias.double()
    for placed in packed.blocks:
        assert placed.block.columns is not None
        whole = tensors[placed.block.ref] if placed.block.transposed else tensors[placed.block.ref].t()
        block = whole[slice(*placed.block.columns), slice(*placed.block.rows)]
        matrix[placed.row : placed.row + len(block), placed.column : placed.column + block.shape[1]] += block
    for placed in packed.biases:
        block = tensors[placed.block.ref][slice(*placed.block.rows)]
        bias[placed.column : placed.column + len(block)] += block
    return matrix, bias


@pytest.mark.compiled
@settings(derandomize=True, deadline=None, max_examples=60)
@given(cases=st.lists(packings(), min_size=1, max_size=2), single=st.booleans(), in_torch=st.booleans())
def test_moves_equal_the_reference(cases: list[Case], single: bool, in_torch: bool) -> None:
    """Blocks of every size, transposed or not, added where they share a place, zeros where none stands; natively, and
    in torch where they are cast."""
    packs = [packed for packed, _ in cases]
    renamed = [{SharedRef(f"{n}.{ref.name}"): t for ref, t in of.items()} for n, (_, of) in enumerate(cases)]
    tensors = {ref: t.float() if single else t for of in renamed for ref, t in of.items()}
    packs = [_renamed(packed, n) for n, packed in enumerate(packs)]
    dtype = torch.float32 if single else torch.float64
    moves = moves_of(packs, {ref: tuple(t.shape) for ref, t in tensors.items()})
    given = [t.double() for t in tensors.values()] if in_torch else [*tensors.values()]
    assert can_move(given, dtype, CPU) == (not in_torch or not single or not tensors)

    for packed, (matrix, bias) in zip(packs, moves.pack(given, dtype, CPU), strict=True):
        expected, expected_bias = reference(packed, {ref: t.double() for ref, t in tensors.items()})
        torch.testing.assert_close(matrix.double(), expected, rtol=1e-6, atol=1e-6 if single else 0)
        if bias is not None:
            torch.testing.assert_close(bias.double(), expected_bias, rtol=1e-6, atol=1e-6 if single else 0)
        assert (bias is None) == (not packed.biases)


def _renamed(packed: Packed, number: int) -> Packed:
    def placed(p: Placed) -> Placed:
        b = p.block
        ref = SharedRef(f"{number}.{b.ref.name}")
        return Placed(Block(ref, b.rows, b.columns, b.transposed, b.total_rows), p.row, p.column)

    return Packed(packed.rows, packed.columns, tuple(map(placed, packed.blocks)), tuple(map(placed, packed.biases)))


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.zeros(4, 4, dtype=torch.bfloat16)],
        [torch.zeros(4, 4), torch.zeros(4, 4, dtype=torch.float64)],
        [torch.zeros(4, 4).t(), torch.zeros(4, 6)[:, :4]],
    ],
)
def test_other_tensors_are_left_to_torch(tensors: list[torch.Tensor]) -> None:
    """Other dtypes, two dtypes, gaps between rows."""
    assert not can_move(tensors, tensors[0].dtype, CPU)
