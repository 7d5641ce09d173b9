"""Native loops that turn a schedule into rows of arenas. Each has a plain-Python reference in the tests.

Indices of the loops over nodes and operands are unsigned, see `kernelcache.U`.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from edbc.native.kernelcache import INNER, UNCOUNTED, U, njit

ALIGNMENT = 128
"""Bytes at whose multiples arenas begin: a device's line of memory."""


@njit(cache=True)
def place_rows(
    batch_type,
    batch_ptr,
    nodes,
    operand_ptr,
    operands,
    operand_output,
    external_class,
    class_of_external_class,
    results,
    arity,
    variadic,
    segmented,
    excerpt,
    transient,
    output_class,
    borders,
    crosses,
    row_bytes,
):
    """The arrays of a Placement, as its fields have them: all of what depends on the mini-batch. Without `borders`
    there is one segment. With more than one no type is transient, and `crosses` says what `crossing_outputs` does."""
    if len(borders) == 0:
        borders = np.array([0, len(batch_type)])
    num_classes = len(row_bytes)
    class_of = np.empty(len(external_class), np.int64)
    for e in range(U(len(external_class))):
        class_of[e] = class_of_external_class[external_class[e]]
    is_used = used_externals(operands, results, len(external_class))
    class_externals = np.zeros(num_classes, np.int64)
    for e in range(U(len(external_class))):
        class_externals[U(class_of[e])] += is_used[e]
    made = rows_made(batch_type, batch_ptr, nodes, operand_ptr, arity, segmented)
    if len(borders) > 2:
        output_row, class_rows, class_kept = rows_in_segments(
            batch_type, made, borders, crosses, output_class, class_externals, len(arity)
        )
    else:
        output_row, class_rows = rows_of_outputs(batch_type, made, transient, output_class, class_externals)
        class_kept = class_rows
    batch_of, position, external_row, rows, segment, start, items, run = operand_rows(
        batch_type, batch_ptr, nodes, operand_ptr, operands, operand_output, arity, variadic, segmented, output_row,
        class_of, is_used, num_classes,
    )  # fmt: skip
    origin = origins(
        batch_type, batch_ptr, nodes, operand_ptr, operands, operand_output, segmented, excerpt, output_class, class_of,
        batch_of, start, run,
    )  # fmt: skip
    widest = np.zeros(len(arity), np.int64)
    for b in range(len(batch_type)):
        widest[batch_type[b]] = max(widest[batch_type[b]], batch_ptr[b + 1] - batch_ptr[b])
    begins = np.zeros(num_classes + 1, np.int64)
    for c in range(num_classes):
        begins[c + 1] = begins[c] - -class_rows[c] * row_bytes[c] // ALIGNMENT * ALIGNMENT
    return (class_rows, begins, class_externals, class_kept, borders, class_of, batch_of, position, output_row, made,
            external_row, rows, segment, origin, start, items, run, widest)  # fmt: skip


@njit(**INNER)
def used_externals(operands, results, num_externals):
    """Which externals a node reads or the mini-batch returns."""
    is_used = np.zeros(num_externals + 1, np.bool_)  # the last one stands for every node
    for k in range(U(len(operands))):
        is_used[U(num_externals if operands[k] >= 0 else -1 - operands[k])] = True
    for v in results:
        if v < 0:
            is_used[-1 - v] = True
    return is_used[:num_externals]


@njit(**INNER)
def rows_made(batch_type, batch_ptr, nodes, operand_ptr, arity, segmented):
    """Rows that an output of every batch has: one for each node, or for each item of a segmented type."""
    made = np.empty(len(batch_type), np.int64)
    for b in range(len(batch_type)):
        t = batch_type[b]
        made[b] = batch_ptr[b + 1] - batch_ptr[b]
        if segmented[t]:
            made[b] = 0
            for p in range(batch_ptr[b], batch_ptr[b + 1]):
                made[b] += (operand_ptr[nodes[p] + 1] - operand_ptr[nodes[p]]) // arity[t]
    return made


