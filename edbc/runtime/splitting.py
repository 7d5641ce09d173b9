"""The native loops of `edbc.runtime.split`. Each has a plain-Python reference in the tests.

Indices of the longest loops are unsigned, see `schedule.native.U`.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

import numpy as np

from edbc.kernelcache import njit
from edbc.schedule.native import INNER, U

EAGER, CORE, LAZY, WHOLE = 0, 1, 2, -1
"""Parts of a node, and what an operand of a part is when it is one of the whole node's."""


@njit(cache=True)
def find_usage(node_type, operand_ptr, operands, operand_output, num_types, most):
    """Which operands (types, most) are external in every node, and which outputs (types, most) some node reads."""
    external = np.ones((num_types, most), np.bool_)
    read = np.zeros((num_types, most), np.bool_)
    for v in range(U(len(node_type))):
        first, t = U(operand_ptr[v]), U(node_type[v])
        for i in range(first, U(operand_ptr[v + U(1)])):
            if operands[i] < 0:
                continue
            if i - first < U(most):
                external[t, i - first] = False
            read[U(node_type[U(operands[i])]), U(operand_output[i])] = True
    return external, read


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
def find_chunks(batch_type, batch_ptr, nodes, leader, shares, room):
    """The rows that eager parts compute. Consecutive batches of type t read the rows of one chunk, at most `room[t]`; a
    chunk has one row for all of its nodes with the same `leader` where the type `shares`, else one for each of its
    nodes. Types without room have no rows.

    Returns per node the number of its row among those of its type, -1 where it has none; per batch the rows of the
    chunk that it opens, begin and end, equal where it opens none; and per type chunks and rows, (2, types).
    """
    num_batches, num_types = len(batch_type), len(room)
    row = np.full(len(nodes), -1, np.int64)
    opened = np.zeros((num_batches, 2), np.int64)
    counts = np.zeros((2, num_types), np.int64)
    opener = np.full(num_types, -1, np.int64)
    chunk_of = np.full(len(nodes), -2, np.int64)
    row_in_chunk = np.empty(len(nodes), np.int64)
    met_in = np.full(len(nodes), -1, np.int64)
    for b in range(num_batches):
        t = U(batch_type[b])
        if room[t] == 0:
            continue
        first, last, is_shared = U(batch_ptr[b]), U(batch_ptr[b + 1]), shares[t]
        fresh = 0
        for i in range(first, last):
            v = U(nodes[i])
            u = U(leader[v]) if is_shared else v
            if chunk_of[u] != opener[t] and met_in[u] != b:
                met_in[u] = b
                fresh += 1
        if opener[t] < 0 or opened[opener[t], 1] - opened[opener[t], 0] + fresh > room[t]:
            opener[t] = b
            opened[b] = counts[1, t]
            counts[0, t] += 1
        for i in range(first, last):
            v = U(nodes[i])
            u = U(leader[v]) if is_shared else v
            if chunk_of[u] != opener[t]:
                chunk_of[u] = opener[t]
                row_in_chunk[u] = counts[1, t]
                counts[1, t] += 1
            row[v] = row_in_chunk[u]
        opened[opener[t], 1] = counts[1, t]
    return row, opened, counts


@njit(cache=True)
def split_graph(
    batch_type, batch_ptr, nodes, node_type, operand_ptr, operands, operand_output, result_node, result_output, row,
    opened, rows, has_part, home, part_type, origin_ptr, origin,
):  # fmt: skip
    """The split graph, see `split_nodes`; its schedule, the types of batches and what `part_batches` says of them; and
    the results in it, see `move_results`."""
    number, total = number_parts(nodes, has_part, node_type, row, rows)
    has_lazy = has_part[LAZY].any()
    kinds, ptr, order, executed = part_batches(batch_type, batch_ptr, nodes, node_type, number, row, opened, has_lazy)
    kind = np.empty(len(kinds), np.int32)
    for b in range(len(kinds)):
        kind[b] = part_type[kinds[b, 0], kinds[b, 1]]
    num_parts = 3 if has_lazy else 2
    graph = split_nodes(
        node_type, operand_ptr, operands, operand_output, number, total, num_parts, home, part_type, origin_ptr, origin
    )
    results = move_results(result_node, result_output, node_type, home, number)
    return graph, (kind, ptr, order), executed, results


@njit(**INNER)
def number_parts(nodes, has_part, node_type, row, rows):
    """Numbers of the nodes' parts, (3, n), -1 where a node has no such part: eager parts type after type, `rows[t]` of
    type t, a node's its `row`; then the cores, numbered as the whole nodes were; then lazy parts type after type, in
    the order of the schedule. And how many there are."""
    n, num_types = len(nodes), has_part.shape[1]
    number = np.full((3, n), -1, np.int64)
    begin = np.full(num_types, -1, np.int64)
    total = np.int64(0)
    for t in range(num_types):
        if has_part[EAGER, t]:
            begin[t] = total
            total += rows[t]
    for v in range(U(n)):
        eager = begin[U(node_type[v])]
        if eager >= 0:
            number[EAGER, v] = eager + row[v]
        number[CORE, v] = total + np.int64(v)
    total += n
    for t in range(num_types):
        if has_part[LAZY, t]:
            for v in nodes:
                if node_type[v] == t:
                    number[LAZY, v] = total
                    total += 1
    return number, total


