"""The walk over a schedule in reverse, and the products of weights after it, in native code.

For each batch from the last to the first: call the kernels of its type's backward steps (see `training.adjoint`) for
its live nodes, block of rows by block of rows, or spread its reduction's gradient over the items. Then, per type and
block of nodes, gather what its products read and add deltas transposed times that to the gradients of the weights.
Everything adds up in one fixed order, row after row, so that results are the same bits in every run.

All that differs between models is in the tables. The tests compare with `training.recompute` under autograd.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from edbc.cells.kernels import outer as outer_products
from edbc.cells.kernels import steps
from edbc.cells.kernels.outer import OUTER_FIELDS, OuterField
from edbc.cells.kernels.steps import FIRST_OPERAND, SCRATCH, SHARED, WORKSPACE, StepField
from edbc.cells.rows import choiceloop, reduction
from edbc.native import pointers
from edbc.native.kernelcache import INNER, UNCOUNTED, njit
from edbc.native.kinds import checksum
from edbc.native.pointers import copy_bytes, load, store
from edbc.run.cpu import teamwork
from edbc.run.cpu import walk as forward
from edbc.run.cpu.teamwork import call_outer, call_step
from edbc.run.cpu.walk import ADDED, address_of_row
from edbc.schedule.waves import tasks

_ZERO, _ONE, _LONG = np.float32(0), np.float32(1), np.int64(0)
_flags: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_counted = njit(**INNER, **_flags)
_jit = njit(**INNER, **UNCOUNTED, **_flags)
"""Of functions that make no array; see `runtime.walk`."""

PROGRAM, SUM, MEAN, EXTREME, EXCERPT, FIRST = 1, 2, 3, 4, 5, 6
"""What a type is differentiated by; 0: torch."""
FIXED, REGULAR, SCATTERED = 0, 1, 2
"""Kinds of slots in `where`: fixed, base + r x stride, by row numbers; one more for those of gradients."""
_BEGIN = int(StepField.BEGIN)
_ROWS, _X, _D, _TARGET, _INPUTS, _COLUMNS = map(int, (
    OuterField.ROWS, OuterField.X, OuterField.D, OuterField.TARGET, OuterField.INPUTS, OuterField.COLUMNS))  # fmt: skip


class Reversed(NamedTuple):
    """A schedule, its placement, and the live nodes: positions `live[live_ptr[b]:live_ptr[b + 1]]` of batch b."""

    batch_type: Any
    batch_ptr: Any
    start: Any
    items: Any
    rows: Any
    segment: Any
    origin: Any
    output_row: Any
    live_ptr: Any
    live: Any


class Rows(NamedTuple):
    """Where the rows of classes are; see `runtime.walk.Memory`. Gradients have the same rows as values."""

    base: Any
    stride: Any
    externals: Any
    external_start: Any
    external_address: Any


class Adjoints(NamedTuple):
    """Adjoints of all types, offsets in bytes."""

    code: Any
    num_operands: Any
    num_outputs: Any
    operand_class: Any  # (types, operands)
    output_class: Any  # (types, outputs), then the classes of what is saved and kept
    saved: Any
    """Which output is what is saved, or -1."""
    kept: Any
    stride: Any
    """Bytes of a workspace row."""
    step_ptr: Any
    steps: Any
    pieces: Any
    product_ptr: Any
    products: Any
    """Of each weight: delta, columns, input column, rows."""
    input_ptr: Any
    inputs: Any
    """Slot, offset, size and column."""
    input_stride: Any


class Weights(NamedTuple):
    """Addresses that change from mini-batch to mini-batch. By type: the gradients of vectors; by product: the gradient
    of its weight (columns, rows) and that of the bias, 0 without one."""

    vectors: Any
    weight_gradient: Any
    bias_gradient: Any


@_jit
def _add(target, source, n, like):
    """Add n elements to others."""
    for i in range(n):
        store(target, i, load(target, i, like) + load(source, i, like))


@_jit
def _find_slots(t, b, batches, values, gradients, tables, weights, where):
    """Where the rows of each operand and output of the backward pass of type t are in batch b, in the order of
    `adjoint.Slots`; see `_row_address`. Returns the first slot behind them."""
    operands, outputs = tables.num_operands[t], tables.num_outputs[t]
    slot = FIRST_OPERAND
    for part in range(2):
        memory = gradients if part else values
        if part == 0:
            _find_operands(slot, t, b, 0, batches, values, tables, where)
            slot += operands
        for j in range(outputs):
            _find_output(slot + j, t, b, j, batches, memory, tables, where)
        slot += outputs
        if part == 0:
            _find_output(slot, t, b, tables.saved[t], batches, values, tables, where)
            _find_output(slot + 1, t, b, tables.kept[t], batches, values, tables, where)
            slot += 2
    _find_operands(slot, t, b, 1, batches, gradients, tables, where)
    slot += operands
    _find_output(slot, t, b, tables.saved[t], batches, gradients, tables, where)
    where[slot + 1, 0], where[slot + 1, 1] = FIXED, weights.vectors[t]
    return slot + 2


@_jit
def _find_operands(first, t, b, part, batches, memory, tables, where):
    for k in range(tables.num_operands[t]):
        c = tables.operand_class[t, k]
        where[first + k, 0] = SCATTERED + part
        where[first + k, 1], where[first + k, 2] = memory.base[c], memory.stride[c]
        where[first + k, 3] = batches.start[b] + k * batches.items[b]
        where[first + k, 4], where[first + k, 5] = memory.externals[c], memory.external_start[c]


@_jit
def _find_output(slot, t, b, j, batches, memory, tables, where):
    if j < 0:
        where[slot, 0], where[slot, 1] = FIXED, 0
        return
    c = tables.output_class[t, j]
    where[slot, 0], where[slot, 2] = REGULAR, memory.stride[c]
    where[slot, 1] = memory.base[c] + batches.output_row[b, j] * memory.stride[c]


@_jit
def _row_address(where, slot, r, rows, of_values, of_gradients):
    """Row r of a slot: fixed, at a stride, or scattered by row numbers, those of externals by address."""
    kind = where[slot, 0]
    if kind == FIXED:
        return where[slot, 1]
    if kind == REGULAR:
        return where[slot, 1] + r * where[slot, 2]
    row = rows[where[slot, 3] + r]
    if row >= where[slot, 4]:
        return where[slot, 1] + row * where[slot, 2]
    at = where[slot, 5] + row
    return of_values[at] if kind == SCATTERED else of_gradients[at]


@_jit
def _program(t, b, block, batches, values, gradients, tables, weights, where, workspace, scratch, at, team):
    """The backward pass of type t for the live nodes of batch b. `at` has room for the slots of `block` rows."""
    begin, end = batches.live_ptr[b], batches.live_ptr[b + 1]
    rows, of_values, of_gradients = batches.rows, values.external_address, gradients.external_address
    slots = _find_slots(t, b, batches, values, gradients, tables, weights, where)
    for first in range(begin, end, block):
        last = min(first + block, end)
        for i in range(first, last):
            row, r = at + (i - first) * slots * 8, batches.live[i]
            store(row, WORKSPACE, workspace + (i - first) * tables.stride[t])
            store(row, SCRATCH, scratch)
            store(row, SHARED, _LONG)
            for slot in range(FIRST_OPERAND, slots):
                store(row, slot, _row_address(where, slot, r, rows, of_values, of_gradients))
        for s in range(tables.step_ptr[t], tables.step_ptr[t + 1]):
            step = tables.steps[s]
            pieces = tables.pieces[step[_BEGIN] :]
            call_step(step.ctypes.data, pieces.ctypes.data, at, slots, last - first, scratch, team, False)


@_jit
def _reduction(t, b, batches, values, gradients, tables, alive, width, like):
    """Spread the gradient of a reduction over its items, which stand node after node."""
    count = batches.batch_ptr[b + 1] - batches.batch_ptr[b]
    alive[:count] = False
    for i in range(batches.live_ptr[b], batches.live_ptr[b + 1]):
        alive[batches.live[i]] = True
    items, start = batches.items[b], batches.start[b]
    for k in range(tables.num_operands[t]):
        rows = batches.rows[start + k * items : start + (k + 1) * items]
        first = 0
        while first < items:
            node = batches.segment[start + first]
            last = first + 1
            while last < items and batches.segment[start + last] == node:
                last += 1
            if alive[node]:
                result = batches.output_row[b, k] + node
                _spread(
                    tables.code[t], rows[first:last], result, tables.output_class[t, k], values, gradients, width, like
                )
            first = last


@_jit
def _spread(code, rows, result, c, values, gradients, width, like):
    """Add the gradient of one node's result, in row `result` of class c, to the gradients of its items, in `rows`."""
    n, source = gradients.stride[c] // width, address_of_row(gradients, c, result)
    if code == SUM:
        for row in rows:
            _add(address_of_row(gradients, c, row), source, n, like)
        return
    best = address_of_row(values, c, result)
    for e in range(n):
        found = load(best, e, like)
        among = like + (_ONE if code == FIRST else np.float32(len(rows)))
        if code == EXTREME:
            among = like * _ZERO
            for row in rows:
                among += _ONE if load(address_of_row(values, c, row), e, like) == found else _ZERO
        share = load(source, e, like) / among
        for row in rows:
            target = address_of_row(gradients, c, row)
            chosen = code == MEAN or load(address_of_row(values, c, row), e, like) == found
            store(target, e, load(target, e, like) + (share if chosen else share * _ZERO))
            if chosen and code == FIRST:
                break


