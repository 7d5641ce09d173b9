"""Products by the library inside torch or numpy: where there is no kernel of our own, and to compare with.

`multiply` is what `microkernel.address_of_product` is: the same arguments, the same steps. It gathers pieces where
they do not stand in rows of one stride, writes what the product is added to, and calls the vendor's routine.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from edbc.cells.kernels import outer, steps
from edbc.cells.kernels.outer import FRAME, OUTER_FIELDS, OuterField
from edbc.cells.kernels.steps import PIECE_FIELDS, StepField
from edbc.native import blas, pointers
from edbc.native.kernelcache import INNER, UNCOUNTED, callback, njit
from edbc.native.kinds import checksum
from edbc.native.pointers import copy_bytes, dgemm, load, sgemm, store

_ONE, _LONG = np.float32(1), np.int64(0)
_AS_IT_IS = ord("N")
"""The letter for a matrix that the BLAS does not transpose; numba would compile its strings for `ord`."""
_TARGET, _ROWS, _COLUMNS, _WEIGHT, _BIAS, _ADDEND, _BEGIN, _END = map(int, (
    StepField.TARGET, StepField.ROWS, StepField.COLUMNS, StepField.WEIGHT, StepField.BIAS,
    StepField.ADDEND, StepField.BEGIN, StepField.END))  # fmt: skip
_TRANSPOSED = ord("T")
_OUTER_ROWS, _OUTER_X, _OUTER_D, _OUTER_TARGET, _OUTER_INPUTS, _OUTER_COLUMNS = map(int, (
    OuterField.ROWS, OuterField.X, OuterField.D, OuterField.TARGET, OuterField.INPUTS, OuterField.COLUMNS))  # fmt: skip
_flags: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_jit = njit(**INNER, **UNCOUNTED, **_flags)


def gemm(left, right, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, like):
    """The vendor BLAS's product of column-major matrices with elements of `like`'s type; all arguments are
    addresses, `left` and `right` of letters that say whether a and b are transposed."""


@overload(gemm, jit_options=_flags)
def _gemm(left, right, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, like):
    vendor = sgemm if like == types.float32 else dgemm

    def call(left, right, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, like):
        vendor(left, right, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)

    return call


@_jit
def gemm_by_frame(frame, right, m, n, k, a, lda, b, ldb, is_added, c, ldc, like):
    """`c = a @ b` of column-major matrices, or added to it; `right` is the letter that says whether b is transposed.
    `frame` is the address of the routine's arguments, which it takes by address: two letters, six integers, two
    numbers."""
    store(frame, 0, _LONG + _AS_IT_IS)
    store(frame, 1, _LONG + right)
    store(frame, 2, m)
    store(frame, 3, n)
    store(frame, 4, k)
    store(frame, 5, lda)
    store(frame, 6, ldb)
    store(frame, 7, ldc)
    one, zero = frame + 64, frame + 72
    store(one, 0, like + _ONE)
    store(zero, 0, like)
    beta = one if is_added else zero
    gemm(frame, frame + 8, frame + 16, frame + 24, frame + 32, one, a, frame + 40, b, frame + 48, beta, c, frame + 56,
         like)  # fmt: skip


@_jit
def _row(at, slots, r, slot):
    return load(at, r * slots + slot, _LONG)


@_jit
def _stride(at, slots, n, slot):
    """Bytes between the rows of a slot, -1 where they are not equally far apart, or backwards."""
    step = _row(at, slots, 1, slot) - _row(at, slots, 0, slot) if n > 1 else 0
    for r in range(2, n):
        if _row(at, slots, r, slot) - _row(at, slots, r - 1, slot) != step:
            return -1
    return step


@_jit
def _gather(at, slots, n, pieces, count, target, stride, width):
    """Copy the pieces of every row to rows of `stride` bytes."""
    for r in range(n):
        to = target + r * stride
        for i in range(count):
            piece = pieces + 8 * PIECE_FIELDS * i
            slot, offset, size = load(piece, 0, _LONG), load(piece, 1, _LONG), load(piece, 2, _LONG) * width
            copy_bytes(to, _row(at, slots, r, slot) + offset, size)
            to += size


@_jit
def _fill(at, slots, n, step, width, like):
    """Write what a product is added to, its bias and its addend, to its target."""
    columns, bias, addend = load(step, _COLUMNS, _LONG), load(step, _BIAS, _LONG), load(step, _ADDEND, _LONG)
    slot, offset, inside = load(step, _TARGET, _LONG), load(step, _TARGET + 1, _LONG), load(step, _ADDEND + 1, _LONG)
    for r in range(n):
        row = _row(at, slots, r, slot) + offset
        if addend < 0:
            copy_bytes(row, bias, columns * width)
        elif bias != 0:
            source = _row(at, slots, r, addend) + inside
            for i in range(columns):
                store(row, i, load(source, i, like) + load(bias, i, like))
        elif _row(at, slots, r, addend) + inside != row:
            copy_bytes(row, _row(at, slots, r, addend) + inside, columns * width)


@_jit
def _source(at, slots, n, pieces, count, size, scratch, width):
    """Address and stride in bytes of n rows of `size` elements: where they are, or gathered in `scratch`."""
    least = max(size, 1) * width
    if count == 1:
        stride = least if n == 1 else _stride(at, slots, n, load(pieces, 0, _LONG))
        if stride >= least:
            return _row(at, slots, 0, load(pieces, 0, _LONG)) + load(pieces, 1, _LONG), stride
    _gather(at, slots, n, pieces, count, scratch, least, width)
    return scratch, least


@_jit
def multiply(at, slots, n, step, pieces, scratch, width, like):
    """See the module's docstring. `scratch` has room for a frame and what is gathered."""
    rows, columns = load(step, _ROWS, _LONG), load(step, _COLUMNS, _LONG)
    if columns == 0:
        return
    is_added = load(step, _BIAS, _LONG) != 0 or load(step, _ADDEND, _LONG) >= 0
    if is_added:
        _fill(at, slots, n, step, width, like)
    count = load(step, _END, _LONG) - load(step, _BEGIN, _LONG)
    source, stride = _source(at, slots, n, pieces, count, rows, scratch + 8 * FRAME, width)
    slot, offset = load(step, _TARGET, _LONG), load(step, _TARGET + 1, _LONG)
    target = _row(at, slots, 0, slot) + offset
    target_stride = max(_stride(at, slots, n, slot), columns * width)
    gemm_by_frame(scratch, _AS_IT_IS, columns, n, rows, load(step, _WEIGHT, _LONG), columns, source, stride // width,
                  is_added, target, target_stride // width, like)  # fmt: skip


@_jit
def add_outer(fields, width, like):
    """What `edbc.cells.kernels.outer` does, in one call of the routine, to which row-major matrices are transposes.
    Behind the fields there is room for its arguments."""
    rows, inputs, columns = (
        load(fields, _OUTER_ROWS, _LONG), load(fields, _OUTER_INPUTS, _LONG), load(fields, _OUTER_COLUMNS, _LONG),
    )  # fmt: skip
    x, x_stride = load(fields, _OUTER_X, _LONG), load(fields, _OUTER_X + 1, _LONG) // width
    d, d_stride = load(fields, _OUTER_D, _LONG), load(fields, _OUTER_D + 1, _LONG) // width
    gemm_by_frame(fields + 8 * OUTER_FIELDS, _TRANSPOSED, inputs, columns, rows, x, x_stride, d, d_stride, True,
                  load(fields, _OUTER_TARGET, _LONG), inputs, like)  # fmt: skip


COMPILED_IN = (blas, outer, steps, pointers)


def _build(like: Any, width: int, stamp: int) -> Callable[..., None]:
    """`multiply` for elements of `like`'s type; see NOTE: [Stale caches] in `runtime.walk`."""

    def of_width(at, slots, n, step, pieces, scratch, unused):
        multiply(at, slots, n + (stamp & 0), step, pieces, scratch, width, like)

    return of_width


def _build_outer(like: Any, width: int, stamp: int) -> Callable[..., None]:
    def of_width(fields, a, b, c, d, e, f):
        add_outer(fields + (stamp & 0), width, like)

    return of_width


@cache
def address_of_library_outer(width: int) -> int:
    """The address of `add_outer`, as `address_of_multiply`."""
    return _address_of(_build_outer, width)


@cache
def address_of_multiply(width: int) -> int:
    """The address of `multiply` for floats of `width` bytes, compiled when it is first asked for."""
    return _address_of(_build, width)


def _address_of(build: Callable[..., Any], width: int) -> int:
    blas.vendor()  # registers the routines
    like = np.float32(0) if width == 4 else np.float64(0)
    return callback(build(like, width, checksum(*COMPILED_IN)), types.void(*[types.int64] * 7))
