"""The native loops of joining: from the vertices of a mini-batch to the arrays of its graph.

Their reference is `vertex.function.run_eagerly` on a recording shadow of the model: define-by-run capture of the same
vertices must give the same graph. What the arrays mean is told in `vertex.join` and `vertex.tables`.

Indices are unsigned: numba wraps signed ones around as Python does, which doubled the time. Loops stand in functions
that make no array and are compiled without reference counts, which numba would count at every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edbc.kernelcache import njit
from edbc.trace.draws import INSTANCE_BITS
from edbc.vertex.fragment import DRAW_BITS, DRAWN
from edbc.vertex.tables import Contents, Externals, Nodes, Pushes, References, Shared

U = np.uint64
INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that only native code calls."""
UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Options of functions that make no array."""
LINE = 8
"""Words of 64 bits in a cache line: arrays of one block begin with one."""


@njit(cache=True)
def find_fragments(packed, num_instances, automaton, sizes):  # type: ignore[no-untyped-def]
    """Where each instance's part of `packed` starts, (num_instances,), its vertices, (num_instances + 1,), the fragment
    and the interface of every vertex, (n,) each, and the `sizes` of all of them in sum.

    Then the instance and the vertex in it for which nothing has been recorded, or (-1, -1). O(vertices + edges).
    """
    start = np.empty(num_instances, np.int64)
    vertex_ptr = np.zeros(num_instances + 1, np.int64)
    at = 0
    for i in range(num_instances):
        start[i] = at
        vertex_ptr[i + 1] = vertex_ptr[i] + packed[at]
        at += 3 + 2 * packed[at] + packed[at + 1]
    fragment_of = np.empty(vertex_ptr[num_instances], U)
    interface_of = np.empty(vertex_ptr[num_instances], U)
    times = np.zeros(len(sizes), np.int64)
    instance, vertex = _find(packed, start, vertex_ptr, automaton, fragment_of, interface_of, times)
    totals = np.zeros(sizes.shape[1], np.int64)
    for fragment in range(len(times)):
        if times[fragment]:
            for k in range(len(totals)):
                totals[k] += times[fragment] * sizes[fragment, k]
    return start, vertex_ptr, fragment_of, interface_of, totals, instance, vertex


@njit(**INNER, **UNCOUNTED)
def _find(packed, start, vertex_ptr, automaton, fragment_of, interface_of, times):  # type: ignore[no-untyped-def]
    """See `find_fragments`; `times` counts the vertices of each fragment."""
    root, next_state = automaton.root, automaton.next_state
    fragment_of_state, interface_of_fragment = automaton.fragment_of_state, automaton.interface_of_fragment
    one = U(1)
    v = U(0)
    for i in range(len(start)):
        base = U(vertex_ptr[i])
        stop = U(vertex_ptr[i + 1])
        at = U(start[i]) + U(2)
        edge_end = at + stop - base + one
        edges = edge_end + stop - base
        e = edges
        while v < stop:
            kind = U(packed[at])
            if kind >= U(len(root)):
                return i, np.int64(v - base)
            state = root[kind]
            last = edges + U(packed[edge_end])
            while e < last:
                state = next_state[state, interface_of[base + U(packed[e])]]
                e += one
            if fragment_of_state[state] < 0:
                return i, np.int64(v - base)
            fragment = U(fragment_of_state[state])
            fragment_of[v] = fragment
            interface_of[v] = interface_of_fragment[fragment]
            times[fragment] += 1
            v += one
            at += one
            edge_end += one
    return -1, -1


@njit(cache=True)
def write(batch, columns, contents, totals, row_ptr):  # type: ignore[no-untyped-def]
    """The arrays of Graph and Capture, the rows of each output by instance, (instances, outputs), and column and vertex
    of a row number outside of its table, or (-1, -1).

    `totals` counts nodes, operands, given values and externals that are not shared; `row_ptr` is where the rows of each
    output begin and end. O(nodes + operands).

    All arrays are parts of one block of memory. An allocator hands memory back to the system when much more than its
    largest block so far is free, and takes fresh memory, a page fault per page: many arrays of some 100 KB, or two
    blocks, cost that at every mini-batch, one does not (measured: 0.085 and 0.15 against 0.045 microseconds a vertex).
    """
    tables = _unpacked(contents)
    num_nodes, num_operands, num_given = totals[0], totals[1], totals[2]
    num_externals = totals[3] + len(tables.shared.source)
    n, num_results = len(batch.fragment_of), row_ptr[-1]
    num_ints = np.array((num_nodes, num_nodes + 1, num_operands, num_operands, num_externals))
    num_longs = np.array((num_externals, num_externals, num_results, num_results, n, n, num_given))
    begin = _begins(num_ints, num_longs)
    block = np.empty(begin[-1], np.int64)
    node_type, operand_ptr, operands, operand_output, external_class = (
        block[begin[0] : begin[1]].view(np.int32)[:num_nodes],
        block[begin[1] : begin[2]].view(np.int32)[: num_nodes + 1],
        block[begin[2] : begin[3]].view(np.int32)[:num_operands],
        block[begin[3] : begin[4]].view(np.int32)[:num_operands],
        block[begin[4] : begin[5]].view(np.int32)[:num_externals],
    )
    external_source, external_index, result_node, result_output, first_external, given_start, given_value = (
        block[begin[5] : begin[5] + num_externals],
        block[begin[6] : begin[6] + num_externals],
        block[begin[7] : begin[7] + num_results],
        block[begin[8] : begin[8] + num_results],
        block[begin[9] : begin[9] + n],
        block[begin[10] : begin[10] + n],
        block[begin[11] : begin[11] + num_given],
    )
    shared_number = np.full(len(tables.shared.source), -1, np.int64)
    rows_of = np.zeros((len(batch.start), len(row_ptr) - 1), np.int64)
    count, column, vertex = _write_externals(
        batch, columns, tables.externals, tables.shared, shared_number, first_external, external_class,
        external_source, external_index,
    )  # fmt: skip
    if column < 0:
        operand_ptr[0] = 0
        _write_nodes(
            batch, tables, shared_number, first_external, given_start, given_value, node_type, operand_ptr, operands,
            operand_output, row_ptr[:-1].copy(), result_node, result_output, rows_of,
        )  # fmt: skip
    return (
        node_type, operand_ptr, operands, operand_output, external_class[:count], external_source[:count],
        external_index[:count], result_node, result_output, rows_of, column, vertex,
    )  # fmt: skip


@njit(**INNER)
def _unpacked(words):  # type: ignore[no-untyped-def]
    """The inverse of `tables.packed`."""
    places = words.view(U)
    return Contents(
        Nodes(places[words[0] : words[1]], words[words[1] : words[2]], words[words[2] : words[3]]),
        References(
            places[words[3] : words[4]], words[words[4] : words[5]], places[words[5] : words[6]],
            words[words[6] : words[7]],
        ),
        References(
            places[words[7] : words[8]], words[words[8] : words[9]], places[words[9] : words[10]],
            words[words[10] : words[11]],
        ),
        Externals(
            places[words[11] : words[12]], words[words[12] : words[13]], words[words[13] : words[14]],
            words[words[14] : words[15]], words[words[15] : words[16]], words[words[16] : words[17]],
        ),
        Shared(
            places[words[17] : words[18]], places[words[18] : words[19]], words[words[19] : words[20]],
            words[words[20] : words[21]], words[words[21] : words[22]],
        ),
        Pushes(places[words[22] : words[23]], places[words[23] : words[24]], places[words[24] : words[25]]),
    )  # fmt: skip


@njit(**INNER)
def _begins(num_ints, num_longs):  # type: ignore[no-untyped-def]
    """Where the parts of a block of 64-bit words begin, arrays of 32 bits first, each at a cache line; then its end."""
    words = np.concatenate(((num_ints + 1) // 2, num_longs))
    begin = np.zeros(len(words) + 1, np.int64)
    for i in range(len(words)):
        begin[i + 1] = begin[i] + (words[i] + LINE - 1) // LINE * LINE
    return begin


@njit(**INNER, **UNCOUNTED)
def _write_externals(  # type: ignore[no-untyped-def]
    batch, columns, externals, shared, shared_number, first_external, external_class, external_source, external_index
):
    """Number the externals of every vertex: its own from `first_external` on, then shared ones that are new.

    Returns the number of externals, and column and vertex of a row number outside of its table, or (-1, -1).
    """
    fragment_of, vertex_ptr = batch.fragment_of, batch.vertex_ptr
    one = U(1)
    count = U(0)
    for i in range(len(batch.start)):
        base = U(vertex_ptr[i])
        for v in range(base, U(vertex_ptr[i + 1])):
            fragment = fragment_of[v]
            first_external[v] = count
            for k in range(externals.ptr[fragment], externals.ptr[fragment + one]):
                item, column = externals.item[k], externals.column[k]
                if column >= 0:
                    item = columns[U(column), v]
                    if item < 0 or item >= externals.limit[k]:
                        return np.int64(count), column, np.int64(v)
                elif column == DRAWN:
                    item += (i << INSTANCE_BITS) + (np.int64(v - base) << DRAW_BITS)
                external_class[count] = externals.value_class[k]
                external_source[count] = externals.source[k]
                external_index[count] = item
                count += one
            for k in range(shared.ptr[fragment], shared.ptr[fragment + one]):
                number = shared.number[k]
                if shared_number[number] < 0:
                    shared_number[number] = count
                    external_class[count] = shared.value_class[number]
                    external_source[count] = shared.source[number]
                    external_index[count] = shared.item[number]
                    count += one
    return np.int64(count), np.int64(-1), np.int64(-1)


@njit(**INNER, **UNCOUNTED)
def _write_nodes(  # type: ignore[no-untyped-def]
    batch, tables, shared_number, first_external, given_start, given_value, node_type, operand_ptr, operands,
    operand_output, next_row, result_node, result_output, rows_of,
):  # fmt: skip
    """Write every vertex's nodes and operands, to `given_value` what it scatters and pushes, and every pushed value to
    the next row of its output.

    A value is node x 2**32 + output while it is passed on; externals are negative.
    """
    packed, start, vertex_ptr, fragment_of = batch
    one = U(1)
    v = U(0)
    node = U(0)
    at = U(0)
    last = U(0)
    for i in range(U(len(start))):
        base = U(vertex_ptr[i])
        stop = U(vertex_ptr[i + one])
        edge_start = U(start[i]) + U(2) + stop - base
        edges = edge_start + stop - base + one
        while v < stop:
            fragment = fragment_of[v]
            edge = edges + U(packed[edge_start])
            edge_start += one
            own = np.int64(node) << 32
            external = first_external[v] << 32
            for k in range(tables.nodes.ptr[fragment], tables.nodes.ptr[fragment + one]):
                node_type[node] = tables.nodes.node_type[k]
                node += one
                operand_ptr[node] = np.int64(at) + tables.nodes.operand_end[k]
            for k in range(tables.operands.ptr[fragment], tables.operands.ptr[fragment + one]):
                value = _value(
                    k, tables.operands, own, external, shared_number, packed, base, edge, given_start, given_value
                )
                operands[at] = value >> 32
                operand_output[at] = value & 0xFFFFFFFF
                at += one
            given_start[v] = last
            for k in range(tables.given.ptr[fragment], tables.given.ptr[fragment + one]):
                given_value[last] = _value(
                    k, tables.given, own, external, shared_number, packed, base, edge, given_start, given_value
                )
                last += one
            pushed = U(given_start[v]) + tables.pushes.first[fragment]
            for k in range(tables.pushes.ptr[fragment], tables.pushes.ptr[fragment + one]):
                output = tables.pushes.output[k]
                row = U(next_row[output])
                result_node[row] = given_value[pushed] >> 32
                result_output[row] = given_value[pushed] & 0xFFFFFFFF
                rows_of[i, output] += 1
                next_row[output] = row + one
                pushed += one
            v += one


@njit(inline="always", **INNER, **UNCOUNTED)
def _value(  # type: ignore[no-untyped-def]
    k, references, own, external, shared_number, packed, base, edge, given_start, given_value
):
    """The value of a reference; see `tables.References`."""
    kind = references.kind[k]
    if kind == 2:  # GATHERED
        predecessor = base + U(packed[edge + references.item[k]])
        return given_value[U(given_start[predecessor]) + U(references.code[k])]
    if kind == 3:  # SHARED
        return (-1 - shared_number[references.item[k]]) << 32
    return references.code[k] + (own if kind == 0 else -external)