@_jit
def _excerpts(t, b, batches, values, gradients, tables, width, like):
    """Add the gradients of live excerpts to the elements that they are of what they are taken of."""
    c, start = tables.output_class[t, 0], batches.start[b]
    count, n = batches.batch_ptr[b + 1] - batches.batch_ptr[b], gradients.stride[c] // width
    for i in range(batches.live_ptr[b], batches.live_ptr[b + 1]):
        r = batches.live[i]
        offset = load(address_of_row(values, tables.operand_class[t, 1], batches.rows[start + count + r]), 0, _LONG)
        target = address_of_row(gradients, batches.origin[start + r], batches.rows[start + r]) + offset * width
        source = address_of_row(gradients, c, batches.output_row[b, 0] + r)
        _add(target, source, n, like)


@_jit
def _multiply(t, m, inputs, deltas, deltas_stride, tables, weights, outer, fields, spare, like, team):
    """Add the products of m gathered rows to the gradients of the weights of type t, (columns, rows) each, and the sums
    of their deltas to those of the biases, in parts of ADDED rows in `spare`: one row after the other, many would
    round too much."""
    part = spare.ctypes.data
    for p in range(tables.product_ptr[t], tables.product_ptr[t + 1]):
        delta, columns, column, rows = (
            tables.products[p, 0], tables.products[p, 1], tables.products[p, 2], tables.products[p, 3],
        )  # fmt: skip
        if weights.bias_gradient[p] != 0:
            for first in range(0, m, ADDED):
                copy_bytes(part, deltas + first * deltas_stride, deltas_stride)
                for i in range(first + 1, min(first + ADDED, m)):
                    _add(part + delta, deltas + i * deltas_stride + delta, columns, like)
                _add(weights.bias_gradient[p], part + delta, columns, like)
        if weights.weight_gradient[p] == 0 or rows == 0 or columns == 0:
            continue
        store(fields, _ROWS, m)
        store(fields, _X, inputs + column)
        store(fields, _X + 1, tables.input_stride[t])
        store(fields, _D, deltas + delta)
        store(fields, _D + 1, deltas_stride)
        store(fields, _TARGET, weights.weight_gradient[p])
        store(fields, _INPUTS, rows)
        store(fields, _COLUMNS, columns)
        call_outer(outer, fields, team)


