"""The native loops of vertex functions: from the vertices of a mini-batch to the record of each, which `joinloops`
joins as it joins captured instances.

Their reference is `vertex.function.run_eagerly` on a recording shadow of the model: define-by-run capture of the same
vertices must give the same graph. What the arrays mean is told in `vertex.automaton` and `captured.joinloops`.

Indices are unsigned, see `kernelcache.U`. Loops stand in functions
that make no array and are compiled without reference counts, which numba would count at every step.
"""

from __future__ import annotations

import numpy as np

from edbc.capture.captured.joinloops import HEADER as OF_RECORD
from edbc.capture.captured.joinloops import LINE, Items, Records, Sources, finished, written
from edbc.capture.vertex.automaton import Automaton
from edbc.native.kernelcache import INNER, UNCOUNTED, U, njit

HEADER = 3
"""Numbers in `VertexInstance.packed` before its arrays."""
JOINED, UNKNOWN, UNFILLED, BEYOND = range(4)
"""What `join` says."""


@njit(cache=True)
def join(  # type: ignore[no-untyped-def]
    packed, num_instances, root, next_state, fragment_of_state, interface_of_fragment, positions, given, words, begin,
    kind_of_source, class_of_source, limit_of_source, item_of_constant, num_outputs,
):  # fmt: skip
    """The mini-batch of `packed` instances in one call: finds the fragment of every vertex, fills the columns, and
    joins. O(vertices + edges + operands).

    `root` to `interface_of_fragment` are an Automaton, `words` and `begin` the fragments' records: a named tuple is
    slow to pass. `positions` says which packed input a column is, -1 for none; such columns are read from `given`,
    (columns, n), if that has rows for the vertices.

    Returns the fields of `vertexprogram.Joined`: JOINED; UNKNOWN, with instance and vertex in it, for a vertex whose
    fragment is not recorded; UNFILLED where columns are pulled that no packed input is; or BEYOND, with instance,
    vertex in it and column, for a row number outside of its table. Then the interfaces of an UNKNOWN vertex's
    predecessors, how often each column is pulled, the columns, and the block with its parts.
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
    is_given = given.shape[1] == n
    columns = given if is_given else np.empty((len(positions), n), np.int64)
    items = Items(np.empty(n, np.uint32), vertex_ptr, packed, np.empty(n, np.int64), columns)
    records = Records(words, begin, np.zeros(len(begin), np.int64))
    interface_of = np.empty(n, np.uint32)
    pulls = np.zeros(len(positions), np.int64)
    status, column = np.int64(JOINED), np.int64(0)
    instance, vertex = _find(start, items, automaton, interface_of, records.times)
    interfaces = np.empty(0, np.int64)
    if vertex >= 0:
        status = np.int64(UNKNOWN)
        interfaces = _interfaces(packed, start[instance], vertex_ptr[instance], vertex, interface_of)
    else:
        _fill_columns(packed, start, vertex_ptr, positions, columns)
        _count_pulls(records, pulls)
        for c in range(0 if is_given else len(positions)):
            if positions[c] < 0 and pulls[c] > 0:
                status = np.int64(UNFILLED)
    block = np.zeros(3 * LINE, np.int64)  # of nothing
    parts = finished(block, class_of_source)
    if status == JOINED:
        sources = Sources(kind_of_source, class_of_source, limit_of_source, item_of_constant)
        block, parts, column, v = written(records, items, sources, num_outputs)
        if v >= 0:
            status = np.int64(BEYOND)
            instance = np.searchsorted(vertex_ptr, v, side="right") - 1
            vertex = v - vertex_ptr[instance]
    return status, instance, vertex, column, interfaces, pulls, columns, block, parts


@njit(**INNER)
def _interfaces(packed, start, first, vertex, interface_of):  # type: ignore[no-untyped-def]
    """The interfaces of a vertex's predecessors."""
    ptr = start + HEADER + packed[start] + vertex
    edges = start + HEADER + 2 * packed[start] + 1
    found = np.empty(packed[ptr + 1] - packed[ptr], np.int64)
    for e in range(len(found)):
        found[e] = interface_of[first + packed[edges + packed[ptr] + e]]
    return found


@njit(**INNER, **UNCOUNTED)
def _count_pulls(records, pulls):  # type: ignore[no-untyped-def]
    """Add up how often each column is pulled."""
    words, begin, times = records
    for f in range(len(begin)):
        at = begin[f]
        n, m, k, r = words[at], words[at + 1], words[at + 2], words[at + 3]
        first = at + OF_RECORD + 2 * (n + m + r) + k + words[at + 4] + words[at + 5]
        for j in range(first, first + k if times[f] else first):
            if words[j] < 0 and words[j] & 1:
                pulls[(-1 - words[j]) >> 1] += times[f]


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
def _find(start, items, automaton, interface_of, times):  # type: ignore[no-untyped-def]
    """Write the fragment and the interface of every vertex, where its edges begin, and how often there is each
    fragment. Returns instance and vertex in it for which nothing has been recorded, or (-1, -1)."""
    packed, vertex_ptr, fragment_of, edge_at = items.edges, items.item_ptr, items.record_of, items.edge_at
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
            edge_at[v] = np.int64(e)
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
