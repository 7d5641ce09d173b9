"""Functions along a dimension of a row's value, as native loops: softmax, norms, sums, and copies that broadcast.

A value is seen as (outer, n, inner) elements, the dimension in the middle. As in `edbc.runtime.rowops`, loops vectorise
and not-a-number and infinity come out as in torch; sums alone are taken in another order, in several lanes, which is
the same for every row of a type.

The walk calls these by their address. So they are compiled where a model first needs them, not with the walk, which
every process on a new machine waits for (1.4 of 25 seconds).

NOTE: [Stale caches] as in `edbc.runtime.walk`: what is cached is a closure over a checksum of the modules that it
compiles in.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types

from edbc import operations
from edbc.kernelcache import INNER, callback
from edbc.runtime import blas, pointers, rowops
from edbc.runtime.pointers import load, store
from edbc.runtime.rowops import exp, maximum, minimum
from edbc.schedule.native import checksum

ALONG = ("softmax", "log_softmax", "logsumexp", "normalise", "total", "average", "largest", "smallest", "spread")
"""Names of operation codes, after those of `edbc.runtime.rowops`."""
_SOFTMAX, _LOG_SOFTMAX, _LOGSUMEXP, _NORMALISE, _TOTAL, _AVERAGE, _LARGEST, _SMALLEST, _SPREAD = range(len(ALONG))

_ONE = np.float32(1)
_jit = njit(**INNER, fastmath={"contract"}, error_model="numpy", nogil=True)
_sum = njit(**INNER, fastmath={"contract", "reassoc"}, error_model="numpy", nogil=True)
"""For functions whose one loop adds up: in vector registers, which without `reassoc` would change nothing."""


@_sum
def _sum_of(a, at, n, step, like):
    total = like
    for k in range(n):
        total += load(a, at + k * step, like)
    return total


@_sum
def _sum_of_run(a, at, n, like):
    total = like
    for k in range(n):
        total += load(a, at + k, like)
    return total


@_sum
def _sum_of_squares(a, at, n, less, like):
    total = like
    for k in range(n):
        distance = load(a, at + k, like) - less
        total += distance * distance
    return total


@_sum
def _sum_of_exponentials(a, at, n, step, less, like):
    total = like
    for k in range(n):
        total += exp(load(a, at + k * step, like) - less)
    return total


def _extreme_of(better: Any) -> Any:
    @_jit
    def extreme(a, at, n, step, like):
        best = load(a, at, like)
        for k in range(1, n):
            best = better(load(a, at + k * step, like), best)
        return best

    return extreme


_largest, _smallest = _extreme_of(maximum), _extreme_of(minimum)


@_jit
def _softmax_run(target, a, at, n, like):
    less = _largest(a, at, n, 1, like)
    for k in range(n):
        store(target, at + k, exp(load(a, at + k, like) - less))
    total = _sum_of_run(target, at, n, like)
    for k in range(n):
        store(target, at + k, load(target, at + k, like) / total)


@_jit
def _softmax_step(target, a, at, n, step, like):
    less = _largest(a, at, n, step, like)
    total = _sum_of_exponentials(a, at, n, step, less, like)
    for k in range(n):
        store(target, at + k * step, exp(load(a, at + k * step, like) - less) / total)


@_jit
def _log_softmax(target, a, at, n, step, like):
    less = _largest(a, at, n, step, like)
    log = np.log(_sum_of_exponentials(a, at, n, step, less, like))
    for k in range(n):
        store(target, at + k * step, load(a, at + k * step, like) - less - log)


@_jit
def _logsumexp(a, at, n, step, like):
    less = _largest(a, at, n, step, like)
    less = like if abs(less) == np.inf else less
    return np.log(_sum_of_exponentials(a, at, n, step, less, like)) + less


@_jit
def _normalise(target, a, at, n, epsilon, like):
    count = like + np.float32(n)
    mean = _sum_of_run(a, at, n, like) / count
    variance = _sum_of_squares(a, at, n, mean, like) / count
    scale = _ONE / np.sqrt(variance + load(epsilon, 0, like))
    for k in range(n):
        store(target, at + k, (load(a, at + k, like) - mean) * scale)


@_jit
def _spread(target, a, outer, n, inner, like):
    for o in range(outer):
        if inner == 1:
            x = load(a, o, like)
            for k in range(n):
                store(target, o * n + k, x)
        else:
            for k in range(n):
                for i in range(inner):
                    store(target, (o * n + k) * inner + i, load(a, o * inner + i, like))


@_jit
def along(op, target, a, b, outer, n, inner, like):
    """One operation of ALONG, by its number, on (outer, n, inner) elements at `a`; `b` is where a normalisation's
    epsilon stands. A spread reads (outer, inner) elements."""
    if op == _SPREAD:
        _spread(target, a, outer, n, inner, like)
        return
    for o in range(outer):
        for i in range(inner):
            at, to = o * n * inner + i, o * inner + i
            if op == _SOFTMAX:
                if inner == 1:
                    _softmax_run(target, a, at, n, like)
                else:
                    _softmax_step(target, a, at, n, inner, like)
            elif op == _LOG_SOFTMAX:
                _log_softmax(target, a, at, n, inner, like)
            elif op == _NORMALISE:
                _normalise(target, a, at, n, b, like)
            elif op == _LOGSUMEXP:
                store(target, to, _logsumexp(a, at, n, inner, like))
            elif op == _TOTAL:
                store(target, to, _sum_of(a, at, n, inner, like))
            elif op == _AVERAGE:
                store(target, to, _sum_of(a, at, n, inner, like) / (like + np.float32(n)))
            elif op == _LARGEST:
                store(target, to, _largest(a, at, n, inner, like))
            elif op == _SMALLEST:
                store(target, to, _smallest(a, at, n, inner, like))


COMPILED_IN = (blas, operations, pointers, rowops)


def _build(like: Any, stamp: int) -> Callable[..., None]:
    """`along` for elements of `like`'s type; see NOTE: [Stale caches]."""

    def of_width(op, target, a, b, outer, n, inner):
        along(op + (stamp & 0), target, a, b, outer, n, inner, like)

    return of_width


@cache
def address_of_along(width: int) -> int:
    """The address of `along` for floats of `width` bytes, compiled when it is first asked for."""
    like = np.float32(0) if width == 4 else np.float64(0)
    return callback(_build(like, checksum(*COMPILED_IN)), types.void(*[types.int64] * 7))
