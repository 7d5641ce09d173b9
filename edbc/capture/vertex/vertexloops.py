"""The native loops of joining: from the vertices of a mini-batch to the arrays of its graph.

Their reference is `vertex.function.run_eagerly` on a recording shadow of the model: define-by-run capture of the same
vertices must give the same graph. What the arrays mean is told in `vertex.join` and `vertex.tables`.

Indices are unsigned, see `kernelcache.U`. Loops stand in functions
that make no array and are compiled without reference counts, which numba would count at every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from edbc.capture.record.draws import INSTANCE_BITS
from edbc.capture.vertex.automaton import SIZES, Automaton, Contents, Externals, Nodes, Pushes, References, Shared
from edbc.capture.vertex.fragment import DRAW_BITS, DRAWN
from edbc.native.kernelcache import INNER, UNCOUNTED, U, njit

HEADER = 3
"""Numbers in `VertexInstance.packed` before its arrays."""
LINE = 8
"""Words of 64 bits in a cache line: arrays of one block begin with one."""
WRITTEN, UNKNOWN, UNFILLED, BEYOND = range(4)
"""What `join` says."""


class Batch(NamedTuple):
    """The instances of a mini-batch one after the other, and which fragment each vertex has. n vertices."""

    packed: Any
    start: Any  # (instances,)
    vertex_ptr: Any  # (instances + 1,)
    fragment_of: Any  # (n,)


@njit(cache=True)
def join(  # type: ignore[no-untyped-def]
    packed, num_instances, root, next_state, fragment_of_state, interface_of_fragment, positions, given, contents,
    sizes, num_outputs,
):  # fmt: skip
    """The mini-batch of `packed` instances in one call: finds the fragment of every vertex, fills the columns, and
    writes the arrays of Graph and Capture. O(vertices + edges + operands).

    `root` to `interface_of_fragment` are an Automaton: a named tuple is slow to pass.
    `positions` says which packed input a column is, -1 for none; such columns are read from `given`, (columns, n), if
    that has rows for the vertices. Nobody looks for equal vertices where `fewest` is negative; see `_find_equal`.

    Returns the fields of `join.Joined`: WRITTEN; UNKNOWN, with instance and vertex in it, for a vertex whose fragment
    is not recorded; UNFILLED where columns are pulled that no packed input is; or BEYOND, with instance, vertex in it
    and column, for a row number outside of its table. Then the sizes of all fragments in sum, the interfaces of an
    UNKNOWN vertex's predecessors, the columns, where the rows of each output begin, and if all is written the arrays of
    the graph, of its externals and of its results, and the rows of each output by instance, (outputs, instances).
    """
    automaton = Automaton(root, next_state, fragment_of_state, interface_of_fragment)
    start = np.empty(num_instances, np.int64)
    vertex_ptr = np.zeros(num_instances + 1, np.int64)
    at = 0
    for i in range(num_instances):
        start[i] = at
        vertex_ptr[i + 1] = vertex_ptr[i] + packed[at]
        at += HEADER + 1 + (2 + packed[at + 2]) * packed[at] + packed[at + 1]
    n = vertex_ptr[num_instances]
    batch = Batch(packed, start, vertex_ptr, np.empty(n, np.uint32))
    interface_of = np.empty(n, np.uint32)
    times = np.zeros(len(sizes), np.int64)
    instance, vertex = _find(batch, automaton, interface_of, times)
    totals = np.zeros(sizes.shape[1], np.int64)
    for fragment in range(len(times)):
        if times[fragment]:
            for k in range(len(totals)):
                totals[k] += times[fragment] * sizes[fragment, k]
    status, column = np.int64(WRITTEN), np.int64(0)
    is_given = given.shape[1] == n
    columns = given if is_given else np.empty((len(positions), n), np.int64)
    interfaces = np.empty(0, np.int64)
    if vertex >= 0:
        status = np.int64(UNKNOWN)
        base, begin, end = _edges(batch, U(instance), U(vertex_ptr[instance] + vertex))
        interfaces = np.empty(np.int64(end - begin), np.int64)
        for e in range(begin, end):
            interfaces[e - begin] = interface_of[base + U(packed[e])]
    else:
        _fill_columns(packed, start, vertex_ptr, positions, columns)
        for c in range(0 if is_given else len(positions)):
            if positions[c] < 0 and totals[SIZES + num_outputs + c] > 0:
                status = np.int64(UNFILLED)
    row_ptr = np.zeros(num_outputs + 1, np.int64)
    if status == WRITTEN:
        for k in range(num_outputs):
            row_ptr[k + 1] = row_ptr[k] + totals[SIZES + k]
        arrays, column, v = _write(batch, columns, _unpacked(contents), totals, row_ptr)
        if v >= 0:
            status = np.int64(BEYOND)
            instance = np.searchsorted(vertex_ptr, v, side="right") - 1
            vertex = v - vertex_ptr[instance]
    else:
        arrays = _nothing(packed)
    return status, instance, vertex, column, totals, interfaces, columns, row_ptr, arrays


@njit(**INNER)
def _nothing(packed):  # type: ignore[no-untyped-def]
    """The arrays of a graph that is not written."""
    longs = np.empty(0, np.int64)
    ints = packed[:0]
    return ints, ints, ints, ints, ints, longs, longs, longs, longs, np.empty((0, 0), np.int64)


@njit(**INNER, **UNCOUNTED)
def _fill_columns(packed, start, vertex_ptr, positions, columns):  # type: ignore[no-untyped-def]
    """Fill the columns that have a position among the packed inputs."""
    one = U(1)
    for column in range(U(len(positions))):
        if positions[column] < 0:
            continue
        for i in range(U(len(start))):
            at, base, stop = U(start[i]), U(vertex_ptr[i]), U(vertex_ptr[i + one])
            at += U(HEADER + 1) + (U(2) + U(positions[column])) * (stop - base) + U(packed[at + one])
            for v in range(base, stop):
                columns[column, v] = packed[at]
                at += one


@njit(**INNER, **UNCOUNTED)
def _find(batch, automaton, interface_of, times):  # type: ignore[no-untyped-def]
    """Write the fragment and the interface of every vertex, and how often there is each fragment. Returns instance and
    vertex in it for which nothing has been recorded, or (-1, -1)."""
    packed, start, vertex_ptr, fragment_of = batch
    root, next_state = automaton.root, automaton.next_state
    fragment_of_state, interface_of_fragment = automaton.fragment_of_state, automaton.interface_of_fragment
    one = U(1)
    v = U(0)
    for i in range(len(start)):
        base = U(vertex_ptr[i])
        stop = U(vertex_ptr[i + 1])
        at = U(start[i]) + U(HEADER)
        edge_end = at + stop - base + one
        edges = edge_end + stop - base
        e = edges
        while v < stop:
            kind = U(packed[at])
            if kind >= U(len(root)):
                return np.int64(i), np.int64(v - base)
            state = root[kind]
            last = edges + U(packed[edge_end])
            while e < last:
                state = next_state[state, U(interface_of[base + U(packed[e])])]
                e += one
            if fragment_of_state[state] < 0:
                return np.int64(i), np.int64(v - base)
            fragment = U(fragment_of_state[state])
            fragment_of[v] = fragment
            interface_of[v] = interface_of_fragment[fragment]
            times[fragment] += 1
            v += one
            at += one
            edge_end += one
    return np.int64(-1), np.int64(-1)


@njit(**INNER, **UNCOUNTED)
def _edges(batch, i, v):  # type: ignore[no-untyped-def]
    """First vertex of instance i, and where the edges of its vertex v begin and end."""
    packed, start, vertex_ptr, _ = batch
    base = U(vertex_ptr[i])
    num_vertices = U(vertex_ptr[i + U(1)]) - base
    ptr = U(start[i]) + U(HEADER) + num_vertices
    edges = ptr + num_vertices + U(1)
    at = ptr + v - base
    return base, edges + U(packed[at]), edges + U(packed[at + U(1)])


@njit(**INNER)
def _write(batch, columns, tables, totals, row_ptr):  # type: ignore[no-untyped-def]
    """The arrays of Graph and Capture, the rows of each output by instance, (outputs, instances); and column and vertex
    of a row number outside of its table, or (-1, -1).

    `totals` counts nodes, operands, given values and externals that are not shared; `row_ptr` is where the rows of each
    output begin and end. O(nodes + operands).

    All arrays are parts of one block of memory. An allocator hands memory back to the system when much more than its
    largest block so far is free, and takes fresh memory, a page fault per page: many arrays of some 100 KB, or two
    blocks, cost that at every mini-batch, one does not (measured: 0.085 and 0.15 against 0.045 microseconds a vertex).
    """
    num_nodes, num_operands, num_given = totals[0], totals[1], totals[2]
    num_externals = totals[3] + len(tables.shared.source)
    n, num_results = len(batch.fragment_of), row_ptr[-1]
    num_ints = np.array((num_nodes, num_nodes + 1, num_operands, num_operands, num_externals))
    num_longs = np.array((num_externals, num_externals, num_results, num_results, n, num_given))
    begin = _begins(num_ints, num_longs)
    block = np.empty(begin[-1], np.int64)
    node_type, operand_ptr, operands, operand_output, external_class = (
        block[begin[0] : begin[1]].view(np.int32)[:num_nodes],
        block[begin[1] : begin[2]].view(np.int32)[: num_nodes + 1],
        block[begin[2] : begin[3]].view(np.int32)[:num_operands],
        block[begin[3] : begin[4]].view(np.int32)[:num_operands],
        block[begin[4] : begin[5]].view(np.int32)[:num_externals],
    )
    external_source, external_index, result_node, result_output, given_start, given_value = (
        block[begin[5] : begin[5] + num_externals],
        block[begin[6] : begin[6] + num_externals],
        block[begin[7] : begin[7] + num_results],
        block[begin[8] : begin[8] + num_results],
        block[begin[9] : begin[9] + n],
        block[begin[10] : begin[10] + num_given],
    )
    shared_number = np.full(len(tables.shared.source), -1, np.int64)
    rows_of = np.zeros((len(row_ptr) - 1, len(batch.start)), np.int64)
    operand_ptr[0] = 0
    num_externals, column, vertex = _write_vertices(
        batch, columns, tables, shared_number, given_start, given_value, node_type, operand_ptr, operands,
        operand_output, external_class, external_source, external_index, row_ptr[:-1].copy(), result_node,
        result_output, rows_of,
    )  # fmt: skip
    arrays = (
        node_type, operand_ptr, operands, operand_output, external_class[:num_externals],
        external_source[:num_externals], external_index[:num_externals], result_node, result_output, rows_of,
    )  # fmt: skip
    return arrays, column, vertex


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
def _write_vertices(  # type: ignore[no-untyped-def]
    batch, columns, tables, shared_number, given_start, given_value, node_type, operand_ptr, operands,
    operand_output, external_class, external_source, external_index, next_row, result_node, result_output, rows_of,
):  # fmt: skip
    """Write every vertex's externals, its own and shared ones that are new, its nodes and operands, to `given_value`
    what it scatters and pushes, and every pushed value to the next row of its output. Returns the number of externals,
    and column and vertex of a row number outside of its table, or (-1, -1).

    A value is node x 2**32 + output while it is passed on; externals are negative.
    """
    packed, start, vertex_ptr, fragment_of = batch
    externals, shared = tables.externals, tables.shared
    one = U(1)
    v = U(0)
    node = U(0)
    at = U(0)
    last = U(0)
    count = U(0)
    for i in range(U(len(start))):
        base = U(vertex_ptr[i])
        stop = U(vertex_ptr[i + one])
        edge_start = U(start[i]) + U(HEADER) + stop - base
        edges = edge_start + stop - base + one
        while v < stop:
            fragment = U(fragment_of[v])
            external = np.int64(count) << 32
            for k in range(externals.ptr[fragment], externals.ptr[fragment + one]):
                item, column = externals.item[k], externals.column[k]
                if column >= 0:
                    item = columns[U(column), v]
                    if item < 0 or item >= externals.limit[k]:
                        return np.int64(count), column, np.int64(v)
                elif column == DRAWN:
                    item += (np.int64(i) << INSTANCE_BITS) + (np.int64(v - base) << DRAW_BITS)
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
            edge = edges + U(packed[edge_start])
            edge_start += one
            own = np.int64(node) << 32
            first = np.int64(at)
            for k in range(tables.nodes.ptr[fragment], tables.nodes.ptr[fragment + one]):
                node_type[node] = tables.nodes.node_type[k]
                node += one
                operand_ptr[node] = first + tables.nodes.operand_end[k]
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
                rows_of[output, i] += 1
                next_row[output] = row + one
                pushed += one
            v += one
    return np.int64(count), np.int64(-1), np.int64(-1)


@njit(inline="always", **INNER, **UNCOUNTED)
def _gathered(k, references, packed, base, edge, given_start, given_value):  # type: ignore[no-untyped-def]
    """The value of a reference that is GATHERED."""
    predecessor = base + U(packed[edge + references.item[k]])
    return given_value[U(given_start[predecessor]) + U(references.code[k])]


@njit(inline="always", **INNER, **UNCOUNTED)
def _value(  # type: ignore[no-untyped-def]
    k, references, own, external, shared_number, packed, base, edge, given_start, given_value
):
    """The value of a reference; see `tables.References`."""
    kind = references.kind[k]
    if kind == 2:  # GATHERED
        return _gathered(k, references, packed, base, edge, given_start, given_value)
    if kind == 3:  # SHARED
        return (-1 - shared_number[references.item[k]]) << 32
    return references.code[k] + (own if kind == 0 else -external)
