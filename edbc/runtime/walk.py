"""The walk over a schedule in native code: every batch of a stretch of it in one call, whatever its cells are.

For each batch: find where its operands' rows are, then run its type's phases (see `runtime.phases`) block of rows by
block of rows, or its reduction. All that differs between models is in the tables. `walk_reference` in the tests says
the same in Python.

NOTE: [Stale caches] `kernelcache` keys a kernel by the functions that it calls and the numbers that it names, but does
not see what `overload` puts in the place of a function. `walk` is a closure over a checksum of the modules that it
compiles in, those that only give it a number too, which makes the checksum part of the key.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from edbc.kernelcache import INNER, UNCOUNTED, njit
from edbc.runtime import blas, dimensions, phases, pointers, reduction, rowops
from edbc.runtime.dimensions import ALONG
from edbc.runtime.phases import FIRST_OPERAND, GATHER, PRODUCT, SCRATCH, SHARED, WORKSPACE
from edbc.runtime.pointers import call_at, copy_bytes, dgemm, sgemm, store
from edbc.runtime.reduction import OPS
from edbc.runtime.rowops import OPERATIONS, apply, divide
from edbc.schedule.native import checksum

_ADD, _MAXIMUM, _MINIMUM = (OPERATIONS.index(name) for name in ("add", "maximum", "minimum"))
_SUM, _MEAN, _MAX, _MIN = map(OPS.index, ("sum", "mean", "max", "min"))
_MATMUL, _MATMUL_ADD = OPERATIONS.index("matmul"), OPERATIONS.index("matmul_add")
CODES = (*OPERATIONS, *ALONG)
"""Names of an instruction's codes: of `apply`, the two products, then of `along`."""
_ONE = np.float32(1)
_AS_IT_IS = ord("N")
"""The letter for a matrix that the BLAS does not transpose; numba would compile its strings for `ord`."""
_flags: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_jit = njit(**INNER, **UNCOUNTED, **_flags)
"""The walk alone makes arrays: what it calls takes some out of named tuples for every row."""

TORCH, PROGRAM, REDUCTION = 0, 1, 2
"""What runs a type: torch, phases, or (from REDUCTION on) the reduction of that number in `reduction.OPS`."""


class Batches(NamedTuple):
    """A schedule and its placement; see Schedule and Placement."""

    batch_type: Any
    batch_ptr: Any
    start: Any
    items: Any
    run: Any
    rows: Any
    segment: Any
    output_row: Any


class Memory(NamedTuple):
    """Where rows are. A row of class c below `externals[c]` is at `external_address[external_start[c] + row]`, any
    other at `base[c] + row * stride[c]`."""

    base: Any
    stride: Any
    externals: Any
    external_start: Any
    external_address: Any
    operand_class: Any  # (types, operands)
    output_class: Any  # (types, outputs)


class Tables(NamedTuple):
    """Encoded programs of all types, with offsets in bytes and addresses filled in."""

    code: Any
    num_operands: Any
    num_outputs: Any
    phase_ptr: Any
    phases: Any
    instructions: Any
    stride: Any
    """Bytes of a workspace row."""


def gemm(transpose, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, like):
    """The vendor BLAS's product of column-major matrices with elements of `like`'s type; all arguments are
    addresses."""


@overload(gemm, jit_options=_flags)
def _gemm(transpose, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, like):
    vendor = sgemm if like == types.float32 else dgemm

    def call(transpose, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, like):
        vendor(transpose, transpose, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)

    return call


@_jit
def _address(memory, c, row):
    if row < memory.externals[c]:
        return memory.external_address[memory.external_start[c] + row]
    return memory.base[c] + row * memory.stride[c]


@_jit
def _find_slots(b, batches, memory, tables, bases, strides, classes):
    """Base and stride of every operand and output of batch b; stride -1 says that an operand's rows are scattered, base
    then where their numbers start in `batches.rows`."""
    t = batches.batch_type[b]
    operands = tables.num_operands[t]
    for k in range(operands):
        c = memory.operand_class[t, k]
        first = batches.run[b, k]
        classes[k] = c
        if first >= memory.externals[c]:
            bases[FIRST_OPERAND + k] = memory.base[c] + first * memory.stride[c]
            strides[FIRST_OPERAND + k] = memory.stride[c]
        else:
            bases[FIRST_OPERAND + k] = batches.start[b] + k * batches.items[b]
            strides[FIRST_OPERAND + k] = -1
    for j in range(tables.num_outputs[t]):
        c = memory.output_class[t, j]
        bases[FIRST_OPERAND + operands + j] = memory.base[c] + batches.output_row[b, j] * memory.stride[c]
        strides[FIRST_OPERAND + operands + j] = memory.stride[c]


@_jit
def _operand_row(k, r, batches, memory, bases, strides, classes):
    """Address of row r of operand k."""
    base, stride = bases[FIRST_OPERAND + k], strides[FIRST_OPERAND + k]
    if stride >= 0:
        return base + r * stride
    return _address(memory, classes[k], batches.rows[base + r])


