"""Products of our own: the same numbers as a product in float64, and the same bits in any company."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.cells.kernels.microkernel import Shape, address_of_product, shape_of, text_of
from edbc.cells.kernels.steps import PIECE_FIELDS, STEP_FIELDS
from edbc.native.machinecode import address_of

pytestmark = pytest.mark.compiled
DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
TOLERANCES = {2: 1e-2, 4: 2e-5, 8: 1e-13}
WIDTHS = [pytest.param(2, marks=pytest.mark.skipif(shape_of(2) is None, reason="multiplies no bfloat16")), 4, 8]
TILES = {"own": None, "avx": (32, 2, 6), "sse": (16, 3, 3)}
"""Bytes of a vector, vectors and rows; None: as this processor has them."""
CUTS = st.lists(st.integers(1, 70), max_size=3)


def tiles(name: str, width: int) -> tuple[Shape, int]:
    """Tiles of `TILES`, and the address of their kernel."""
    found = TILES[name]
    if found is None:
        shape = shape_of(width)
        assert shape is not None
        return shape, address_of_product(width)
    vector, *counts = found
    shape = Shape(width, vector // width, *counts)
    function = f"{name}_product_of_{width}"
    text = text_of(shape).replace("@edbc_product_f32(", f"@{function}(").replace("@edbc_product_f64(", f"@{function}(")
    return shape, address_of(function, text)


class Product:
    """Operands in pieces that stand in rows of different places, an optional bias and addend, and a weight."""

    def __init__(self, sizes: list[int], columns: int, rows: int, width: int, seed: int,
                 biased: bool = True, added: bool = True):  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        self.width, self.columns, self.rows = width, columns, rows

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=DTYPES[width], generator=generator)

        self.sources = [random(rows, 3 + size) for size in sizes]
        self.weight, self.addend = random(sum(sizes), columns), random(rows, columns) if added else None
        self.bias = random(columns) if biased else None
        self.sizes = sizes

    def expected(self) -> torch.Tensor:
        """In float64."""
        operand = torch.cat([torch.zeros(self.rows, 0), *(s[:, 2:-1] for s in self.sources)], 1).double()
        result = operand @ self.weight.double()
        result = result if self.bias is None else result + self.bias.double()
        return result if self.addend is None else result + self.addend

    def run(self, which: list[int], of: str = "own") -> torch.Tensor:
        """The rows of these numbers, by the native function; columns beside the target's must stay."""
        width, (shape, address) = self.width, tiles(of, self.width)
        weight = shape.pack(self.weight)
        padding = shape.padded(self.columns) - self.columns
        bias = None if self.bias is None else torch.nn.functional.pad(self.bias, (0, padding))
        target = torch.full((len(which), self.columns + 2), 7.0, dtype=DTYPES[width])
        tensors = [target, *self.sources, *([] if self.addend is None else [self.addend])]
        table = [[t.data_ptr() + (i if t is target else r) * t.stride(0) * width for t in tensors]
                 for i, r in enumerate(which)]  # fmt: skip
        at = np.array(table, np.int64)
        addend = -1 if self.addend is None else len(tensors) - 1
        step = np.zeros(STEP_FIELDS, np.int64)
        step[:] = [0, 0, width, len(self.weight), self.columns, weight.data_ptr(),
                    0 if bias is None else bias.data_ptr(), addend, 0, 0, len(self.sizes)]  # fmt: skip
        pieces = np.zeros((len(self.sizes) + 1, PIECE_FIELDS), np.int64)
        for i, size in enumerate(self.sizes):
            pieces[i, :3] = i + 1, 2 * width, size
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(address)
        call(at.ctypes.data, len(tensors), len(which), step.ctypes.data, pieces.ctypes.data, 0, 0)
        assert (target[:, 0] == 7).all()
        assert (target[:, -1] == 7).all()
        return target[:, 1:-1]


@settings(derandomize=True, deadline=None, max_examples=80)
@given(sizes=CUTS, columns=st.integers(0, 150), rows=st.integers(1, 20), width=st.sampled_from([4, 8]),
       biased=st.booleans(), added=st.booleans(), of=st.sampled_from([*TILES]))  # fmt: skip
