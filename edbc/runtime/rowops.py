"""Element-wise operations over runs of memory: the table of operations as native loops.

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

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

from edbc.kernelcache import INNER
from edbc.operations import OPERATIONS as TABLE
from edbc.operations import Rewriter, parse
from edbc.runtime.pointers import float_of_bits, load, store

_FORMULAS = {"copy": "x", **{name: entry.formula for name, entry in TABLE.items()}, "add3": "x + y + z"}
OPERATIONS = (*_FORMULAS, "matmul", "matmul_add")
"""Names of operation codes; `add3` adds three operands from the left. `walk`, not `apply`, runs the last two."""

_F = np.float32
# Numbers that both widths represent exactly; a float32 constant never widens a float32 expression.
_ZERO, _HALF, _ONE = _F(0), _F(0.5), _F(1)
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


def density(x: Any) -> Any:
    """The standard normal distribution's phi, the derivative of Phi."""


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


@overload(density, jit_options=_flags)
def _density(x):
    of = np.float32 if x == types.float32 else np.float64
    half, highest = of(0.5), of(1 / math.sqrt(2 * math.pi))
    return lambda x: highest * exp(-half * x * x)


_NATIVE = {"exp": exp, "sigmoid": sigmoid, "tanh": tanh, "cdf": cdf, "density": density,
           "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "abs": abs}  # fmt: skip
"""The primitives of formulas."""


class _Rendering(Rewriter):
    """A formula in Python. Numbers are names, and a call that is made twice is too: compilers do not see that two calls
    of the C library are one."""

    def __init__(self, formula: str):
        calls = [ast.dump(node) for node in ast.walk(parse(formula)) if isinstance(node, ast.Call)]
        self.repeated = {call for call in calls if calls.count(call) > 1}
        self.numbers: dict[str, Any] = {}
        self.calls: dict[str, str] = {}
        self.lines: list[str] = []
        self.lines.append(f"return {ast.unparse(self.rewrite(formula))}")

    def visit_Constant(self, node: ast.Constant) -> ast.expr:  # noqa: N802
        name = f"number{len(self.numbers)}"
        self.numbers[name] = _F(node.value)
        return ast.Name(name)

    def visit_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        key = ast.dump(node)
        if key not in self.repeated:
            return super().visit_Call(node)
        if key not in self.calls:
            made = ast.unparse(super().visit_Call(node))
            self.calls[key] = f"call{len(self.calls)}"
            self.lines.append(f"{self.calls[key]} = {made}")
        return ast.Name(self.calls[key])


def _defined(name: str, parameters: str, lines: Sequence[str], namespace: dict[str, Any]) -> Any:
    """The native function of that text."""
    namespace |= {"__name__": __name__}
    exec("\n    ".join((f"def {name}({parameters}):", *lines)), namespace)
    return _jit(namespace[name])


def scalar(formula: str, parameters: str) -> Any:
    """A formula as a native function of some scalars, which may be more than it reads."""
    rendering = _Rendering(formula)
    return _defined("scalar", parameters, rendering.lines, _NATIVE | rendering.numbers)


def any_of(loops: Sequence[Callable[..., None]], parameters: str) -> Any:
    """One native function `(op, ...)` that runs the loop of number `op`: to LLVM a jump table."""
    lines = [f"if op == {code}: return loop{code}({parameters})" for code in range(len(loops))]
    namespace = {f"loop{code}": loop for code, loop in enumerate(loops)}
    return _defined("any_of", f"op, {parameters}", lines, namespace)


maximum, minimum = (scalar(_FORMULAS[name], "x, y") for name in ("maximum", "minimum"))


def _loop(formula: str) -> Callable[..., None]:
    """A loop of its own for each operation, so that each vectorises and `apply` stays a jump table."""
    function = scalar(formula, "x, y, z")

    @_jit
    def loop(target, a, b, c, n, like):
        for i in range(n):
            store(target, i, function(load(a, i, like), load(b, i, like), load(c, i, like)))

    return loop


def _onto(formula: str) -> Callable[..., None]:
    """`_loop` for what often writes onto its first operand. In the loop for that the two are one address to LLVM,
    which elsewhere sees that they overlap, and then takes one element after the other."""
    function, apart = scalar(formula, "x, y"), _loop(formula)

    @_jit
    def loop(target, a, b, c, n, like):
        if target != a:
            apart(target, a, b, c, n, like)
            return
        for i in range(n):
            store(target, i, function(load(target, i, like), load(b, i, like)))

    return loop


_ACCUMULATING = ("add", "maximum", "minimum")
apply = any_of(
    [(_onto if name in _ACCUMULATING else _loop)(formula) for name, formula in _FORMULAS.items()],
    "target, a, b, c, n, like",
)
"""`target[i] = op(a[i], b[i], c[i])` for i < n, elements of `like`'s type. `target` may be an operand itself."""


@_jit
def divide(target, count, n, like):
    """`target[i] /= count` for i < n."""
    for i in range(n):
        store(target, i, load(target, i, like) / (like + np.float32(count)))
