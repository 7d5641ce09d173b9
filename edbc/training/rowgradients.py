"""Gradient operations over runs of memory: `derivatives.GRADIENTS` as native loops.

`differentiate` runs one operation on `n` elements given by addresses: with d the gradient that comes in and a, b what
its rule reads, it stores an expression in `target`, or adds it. Expressions are PyTorch's: equal operands of a maximum
share the gradient, the gradient of an absolute value at 0 is 0. As in `runtime.rowops`, contraction to fused
multiply-add is the only liberty taken with floating point.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

from edbc.runtime.pointers import load, store
from edbc.runtime.rowops import any_of, scalar
from edbc.training.derivatives import GRADIENTS

_jit = njit(fastmath={"contract"}, error_model="numpy", nogil=True)
_ZERO = np.float32(0)


def _loops(formula: str) -> Callable[..., None]:
    """A storing and an adding loop for a formula of d, a and b."""
    function = scalar(formula, "d, a, b")

    @_jit
    def loop(target, d, a, b, n, adds, like):
        if adds:
            for i in range(n):
                old = load(target, i, like)
                store(target, i, old + function(load(d, i, like), load(a, i, like), load(b, i, like)))
        else:
            for i in range(n):
                store(target, i, function(load(d, i, like), load(a, i, like), load(b, i, like)))

    return loop


@_jit
def _fill_zero(target, d, a, b, n, adds, like):
    for i in range(n):
        store(target, i, like * _ZERO)


differentiate = any_of((_fill_zero, *map(_loops, GRADIENTS[1:])), "target, d, a, b, n, adds, like")
"""`target[i]` is, or grows by, the gradient operation of a number in GRADIENTS, for i < n."""