@_jit
def _gather(phase, pieces, first, last, batches, memory, bases, strides, classes):
    """Rows of `pieces` are (operand, offset, column, size)."""
    begin, end, optional = phase[1], phase[2], phase[3]
    if optional and strides[FIRST_OPERAND + pieces[begin, 0]] >= 0:
        return
    for r in range(first, last):
        row = bases[WORKSPACE] + (r - first) * strides[WORKSPACE]
        for i in range(begin, end):
            source = _operand_row(pieces[i, 0], r, batches, memory, bases, strides, classes)
            copy_bytes(row + pieces[i, 2], source + pieces[i, 1], pieces[i, 3])


@_jit
def _fill(phase, target, first, last, num_operands, batches, memory, bases, strides, classes, width, like):
    """Write what a product is added to, its bias and its addend, to the rows from `target` on."""
    slot, columns, bias, addend, inside = phase[2], phase[5], phase[7], phase[9], phase[10]
    for r in range(first, last):
        row = target + (r - first) * strides[slot]
        if addend < 0:
            copy_bytes(row, bias, columns * width)
            continue
        if addend >= FIRST_OPERAND and addend < FIRST_OPERAND + num_operands:
            source = _operand_row(addend - FIRST_OPERAND, r, batches, memory, bases, strides, classes)
        else:
            source = bases[addend] + (r - (first if addend == WORKSPACE else 0)) * strides[addend]
        if bias != 0:
            apply(_ADD, row, source + inside, bias, bias, columns, like)
        else:
            copy_bytes(row, source + inside, columns * width)


@_jit
def _gemm_by_frame(frame, m, n, k, a, lda, b, ldb, is_added, c, ldc, like):
    """`c = a @ b` of column-major matrices, or added to it. `frame` is the address of the routine's arguments, which it
    takes by address: a letter, six integers, two numbers."""
    store(frame, 1, m)
    store(frame, 2, n)
    store(frame, 3, k)
    store(frame, 4, lda)
    store(frame, 5, ldb)
    store(frame, 6, ldc)
    one, zero = frame + 56, frame + 64
    beta = one if is_added else zero
    gemm(frame, frame + 8, frame + 16, frame + 24, one, a, frame + 32, b, frame + 40, beta, c, frame + 48, like)


