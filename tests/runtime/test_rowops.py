"""The native operation table against torch, both widths, with not-a-number, infinities and the ends of the range."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from edbc.runtime.pointers import load, store
from edbc.runtime.rowops import OPERATIONS, apply, exp
from edbc.trace.values import class_of

pytestmark = pytest.mark.compiled

FUNCTIONS = {
    "copy": lambda a, b, c: a,
    "gelu": lambda a, b, c: torch.nn.functional.gelu(a),
    "silu": lambda a, b, c: torch.nn.functional.silu(a),
    "softplus": lambda a, b, c: torch.nn.functional.softplus(a),
    "add3": lambda a, b, c: a + b + c,
    "div": lambda a, b, c: a / b,
}
ELEMENTWISE = [name for name in OPERATIONS if not name.startswith("matmul")]
TWO = ("add", "sub", "mul", "maximum", "minimum", "pow")
LIMITS = {torch.float32: 6.0, torch.float64: 4.0}
"""Allowed error in units of the last place of the exact result, or of the smallest normal number."""


@njit
def call(op, target, a, b, c, n, like):
    apply(op, target, a, b, c, n, like)


def expected(name: str, *operands: torch.Tensor) -> torch.Tensor:
    if name in FUNCTIONS:
        return FUNCTIONS[name](*operands)
    return getattr(torch, name)(*operands[: 2 if name in TWO else 1])


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
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_operations_equal_torch(name: str, dtype: torch.dtype) -> None:
    """A few units in the last place of the float64 result at most, for every length of the vectorised loop's tail."""
    operands = arguments(dtype)
    ours = native(name, *operands).double()
    exact = expected(name, *(x.double() for x in operands))
    rounded = exact.to(dtype)
    assert torch.equal(ours.isnan(), rounded.isnan())
    finite = rounded.isfinite()
    assert torch.equal(ours[~finite & ~rounded.isnan()], rounded[~finite & ~rounded.isnan()].double())
    info = torch.finfo(dtype)
    unit = torch.clamp(exact[finite].abs(), min=info.tiny) * info.eps
    # Cancellation inside these two makes the absolute error count; torch's own has it too.
    unit = torch.clamp(unit, min=info.eps) if name in ("gelu", "add3", "silu", "sigmoid") else unit
    assert ((ours[finite] - exact[finite]).abs() / unit).max() <= LIMITS[dtype]
    for length in range(1, 40):
        part = [x[:length].clone() for x in operands]
        torch.testing.assert_close(native(name, *part), ours[:length].to(dtype), rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n not in ("pow", "gelu")])
def test_not_a_number_and_infinity(name: str, dtype: torch.dtype) -> None:
    """Not-a-number stays, infinities go where torch's go (tanh is within one unit of one there).

    Torch's float32 gelu of infinity is not a number, so gelu is left out.
    """
    a = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, torch.nan, 1.0], dtype=dtype)
    b = torch.tensor([1.0, 1.0, torch.inf, torch.inf, torch.nan, torch.nan], dtype=dtype)
    ours, theirs = native(name, a, b, a), expected(name, a, b, a)
    torch.testing.assert_close(ours, theirs, rtol=2e-7, atol=0, equal_nan=True)


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