@njit(**INNER)
def rows_of_outputs(batch_type, made, transient, output_class, class_externals):
    """The first row of every batch's outputs, (batches, outputs), and the rows of every class, (classes,).

    The arena of a class holds first the externals, then the outputs: first outputs of all nodes, then second ones, of
    each type together, in schedule order. So what reads the states of all nodes of a type reads one run. Batches of a
    transient type share the rows of the largest of them.
    """
    output_row = np.full((len(batch_type), output_class.shape[1]), -1, np.int64)
    class_rows = class_externals.copy()
    by_type = batches_by_type(batch_type, len(transient))
    for j in range(output_class.shape[1]):
        begin, last = 0, -1
        for b in by_type:
            t = batch_type[b]
            c = output_class[t, j]
            if c < 0:
                continue
            if t != last or not transient[t]:
                begin = class_rows[c]
            last = t
            output_row[b, j] = begin
            class_rows[c] = max(class_rows[c], begin + made[b])
    return output_row, class_rows


@njit(**INNER)
def batches_by_type(batch_type, num_types):
    """Batches of the type that runs first, in schedule order, then those of the next type, and so on."""
    count = np.zeros(num_types, np.int64)
    seen = np.empty(num_types, np.int64)
    num_seen = 0
    for t in batch_type:
        if count[t] == 0:
            seen[num_seen] = t
            num_seen += 1
        count[t] += 1
    start = np.zeros(num_types, np.int64)
    total = 0
    for i in range(num_seen):
        start[seen[i]] = total
        total += count[seen[i]]
    result = np.empty(len(batch_type), np.int64)
    for b in range(len(batch_type)):
        result[start[batch_type[b]]] = b
        start[batch_type[b]] += 1
    return result


@njit(cache=True)
def crossing_outputs(
    batch_type, batch_ptr, nodes, operand_ptr, operands, operand_output, segmented, result_nodes, result_outputs,
    borders, width,
):  # fmt: skip
    """Definition (2) of `edbc.run.passes.cut`: (batches, `width`) outputs of which a value crosses."""
    batch_of, segment_of = np.empty(len(nodes), np.int64), np.empty(len(batch_ptr) - 1, np.int64)
    for s in range(len(borders) - 1):
        for b in range(borders[s], borders[s + 1]):
            segment_of[b] = s
            for p in range(batch_ptr[b], batch_ptr[b + 1]):
                batch_of[nodes[p]] = b
    crosses = np.zeros((len(segment_of), width), np.bool_)
    for v in range(len(nodes)):
        for i in range(operand_ptr[v], operand_ptr[v + 1]):
            u = operands[i]
            if u >= 0 and segment_of[batch_of[u]] != segment_of[batch_of[v]]:
                b = batch_of[u]
                crosses[b, 0 if segmented[batch_type[b]] else operand_output[i]] = True
    for i in range(len(result_nodes)):
        if result_nodes[i] >= 0:
            b = batch_of[result_nodes[i]]
            crosses[b, 0 if segmented[batch_type[b]] else result_outputs[i]] = True
    return crosses


@njit(**INNER)
def rows_in_segments(batch_type, made, borders, crosses, output_class, class_externals, num_types):
    """Rows of outputs where a schedule is cut: first what crosses, in the order of `rows_of_outputs`, then, in the same
    rows for every segment, what else its batches write, in that order too.

    Returns output_row (batches, outputs), class_rows (classes,) and of these the number before the rows that belong to
    one segment at a time, class_kept (classes,).
    """
    output_row = np.full((len(batch_type), output_class.shape[1]), -1, np.int64)
    class_kept = class_externals.copy()
    _give_rows(batch_type, made, 0, len(batch_type), crosses, True, output_class, num_types, class_kept, output_row)
    class_rows = class_kept.copy()
    for s in range(len(borders) - 1):
        end = class_kept.copy()
        _give_rows(batch_type, made, borders[s], borders[s + 1], crosses, False, output_class, num_types, end,
                   output_row)  # fmt: skip
        class_rows = np.maximum(class_rows, end)
    return output_row, class_rows, class_kept