@_jit
def _most_slots(tables):
    """Of the type with the most operands and outputs, or more."""
    return FIRST_OPERAND + 2 * (tables.operand_class.shape[1] + tables.output_class.shape[1]) + 4


@_counted
def _products(
    t, begin, end, block, workspace, filled, ends, outer, batches, values, gradients, tables, weights, like, team
):  # fmt: skip
    """The gradients of the weights of type t: one product each over its live nodes in batches end - 1 down to begin, in
    blocks. The first `filled` rows of the workspace come from later batches; unless this `ends` the products, rows of a
    block that is not full wait there for earlier ones. Returns how many do."""
    fields = np.zeros(OUTER_FIELDS, np.int64)
    deltas_stride = gradients.stride[tables.output_class[t, tables.saved[t]]]
    spare = np.zeros(deltas_stride, np.uint8)
    deltas = workspace + block * tables.input_stride[t]
    rows, of_values, of_gradients = batches.rows, values.external_address, gradients.external_address
    where = np.zeros((_most_slots(tables), 6), np.int64)
    for b in range(end - 1, begin - 1, -1):
        if batches.batch_type[b] != t:
            continue
        delta = _find_slots(t, b, batches, values, gradients, tables, weights, where) - 2
        for i in range(batches.live_ptr[b], batches.live_ptr[b + 1]):
            r = batches.live[i]
            target = workspace + filled * tables.input_stride[t]
            for p in range(tables.input_ptr[t], tables.input_ptr[t + 1]):
                slot, offset, size, column = (
                    tables.inputs[p, 0], tables.inputs[p, 1], tables.inputs[p, 2], tables.inputs[p, 3],
                )  # fmt: skip
                source = _row_address(where, slot, r, rows, of_values, of_gradients)
                copy_bytes(target + column, source + offset, size)
            source = _row_address(where, delta, r, rows, of_values, of_gradients)
            copy_bytes(deltas + filled * deltas_stride, source, deltas_stride)
            filled += 1
            if filled == block:
                _multiply(t, filled, workspace, deltas, deltas_stride, tables, weights, outer, fields.ctypes.data,
                          spare, like, team)  # fmt: skip
                filled = 0
    if ends and filled:
        _multiply(t, filled, workspace, deltas, deltas_stride, tables, weights, outer, fields.ctypes.data,
                          spare, like, team)  # fmt: skip
        filled = 0
    return filled


