"""Element-wise operations over runs of memory: the fixed operation table as native loops.

`apply` runs one operation on `n` elements given by addresses. Loops vectorise: float32 uses a rational tanh and a
polynomial exp (a few units in the last place at most), float64 the C library's functions, which keep parity at 1e-12.
Contraction to fused multiply-add is the only liberty taken with floating point: not-a-number and infinity behave as in
torch.

NOTE: [Coefficients] tanh(x) = x P(x^2) / Q(x^2) on |x| <= 9.1, exp(r) = 1 + r + r^2 E(r) on |r| <= ln(2) / 2, and
erfc(z) = exp(-z^2) t C(t) with t = 1 / (1 + 0.51 z) on 0 <= z <= 10, with the least largest relative error (7.4e-9,
3.1e-9 and 8.6e-7) that reweighted least squares finds.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

from edbc.kernelcache import INNER
from edbc.runtime.pointers import float_of_bits, load, store

OPERATIONS = (
    "copy", "sigmoid", "tanh", "relu", "neg", "exp", "log", "sqrt", "abs", "square", "reciprocal", "gelu", "silu",
    "softplus", "add", "sub", "mul", "div", "maximum", "minimum", "pow", "add3", "matmul", "matmul_add",
)  # fmt: skip
"""Names of operation codes; `add3` adds three operands from the left. `walk`, not `apply`, runs the last two."""
_COPY, _SIGMOID, _TANH, _RELU, _NEG, _EXP, _LOG, _SQRT, _ABS, _SQUARE, _RECIPROCAL, _GELU, _SILU, _SOFTPLUS = range(14)
_ADD, _SUB, _MUL, _DIV, _MAXIMUM, _MINIMUM, _POW, _ADD3 = range(14, 22)

_F = np.float32
# Numbers that both widths represent exactly; a float32 constant never widens a float32 expression.
_ZERO, _HALF, _ONE, _TWENTY = _F(0), _F(0.5), _F(1), _F(20)
_TANH_LIMIT = _F(9.1)
_P = tuple(map(_F, (0.999999993, 0.130797274, 0.00309916564, 1.11039624e-05, -2.00192736e-08, 5.17774575e-11,
                    -8.22859544e-14)))  # fmt: skip
_Q = tuple(map(_F, (1.0, 0.464130538, 0.0244761203, 0.000253915595)))
_E = tuple(map(_F, (0.499999934, 0.166665201, 0.0416683942, 0.00836878044, 0.0013814467)))
_C = tuple(map(_F, (0.287917486, 0.284152468, 0.279065227, 0.0550554013, 0.35844183, -0.359131937, 0.0944990872)))
_T, _ROOT_HALF = _F(0.51), _F(math.sqrt(0.5))
_LOG2_E, _LN2_HIGH, _LN2_LOW = _F(1.44269504), _F(0.693145752), _F(1.42860677e-06)
_EXP_HIGHEST, _EXP_LOWEST = _F(89.0), _F(-104.0)
_TWO, _SIGMOID_LOWEST = _F(2), _F(-86.0)

# `contract` alone: reassociation or finite-only arithmetic would change results and lose not-a-number.
_flags: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
_jit = njit(**INNER, **_flags)


@register_jitable(**_flags)
def _reduced32(x, lowest):
    """k and exp(r) where exp(x) is 2**k exp(r), for x between `lowest` and _EXP_HIGHEST, or the nearer of them."""
    x = _EXP_HIGHEST if x > _EXP_HIGHEST else x
    x = lowest if x < lowest else x
    k = np.floor(x * _LOG2_E + _HALF)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    e = (((_E[4] * r + _E[3]) * r + _E[2]) * r + _E[1]) * r + _E[0]
    return np.int32(k), (e * r) * r + r + _ONE


@register_jitable(**_flags)
def _exp32(x):
    """exp in float32. 2**k goes in two factors, so that the ends of the range are right."""
    whole, y = _reduced32(x, _EXP_LOWEST)
    half = np.int32(whole >> 1)
    low = float_of_bits(np.int32((half + np.int32(127)) << 23))
    high = float_of_bits(np.int32((whole - half + np.int32(127)) << 23))
    return y * low * high


@register_jitable(**_flags)
def _sigmoid32(x):
    """1 / (1 + _exp32(-x)) to the last bit (over all float32), in fewer instructions: 2**k need not go in two factors.
    Where it is too small for one, what is added to 1 is lost anyway; where it is too large, 2**(k - 1) is not."""
    k, y = _reduced32(-x, _SIGMOID_LOWEST)
    half = float_of_bits(np.int32((k + np.int32(126)) << 23))
    return _ONE / (y * half * _TWO + _ONE)


@register_jitable(**_flags)
def _tanh32(x):
    c = _TANH_LIMIT if x > _TANH_LIMIT else x
    c = -_TANH_LIMIT if c < -_TANH_LIMIT else c
    u = c * c
    p = (((((_P[6] * u + _P[5]) * u + _P[4]) * u + _P[3]) * u + _P[2]) * u + _P[1]) * u + _P[0]
    q = ((_Q[3] * u + _Q[2]) * u + _Q[1]) * u + _Q[0]
    y = c * p / q
    y = _ONE if y > _ONE else y
    return -_ONE if y < -_ONE else y


@register_jitable(**_flags)
def _cdf32(x):
    z = abs(x) * _ROOT_HALF
    t = _ONE / (_ONE + _T * z)
    c = (((((_C[6] * t + _C[5]) * t + _C[4]) * t + _C[3]) * t + _C[2]) * t + _C[1]) * t + _C[0]
    tail = c * t * _exp32(-z * z) * _HALF
    return tail if x < _ZERO else _ONE - tail


def exp(x: Any) -> Any:
    """The exponential function."""


def sigmoid(x: Any) -> Any:
    """The logistic function."""


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""


def cdf(x: Any) -> Any:
    """The standard normal distribution's Phi, of which x Phi(x) is gelu."""