@njit(**INNER)
def _give_rows(batch_type, made, first, last, crosses, wanted, output_class, num_types, end, output_row):
    """Rows from `end` on, by class, for the outputs of batches first to last that cross, or do not."""
    by_type = batches_by_type(batch_type[first:last], num_types)
    for j in range(output_class.shape[1]):
        for i in by_type:
            b = first + i
            c = output_class[batch_type[b], j]
            if c >= 0 and crosses[b, j] == wanted:
                output_row[b, j] = end[c]
                end[c] += made[b]


@njit(**INNER)
def operand_rows(
    batch_type, batch_ptr, nodes, operand_ptr, operands, operand_output, arity, variadic, segmented, output_row,
    external_class, is_used, num_classes,
):  # fmt: skip
    """The arena row of every operand, batch by batch and within a batch operand by operand.

    Operand k of batch b occupies `rows[start[b] + k * items[b] : start[b] + (k + 1) * items[b]]`, where `items[b]` is
    the number of nodes, or of items to be summed when the type is variadic; `segment` then says to which position of
    the batch an item belongs. `run[b, k]` is the first row when the rows are a contiguous ascending run, else -1.

    Externals are numbered in the order in which they are met here, so that an operand that only one batch reads is a
    run; those with `is_used` that nobody reads (results of the mini-batch) come last.

    Returns batch_of (n,) and position (n,) of every node, that of the first item where its type is segmented,
    external_row (k,) with -1 where an external is not used, and
    rows, segment, start, items and run.
    """
    num_batches, width = len(batch_type), output_row.shape[1]
    max_arity = 1
    for t in range(len(arity)):
        max_arity = max(max_arity, arity[t])
    batch_of, position = np.empty(len(nodes), np.int64), np.empty(len(nodes), np.int64)
    row_of, entry = np.empty((len(nodes), width), np.int32), np.empty(len(nodes), np.int32)
    external_row = np.full(len(external_class), -1, np.int64)
    met = np.zeros(num_classes, np.int64)
    rows = np.empty(len(operands), np.int64)
    segment = np.empty(len(operands), np.int64)
    start = np.zeros(num_batches + 1, np.int64)
    items = np.zeros(num_batches, np.int64)
    run = np.full((num_batches, max_arity), -1, np.int64)
    graph = _Operands(operand_ptr, operands, operand_output, external_class)
    values = _Values(batch_of, position, row_of, segmented[batch_type] if segmented.any() else segmented[:0],
                     external_row, met)  # fmt: skip
    for b in range(U(num_batches)):
        t = U(batch_type[b])
        fields, varies = U(arity[t]), variadic[t]
        first, last = U(batch_ptr[b]), U(batch_ptr[b + U(1)])
        if varies:
            of_group = fields if segmented[t] else U(0)
            total = _give_items(b, first, last, nodes, operand_ptr, of_group, output_row, values)
        else:
            total = fields * (last - first)
            _give_places(b, first, last, nodes, operand_ptr, output_row, values, entry)
        items[b] = total // max(fields, U(1))
        start[b + U(1)] = U(start[b]) + total
        for k in range(fields):
            at = U(start[b]) + k * U(items[b])
            if varies:
                run[b, k] = _item_rows(first, last, k, fields, nodes, graph, values, at, rows, segment)
            else:
                run[b, k] = _field_rows(first, last, k, entry, graph, values, at, rows, segment)
    for e in range(U(len(external_row))):
        if external_row[e] < 0 and is_used[e]:
            c = U(external_class[e])
            external_row[e] = met[c]
            met[c] += 1
    return batch_of, position, external_row, rows, segment, start, items, run


