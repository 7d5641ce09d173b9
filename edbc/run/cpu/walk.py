"""The walk over a schedule in native code: every batch of a stretch of it in one call, whatever its cells are.

For each batch: find where its operands' rows are, then call the kernels of its type's steps
(`edbc.cells.kernels.steps`) for a block of rows at a time, or run its reduction. All that differs between models is in
the tables. `walk_reference` in the tests says the same in Python.

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
import torch

from edbc.cells.kernels import outer, steps
from edbc.cells.kernels.steps import FIRST_OPERAND, SCRATCH, SHARED, WORKSPACE, StepField
from edbc.cells.rows import choiceloop, reduction
from edbc.cells.rows.choiceloop import NUM_COMPARISONS, chosen, compare
from edbc.cells.rows.reduction import OPS
from edbc.native import pointers
from edbc.native.kernelcache import INNER, UNCOUNTED, njit
from edbc.native.kinds import checksum
from edbc.native.pointers import (
    WORDS,
    add_shared,
    copy_bytes,
    load,
    load_number,
    load_shared,
    matrix_of,
    record_of,
    store,
    store_number,
    vector_at,
    vector_of,
    widened,
)
from edbc.run.cpu import teamwork
from edbc.run.cpu.teamwork import call_step
from edbc.schedule.waves import tasks
from edbc.schedule.waves.tasks import AFTER, BATCH, FIRST, LANE, LAST

ADDED = 32
"""Items that a reduction adds up one after the other."""
_MEAN, _MAX = OPS.index("mean"), OPS.index("max")
_INT, _LONG, _DOUBLE = np.int32(0), np.int64(0), np.float64(0)
_BEGIN = int(StepField.BEGIN)
_flags: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_jit = njit(**INNER, **UNCOUNTED, **_flags)
"""The walk alone makes arrays: what it calls takes some out of named tuples for every row."""

TORCH, PROGRAM, EXCERPT, LARGEST, SMALLEST, COMPARISON = range(6)
REDUCTION = COMPARISON + NUM_COMPARISONS
"""What runs a type: torch, steps, copies, a choice, or (from COMPARISON and from REDUCTION on) the comparison of that
number in `choice.COMPARISONS` and the reduction of that number in `reduction.OPS`."""

INDICES, EACH, ONE_ROW, ROWS = -3, -2, -1, 0
"""What externals of a source are: their indices themselves; or, at an address, the addresses of each, a row for all,
rows, or as many tables."""

LIKE = {torch.float32: np.float32(0), torch.float64: np.float64(0), torch.bfloat16: np.uint16(0)}
"""What tells `walk` an element type; numba has none for bfloat16, whose bits are integers to it."""

LINE = 64
"""Bytes of a cache line."""
TAKEN = 64
"""Offset in bytes; see `walk_stages`."""


class Batches(NamedTuple):
    """A schedule and its placement; see Schedule and Placement."""

    batch_type: Any
    batch_ptr: Any
    start: Any
    items: Any
    run: Any
    rows: Any
    segment: Any
    origin: Any
    output_row: Any


class Memory(NamedTuple):
    """Where rows are. A row of class c below `externals[c]` is at `external_address[external_start[c] + row]`, any
    other at `base[c] + row * stride[c]`."""

    stride: Any
    externals: Any
    external_start: Any
    operand_class: Any  # (types, operands)
    output_class: Any  # (types, outputs)
    base: Any
    external_address: Any


class Tables(NamedTuple):
    """Encoded programs of all types, with offsets in bytes and addresses filled in."""

    code: Any
    num_operands: Any
    num_outputs: Any
    step_ptr: Any
    steps: Any
    pieces: Any
    stride: Any
    """Bytes of a workspace row."""
    number: Any
    """What comparisons with a number compare with."""


IN_MEMORY = 5
"""Arrays that the record of a Memory tells of: all but the two that stand behind them in it, as they are another
mini-batch's next time."""


def record_of_memory(memory: Memory) -> Any:
    """See `pointers.record_of`; it begins with `record_of(memory[:IN_MEMORY])`, then come `base` and
    `external_address`."""
    return np.concatenate([record_of(memory[:IN_MEMORY]), memory.base, memory.external_address])


@_jit
def _batches_of(record):
    at = record.ctypes.data
    return Batches(vector_of(at, 0, _INT), vector_of(at, 1, _INT), vector_of(at, 2, _LONG), vector_of(at, 3, _LONG),
                   matrix_of(at, 4, _LONG), vector_of(at, 5, _LONG), vector_of(at, 6, _LONG), vector_of(at, 7, _LONG),
                   matrix_of(at, 8, _LONG))  # fmt: skip


