"""Gradient operations over runs of memory: the table `derivatives.GRADIENTS` as native loops.

`differentiate` runs one operation on `n` elements given by addresses: with d the gradient that comes in and a, b what
its rule reads, it stores an expression in `target`, or adds it. Expressions are PyTorch's: equal operands of a maximum
share the gradient, the gradient of an absolute value at 0 is 0. As in `runtime.rowops`, contraction to fused
multiply-add is the only liberty taken with floating point.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from edbc.runtime.pointers import load, store
from edbc.runtime.rowops import cdf, exp
from edbc.training.derivatives import GRADIENTS

_flags: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
_jit = njit(**_flags)
_F = np.float32
_ZERO, _HALF, _ONE, _TWO, _TWENTY = _F(0), _F(0.5), _F(1), _F(2), _F(20)
_CODE = {name: code for code, name in enumerate(GRADIENTS)}
(_PASS, _NEGATE, _TIMES, _SIGMOID, _TANH, _RELU, _LOG, _SQRT, _ABS, _SQUARE, _RECIPROCAL, _GELU, _SILU, _SOFTPLUS,
 _QUOTIENT, _DIVISOR, _MAXIMUM, _MINIMUM, _POWER, _EXPONENT) = (_CODE[name] for name in GRADIENTS[1:])  # fmt: skip


def gelu_slope(x: Any) -> Any:
    """Phi(x) + x phi(x)."""


@overload(gelu_slope, jit_options=_flags)
def _gelu_slope(x):
    of = np.float32 if x == types.float32 else np.float64
    half, density = of(0.5), of(1 / math.sqrt(2 * math.pi))
    return lambda x: cdf(x) + x * density * exp(-half * x * x)


@_jit
def _sigmoid(x):
    return _ONE / (_ONE + exp(-x))


@_jit
def _silu(d, x, b):
    y = _sigmoid(x)
    return d * (y * (_ONE + x * (_ONE - y)))


@_jit
def _softplus(d, x, b):
    return d if x > _TWENTY else d * _sigmoid(x)


@_jit
def _abs(d, x, b):
    return d if x > _ZERO else (-d if x < _ZERO else d * x)


@_jit
def _maximum(d, x, y):
    return _ZERO if x < y else (d * _HALF if x == y else d)


@_jit
def _minimum(d, x, y):
    return _ZERO if x > y else (d * _HALF if x == y else d)


@_jit
def _power(d, x, y):
    return _ZERO if y == _ZERO else d * (y * x ** (y - _ONE))


@_jit
def _exponent(d, power, x):
    """0 to a power that is not negative has no slope, as in torch; to a negative one it is infinite."""
    return _ZERO if x == _ZERO and power <= _ONE else d * (power * np.log(x))


def _loops(function: Callable[..., Any]) -> Callable[..., None]:
    """A storing and an adding loop for an expression of d, a and b."""
    scalar = _jit(function) if not hasattr(function, "py_func") else function

    @_jit
    def loop(target, d, a, b, n, adds, like):
        if adds:
            for i in range(n):
                old = load(target, i, like)
                store(target, i, old + scalar(load(d, i, like), load(a, i, like), load(b, i, like)))
        else:
            for i in range(n):
                store(target, i, scalar(load(d, i, like), load(a, i, like), load(b, i, like)))

    return loop


_pass = _loops(lambda d, a, b: d)
_negate = _loops(lambda d, a, b: -d)
_times = _loops(lambda d, a, b: d * a)
_sigmoid_slope = _loops(lambda d, y, b: d * ((_ONE - y) * y))
_tanh_slope = _loops(lambda d, y, b: d * (_ONE - y * y))
_relu_slope = _loops(lambda d, y, b: d if y > _ZERO else _ZERO)
_log_slope = _loops(lambda d, x, b: d / x)
_sqrt_slope = _loops(lambda d, y, b: d / (_TWO * y))
_abs_slope = _loops(_abs)
_square_slope = _loops(lambda d, x, b: d * (_TWO * x))
_reciprocal_slope = _loops(lambda d, y, b: -d * (y * y))
_gelu_slope_loop = _loops(lambda d, x, b: d * gelu_slope(x))
_silu_slope = _loops(_silu)
_softplus_slope = _loops(_softplus)
_quotient_slope = _loops(lambda d, y, b: d / y)
_divisor_slope = _loops(lambda d, q, y: -d * (q / y))
_maximum_slope = _loops(_maximum)
_minimum_slope = _loops(_minimum)
_power_slope = _loops(_power)
_exponent_slope = _loops(_exponent)


@_jit
def _fill_zero(target, n, like):
    for i in range(n):
        store(target, i, like * _ZERO)


@_jit
def differentiate(op, target, d, a, b, n, adds, like):
    """`target[i]` is, or grows by, the expression of gradient operation `op`, for i < n."""
    if op == _TIMES:
        _times(target, d, a, b, n, adds, like)
    elif op == _PASS:
        _pass(target, d, a, b, n, adds, like)
    elif op == _SIGMOID:
        _sigmoid_slope(target, d, a, b, n, adds, like)
    elif op == _TANH:
        _tanh_slope(target, d, a, b, n, adds, like)
    elif op == _NEGATE:
        _negate(target, d, a, b, n, adds, like)
    elif op == _RELU:
        _relu_slope(target, d, a, b, n, adds, like)
    elif op == _LOG:
        _log_slope(target, d, a, b, n, adds, like)
    elif op == _SQRT:
        _sqrt_slope(target, d, a, b, n, adds, like)
    elif op == _ABS:
        _abs_slope(target, d, a, b, n, adds, like)
    elif op == _SQUARE:
        _square_slope(target, d, a, b, n, adds, like)
    elif op == _RECIPROCAL:
        _reciprocal_slope(target, d, a, b, n, adds, like)
    elif op == _GELU:
        _gelu_slope_loop(target, d, a, b, n, adds, like)
    elif op == _SILU:
        _silu_slope(target, d, a, b, n, adds, like)
    elif op == _SOFTPLUS:
        _softplus_slope(target, d, a, b, n, adds, like)
    elif op == _QUOTIENT:
        _quotient_slope(target, d, a, b, n, adds, like)
    elif op == _DIVISOR:
        _divisor_slope(target, d, a, b, n, adds, like)
    elif op == _MAXIMUM:
        _maximum_slope(target, d, a, b, n, adds, like)
    elif op == _MINIMUM:
        _minimum_slope(target, d, a, b, n, adds, like)
    elif op == _POWER:
        _power_slope(target, d, a, b, n, adds, like)
    elif op == _EXPONENT:
        _exponent_slope(target, d, a, b, n, adds, like)
    else:
        _fill_zero(target, n, like)
