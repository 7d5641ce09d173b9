"""The native loops of `edbc.run.passes.eagerparts`. Each has a plain-Python reference in the tests.

Indices of the longest loops are unsigned, see `kernelcache.U`.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from edbc.native.kernelcache import INNER, U, njit
from edbc.native.kinds import inlined


class Results(NamedTuple):
    """Of a Capture."""

    node: Any
    output: Any


class Chunks(NamedTuple):
    """The rows of eager parts, see `find_chunks`."""

    row: Any
    opened: Any
    rows: Any
    """Per type."""


class Tables(NamedTuple):
    """How types are split, see `split_nodes`."""

    home: Any
    in_place: Any
    part_type: Any
    origin_ptr: Any
    origin: Any


EAGER, CORE, WHOLE = 0, 1, -1
"""Parts of a node, and what an operand of a part is when it is one of the whole node's."""


@njit(cache=True)
def external_operands(graph, num_types, most):
    """Which operands (types, most) are external in every node."""
    node_type, operand_ptr, operands, _ = graph
    external = np.ones((num_types, most), np.bool_)
    for v in range(U(len(node_type))):
        first, t = U(operand_ptr[v]), U(node_type[v])
        for i in range(first, min(U(operand_ptr[v + U(1)]), first + U(most))):
            external[t, i - first] &= operands[i] < 0
    return external


@njit(cache=True)
def batch_sizes(batch_type, batch_ptr, num_types):
    """Per type: nodes, batches, and nodes of the largest batch, (3, types)."""
    found = np.zeros((3, num_types), np.int64)
    for b in range(len(batch_type)):
        t, count = batch_type[b], batch_ptr[b + 1] - batch_ptr[b]
        found[0, t] += count
        found[1, t] += 1
        found[2, t] = max(found[2, t], count)
    return found


@njit(cache=True)
def find_chunks(batch_type, batch_ptr, nodes, equal, shares, room):
    """The rows that eager parts compute. Consecutive batches of type t read the rows of one chunk, at most `room[t]`; a
    chunk has one row for all of its nodes with the same number in `equal`, which has one for every place in `nodes`,
    where the type `shares`, else one for each of its nodes. Types without room have no rows.

    Returns per node the number of its row among those of its type, -1 where it has none; per batch the rows of the
    chunk that it opens, begin and end, equal where it opens none; and per type chunks and rows, (2, types).
    """
    num_batches, num_types = len(batch_type), len(room)
    row = np.full(len(nodes), -1, np.int32)
    opened = np.zeros((num_batches, 2), np.int32)
    counts = np.zeros((2, num_types), np.int64)
    opener = np.full(num_types, -1, np.int64)
    row_of = np.full(len(nodes), -1, np.int32)
    for b in range(num_batches):
        t = U(batch_type[b])
        if room[t] == 0:
            continue
        first, last = U(batch_ptr[b]), U(batch_ptr[b + 1])
        opens = opener[t] < 0
        while True:
            made = counts[1, t]
            if opens:
                opener[t] = b
                opened[b, 0] = made
                counts[0, t] += 1
            begin = np.int64(opened[opener[t], 0])
            for p in range(first, last):
                r = made
                if shares[t]:
                    e = U(equal[p])
                    # earlier chunks' rows have smaller numbers
                    r = row_of[e] if row_of[e] >= begin else made
                    row_of[e] = r
                row[U(nodes[p])] = r
                made += r == made
            if opens or made - begin <= room[t]:
                break
            opens = True
            if shares[t]:
                for p in range(first, last):
                    row_of[U(equal[p])] = -1
        opened[opener[t], 1] = counts[1, t] = made
    return row, opened, counts


@njit(cache=True)
def split_graph(schedule, graph, results, chunks, tables):
    """The split graph, see `split_nodes`; its schedule and what `part_batches` says of it; and the results in it, see
    `move_results`. A schedule and a graph are their `arrays`."""
    first = number_parts(tables.part_type, chunks.rows)
    batches, executed = part_batches(schedule, chunks.opened, tables.part_type, first)
    nodes = split_nodes(schedule, graph, chunks.row, first, tables)
    return nodes, batches, executed, move_results(results, graph.node_type, chunks.row, first, tables)