@_jit
def _memory_of(record):
    at = record.ctypes.data
    stride, behind = vector_of(at, 0, _LONG), IN_MEMORY * WORDS
    end = behind + len(stride)
    return Memory(stride, vector_of(at, 1, _LONG), vector_of(at, 2, _LONG), matrix_of(at, 3, _LONG),
                  matrix_of(at, 4, _LONG), vector_at(at + 8 * behind, len(stride), _LONG),
                  vector_at(at + 8 * end, len(record) - end, _LONG))  # fmt: skip


@_jit
def _tables_of(record):
    at = record.ctypes.data
    return Tables(
        vector_of(at, 0, _LONG),
        vector_of(at, 1, _LONG),
        vector_of(at, 2, _LONG),
        vector_of(at, 3, _LONG),
        matrix_of(at, 4, _LONG),
        matrix_of(at, 5, _LONG),
        vector_of(at, 6, _LONG),
        vector_of(at, 7, _DOUBLE),
    )


@_jit
def address_of_row(memory, c, row):
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
    return address_of_row(memory, classes[k], batches.rows[base + r])


@_jit
def _find_rows(t, first, last, batches, memory, tables, bases, strides, classes, at, slots):
    """Addresses of rows first to last of every slot of type t: `slots` per row from address `at` on."""
    operands = tables.num_operands[t]
    for r in range(first, last):
        row = at + (r - first) * slots * 8
        store(row, WORKSPACE, bases[WORKSPACE] + (r - first) * strides[WORKSPACE])
        store(row, SCRATCH, bases[SCRATCH])
        store(row, SHARED, _LONG)
        for k in range(operands):
            store(row, FIRST_OPERAND + k, _operand_row(k, r, batches, memory, bases, strides, classes))
        for s in range(FIRST_OPERAND + operands, FIRST_OPERAND + operands + tables.num_outputs[t]):
            store(row, s, bases[s] + r * strides[s])


@_jit
def _program(t, first, last, batches, memory, tables, bases, strides, classes, at, slots, team):
    """All steps of type t for rows first to last of a batch."""
    _find_rows(t, first, last, batches, memory, tables, bases, strides, classes, at, slots)
    for s in range(tables.step_ptr[t], tables.step_ptr[t + 1]):
        step = tables.steps[s]
        pieces = tables.pieces[step[_BEGIN] :]
        call_step(step.ctypes.data, pieces.ctypes.data, at, slots, last - first, bases[SCRATCH], team, True)


@_jit
def _combine(op, total, item, n, like, wide):
    """`total[i] = total[i] op item[i]` for i < n; not-a-number wins."""
    for i in range(n):
        x, y = load(total, i, wide), load_number(item, i, like)
        if op <= _MEAN:
            store(total, i, x + y)
        elif op <= _MAX:
            store(total, i, x if x > y or x != x else y)
        else:
            store(total, i, x if x < y or x != x else y)


@_jit
def _divide(total, count, n, wide):
    """`total[i] /= count` for i < n."""
    for i in range(n):
        store(total, i, load(total, i, wide) / (wide + np.float32(count)))


@_jit
def _copy(target, source, n, of_target, of_source):
    """`target[i] = source[i]` for i < n, in elements of two types."""
    for i in range(n):
        store_number(target, i, load_number(source, i, of_source), of_target)


