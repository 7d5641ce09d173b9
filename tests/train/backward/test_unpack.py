"""Parts of packed gradients: joined where blocks adjoin, and each element where its parameter has it."""

from __future__ import annotations

import itertools

import torch

from edbc.capture.record.table import SharedRef
from edbc.cells.opgraph import Block
from edbc.cells.program import Packed, Placed, Program
from edbc.train.backward.typeadjoint import Adjoint, Slots, Vector, WeightProduct
from edbc.train.backward.unpack import Part, parts_of

W, V, B = SharedRef("w"), SharedRef("v"), SharedRef("b")


def adjoint(packed: Packed, vectors: tuple[Vector, ...] = ()) -> Adjoint:
    """One with one product."""
    program = Program(1, (), (), (), (packed,), "f32")
    weight = WeightProduct(0, 0, packed.columns, 0, packed.rows)
    return Adjoint(program, (), (), Slots(0, 0), packed.columns, 0, (weight,), (), 0, vectors)


def blocks(ref: SharedRef, cuts: list[tuple[int, int, int, int]], transposed: bool = False) -> list[Block]:
    """Blocks (top, bottom, left, right) of a parameter."""
    return [Block(ref, (a, b), (c, d), transposed, 8) for a, b, c, d in cuts]


def gathered(parts: tuple[Part, ...], packed: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """The gradient that the parts of weight 0 give a parameter."""
    result = torch.zeros(shape)
    for part in parts:
        if part.source == 1 and part.columns is not None and part.of_columns is not None:
            piece = packed[slice(*part.rows), slice(*part.columns)]
            rows, columns = slice(*part.of_rows), slice(*part.of_columns)
            if part.transposed:
                result[columns, rows] += piece.t()
            else:
                result[rows, columns] += piece
    return result


def test_four_blocks_in_order_are_one_part() -> None:
    """A parameter cut into gates and inputs that the packed matrix holds in the same order is one view."""
    cuts = [(0, 4, 0, 3), (0, 4, 3, 6), (4, 8, 0, 3), (4, 8, 3, 6)]
    for order in itertools.permutations(range(4)):
        placed = [Placed(blocks(W, cuts)[i], cuts[i][2], cuts[i][0]) for i in order]
        (part,) = parts_of(adjoint(Packed(6, 8, tuple(placed), ())))
        assert (part.rows, part.columns, part.of_rows, part.of_columns) == ((0, 8), (0, 6), (0, 8), (0, 6))
        assert part.is_alone


def test_blocks_in_another_order_stay_parts() -> None:
    """Gates that the layout permutes: rows are joined side by side, not across the gap, and nothing is lost."""
    cuts = [(0, 4, 0, 3), (0, 4, 3, 6), (4, 8, 0, 3), (4, 8, 3, 6)]
    placed = [Placed(b, c[2], 4 - c[0]) for b, c in zip(blocks(W, cuts), cuts, strict=True)]
    packed = torch.randn(8, 6)

    parts = parts_of(adjoint(Packed(6, 8, tuple(placed), ())))

    assert len(parts) == 2
    assert torch.equal(gathered(parts, packed, (8, 6)), torch.cat([packed[4:], packed[:4]]))


def test_blocks_at_one_place_are_not_alone() -> None:
    """Two parameters whose products are added share a piece: none may take it as a view."""
    placed = [Placed(b, 0, 0) for ref in (W, V) for b in blocks(ref, [(0, 8, 0, 6)])]
    parts = parts_of(adjoint(Packed(6, 8, tuple(placed), ())))
    assert [part.is_alone for part in parts] == [False, False]


def test_transposed_blocks_are_turned() -> None:
    """A parameter kept as (in, out)."""
    placed = [Placed(b, 0, 0) for b in blocks(W, [(0, 8, 0, 6)], transposed=True)]
    packed = torch.randn(8, 6)
    parts = parts_of(adjoint(Packed(6, 8, tuple(placed), ())))
    assert torch.equal(gathered(parts, packed, (6, 8)), packed.t())


def test_biases_and_vectors_are_parts_of_their_own() -> None:
    """Two biases at one place are not alone; vectors stand one after the other."""
    bias = Placed(Block(B, (2, 10), None, False, 10), 0, 0)
    of = adjoint(Packed(6, 8, (), (bias, bias)), (Vector(V, 0, 3), Vector(W, 3, 2)))

    first, second, *biases = parts_of(of)

    assert (first.ref, first.rows, first.of_rows) == (V, (0, 3), (0, 3))
    assert (second.ref, second.rows, second.of_rows) == (W, (3, 5), (3, 5))
    assert [(p.source, p.of_rows, p.is_alone) for p in biases] == [(2, (2, 10), False)] * 2