class _Operands(NamedTuple):
    """What nodes read."""

    ptr: Any
    values: Any
    outputs: Any
    external_class: Any


class _Values(NamedTuple):
    """Where values are, as far as batches have been placed."""

    batch_of: Any
    position: Any
    row_of: Any  # (nodes, outputs)
    is_segmented: Any
    """(batches,), or empty where none is."""
    external_row: Any
    met: Any
    """Externals of each class that have a row."""


@njit(**INNER, **UNCOUNTED)
def _give_places(b, first, last, nodes, operand_ptr, output_row, values, entry):
    """Nodes `first` to `last`, one row each, are batch b; and where their operands begin, by place in `nodes`."""
    for p in range(first, last):
        v = U(nodes[p])
        values.batch_of[v], values.position[v], entry[p] = b, p - first, operand_ptr[v]
    for j in range(U(output_row.shape[1])):
        begin = output_row[b, j]
        for p in range(first, last):
            values.row_of[U(nodes[p]), j] = begin + np.int64(p - first)


@njit(**INNER, **UNCOUNTED)
def _give_items(b, first, last, nodes, operand_ptr, fields, output_row, values):
    """The same of nodes with any number of operands, a row for each group of `fields` where that is not 0. Returns how
    many operands they have."""
    total = before = U(0)
    for p in range(first, last):
        v = U(nodes[p])
        count = U(operand_ptr[v + U(1)]) - U(operand_ptr[v])
        values.batch_of[v], values.position[v] = b, before if fields else p - first
        for j in range(U(output_row.shape[1])):
            values.row_of[v, j] = output_row[b, j] + values.position[v]
        total += count
        if fields:
            before += count // fields
    return total


@njit(inline="always", **INNER, **UNCOUNTED)
def _row(i, graph, values):
    """The row of what operand i reads; an external gets one when it is first met."""
    u = graph.values[i]
    if u < 0:
        e = U(-1 - u)
        if values.external_row[e] < 0:
            c = U(graph.external_class[e])
            values.external_row[e] = values.met[c]
            values.met[c] += 1
        return values.external_row[e]
    if len(values.is_segmented) and values.is_segmented[U(values.batch_of[U(u)])]:
        return np.int64(values.row_of[U(u), U(0)] + graph.outputs[i])
    return np.int64(values.row_of[U(u), U(graph.outputs[i])])


@njit(**INNER, **UNCOUNTED)
def _field_rows(first, last, k, entry, graph, values, at, rows, segment):
    """Write the rows of operand k of a batch from `at` on; returns the first where they are a run, else -1."""
    begin, is_run = np.int64(-1), last > first
    for p in range(last - first):
        row = _row(U(entry[first + p]) + k, graph, values)
        rows[at + p], segment[at + p] = row, p
        if p == U(0):
            begin = row
        is_run &= row == begin + np.int64(p)
    return begin if is_run else np.int64(-1)


@njit(**INNER, **UNCOUNTED)
def _item_rows(first, last, k, fields, nodes, graph, values, at, rows, segment):
    """The same of operands k, k + `fields` and so on of every node."""
    begin, is_run, stood_at = np.int64(-1), True, at
    for p in range(first, last):
        v = U(nodes[p])
        i, stop = U(graph.ptr[v]) + k, U(graph.ptr[v + U(1)])
        while i < stop:
            row = _row(i, graph, values)
            rows[at], segment[at] = row, p - first
            if at == stood_at:
                begin = row
            is_run &= row == begin + np.int64(at - stood_at)
            at += U(1)
            i += fields
    return begin if is_run and at > stood_at else np.int64(-1)