@njit(**INNER)
def number_parts(part_type, rows):
    """Numbers of the nodes' parts: eager parts type after type, `rows[t]` of type t; then the cores, numbered as the
    whole nodes were. Returns the number of every type's first eager part, and at the end that of the first core."""
    num_types = part_type.shape[1]
    first = np.zeros(num_types + 1, np.int64)
    for t in range(num_types):
        first[t + 1] = first[t] + (rows[t] if part_type[EAGER, t] >= 0 else 0)
    return first


@inlined
def number_of(part, v, t, row, first):
    """The number of a part of node v, which is of type t and has that part; see `number_parts`, `find_chunks`."""
    return first[len(first) - 1] + np.int64(v) if part == CORE else first[t] + np.int64(row[v])


@inlined
def value_of(u, j, node_type, row, first, home, in_place):
    """Where output j of node u is, or external u, as (node or -1 - external, output); see `split_nodes`."""
    if u < 0:
        return np.int64(u), np.int64(0)
    if in_place:
        return first[len(first) - 1] + np.int64(u), np.int64(j)
    of = U(node_type[U(u)])
    return number_of(home[of, U(j), 0], U(u), of, row, first), home[of, U(j), 1]


@inlined
def copy_shifted(order, nodes, first, last, more, core):
    """Write the cores of nodes at these places, `more` places further on."""
    for p in range(first, last):
        order[p + more] = core + nodes[p]


@njit(**INNER)
def part_batches(schedule, opened, part_type, first):
    """The batches of the split schedule: the given ones, and before them the chunks that they open. See `find_chunks`
    for `opened`, `number_parts` for `first`.

    Returns types, borders and nodes of the batches; and which of them the given batches are.
    """
    batch_type, batch_ptr, nodes = schedule
    num_batches, num_types = len(batch_type), part_type.shape[1]
    kind = np.empty(2 * num_batches, np.int32)
    ptr = np.zeros(len(kind) + 1, np.int32)
    order = np.empty(first[num_types] + len(nodes), np.int32)
    executed = np.empty(num_batches, np.int64)
    made, copied, more, core = 0, U(0), U(0), np.int32(first[num_types])
    for b in range(num_batches):
        t, begin = batch_type[b], U(batch_ptr[b])
        if part_type[EAGER, t] >= 0 and opened[b, 1] > opened[b, 0]:
            copy_shifted(order, nodes, copied, begin, more, core)
            copied = begin
            for r in range(opened[b, 0], opened[b, 1]):
                order[begin + more] = first[t] + r
                more += U(1)
            kind[made] = part_type[EAGER, t]
            made += 1
            ptr[made] = begin + more
        executed[b] = made
        kind[made] = part_type[CORE, t]
        made += 1
        ptr[made] = U(batch_ptr[b + 1]) + more
    copy_shifted(order, nodes, copied, U(len(nodes)), more, core)
    return (kind[:made], ptr[: made + 1], order), executed


