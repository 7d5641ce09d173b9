"""The native loops of joining: from the vertices of a mini-batch to the arrays of its graph.

Their reference is `vertex.function.run_eagerly` on a recording shadow of the model: define-by-run capture of the same
vertices must give the same graph. What the arrays mean is told in `vertex.join` and `vertex.tables`.

Arrays are taken out of their named tuples before the loops and no function is called inside them: with either, numba
counts references at every step, which costs more than the step. Indices are unsigned: numba wraps signed ones around as
Python does, which doubled the time.
"""

from __future__ import annotations

import numpy as np
from numba import njit

U = np.uint64


@njit(cache=True)
def find_instances(packed, num_instances):  # type: ignore[no-untyped-def]
    """Where each instance's part of `packed` starts, (num_instances,), and its vertices, (num_instances + 1,)."""
    start = np.empty(num_instances, np.int64)
    vertex_ptr = np.zeros(num_instances + 1, np.int64)
    at = 0
    for i in range(num_instances):
        start[i] = at
        vertex_ptr[i + 1] = vertex_ptr[i] + packed[at]
        at += 3 + 2 * packed[at] + packed[at + 1]
    return start, vertex_ptr


@njit(cache=True)
def find_fragments(batch, automaton, fragment_of, interface_of, times):  # type: ignore[no-untyped-def]
    """Fill `fragment_of` and `interface_of`, (n,), and count the vertices of each fragment in `times`.

    Returns the instance and the vertex in it for which nothing has been recorded, or (-1, -1). O(vertices + edges).
    """
    packed = batch.packed
    root = automaton.root
    next_state = automaton.next_state
    fragment_of_state = automaton.fragment_of_state
    interface_of_fragment = automaton.interface_of_fragment
    one = U(1)
    v = U(0)
    for i in range(len(batch.start)):
        base = U(batch.vertex_ptr[i])
        stop = U(batch.vertex_ptr[i + 1])
        at = U(batch.start[i]) + U(2)
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
def write_externals(fragment_of, columns, externals, shared, shared_number, first_external, out):  # type: ignore[no-untyped-def]
    """Number the externals of every vertex: its own from `first_external` on, then shared ones that are new.

    Returns the number of externals, and column and vertex of a row number outside of its table, or (-1, -1).
    """
    ptr, column_of, source_of, item_of, class_of, limit_of = externals
    shared_ptr, shared_of, shared_source, shared_item, shared_class = shared
    external_class = out.external_class
    external_source = out.external_source
    external_index = out.external_index
    one = U(1)
    count = U(0)
    for v in range(U(len(fragment_of))):
        fragment = fragment_of[v]
        first_external[v] = count
        for k in range(ptr[fragment], ptr[fragment + one]):
            item = item_of[k]
            if column_of[k] >= 0:
                item = columns[U(column_of[k]), v]
                if item < 0 or item >= limit_of[k]:
                    return np.int64(count), column_of[k], np.int64(v)
            external_class[count] = class_of[k]
            external_source[count] = source_of[k]
            external_index[count] = item
            count += one
        for k in range(shared_ptr[fragment], shared_ptr[fragment + one]):
            number = shared_of[k]
            if shared_number[number] < 0:
                shared_number[number] = count
                external_class[count] = shared_class[number]
                external_source[count] = shared_source[number]
                external_index[count] = shared_item[number]
                count += one
    return np.int64(count), np.int64(-1), np.int64(-1)


@njit(cache=True)
def write_nodes(batch, fragment_of, externals, nodes, operands, given, values, out):  # type: ignore[no-untyped-def]
    """Write every vertex's nodes and operands, and to `given_value` what it scatters and pushes.

    A value is node x 2**32 + output while it is passed on; externals are negative. O(nodes + operands).
    """
    packed = batch.packed
    first_external, shared_number = externals
    given_start, given_value = values
    node_ptr, type_of, operand_end = nodes
    operand_first, operand_kind, operand_item, operand_code = operands
    given_first, given_kind, given_item, given_code = given
    node_type = out.node_type
    operand_ptr = out.operand_ptr
    operand_node = out.operands
    operand_output = out.operand_output
    one = U(1)
    v = U(0)
    node = U(0)
    at = U(0)
    last = U(0)
    for i in range(len(batch.start)):
        base = U(batch.vertex_ptr[i])
        stop = U(batch.vertex_ptr[i + 1])
        edge_start = U(batch.start[i]) + U(2) + stop - base
        edges = edge_start + stop - base + one
        while v < stop:
            fragment = fragment_of[v]
            edge = edges + U(packed[edge_start])
            edge_start += one
            own = np.int64(node) << 32
            external = np.int64(first_external[v]) << 32
            for k in range(node_ptr[fragment], node_ptr[fragment + one]):
                node_type[node] = type_of[k]
                node += one
                operand_ptr[node] = np.int64(at) + operand_end[k]
            for k in range(operand_first[fragment], operand_first[fragment + one]):
                kind = operand_kind[k]
                if kind == 2:  # GATHERED
                    value = given_value[given_start[base + U(packed[edge + operand_item[k]])] + U(operand_code[k])]
                elif kind == 3:  # SHARED
                    value = (-1 - shared_number[operand_item[k]]) << 32
                else:
                    value = operand_code[k] + (own if kind == 0 else -external)
                operand_node[at] = value >> 32
                operand_output[at] = value & 0xFFFFFFFF
                at += one
            given_start[v] = last
            for k in range(given_first[fragment], given_first[fragment + one]):
                kind = given_kind[k]
                if kind == 2:
                    value = given_value[given_start[base + U(packed[edge + given_item[k]])] + U(given_code[k])]
                elif kind == 3:
                    value = (-1 - shared_number[given_item[k]]) << 32
                else:
                    value = given_code[k] + (own if kind == 0 else -external)
                given_value[last] = value
                last += one
            v += one


@njit(cache=True)
def write_results(batch, fragment_of, values, pushes, next_row, out):  # type: ignore[no-untyped-def]
    """Write every pushed value to the next row of its output, and count the rows of each instance."""
    ptr, name_of, first_pushed = pushes
    given_start, given_value = values
    result_node = out.result_node
    result_output = out.result_output
    push_counts = out.push_counts
    one = U(1)
    for i in range(U(len(batch.start))):
        for v in range(U(batch.vertex_ptr[i]), U(batch.vertex_ptr[i + one])):
            fragment = fragment_of[v]
            at = given_start[v] + first_pushed[fragment]
            for k in range(ptr[fragment], ptr[fragment + one]):
                name = name_of[k]
                row = next_row[name]
                result_node[row] = given_value[at] >> 32
                result_output[row] = given_value[at] & 0xFFFFFFFF
                push_counts[i, name] += 1
                next_row[name] = row + one
                at += one