def _build(stamp: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """`walk_back` and `weight_products`; see NOTE: [Stale caches] in `runtime.walk`."""

    @njit(cache=True, **_flags)
    def walk_back(
        begin, end, block, workspace, scratch, width, batches, values, gradients, tables, weights, like, team
    ):
        """Differentiate batches end - 1 down to begin, all of types with native code."""
        slots = _most_slots(tables)
        at = np.zeros(block * slots + (stamp & 0), np.int64)
        widest = 0
        for b in range(begin, end):
            widest = max(widest, batches.batch_ptr[b + 1] - batches.batch_ptr[b])
        where = np.zeros((slots, 6), np.int64)
        alive = np.zeros(widest, np.bool_)
        for b in range(end - 1, begin - 1, -1):
            t = batches.batch_type[b]
            if tables.code[t] == EXCERPT:
                _excerpts(t, b, batches, values, gradients, tables, width, like)
            elif tables.code[t] >= SUM:
                _reduction(t, b, batches, values, gradients, tables, alive, width, like)
            else:
                _program(t, b, block, batches, values, gradients, tables, weights, where, workspace, scratch,
                         at.ctypes.data, team)  # fmt: skip

    @njit(cache=True, **_flags)
    def weight_products(kinds, begin, end, block, workspaces, filled, outer, batches, values, gradients, tables,
                        weights, like, team):  # fmt: skip
        """What `walk_back` has left of batches end - 1 down to begin: one product for each weight of types `kinds` over
        all nodes. Called with the end of the schedule first, with its beginning last; `filled` counts the rows that
        wait in each type's workspace from one call to the next."""
        for i in range(len(kinds) + (stamp & 0)):
            filled[i] = _products(kinds[i], begin, end, block, workspaces[i], filled[i], begin == 0, outer, batches,
                                  values, gradients, tables, weights, like, team)  # fmt: skip

    return walk_back, weight_products


COMPILED_IN = (choiceloop, forward, outer_products, pointers, reduction, steps, tasks, teamwork)
walk_back, weight_products = _build(checksum(*COMPILED_IN))


@njit(cache=True, nogil=True, **UNCOUNTED)
def add_rows(source, width, rows, c, memory, like):
    """Add consecutive rows from address `source` on to rows of class c."""
    n = memory.stride[c] // width
    for i in range(len(rows)):
        target = address_of_row(memory, c, rows[i])
        for e in range(n):
            store(target, e, load(target, e, like) + load(source, i * n + e, like))