@njit(**INNER)
def origins(
    batch_type, batch_ptr, nodes, operand_ptr, operands, operand_output, segmented, excerpt, output_class,
    external_class, batch_of, start, run,
):  # fmt: skip
    """The class of what each excerpt is taken of, where `rows` has its row; no `run` is told of these, whose rows are
    of several classes. Empty where no type is an excerpt."""
    if not excerpt.any():
        return np.empty(0, np.int64)
    origin = np.full(len(operands), -1, np.int64)
    for b in range(len(batch_type)):
        if not excerpt[batch_type[b]]:
            continue
        run[b, 0] = -1
        for p in range(batch_ptr[b], batch_ptr[b + 1]):
            i = operand_ptr[nodes[p]]
            u = operands[i]
            producer = batch_type[batch_of[max(u, 0)]]
            of_node = output_class[producer, 0 if segmented[producer] else operand_output[i]]
            origin[start[b] + p - batch_ptr[b]] = external_class[-1 - u] if u < 0 else of_node
    return origin


@njit(cache=True)
def value_rows(nodes, outputs, batch_of, position, output_row, external_row, is_segmented):
    """The arena row of every value given as (node or -1 - external, output); `is_segmented` says it of batches."""
    return _value_rows(nodes, outputs, batch_of, position, output_row, external_row, is_segmented)


@njit(**INNER)
def _value_rows(nodes, outputs, batch_of, position, output_row, external_row, is_segmented):
    rows = np.empty(len(nodes), np.int64)
    for i in range(len(nodes)):
        v = nodes[i]
        if v < 0:
            rows[i] = external_row[-1 - v]
        elif is_segmented[batch_of[v]]:
            rows[i] = output_row[batch_of[v], 0] + position[v] + outputs[i]
        else:
            rows[i] = output_row[batch_of[v], outputs[i]] + position[v]
    return rows


@njit(cache=True)
def value_places(nodes, outputs, node_type, batch_of, position, output_row, external_row, is_segmented, external_class,
                 output_class):  # fmt: skip
    """`value_rows`, the class of each value, and which one they all have: -1 where they differ, or there are none."""
    classes = np.empty(len(nodes), np.int64)
    for i in range(len(nodes)):
        v = nodes[i]
        if v < 0:
            classes[i] = external_class[-1 - v]
        else:
            classes[i] = output_class[node_type[v], 0 if is_segmented[batch_of[v]] else outputs[i]]
    only = classes[0] if len(nodes) else -1
    for c in classes:
        if c != only:
            only = -1
    rows = _value_rows(nodes, outputs, batch_of, position, output_row, external_row, is_segmented)
    return rows, classes, only


@njit(cache=True)
def externals_by_source(external_source, external_class, external_row, class_externals, num_sources):
    """Externals that have a row, source by source and within a source by row, and these rows; where each source begins,
    and its class.

    Rows of externals are numbered from 0 in every class, and the externals of a source are of one class. There may be
    rows that none of these externals has.
    """
    first = np.zeros(len(class_externals) + 1, np.int64)
    for c in range(len(class_externals)):
        first[c + 1] = first[c] + class_externals[c]
    by_row = np.full(first[-1], -1, np.int64)
    ptr, class_of_source = np.zeros(num_sources + 1, np.int64), np.full(num_sources, -1, np.int64)
    for e in range(len(external_row)):
        if external_row[e] >= 0:
            by_row[first[external_class[e]] + external_row[e]] = e
            ptr[external_source[e] + 1] += 1
            class_of_source[external_source[e]] = external_class[e]
    for s in range(num_sources):
        ptr[s + 1] += ptr[s]
    at = ptr.copy()
    order, rows = np.empty((2, ptr[num_sources]), np.int64)
    for e in by_row:
        if e >= 0:
            order[at[external_source[e]]] = e
            rows[at[external_source[e]]] = external_row[e]
            at[external_source[e]] += 1
    return order, rows, ptr, class_of_source


@njit(cache=True)
def count_work(begin, end, batch_type, batch_ptr, of_node):
    """Multiplications of batches begin to end, by those of a node of each type."""
    multiplications = 0.0
    for b in range(begin, end):
        multiplications += (batch_ptr[b + 1] - batch_ptr[b]) * of_node[batch_type[b]]
    return multiplications
