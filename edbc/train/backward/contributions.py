"""Where gradients pass in a backward pass by steps: native loops of `edbc.train.backward.stepwise`.

Definitions.

(1) Rows of all arenas are numbered together: row r of class c is number `class_first[c] + r`. A row is *wanted* when it
    is that of a reached value or of a given external.
(2) A *contribution* is what one reader passes on to the gradient of a row that it read: an entry of the schedule's
    operand rows, or the gradient that the loss gave. It stands in a row of its own, in an arena of contributions of
    the class: first those of the loss, then batch by batch, operand by operand.
(3) A node is *live* when one of its outputs is reached. Only live nodes take part, and only what a reached output
    depends on is passed on, so that what a loss does not use lets no not-a-number through.
(4) The gradient of a row is the sum of its contributions in the order of (2): the same bits in every run, however many
    programs there are. `ptr` and `items` list them for every row.
"""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from edbc.native.kernelcache import njit
from edbc.native.kinds import copy


@njit(cache=True)
def live_nodes(batch_ptr, nodes, first_value, reached):
    """Positions of live nodes within their batches, batch after batch, and where those of each batch begin."""
    ptr, position = np.zeros(len(batch_ptr), np.int64), np.empty(len(nodes), np.int64)
    n = 0
    for b in range(len(batch_ptr) - 1):
        for p in range(batch_ptr[b], batch_ptr[b + 1]):
            v = nodes[p]
            for value in range(first_value[v], first_value[v + 1]):
                if reached[value]:
                    position[n] = p - batch_ptr[b]
                    n += 1
                    break
        ptr[b + 1] = n
    return ptr, position[:n]


@njit(cache=True)
def wanted_rows(batch_type, batch_ptr, nodes, output_row, output_class, first_value, reached, class_first, given):
    """Definition (1); `given` are the numbers of externals' rows."""
    wanted = np.zeros(class_first[-1], np.bool_)
    wanted[given] = True
    for b in range(len(batch_type)):
        for p in range(batch_ptr[b], batch_ptr[b + 1]):
            v = nodes[p]
            for j in range(first_value[v + 1] - first_value[v]):
                if reached[first_value[v] + j]:
                    row = output_row[b, j] + p - batch_ptr[b]
                    wanted[class_first[output_class[batch_type[b], j]] + row] = True
    return wanted


@njit(cache=True)
def contributions(
    batch_type, batch_ptr, nodes, rows, segment, start, items, operand_class, output_class, arity, variadic, copied,
    passes, depends, first_value, reached, class_first, wanted, live_ptr, live, result_row, result_first,
):  # fmt: skip
    """Definitions (2) and (4). `copied` are variadic types whose gradient is a copy, `passes` says which operands of a
    type the kernel of its gradient has one of, `depends` what each output depends on; `result_row` are the rows of the
    loss's contributions, class after class from `result_first` on.

    Returns ptr and the contributions of every row; contributions of each class; the first one of every batch and
    operand; of every batch the rows that it passes on, the first output row of its gradients, and where its operand
    rows (of copied ones: the gradient rows of its items' nodes) begin in what comes last.
    """
    num_batches, num_classes, width = len(batch_type), len(class_first) - 1, operand_class.shape[1]
    first = np.full((num_batches, width), -1, np.int64)
    count, x_start = np.zeros(num_batches, np.int64), np.zeros(num_batches + 1, np.int64)
    gradient_row = np.zeros((num_batches, output_class.shape[1]), np.int64)
    gradient_rows, given = np.zeros(num_classes, np.int64), np.empty(num_classes, np.int64)
    for c in range(num_classes):
        given[c] = result_first[c + 1] - result_first[c]
    for b in range(num_batches):
        t, n = batch_type[b], live_ptr[b + 1] - live_ptr[b]
        for j in range(output_class.shape[1]):
            c = output_class[t, j]
            if c >= 0:
                gradient_row[b, j] = gradient_rows[c]
                gradient_rows[c] += n
        count[b] = n
        if variadic[t] and n > 0:
            is_live = np.zeros(batch_ptr[b + 1] - batch_ptr[b], np.bool_)
            for i in range(live_ptr[b], live_ptr[b + 1]):
                is_live[live[i]] = True
            count[b] = 0
            for i in range(start[b], start[b] + items[b]):
                count[b] += is_live[segment[i]]
        x_start[b + 1] = x_start[b] + arity[t] * count[b]
    ptr, at = np.zeros(class_first[-1] + 1, np.int64), np.zeros(0, np.int64)
    found, x = np.zeros(0, np.int32), np.zeros(x_start[-1], np.int32)
    total = np.zeros(num_classes, np.int64)
    for fill in range(2):
        if fill:
            for r in range(len(ptr) - 1):
                ptr[r + 1] += ptr[r]
            at, found = ptr[:-1].copy(), np.zeros(ptr[-1], np.int32)
        for c in range(num_classes):
            for i in range(result_first[c], result_first[c + 1]):
                if not wanted[result_row[i]]:
                    continue
                if fill:
                    found[at[result_row[i]]] = i - result_first[c]
                    at[result_row[i]] += 1
                else:
                    ptr[result_row[i] + 1] += 1
        copy(given, 0, num_classes, total, 0)
        for b in range(num_batches):
            t = batch_type[b]
            if live_ptr[b] == live_ptr[b + 1]:
                continue
            rank = np.full(batch_ptr[b + 1] - batch_ptr[b], -1, np.int64)
            for i in range(live_ptr[b], live_ptr[b + 1]):
                rank[live[i]] = i - live_ptr[b]
            for k in range(arity[t]):
                c = operand_class[t, k]
                first[b, k] = total[c]
                n = 0
                for i in range(items[b]):
                    p = segment[start[b] + i] if variadic[t] else i
                    if rank[p] < 0:
                        continue
                    read = rows[start[b] + k * items[b] + i]
                    row, v = class_first[c] + read, nodes[batch_ptr[b] + p]
                    if fill:
                        x[x_start[b] + k * count[b] + n] = gradient_row[b, k] + rank[p] if copied[t] else read
                    is_passed = False
                    for j in range(first_value[v + 1] - first_value[v]):
                        is_passed |= depends[t, j, k] and reached[first_value[v] + j]
                    if is_passed and passes[t, k] and wanted[row]:
                        if fill:
                            found[at[row]] = total[c] + n
                            at[row] += 1
                        else:
                            ptr[row + 1] += 1
                    n += 1
                if passes[t, k]:
                    total[c] += n
    return ptr, found, total, first, count, gradient_row, gradient_rows, x_start, x