def test_products_of_any_size(sizes: list[int], columns: int, rows: int, width: int, biased: bool, added: bool,
                              of: str) -> None:  # fmt: skip
    """Pieces, columns and rows of any number, with and without bias and addend: the sum that they define, by tiles
    of any processor."""
    product = Product(sizes, columns, rows, width, rows, biased, added)
    found = product.run(list(range(rows)), of)

    tolerance = TOLERANCES[width]
    torch.testing.assert_close(found.double(), product.expected(), rtol=tolerance, atol=tolerance * (1 + sum(sizes)))


@pytest.mark.skipif(shape_of(2) is None, reason="this processor multiplies no bfloat16")
@settings(derandomize=True, deadline=None, max_examples=60)
@given(sizes=CUTS, columns=st.integers(0, 150), rows=st.integers(1, 20), biased=st.booleans(), added=st.booleans())
def test_products_of_pairs(sizes: list[int], columns: int, rows: int, biased: bool, added: bool) -> None:
    """In bfloat16, where pieces have even sizes: added up in float32, rounded once."""
    product = Product([2 * size for size in sizes], columns, rows, 2, rows, biased, added)
    found, expected = product.run(list(range(rows))).double(), product.expected()

    rounded = 2**-8 * expected.abs() + 1e-5 * (1 + sum(sizes))
    assert ((found - expected).abs() <= rounded).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("of", TILES)
@pytest.mark.parametrize("columns", [1, 16, 64, 67, 130])
def test_a_row_has_the_same_bits_in_any_company(columns: int, of: str, width: int) -> None:
    """Every row alone, and every row at every place among one to nineteen others: not one bit differs."""
    if width == 2 and of != "own":
        pytest.skip("only processors with AVX-512 multiply pairs")
    product = Product([18 if width == 2 else 17, 40], columns, 23, width, columns)
    alone = torch.cat([product.run([r], of) for r in range(product.rows)])
    rng = random.Random(columns)
    for count in range(1, 20):
        which = [rng.randrange(product.rows) for _ in range(count)]
        for shift in range(count):
            turned = which[shift:] + which[:shift]
            assert torch.equal(product.run(turned, of), alone[turned])


@pytest.mark.parametrize("width", WIDTHS)
def test_columns_do_not_see_each_other(width: int) -> None:
    """A column has the same bits whatever columns stand beside it and wherever it stands: what is fused changes
    nothing."""
    product = Product([32], 140, 7, width, 0)
    whole = product.run(list(range(7)))
    for begin, end in [(0, 1), (3, 140), (60, 70), (139, 140), (64, 128)]:
        part = Product([32], end - begin, 7, width, 0)
        part.sources, part.weight = product.sources, product.weight[:, begin:end]
        part.bias, part.addend = product.bias[begin:end], product.addend[:, begin:end].contiguous()
        assert torch.equal(part.run(list(range(7))), whole[:, begin:end])


@settings(derandomize=True, deadline=None, max_examples=50)
@given(rows=st.integers(0, 9), columns=st.integers(0, 100), lanes=st.sampled_from([2, 4, 8, 16]),
       width=st.sampled_from([2, 8]))  # fmt: skip
def test_panels_hold_the_matrix(rows: int, columns: int, lanes: int, width: int) -> None:
    """Packing and unpacking give the matrix back; what is packed beside it is zeros."""
    rows = 2 * rows if width == 2 else rows
    shape, matrix = Shape(width, lanes, 4, 6), torch.randn(rows, columns, dtype=torch.float64).to(DTYPES[width])
    packed = shape.pack(matrix)

    assert packed.numel() == rows * shape.padded(columns)
    assert torch.equal(shape.unpack(packed, rows, columns), matrix)
    assert (packed != 0).sum() == matrix.numel()


def test_the_address_is_found_once() -> None:
    """One kernel per width and process."""
    assert address_of_product(4) == address_of_product(4) != address_of_product(8)