@_jit
def _multiply(phase, first, last, num_operands, batches, memory, bases, strides, classes, frame, width, like):
    """One product for rows first to last. Row-major matrices are the column-major routine's transposes."""
    column, slot, offset, rows = phase[1], phase[2], phase[3], phase[4]
    columns, weight, bias, k = phase[5], phase[6], phase[7], phase[8]
    source, source_stride = bases[WORKSPACE] + column, strides[WORKSPACE]
    if k >= 0 and strides[FIRST_OPERAND + k] >= 0:
        source_stride = strides[FIRST_OPERAND + k]
        source = bases[FIRST_OPERAND + k] + first * source_stride
    target, stride = bases[slot] + offset, strides[slot]
    if slot != WORKSPACE:
        target += first * stride
    if columns == 0:
        return
    is_added = bias != 0 or phase[9] >= 0
    if is_added and not (phase[9] == slot and phase[10] == offset):
        _fill(phase, target, first, last, num_operands, batches, memory, bases, strides, classes, width, like)
    source_stride, stride = max(source_stride // width, 1), max(stride // width, 1)
    _gemm_by_frame(
        frame, columns, last - first, rows, weight, columns, source, source_stride, is_added, target, stride, like
    )


@_jit
def _matrix_product(target, a, b, m, k, n, stride, is_added, frame, like):
    """`target = a @ b`, or added to it, for one row's row-major matrices (m, k) and (k, n), the first in rows of
    `stride` elements."""
    _gemm_by_frame(frame, n, m, k, b, n, a, max(stride, 1), is_added, target, n, like)


@_jit
def _pass(begin, end, along, first, last, num_operands, num_outputs, batches, memory, tables, bases, strides, classes,
          row, frame, like):  # fmt: skip
    """Instructions begin to end for rows first to last, one row after the other; `row` has the slots' addresses, and
    `along` is that of `dimensions.along`."""
    row[SCRATCH], row[SHARED] = bases[SCRATCH], 0
    code = tables.instructions
    for r in range(first, last):
        row[WORKSPACE] = bases[WORKSPACE] + (r - first) * strides[WORKSPACE]
        for k in range(num_operands):
            row[FIRST_OPERAND + k] = _operand_row(k, r, batches, memory, bases, strides, classes)
        for s in range(FIRST_OPERAND + num_operands, FIRST_OPERAND + num_operands + num_outputs):
            row[s] = bases[s] + r * strides[s]
        for i in range(begin, end):
            target, a, b = row[code[i, 2]] + code[i, 3], row[code[i, 4]] + code[i, 5], row[code[i, 6]] + code[i, 7]
            if code[i, 0] > _MATMUL_ADD:
                call_at(along, code[i, 0] - _MATMUL_ADD - 1, target, a, b, code[i, 8], code[i, 9], code[i, 10])
            elif code[i, 0] >= _MATMUL:
                m, k, n, stride = code[i, 8], code[i, 9], code[i, 1], code[i, 10]
                _matrix_product(target, a, b, m, k, n, stride, code[i, 0] == _MATMUL_ADD, frame, like)
            else:
                apply(code[i, 0], target, a, b, row[code[i, 8]] + code[i, 9], code[i, 1], like)


@_jit
def _program(t, first, last, batches, memory, tables, bases, strides, classes, row, frame, width, like):
    """All phases of type t for rows first to last of a batch."""
    for p in range(tables.phase_ptr[t], tables.phase_ptr[t + 1]):
        phase = tables.phases[p]
        if phase[0] == GATHER:
            _gather(phase, tables.instructions, first, last, batches, memory, bases, strides, classes)
        elif phase[0] == PRODUCT:
            _multiply(
                phase, first, last, tables.num_operands[t], batches, memory, bases, strides, classes, frame, width, like
            )
        else:
            _pass(phase[1], phase[2], phase[3], first, last, tables.num_operands[t], tables.num_outputs[t], batches,
                  memory, tables, bases, strides, classes, row, frame, like)  # fmt: skip


@_jit
def _reduce(op, b, batches, memory, tables, bases, strides, classes, width, like):
    """A batch of reductions; a node's items stand one after the other. `op` is a number of `reduction.OPS`."""
    fields = tables.num_operands[batches.batch_type[b]]
    combine = _MAXIMUM if op == _MAX else _MINIMUM if op == _MIN else _ADD
    items = batches.items[b]
    for k in range(fields):
        out, stride = bases[FIRST_OPERAND + fields + k], strides[FIRST_OPERAND + fields + k]
        first = 0
        for i in range(items):
            node = batches.segment[batches.start[b] + i]
            item = _operand_row(k, i, batches, memory, bases, strides, classes)
            target = out + node * stride
            if i == first:
                copy_bytes(target, item, stride)
            else:
                apply(combine, target, target, item, item, stride // width, like)
            if i + 1 == items or batches.segment[batches.start[b] + i + 1] != node:
                if op == _MEAN:
                    divide(target, i + 1 - first, stride // width, like)
                first = i + 1


@_jit
def _run(begin, end, block, batches, memory, tables, bases, strides, classes, row, frame, width, like):
    """Batches begin to end; see `walk`. `frame` is passed as an array, not as an address: numba frees an array behind
    its last mention."""
    arguments = frame.ctypes.data
    for b in range(begin, end):
        t = batches.batch_type[b]
        _find_slots(b, batches, memory, tables, bases, strides, classes)
        if tables.code[t] >= REDUCTION:
            _reduce(tables.code[t] - REDUCTION, b, batches, memory, tables, bases, strides, classes, width, like)
            continue
        strides[WORKSPACE] = tables.stride[t]
        count = batches.batch_ptr[b + 1] - batches.batch_ptr[b]
        for first in range(0, count, block):
            _program(t, first, min(first + block, count), batches, memory, tables, bases, strides, classes, row,
                     arguments, width, like)  # fmt: skip


def _build(stamp: int) -> Callable[..., None]:
    """`walk`; see NOTE: [Stale caches]."""

    @njit(cache=True, **_flags)
    def walk(begin, end, block, workspace, scratch, width, batches, memory, tables, like):
        """Run batches begin to end, all of types with native code for `like`'s element type of `width` bytes.

        `workspace` and `scratch` are addresses; the workspace has room for `block` rows of the widest type.
        """
        slots = FIRST_OPERAND + memory.operand_class.shape[1] + memory.output_class.shape[1]
        bases, strides, row = np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        classes = np.zeros(slots, np.int64)
        frame = np.zeros(9 + (stamp & 0), np.int64)
        frame[0] = _AS_IT_IS
        store(frame.ctypes.data + 56, 0, like + _ONE)
        bases[WORKSPACE], bases[SCRATCH] = workspace, scratch
        _run(begin, end, block, batches, memory, tables, bases, strides, classes, row, frame, width, like)

    return walk


COMPILED_IN = (blas, dimensions, phases, pointers, reduction, rowops)
walk = _build(checksum(*COMPILED_IN))


@njit(cache=True, nogil=True, **UNCOUNTED)
def gather_rows(target, size, rows, c, memory):
    """Copy rows of class c, `size` bytes each, to consecutive places from address `target` on."""
    for i in range(len(rows)):
        copy_bytes(target + i * size, _address(memory, c, rows[i]), size)


@njit(cache=True, nogil=True, **UNCOUNTED)
def bind_rows(externals, index, external_row, c, address, memory):
    """External `externals[i]`, of class c, is row `index[i]` of the rows at `address`."""
    start, stride = memory.external_start[c], memory.stride[c]
    for i in range(len(externals)):
        memory.external_address[start + external_row[externals[i]]] = address + index[i] * stride