@njit(**INNER)
def split_nodes(schedule, graph, row, first, tables):
    """The nodes of the split graph, numbered as `number_parts` says: types, operand borders, operands, their outputs.

    `home[t, j]` is (part, output) of output j of type t; `part_type[part, t]` the type of a part, -1 where there is
    none; `origin` the operands of parts as (part or WHOLE, index), those of part p of type t from `origin_ptr[p, t]` to
    `origin_ptr[p, t + 1]`. An eager part has operands of the whole node only, which are externals; one that several
    nodes share has those of the first. A type without parts has the type itself as its core's, and its core every
    operand that the whole node has.

    `in_place` where every output is the core's of the same number, and every core has as many operands as the whole
    node: then one loop copies all operands, and those of the split nodes are written over. Other loops go by the
    batches of the schedule, type by type: a processor cannot foresee how many operands the next node has.
    """
    batch_type, batch_ptr, nodes = schedule
    node_type, operand_ptr, operands, operand_output = graph
    home, in_place, part_type, origin_ptr, origin = tables
    num_types, n, one = part_type.shape[1], U(len(node_type)), U(1)
    core, total = U(first[num_types]), first[num_types] + len(node_type)
    new_type, new_ptr = np.empty(total, np.int32), np.empty(total + 1, np.int32)
    counts = origin_ptr[:, 1:] - origin_ptr[:, :-1]
    entries = np.int64(0)
    for t in range(num_types):
        for at in range(first[t], first[t + 1]):
            new_type[at], new_ptr[at] = part_type[EAGER, t], entries
            entries += counts[EAGER, t]
        if part_type[CORE, t] == t:
            counts[CORE, t] = -1
    cores_from = np.int32(entries)
    for v in range(n):
        new_type[core + v] = part_type[CORE, U(node_type[v])]
    if in_place:
        for v in range(n):
            new_ptr[core + v] = np.int32(operand_ptr[v]) + cores_from
        entries += len(operands)
    else:
        for v in range(n):
            new_ptr[core + v] = entries
            has = counts[CORE, U(node_type[v])]
            entries += has if has >= 0 else np.int64(operand_ptr[v + one]) - np.int64(operand_ptr[v])
    new_ptr[total] = entries
    new_operands, new_output = np.empty(entries, np.int32), np.empty(entries, np.int32)
    if in_place:
        shift = np.int32(core)
        for k in range(U(len(operands))):
            at = U(cores_from) + k
            new_operands[at] = np.int32(operands[k]) + (shift if operands[k] >= 0 else np.int32(0))
            new_output[at] = np.int32(operand_output[k]) if operands[k] >= 0 else np.int32(0)
    owner = np.full(first[num_types], len(nodes), np.int32)
    for b in range(len(batch_type)):
        t, begin, end = U(batch_type[b]), U(batch_ptr[b]), U(batch_ptr[b + 1])
        if counts[CORE, t] < 0:
            for p in range(begin, begin if in_place else end):
                v = U(nodes[p])
                at = U(new_ptr[core + v])
                for k in range(U(operand_ptr[v]), U(operand_ptr[v + one])):
                    new_operands[at], new_output[at] = value_of(
                        operands[k], operand_output[k], node_type, row, first, home, in_place
                    )
                    at += one
            continue
        for p in range(begin, end):
            new = U(number_of(EAGER, U(nodes[p]), t, row, first))
            owner[new] = min(owner[new], nodes[p])
        for i in range(counts[CORE, t]):
            of, index = origin[origin_ptr[CORE, t] + i, 0], origin[origin_ptr[CORE, t] + i, 1]
            for p in range(begin, end):
                v = U(nodes[p])
                at = U(new_ptr[core + v]) + U(i)
                if of == WHOLE:
                    k = U(operand_ptr[v]) + U(index)
                    new_operands[at], new_output[at] = value_of(
                        operands[k], operand_output[k], node_type, row, first, home, in_place
                    )
                else:
                    new_operands[at], new_output[at] = number_of(of, v, t, row, first), index
    for t in range(num_types):
        for new in range(first[t], first[t + 1]):
            for i in range(counts[EAGER, t]):
                k = operand_ptr[owner[new]] + origin[origin_ptr[EAGER, t] + i, 1]
                new_operands[new_ptr[new] + i], new_output[new_ptr[new] + i] = operands[k], 0
    return new_type, new_ptr, new_operands, new_output


@njit(**INNER)
def move_results(results, node_type, row, first, tables):
    """Where results, given as (node or -1 - external, output), are in the split graph; see `split_nodes`."""
    result_node, result_output = results
    home, in_place = tables.home, tables.in_place
    node, output = np.empty_like(result_node), np.empty_like(result_output)
    for r in range(U(len(node))):
        u, j = result_node[r], result_output[r]
        if u >= 0:
            u, j = value_of(u, j, node_type, row, first, home, in_place)
        node[r], output[r] = u, j
    return node, output
