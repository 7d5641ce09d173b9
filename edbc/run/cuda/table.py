"""From a schedule to the table that steps run by, in native code: which batch runs in which step, and the records.

Definitions.

(1) An *operation* is all that one batch is to have done by one kernel: its stages run in consecutive steps, from its
    first step on. It carries a *vector* of what its kernel's branches may ask for, one number per name.
(2) A batch's first step is the one behind the last step of every batch that it reads: so steps hold batches of several
    types that are ready together, and there are no more of them than the longest path through the batches has stages.
    Batches of a transient type share memory, so one waits for those that read the one before.
(3) Workspaces of batches whose steps overlap are apart. A *block* is as many steps as the longest operation has stages;
    what begins in one block has ended when the next but one begins, so two regions are enough, taken in turns.
(4) Which of its tile sizes a record has: the largest that gives each program a tile, or the smallest.

Records and branches: see `edbc.run.cuda.tritonsource`.
"""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.native.kernelcache import njit
from edbc.run.cuda.tritonsource import FIELDS, Field

Longs = NDArray[np.int64]

ARENA, ROWS, OUTPUT, FIRST_ROW, CONSTANT, WORK, BORDERS = range(7)
"""Kinds of what a vector holds: an operand's arena and its row numbers, an output's arena and first row, the address of
a weight, a bias or a parameter, the workspace, and the borders of items."""
_BRANCH, _LEFT, _FIRST, _TILES, _COUNT = (int(field) for field in Field)


class Tables(NamedTuple):
    """What native code knows of kernels. q kernels, j jobs, v variants, n names at most."""

    kinds: Longs  # (q, n) -1 where a kernel has fewer
    numbers: Longs  # (q, n) of the operand, the output or the constant
    constants: Longs  # (q, n) addresses
    stages: Longs  # (q,)
    work: Longs  # (q,) bytes of a node's workspace
    job_ptr: Longs  # (q + 1,)
    job_stage: Longs  # (j,)
    variant_ptr: Longs  # (j + 1,)
    branch: Longs  # (v,)
    grid: Longs  # (v, 3) rows of a node, rows of a tile, tiles side by side
    arguments: Longs  # (v, n) which of the vector; -1 behind the last


@njit(cache=True)
def steps_of_batches(
    begin, end, batch_type, batch_ptr, nodes, operand_ptr, operands, batch_of, stages, transient
):  # fmt: skip
    """Definition (2) for batches begin to end: the first step of each, (end - begin,), and the number of steps.
    `stages` are of types."""
    first = np.zeros(end - begin, np.int64)
    free = np.zeros(len(stages), np.int64)
    shares = transient.any()
    num_steps = 0
    for b in range(begin, end):
        t = batch_type[b]
        step = free[t]
        for p in range(batch_ptr[b], batch_ptr[b + 1]):
            v = nodes[p]
            for i in range(operand_ptr[v], operand_ptr[v + 1]):
                u = operands[i]
                if u >= 0 and batch_of[u] >= begin:
                    read = batch_of[u]
                    step = max(step, first[read - begin] + stages[batch_type[read]])
        first[b - begin] = step
        last = step + stages[t]
        num_steps = max(num_steps, last)
        if shares:
            free[t] = max(free[t], last) if transient[t] else 0
            for p in range(batch_ptr[b], batch_ptr[b + 1]):
                for i in range(operand_ptr[nodes[p]], operand_ptr[nodes[p] + 1]):
                    if operands[i] >= 0:
                        read = batch_type[batch_of[operands[i]]]
                        free[read] = max(free[read], last) if transient[read] else 0
    return first, num_steps