@overload(exp, jit_options=_flags)
def _exp(x):
    return (lambda x: _exp32(x)) if x == types.float32 else (lambda x: np.exp(x))


@overload(tanh, jit_options=_flags)
def _tanh(x):
    return (lambda x: _tanh32(x)) if x == types.float32 else (lambda x: np.tanh(x))


@overload(cdf, jit_options=_flags)
def _cdf(x):
    root = math.sqrt(0.5)
    return (lambda x: _cdf32(x)) if x == types.float32 else (lambda x: 0.5 * (math.erf(x * root) + _ONE))


@overload(sigmoid, jit_options=_flags)
def _sigmoid_of(x):
    return (lambda x: _sigmoid32(x)) if x == types.float32 else (lambda x: _ONE / (_ONE + np.exp(-x)))


@_jit
def _sigmoid(x):
    return sigmoid(x)


@_jit
def _softplus(x):
    return x if x > _TWENTY else np.log1p(exp(x))


@_jit
def maximum(x, y):
    return x if x > y or x != x else y


@_jit
def minimum(x, y):
    return x if x < y or x != x else y


def _of_one(function: Callable[[Any], Any]) -> Callable[..., None]:
    """A loop of its own for each operation, so that each vectorises and `apply` stays a jump table."""
    scalar = _jit(function) if not hasattr(function, "py_func") else function

    @_jit
    def loop(target, a, n, like):
        for i in range(n):
            store(target, i, scalar(load(a, i, like)))

    return loop


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[..., None]:
    scalar = _jit(function) if not hasattr(function, "py_func") else function

    @_jit
    def loop(target, a, b, n, like):
        for i in range(n):
            store(target, i, scalar(load(a, i, like), load(b, i, like)))

    return loop


