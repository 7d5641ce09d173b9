"""Sums of outer products: torch's in float64, of any sizes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.cells.kernels.outer import OUTER_FIELDS, OuterField, address_of_outer

pytestmark = pytest.mark.compiled
DTYPES = {4: torch.float32, 8: torch.float64}


@settings(derandomize=True, deadline=None, max_examples=80)
@given(rows=st.integers(0, 30), inputs=st.integers(1, 150), columns=st.integers(1, 40), width=st.sampled_from([4, 8]),
       seed=st.integers(0, 99))  # fmt: skip
def test_outer_products(rows: int, inputs: int, columns: int, width: int, seed: int) -> None:
    """Added to what is there; what stands beside the target stays."""
    generator = torch.Generator().manual_seed(seed)
    x, d = (torch.randn(max(rows, 1), size + 3, generator=generator).to(DTYPES[width]) for size in (inputs, columns))
    target = torch.randn(columns + 2, inputs, generator=generator).to(DTYPES[width])
    before = target.clone()
    fields = np.zeros(OUTER_FIELDS, np.int64)
    fields[: OuterField.COLUMNS + 1] = [
        rows, x[:, 2:].data_ptr(), x.stride(0) * width, d[:, 1:].data_ptr(), d.stride(0) * width,
        target[1:].data_ptr(), inputs, columns,
    ]  # fmt: skip
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(address_of_outer(width))
    call(fields.ctypes.data, 0, 0, 0, 0, 0, 0)

    exact = before[1:-1].double() + d[:rows, 1 : 1 + columns].double().t() @ x[:rows, 2 : 2 + inputs].double()
    bound = 1e-13 if width == 8 else 1e-5
    assert ((target[1:-1] - exact).abs() <= bound * (1 + exact.abs())).all()
    assert torch.equal(target[0], before[0])
    assert torch.equal(target[-1], before[-1])