@njit(cache=True)
def work_places(first, stages, sizes, num_steps):
    """Definition (3) for operations, given their first steps, stages and bytes of workspace: where the workspace of
    each begins, (o,), and bytes of all."""
    place, longest = np.zeros(len(first), np.int64), 1
    for o in range(len(first)):
        longest = max(longest, stages[o])
    half = np.zeros(num_steps // longest + 1, np.int64)
    for o in range(len(first)):
        block = first[o] // longest
        place[o] = half[block]
        half[block] += -(-sizes[o] // 16) * 16
    size = half.max()
    for o in range(len(first)):
        place[o] += first[o] // longest % 2 * size
    return place, size * (1 if num_steps <= longest else 2)


@njit(cache=True)
def work_of_batches(begin, end, batch_type, batch_ptr, first, stages, work):
    """Definition (3) for batches begin to end, given `stages` and bytes of a node of each type: what `work_places`
    returns, and the number of steps."""
    num_steps, sizes, of_batch = np.int64(0), np.empty(end - begin, np.int64), np.empty(end - begin, np.int64)
    for b in range(begin, end):
        t = batch_type[b]
        of_batch[b - begin] = stages[t]
        sizes[b - begin] = work[t] * (batch_ptr[b + 1] - batch_ptr[b])
        num_steps = max(num_steps, first[b - begin] + stages[t])
    place, size = work_places(first, of_batch, sizes, num_steps)
    return place, size, num_steps


@njit(cache=True)
def borders_of_items(begin, end, batch_type, batch_ptr, variadic, segment, start, items):
    """Where the items of each node of variadic batches begin, and where the last ones end, batch after batch, in the
    second array; in the first, (batches,), where each batch's own begin there."""
    begins, total = np.zeros(len(batch_type), np.int64), 0
    for b in range(begin, end):
        if variadic[batch_type[b]]:
            begins[b] = total
            total += batch_ptr[b + 1] - batch_ptr[b] + 1
    out = np.empty(total, np.int32)
    for b in range(begin, end):
        if not variadic[batch_type[b]]:
            continue
        item, at = start[b], begins[b]
        for position in range(batch_ptr[b + 1] - batch_ptr[b] + 1):
            while item < start[b] + items[b] and segment[item] < position:
                item += 1
            out[at + position] = item - start[b]
    return begins, out


@njit(cache=True)
def vectors_of_batches(
    begin, end, kernel_of_type, kinds, numbers, constants, batch_type, operand_class, output_class, output_row, start,
    items, borders, place, arenas, index_address, border_address, work_address, out,
):  # fmt: skip
    """The vectors of batches begin to end, definition (1), into the first rows of `out` (any, n)."""
    for k in range(end - begin):
        b = begin + k
        t = batch_type[b]
        q = kernel_of_type[t]
        for i in range(kinds.shape[1]):
            kind, number = kinds[q, i], numbers[q, i]
            if kind == ARENA:
                out[k, i] = arenas[operand_class[t, number]]
            elif kind == ROWS:
                out[k, i] = index_address + 4 * (start[b] + number * items[b])
            elif kind == OUTPUT:
                out[k, i] = arenas[output_class[t, number]]
            elif kind == FIRST_ROW:
                out[k, i] = output_row[b, number]
            elif kind == CONSTANT:
                out[k, i] = constants[q, i]
            elif kind == WORK:
                out[k, i] = work_address + place[k]
            elif kind == BORDERS:
                out[k, i] = border_address + 4 * borders[b]


@njit(cache=True)
def record_ptr(kernel, step, num_steps, job_ptr, job_stage):
    """Where the records of each step begin, (num_steps + 1,): one per job of the operations that are there, at least
    one."""
    ptr = np.zeros(num_steps + 1, np.int64)
    for o in range(len(kernel)):
        for j in range(job_ptr[kernel[o]], job_ptr[kernel[o] + 1]):
            ptr[step[o] + job_stage[j] + 1] += 1
    for s in range(num_steps):
        ptr[s + 1] = ptr[s] + max(ptr[s + 1], 1)
    return ptr


@njit(cache=True)
def write_records(
    kernel, count, step, vectors, ptr, job_ptr, job_stage, variant_ptr, branch, grid, arguments, programs, out
):  # fmt: skip
    """The records of all steps into `out` (records, width); `ptr` is what `record_ptr` gives."""
    num_steps = len(ptr) - 1
    at, before = ptr[:-1].copy(), np.zeros(num_steps, np.int64)
    for s in range(num_steps):
        out[ptr[s], _TILES] = 0
        out[ptr[s], _BRANCH] = -1
        for r in range(ptr[s], ptr[s + 1]):
            out[r, _LEFT] = ptr[s + 1] - r
    for o in range(len(kernel)):
        for j in range(job_ptr[kernel[o]], job_ptr[kernel[o] + 1]):
            s = step[o] + job_stage[j]
            v = variant_ptr[j + 1] - 1
            while True:
                rows = count[o] * grid[v, 0]
                tiles = -(-rows // grid[v, 1]) * grid[v, 2]
                if tiles >= programs or v == variant_ptr[j]:
                    break
                v -= 1
            r = at[s]
            at[s] += 1
            out[r, _BRANCH], out[r, _TILES], out[r, _COUNT] = branch[v], tiles, count[o]
            out[r, _FIRST] = (programs - before[s] % programs) % programs
            before[s] += tiles
            for i in range(arguments.shape[1]):
                if arguments[v, i] < 0:
                    break
                out[r, FIELDS + i] = vectors[o, arguments[v, i]]