@njit(**INNER)
def part_batches(batch_type, batch_ptr, nodes, node_type, number, row, opened, has_lazy):
    """The batches of the split schedule: the given ones, before them the chunks that they open, and after all of them
    one batch of each type's lazy parts. See `find_chunks` for `row` and `opened`.

    Returns the kinds of batches (part, type), their borders, their nodes, and which of them the given batches are.
    """
    num_batches = len(batch_type)
    num_types = 0
    total = len(nodes)
    for t in batch_type:
        num_types = max(num_types, t + 1)
    for b in range(num_batches):
        total += opened[b, 1] - opened[b, 0]
    for v in nodes[: len(nodes) if has_lazy else 0]:
        total += number[LAZY, v] >= 0
    kinds = np.zeros((2 * num_batches + num_types, 2), np.int64)
    ptr = np.zeros(len(kinds) + 1, np.int32)
    order = np.empty(total, np.int32)
    executed = np.empty(num_batches, np.int64)
    at = made = 0
    for b in range(num_batches):
        t, v = batch_type[b], nodes[batch_ptr[b]]
        if number[EAGER, v] >= 0 and opened[b, 1] > opened[b, 0]:
            for k in range(opened[b, 0], opened[b, 1]):
                order[at] = number[EAGER, v] - row[v] + k
                at += 1
            kinds[made, 0], kinds[made, 1] = EAGER, t
            made += 1
            ptr[made] = at
        for i in range(U(batch_ptr[b]), U(batch_ptr[b + 1])):
            order[at] = number[CORE, U(nodes[i])]
            at += 1
        executed[b] = made
        kinds[made, 0], kinds[made, 1] = CORE, t
        made += 1
        ptr[made] = at
    for t in range(num_types if has_lazy else 0):
        first = at
        for v in nodes:
            if node_type[v] == t and number[LAZY, v] >= 0:
                order[at] = number[LAZY, v]
                at += 1
        if at > first:
            kinds[made, 0], kinds[made, 1] = LAZY, t
            made += 1
            ptr[made] = at
    return kinds[:made], ptr[: made + 1], order[:at], executed


@njit(**INNER)
def split_nodes(
    node_type, operand_ptr, operands, operand_output, number, total, num_parts, home, part_type, origin_ptr, origin
):
    """The `total` nodes of the split graph, none of them of a part from `num_parts` on: types, operand borders,
    operands and their outputs.

    `home[t, j]` is (part, output) of output j of type t; `part_type[part, t]` the type of a part; `origin` the operands
    of parts as (part or WHOLE, index), those of part p of type t from `origin_ptr[p, t]` to `origin_ptr[p, t + 1]`. An
    eager part that several nodes share has the operands of the first. A type without parts has the type itself as its
    core's, and its core every operand that the whole node has.
    """
    n = U(len(node_type))
    new_type = np.empty(total, np.int32)
    new_ptr = np.zeros(total + 1, np.int32)
    first_of = np.full(total, -1, np.int64)
    for part in range(num_parts):
        for v in range(n):
            at, t = U(number[part, v]), U(node_type[v])
            if number[part, v] >= 0 and first_of[at] < 0:
                first_of[at] = v
                new_type[at] = part_type[part, t]
                if U(part_type[CORE, t]) == t:
                    has = np.int64(operand_ptr[v + U(1)]) - np.int64(operand_ptr[v])
                else:
                    has = origin_ptr[part, t + U(1)] - origin_ptr[part, t]
                new_ptr[at + U(1)] = has
    for at in range(total):
        new_ptr[at + 1] += new_ptr[at]
    new_operands = np.empty(new_ptr[total], np.int32)
    new_output = np.zeros(new_ptr[total], np.int32)
    for part in range(num_parts):
        for v in range(n):
            if number[part, v] < 0 or U(first_of[U(number[part, v])]) != v:
                continue
            t, begin, at = U(node_type[v]), U(operand_ptr[v]), U(new_ptr[U(number[part, v])])
            whole = U(part_type[CORE, t]) == t
            first = begin if whole else U(origin_ptr[part, t])
            last = U(operand_ptr[v + U(1)]) if whole else U(origin_ptr[part, t + U(1)])
            for i in range(first, last):
                if not whole and origin[i, 0] != WHOLE:
                    new_operands[at], new_output[at] = number[U(origin[i, 0]), v], origin[i, 1]
                    at += U(1)
                    continue
                k = i if whole else begin + U(origin[i, 1])
                if operands[k] < 0:
                    new_operands[at] = operands[k]
                else:
                    u, j = U(operands[k]), U(operand_output[k])
                    of = U(node_type[u])
                    new_operands[at], new_output[at] = number[U(home[of, j, 0]), u], home[of, j, 1]
                at += U(1)
    return new_type, new_ptr, new_operands, new_output


@njit(**INNER)
def move_results(result_node, result_output, node_type, home, number):
    """Where results, given as (node or -1 - external, output), are in the split graph; see `split_nodes`."""
    node, output = result_node.copy(), result_output.copy()
    for r in range(U(len(node))):
        if node[r] >= 0:
            v = U(node[r])
            t, j = U(node_type[v]), U(output[r])
            node[r], output[r] = number[U(home[t, j, 0]), v], home[t, j, 1]
    return node, output
