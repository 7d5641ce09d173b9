"""The native loops of joining: from the vertices of a mini-batch to the arrays of its graph.

Their reference is `vertex.function.run_eagerly` on a recording shadow of the model: define-by-run capture of the same
vertices must give the same graph. What the arrays mean is told where they are made, in `vertex.join`.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def find_fragments(batch, automaton, fragment_of, interface_of):  # type: ignore[no-untyped-def]
    """Fill `fragment_of` and `interface_of`, (n,) each. Returns the instance and the vertex (counted over all
    instances) for which nothing has been recorded, or (-1, -1). O(vertices + edges)."""
    num_types = len(automaton.root)
    for i in range(len(batch.vertex_ptr) - 1):
        base = batch.vertex_ptr[i]
        e = batch.edge_start[i]
        for v in range(base, batch.vertex_ptr[i + 1]):
            if batch.types[v] >= num_types:
                return i, v
            state = automaton.root[batch.types[v]]
            stop = batch.edge_start[i] + batch.edge_ptr[v + i + 1]
            while e < stop:
                state = automaton.next_state[state, interface_of[base + batch.edges[e]]]
                e += 1
            fragment = automaton.fragment_of_state[state]
            if fragment < 0:
                return i, v
            fragment_of[v] = fragment
            interface_of[v] = automaton.interface_of_fragment[fragment]
    return -1, -1


@njit(cache=True)
def write_graph(batch, fragments, fragment_of, columns, out, scratch):  # type: ignore[no-untyped-def]
    """Write the fragment of every vertex to `out`, in vertex order. O(nodes + operands).

    Returns the number of externals, and column and vertex of a row number outside of its table, or (-1, -1).
    """
    node = 0
    external = 0
    at = 0
    field = 0
    for i in range(len(batch.vertex_ptr) - 1):
        base = batch.vertex_ptr[i]
        for v in range(base, batch.vertex_ptr[i + 1]):
            fragment = fragment_of[v]
            first_edge = batch.edge_start[i] + batch.edge_ptr[v + i]
            first_node = node
            external, wrong = _write_externals(fragment, v, external, fragments.externals, columns, out, scratch)
            if wrong >= 0:
                return external, wrong, v
            for k in range(fragments.node_ptr[fragment], fragments.node_ptr[fragment + 1]):
                out.node_type[node] = fragments.node_type[k]
                for j in range(fragments.operands.ptr[k], fragments.operands.ptr[k + 1]):
                    out.operands[at], out.operand_output[at] = _resolve(
                        fragments.operands, j, first_node, base, first_edge, batch, scratch
                    )
                    at += 1
                node += 1
                out.operand_ptr[node] = at
            scratch.field_start[v] = field
            for k in range(fragments.scattered.ptr[fragment], fragments.scattered.ptr[fragment + 1]):
                scratch.field_node[field], scratch.field_output[field] = _resolve(
                    fragments.scattered, k, first_node, base, first_edge, batch, scratch
                )
                field += 1
            for k in range(fragments.pushes.ptr[fragment], fragments.pushes.ptr[fragment + 1]):
                name = fragments.pushes.name[k]
                row = scratch.push_at[name]
                out.result_node[row], out.result_output[row] = _resolve(
                    fragments.pushes, k, first_node, base, first_edge, batch, scratch
                )
                scratch.push_at[name] = row + 1
                out.push_counts[i, name] += 1
    return external, -1, -1


@njit(cache=True, inline="always")
def _resolve(references, k, first_node, base, first_edge, batch, scratch):  # type: ignore[no-untyped-def]
    """Reference k as (node or -1 - external, output) in the numbers of the mini-batch."""
    kind = references.kind[k]
    item = references.item[k]
    output = references.output[k]
    if kind == 2:  # GATHERED
        at = scratch.field_start[base + batch.edges[first_edge + item]] + output
        return scratch.field_node[at], scratch.field_output[at]
    if kind == 0:  # OWN
        return np.int32(first_node + item), np.int32(output)
    return np.int32(-1 - scratch.numbers[item]), np.int32(0)


@njit(cache=True)
def _write_externals(fragment, v, external, externals, columns, out, scratch):  # type: ignore[no-untyped-def]
    """The externals of one vertex, their numbers in `scratch.numbers`. Returns the number of externals so far and the
    column whose row number is outside of its table, or -1."""
    first = externals.ptr[fragment]
    for k in range(first, externals.ptr[fragment + 1]):
        index = externals.item[k]
        if externals.kind[k] == 2:  # SHARED
            number = scratch.shared_number[index]
            if number >= 0:
                scratch.numbers[k - first] = number
                continue
            scratch.shared_number[index] = external
            index = scratch.shared_index[index]
        elif externals.kind[k] == 0:  # COLUMN
            column = index
            index = columns[column, v]
            if index < 0 or index >= externals.limit[k]:
                return external, column
        known = externals.value_class[k]
        if scratch.class_number[known] < 0:
            scratch.class_number[known] = scratch.num_classes[0]
            scratch.num_classes[0] += 1
        scratch.numbers[k - first] = external
        out.external_class[external] = scratch.class_number[known]
        out.external_source[external] = externals.source[k]
        out.external_index[external] = index
        external += 1
    return external, -1