@_jit
def _reduce(op, b, batches, memory, tables, bases, strides, classes, width, like, spare):
    """A batch of reductions; a node's items stand one after the other. `op` is a number of `reduction.OPS`. What is
    reduced of bfloat16 is float32, at address `spare`, until all items are in it. Other elements are added up in
    parts of ADDED items, those behind the first one at `spare`: one after the other, many would round too much."""
    wide = widened(like)
    short = spare if width == 2 else 0
    fields = tables.num_operands[batches.batch_type[b]]
    items = batches.items[b]
    for k in range(fields):
        out, stride = bases[FIRST_OPERAND + fields + k], strides[FIRST_OPERAND + fields + k]
        first = 0
        for i in range(items):
            node = batches.segment[batches.start[b] + i]
            item = _operand_row(k, i, batches, memory, bases, strides, classes)
            target = out + node * stride
            is_last = i + 1 == items or batches.segment[batches.start[b] + i + 1] != node
            in_parts = op <= _MEAN and not short and i - first >= ADDED
            total = spare if short or in_parts else target
            if i > first and not (in_parts and (i - first) % ADDED == 0):
                _combine(op, total, item, stride // width, like, wide)
            elif short:
                _copy(total, item, stride // width, wide, like)
            else:
                copy_bytes(total, item, stride)
            if in_parts and (is_last or (i - first) % ADDED == ADDED - 1):
                _combine(op, target, spare, stride // width, wide, wide)
            if is_last:
                if op == _MEAN:
                    _divide(short if short else target, i + 1 - first, stride // width, wide)
                if short:
                    _copy(target, short, stride // width, like, wide)
                first = i + 1


@_jit
def _excerpts(b, batches, memory, width):
    """A batch of excerpts: each node's elements, from where its offset says."""
    t, start = batches.batch_type[b], batches.start[b]
    c, count = memory.output_class[t, 0], batches.batch_ptr[b + 1] - batches.batch_ptr[b]
    target, size = memory.base[c] + batches.output_row[b, 0] * memory.stride[c], memory.stride[c]
    for i in range(count):
        source = address_of_row(memory, batches.origin[start + i], batches.rows[start + i])
        offset = load(address_of_row(memory, memory.operand_class[t, 1], batches.rows[start + count + i]), 0, _LONG)
        copy_bytes(target + i * size, source + offset * width, size)


@_jit
def _choices(b, sign, batches, memory, bases, strides, classes, width):
    """A batch of choices among the elements of an operand."""
    out, count = bases[FIRST_OPERAND + 1], batches.batch_ptr[b + 1] - batches.batch_ptr[b]
    size = memory.stride[classes[0]] // width
    for i in range(count):
        row = _operand_row(0, i, batches, memory, bases, strides, classes)
        store(out, i, chosen(row, size, width, sign))


@_jit
def _comparisons(op, b, batches, memory, tables, bases, strides, classes, width, like):
    """A batch of comparisons of all elements of an operand with those of another one, or with a number."""
    t, count = batches.batch_type[b], batches.batch_ptr[b + 1] - batches.batch_ptr[b]
    operands, size = tables.num_operands[t], memory.stride[classes[0]] // width
    for i in range(count):
        left, right = _operand_row(0, i, batches, memory, bases, strides, classes), _LONG
        if operands == 2:
            right = _operand_row(1, i, batches, memory, bases, strides, classes)
        compare(op, bases[FIRST_OPERAND + operands] + i * size, left, right, tables.number[t], size, like)


@_jit
def _run(begin, end, block, batches, memory, tables, bases, strides, classes, at, totals, slots, width, like, team):
    """Batches begin to end; see `walk`. `at` and `totals` are passed as arrays, not as addresses: numba frees an array
    behind its last mention."""
    table, spare = at.ctypes.data, totals.ctypes.data
    for b in range(begin, end):
        _rows(b, 0, batches.batch_ptr[b + 1] - batches.batch_ptr[b], block, batches, memory, tables, bases, strides,
              classes, table, spare, slots, width, like, team)  # fmt: skip


@_jit
def _rows(b, begin, end, block, batches, memory, tables, bases, strides, classes, at, spare, slots, width, like, team):
    """Rows begin to end of batch b; all of them where no steps compute them."""
    t = batches.batch_type[b]
    _find_slots(b, batches, memory, tables, bases, strides, classes)
    if tables.code[t] >= REDUCTION:
        _reduce(tables.code[t] - REDUCTION, b, batches, memory, tables, bases, strides, classes, width, like, spare)
    elif tables.code[t] >= COMPARISON:
        _comparisons(tables.code[t] - COMPARISON, b, batches, memory, tables, bases, strides, classes, width, like)
    elif tables.code[t] == EXCERPT:
        _excerpts(b, batches, memory, width)
    elif tables.code[t] == LARGEST or tables.code[t] == SMALLEST:
        sign = np.int64(1 if tables.code[t] == LARGEST else -1)
        _choices(b, sign, batches, memory, bases, strides, classes, width)
    else:
        strides[WORKSPACE] = tables.stride[t]
        for first in range(begin, end, block):
            _program(t, first, min(first + block, end), batches, memory, tables, bases, strides, classes, at, slots,
                     team)  # fmt: skip


@_jit
def _take_tasks(
    lane, tasks, shared, block, batches, memory, tables, bases, strides, classes, at, totals, slots, width, like
):
    """See `walk_stages`."""
    table, spare = at.ctypes.data, totals.ctypes.data
    begin = 0
    while begin < len(tasks):
        after = tasks[begin, AFTER]
        while load_shared(shared) < after:
            pass
        end = begin
        while end < len(tasks) and tasks[end, AFTER] == after:
            end += 1
        for turn in range(2 * (end - begin)):
            i = begin + turn % (end - begin)
            word = shared + TAKEN + 8 * i
            is_mine = turn >= end - begin or tasks[i, LANE] == lane
            if is_mine and load_shared(word) == 0 and add_shared(word, _LONG + 1) == 0:
                _rows(tasks[i, BATCH], tasks[i, FIRST], tasks[i, LAST], block, batches, memory, tables, bases, strides,
                      classes, table, spare, slots, width, like, _LONG)  # fmt: skip
                add_shared(shared, _LONG + 1)
        begin = end
    while load_shared(shared) < len(tasks):
        pass


@_jit
def _carried_row(where, count, row):
    """The address of a row of `count` tables, of each of which there are the first row, and the address and the bytes
    of a row from the address `where` on. Nearly all are of the last one."""
    first, end = count - 1, count
    if load(where, 3 * first, _LONG) > row:
        first = 0
        while end - first > 1:
            middle = (first + end) // 2
            if load(where, 3 * middle, _LONG) > row:
                end = middle
            else:
                first = middle
    begin = load(where, 3 * first, _LONG)
    return load(where, 3 * first + 1, _LONG) + (row - begin) * load(where, 3 * first + 2, _LONG)


@_jit
def _bind(c, first, last, rows, index, at, kind, memory):
    """Of one table; see `bind_tables`."""
    start, stride = memory.external_start[c], memory.stride[c] if kind == ROWS else 0
    for i in range(first, last):
        if kind > ROWS:
            found = _carried_row(at, kind, index[i])
        elif kind == EACH:
            found = load(at, index[i], _LONG)
        else:
            found = at + index[i] * stride if kind >= ONE_ROW else index.ctypes.data + 8 * i
        memory.external_address[start + rows[i]] = found


@_jit
def _gather(target, rows, c, memory):
    """See `gather_rows`."""
    size = memory.stride[c]
    for i in range(len(rows)):
        copy_bytes(target + i * size, address_of_row(memory, c, rows[i]), size)


def _build(stamp: int) -> tuple[Callable[..., None], Callable[..., None], Callable[..., tuple[int, int]]]:
    """`walk`, `walk_stages` and `run_at_once`; see NOTE: [Stale caches]."""

    @njit(cache=True, **_flags)
    def walk(begin, end, block, workspace, scratch, width, of_batches, of_memory, of_tables, like, team):
        """Run batches begin to end, all of types with native code for `like`'s element type of `width` bytes.

        Batches, Memory and Tables come as records. `workspace` and `scratch` are addresses; the workspace has room for
        `block` rows of the widest type. `team` is the address of what threads share that help
        (`edbc.run.cpu.teamwork`), 0 where there are none.
        """
        batches, memory, tables = _batches_of(of_batches), _memory_of(of_memory), _tables_of(of_tables)
        slots = FIRST_OPERAND + memory.operand_class.shape[1] + memory.output_class.shape[1]
        bases, strides, classes = np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        at = np.empty(block * slots + (stamp & 0), np.int64)
        bases[WORKSPACE], bases[SCRATCH] = workspace, scratch
        totals = np.empty(memory.stride.max() // min(width, 4), np.float32)
        _run(begin, end, block, batches, memory, tables, bases, strides, classes, at, totals, slots, width, like, team)

    @njit(cache=True, **_flags)
    def walk_stages(lane, block, workspace, scratch, width, of_batches, of_memory, of_tables, like, tasks, shared):
        """Tasks of stages (`edbc.schedule.waves.stages`) that no other thread has taken, stage by stage, those of this
        lane first; returns when all are done. Every thread has a workspace and a scratch row of its own; at `shared`
        are how many are done and, from TAKEN bytes on, whether each is taken, 0 at first."""
        batches, memory, tables = _batches_of(of_batches), _memory_of(of_memory), _tables_of(of_tables)
        slots = FIRST_OPERAND + memory.operand_class.shape[1] + memory.output_class.shape[1]
        bases, strides, classes = np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        at = np.empty(block * slots + (stamp & 0), np.int64)
        bases[WORKSPACE], bases[SCRATCH] = workspace, scratch
        totals = np.empty(memory.stride.max() // min(width, 4), np.float32)
        _take_tasks(lane, tasks, shared, block, batches, memory, tables, bases, strides, classes, at, totals, slots,
                    width, like)  # fmt: skip

    @njit(cache=True, **_flags)
    def run_at_once(index, told, of_segment, of_tables, address, carried, like, team):
        """Bind, run and carry a segment of a structure that is placed (`edbc.run.cpu.atonce`). External i is row
        `index[i]` of its source, of which `told` has an address and what is there, as `bind_tables` takes them.
        `address` is that of the values. Returns the address from which on what is carried stands, and where in
        `carried` that is."""
        at = of_segment.ctypes.data
        of_memory = vector_of(at, 7, _LONG).copy()
        memory = _memory_of(of_memory)
        rows, order, of_source = vector_of(at, 0, _LONG), vector_of(at, 1, _LONG), matrix_of(at, 2, _LONG)
        want_rows, wants, sizes = vector_of(at, 3, _LONG), matrix_of(at, 4, _LONG), vector_of(at, 5, _LONG)
        for c in range(len(memory.base)):
            memory.base[c] += address
        in_order = np.empty(len(order), np.int64)
        for i in range(len(order)):
            in_order[i] = index[order[i]]
        for k in range(len(of_source)):
            number = of_source[k, 0]
            _bind(of_source[k, 1], of_source[k, 2], of_source[k, 3], rows, in_order, told[number, 0], told[number, 1],
                  memory)  # fmt: skip
        workspace = address + sizes[2]
        walk(0, sizes[0], sizes[1], workspace, workspace + sizes[3], sizes[4], vector_of(at, 6, _LONG), of_memory,
             of_tables, like, team)  # fmt: skip
        unaligned, first = carried.ctypes.data, 0
        target = (unaligned + LINE - 1) // LINE * LINE
        for k in range(len(wants)):
            _gather(target + wants[k, 2], want_rows[first : first + wants[k, 1]], wants[k, 0], memory)
            first += wants[k, 1]
        return target, target - unaligned + ((len(of_memory) | len(in_order)) & 0)  # freed behind their last mention

    return walk, walk_stages, run_at_once


COMPILED_IN = (choiceloop, outer, pointers, reduction, steps, tasks, teamwork)
walk, walk_stages, run_at_once = _build(checksum(*COMPILED_IN))


@njit(cache=True)
def frame_of(class_rows, class_externals, row_bytes, alignment):
    """Where classes stand in a buffer, each from a multiple of so many bytes on: of each where it begins, as if its
    externals stood before it, and where the addresses of these do; how many these are; bytes of the buffer, and of
    values in it."""
    base, external_start = np.empty(len(row_bytes), np.int64), np.empty(len(row_bytes), np.int64)
    num_externals = size = values = 0
    for c in range(len(row_bytes)):
        base[c], external_start[c] = size - class_externals[c] * row_bytes[c], num_externals
        in_class = (class_rows[c] - class_externals[c]) * row_bytes[c]
        num_externals += class_externals[c]
        values += in_class
        size += (in_class + alignment - 1) // alignment * alignment
    return base, external_start, num_externals, size, values


@njit(cache=True, nogil=True, **UNCOUNTED)
def gather_rows(target, rows, c, of_memory):
    """Copy rows of class c to consecutive places from address `target` on. Memory comes as a record."""
    _gather(target, rows, c, _memory_of(of_memory))


@njit(cache=True, nogil=True, **UNCOUNTED)
def gather_mixed(target, rows, classes, of_memory):
    """Copy rows, each of a class of its own, to consecutive places from address `target` on. Memory comes as a
    record."""
    memory = _memory_of(of_memory)
    for i in range(len(rows)):
        size = memory.stride[classes[i]]
        copy_bytes(target, address_of_row(memory, classes[i], rows[i]), size)
        target += size


@njit(cache=True, nogil=True, **UNCOUNTED)
def bind_tables(rows, index, tables, of_memory, address):
    """Of each of `tables`, a class, a range of i, an address, and ROWS, ONE_ROW, or how many tables earlier segments
    have carried: the external in row `rows[i]` of the class is row `index[i]` of those at the address, or of the tables
    that are told there. Memory comes as a record; its bases are so many bytes too small."""
    memory = _memory_of(of_memory)
    for c in range(len(memory.base)):
        memory.base[c] += address
    for k in range(len(tables)):
        _bind(tables[k, 0], tables[k, 1], tables[k, 2], rows, index, tables[k, 3], tables[k, 4], memory)