@njit(cache=True)
def borders_of_outputs(batch_type, batch_ptr, output_row, output_class, class_first, live_ptr, live, ptr):
    """For every batch and output the borders of the live nodes' contributions, counted from the first one's: where they
    begin in what comes last, and the number of the first. Of an output that is not reached a node has none."""
    width = output_class.shape[1]
    begin, item = np.zeros((len(batch_type), width), np.int64), np.zeros((len(batch_type), width), np.int64)
    out = np.zeros((live_ptr[-1] + len(batch_type)) * width, np.int32)
    at = 0
    for b in range(len(batch_type)):
        for j in range(width):
            c = output_class[batch_type[b], j]
            if c < 0 or live_ptr[b] == live_ptr[b + 1]:
                continue
            base = class_first[c] + output_row[b, j]
            begin[b, j], item[b, j] = at, ptr[base]
            for i in range(live_ptr[b], live_ptr[b + 1]):
                out[at] = ptr[base + live[i]] - ptr[base]
                at += 1
            out[at] = ptr[base + batch_ptr[b + 1] - batch_ptr[b]] - ptr[base]
            at += 1
    return begin, item, out[:at]


@njit(cache=True)
def item_ends(variadic_batches, batch_ptr, segment, start, items, live_ptr, live):
    """Borders of the items of live nodes of variadic batches, all items of a node counted, as `item_borders` gives
    them; and where those of each batch begin."""
    begin, size = np.zeros(len(variadic_batches), np.int64), 0
    for k in range(len(variadic_batches)):
        begin[k] = size
        size += live_ptr[variadic_batches[k] + 1] - live_ptr[variadic_batches[k]] + 1
    out = np.zeros(size, np.int32)
    for k in range(len(variadic_batches)):
        b = variadic_batches[k]
        of_position = np.zeros(batch_ptr[b + 1] - batch_ptr[b], np.int64)
        for i in range(start[b], start[b] + items[b]):
            of_position[segment[i]] += 1
        for n in range(live_ptr[b + 1] - live_ptr[b]):
            out[begin[k] + n + 1] = out[begin[k] + n] + of_position[live[live_ptr[b] + n]]
    return begin, out


@njit(cache=True)
def reverse_steps(batch_type, batch_ptr, nodes, operand_ptr, operands, batch_of, stages, live_ptr, live):
    """The step in which the gradients of each batch's outputs are summed up: behind all that live readers pass on; its
    own stages follow. And the number of steps."""
    first, num_steps = np.zeros(len(batch_type), np.int64), 0
    for b in range(len(batch_type) - 1, -1, -1):
        if live_ptr[b] == live_ptr[b + 1]:
            continue
        end = first[b] + 1 + stages[batch_type[b]]
        num_steps = max(num_steps, end)
        for i in range(live_ptr[b], live_ptr[b + 1]):
            v = nodes[batch_ptr[b] + live[i]]
            for k in range(operand_ptr[v], operand_ptr[v + 1]):
                if operands[k] >= 0:
                    first[batch_of[operands[k]]] = max(first[batch_of[operands[k]]], end)
    return first, num_steps


@njit(cache=True)
def joined_items(rows, ptr, items):
    """The contributions of some rows one behind the other, and the borders of each row's."""
    borders = np.zeros(len(rows) + 1, np.int64)
    for i in range(len(rows)):
        borders[i + 1] = borders[i] + ptr[rows[i] + 1] - ptr[rows[i]]
    out = np.empty(borders[-1], np.int32)
    for i in range(len(rows)):
        copy(items, ptr[rows[i]], ptr[rows[i] + 1], out, borders[i])
    return out, borders
