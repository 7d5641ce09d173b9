"""Native element-wise loops: every length, in place. What they compute: `tests/test_operations.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from edbc.runtime.pointers import load, store
from edbc.runtime.rowops import OPERATIONS, apply, exp
from edbc.trace.values import class_of

pytestmark = pytest.mark.compiled


@njit
def call(op, target, a, b, c, n, like):
    apply(op, target, a, b, c, n, like)


def native(name: str, *operands: torch.Tensor) -> torch.Tensor:
    a, b, c = (x.contiguous() for x in operands)
    target = torch.full_like(a, torch.nan)
    like = np.float32(0) if a.dtype is torch.float32 else np.float64(0)
    code = OPERATIONS.index(name)
    call(code, target.data_ptr(), a.data_ptr(), b.data_ptr(), c.data_ptr(), len(a), like)
    return target


def arguments(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 20.0, 20.5, 88.0, -88.0, 9.0, 9.2, -9.1, 0.3465])
    wide = torch.cat([special, torch.randn(5000, generator=generator) * 3, torch.linspace(-100, 100, 4001)]).to(dtype)
    return wide, wide.flip(0), torch.roll(wide, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPERATIONS[:-2])
def test_every_length(name: str, dtype: torch.dtype) -> None:
    """An element's result does not depend on where in the vectorised loop it stands, its tail included."""
    operands = arguments(dtype)
    whole = native(name, *operands)
    for length in range(1, 40):
        part = [x[:length].clone() for x in operands]
        torch.testing.assert_close(native(name, *part), whole[:length], rtol=1e-6, atol=1e-30, equal_nan=True)


def test_copies_and_sums_of_three() -> None:
    """What the table of operations does not have: bit for bit, from the left."""
    a, b, c = arguments(torch.float32)
    assert torch.equal(native("copy", a, b, c), a)
    assert torch.equal(native("add3", a, b, c), a + b + c)


@pytest.mark.parametrize("name", ["add", "maximum", "minimum", "mul", "add3"])
def test_the_target_may_be_an_operand(name: str) -> None:
    """Sums accumulate in place: with other loops, of equal results."""
    a, b, c = (x[:1037].contiguous() for x in arguments(torch.float32))
    apart, target = native(name, a, b, c), a.clone()
    addresses = target.data_ptr(), target.data_ptr(), b.data_ptr(), c.data_ptr()
    call(OPERATIONS.index(name), *addresses, len(a), np.float32(0))
    assert torch.equal(target, apart)
    assert class_of(a).dtype == "f32"


@njit(fastmath={"contract"}, error_model="numpy")
def sigmoid_by_exp(target, a, n, like):
    for i in range(n):
        store(target, i, np.float32(1) / (np.float32(1) + exp(-load(a, i, like))))


def test_sigmoid_equals_its_definition() -> None:
    """To the last bit, over all exponents: infinities, not-a-number and the least numbers are among them."""
    bits = torch.arange(-(2**31), 2**31, 9973).to(torch.int32)
    a = torch.cat([bits.view(torch.float32), torch.linspace(-110, 110, 400_001)])
    by_exp = torch.empty_like(a)
    sigmoid_by_exp(by_exp.data_ptr(), a.data_ptr(), len(a), np.float32(0))
    ours = native("sigmoid", a, a, a)
    assert torch.equal(ours.isnan(), by_exp.isnan())
    assert torch.equal(ours[~a.isnan()], by_exp[~a.isnan()])