def _onto(function: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """`_of_two` for what often writes onto its first operand. In the loop for that the two are one address to LLVM,
    which elsewhere sees that they overlap, and then takes one element after the other."""
    scalar, apart = _jit(function) if not hasattr(function, "py_func") else function, _of_two(function)

    @_jit
    def loop(target, a, b, n, like):
        if target != a:
            apart(target, a, b, n, like)
            return
        for i in range(n):
            store(target, i, scalar(load(target, i, like), load(b, i, like)))

    return loop


_copy_loop = _of_one(lambda x: x)
_sigmoid_loop = _of_one(_sigmoid)
_tanh_loop = _of_one(lambda x: tanh(x))
_relu_loop = _of_one(lambda x: _ZERO if x < _ZERO else x)
_neg_loop = _of_one(lambda x: -x)
_exp_loop = _of_one(lambda x: exp(x))
_log_loop = _of_one(lambda x: np.log(x))
_sqrt_loop = _of_one(lambda x: np.sqrt(x))
_abs_loop = _of_one(lambda x: abs(x))
_square_loop = _of_one(lambda x: x * x)
_reciprocal_loop = _of_one(lambda x: _ONE / x)
_gelu_loop = _of_one(lambda x: x * cdf(x))
_silu_loop = _of_one(lambda x: x * _sigmoid(x))
_softplus_loop = _of_one(_softplus)
_add_loop = _onto(lambda x, y: x + y)
_sub_loop = _of_two(lambda x, y: x - y)
_mul_loop = _of_two(lambda x, y: x * y)
_div_loop = _of_two(lambda x, y: x / y)
_maximum_loop = _onto(maximum)
_minimum_loop = _onto(minimum)
_pow_loop = _of_two(lambda x, y: x**y)


@_jit
def _add3_loop(target, a, b, c, n, like):
    for i in range(n):
        store(target, i, load(a, i, like) + load(b, i, like) + load(c, i, like))


@_jit
def divide(target, count, n, like):
    """`target[i] /= count` for i < n."""
    for i in range(n):
        store(target, i, load(target, i, like) / (like + np.float32(count)))


@_jit
def apply(op, target, a, b, c, n, like):
    """`target[i] = op(a[i], b[i], c[i])` for i < n, elements of `like`'s type. `target` may be an operand itself."""
    if op == _SIGMOID:
        _sigmoid_loop(target, a, n, like)
    elif op == _TANH:
        _tanh_loop(target, a, n, like)
    elif op == _MUL:
        _mul_loop(target, a, b, n, like)
    elif op == _ADD:
        _add_loop(target, a, b, n, like)
    elif op == _ADD3:
        _add3_loop(target, a, b, c, n, like)
    elif op == _COPY:
        _copy_loop(target, a, n, like)
    elif op == _SUB:
        _sub_loop(target, a, b, n, like)
    elif op == _RELU:
        _relu_loop(target, a, n, like)
    elif op == _NEG:
        _neg_loop(target, a, n, like)
    elif op == _EXP:
        _exp_loop(target, a, n, like)
    elif op == _LOG:
        _log_loop(target, a, n, like)
    elif op == _SQRT:
        _sqrt_loop(target, a, n, like)
    elif op == _ABS:
        _abs_loop(target, a, n, like)
    elif op == _SQUARE:
        _square_loop(target, a, n, like)
    elif op == _RECIPROCAL:
        _reciprocal_loop(target, a, n, like)
    elif op == _GELU:
        _gelu_loop(target, a, n, like)
    elif op == _SILU:
        _silu_loop(target, a, n, like)
    elif op == _SOFTPLUS:
        _softplus_loop(target, a, n, like)
    elif op == _DIV:
        _div_loop(target, a, b, n, like)
    elif op == _MAXIMUM:
        _maximum_loop(target, a, b, n, like)
    elif op == _MINIMUM:
        _minimum_loop(target, a, b, n, like)
    elif op == _POW:
        _pow_loop(target, a, b, n, like)
