"""The native loops of `edbc.runtime.split`. Each has a plain-Python reference in the tests."""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

import numpy as np
from numba import njit

EAGER, CORE, LAZY, WHOLE = 0, 1, 2, -1
"""Parts of a node, and what an operand of a part is when it is one of the whole node's."""


@njit(cache=True)
def find_usage(node_type, operand_ptr, operands, operand_output, num_types, most):
    """Which operands (types, most) are external in every node, and which outputs (types, most) some node reads."""
    external = np.ones((num_types, most), np.bool_)
    read = np.zeros((num_types, most), np.bool_)
    for v in range(len(node_type)):
        for i in range(operand_ptr[v], operand_ptr[v + 1]):
            u = operands[i]
            if u < 0:
                continue
            k = i - operand_ptr[v]
            if k < most:
                external[node_type[v], k] = False
            read[node_type[u], operand_output[i]] = True
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
def count_chunks(batch_type, batch_ptr, room):
    """Per type, in how many chunks its batches go that hold at most `room` nodes each; 0 where there is no room."""
    chunks = np.zeros(len(room), np.int64)
    left = np.zeros(len(room), np.int64)
    for b in range(len(batch_type)):
        t, count = batch_type[b], batch_ptr[b + 1] - batch_ptr[b]
        if room[t] == 0:
            continue
        if chunks[t] == 0 or left[t] < count:
            chunks[t] += 1
            left[t] = room[t]
        left[t] -= count
    return chunks


@njit(cache=True)
def number_parts(nodes, has_part, node_type):
    """Numbers of the nodes' parts, (3, n), -1 where a node has no such part: eager parts type after type, within a type
    in the order of the schedule; then the cores, numbered as the whole nodes were; then lazy parts like eager ones."""
    n = len(nodes)
    number = np.full((3, n), -1, np.int64)
    total = 0
    for part in (EAGER, CORE, LAZY):
        if part == CORE:
            for v in range(n):
                number[CORE, v] = total + v
            total += n
            continue
        for t in range(has_part.shape[1]):
            if has_part[part, t]:
                for v in nodes:
                    if node_type[v] == t:
                        number[part, v] = total
                        total += 1
    return number


@njit(cache=True)
def _fill_chunk(b, batch_type, batch_ptr, nodes, room, of_node, order, at):
    """Write the chunk that batch b opens to `order` from `at` on: the numbers `of_node` of its batches' nodes; returns
    where it ends."""
    begin = at
    for c in range(b, len(batch_type)):
        if batch_type[c] != batch_type[b]:
            continue
        if at - begin + batch_ptr[c + 1] - batch_ptr[c] > room:
            break
        for i in range(batch_ptr[c], batch_ptr[c + 1]):
            order[at] = of_node[nodes[i]]
            at += 1
    return at


@njit(cache=True)
def part_batches(batch_type, batch_ptr, nodes, node_type, number, room):
    """The batches of the split schedule: the given ones, before them the chunks that they open, and after all of them
    one batch of each type's lazy parts.

    A batch of type t with eager parts opens a chunk when it does not fit in what is left of the `room[t]` nodes of the
    type's last one. Returns the kinds of batches (part, type), their borders, their nodes, and which of them the given
    batches are.
    """
    num_batches, num_types = len(batch_type), len(room)
    total = 0
    for part in (EAGER, CORE, LAZY):
        for v in range(len(nodes)):
            total += number[part, v] >= 0
    kinds = np.zeros((2 * num_batches + num_types, 2), np.int64)
    ptr = np.zeros(len(kinds) + 1, np.int32)
    order = np.empty(total, np.int32)
    executed = np.empty(num_batches, np.int64)
    left = np.full(num_types, -1, np.int64)
    at = made = 0
    for b in range(num_batches):
        t, count = batch_type[b], batch_ptr[b + 1] - batch_ptr[b]
        if number[EAGER, nodes[batch_ptr[b]]] >= 0:
            if left[t] < count:
                left[t] = room[t]
                at = _fill_chunk(b, batch_type, batch_ptr, nodes, room[t], number[EAGER], order, at)
                kinds[made, 0], kinds[made, 1] = EAGER, t
                made += 1
                ptr[made] = at
            left[t] -= count
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            order[at] = number[CORE, nodes[i]]
            at += 1
        executed[b] = made
        kinds[made, 0], kinds[made, 1] = CORE, t
        made += 1
        ptr[made] = at
    for t in range(num_types):
        first = at
        for v in nodes:
            if node_type[v] == t and number[LAZY, v] >= 0:
                order[at] = number[LAZY, v]
                at += 1
        if at > first:
            kinds[made, 0], kinds[made, 1] = LAZY, t
            made += 1
            ptr[made] = at
    return kinds[:made], ptr[: made + 1], order, executed


@njit(cache=True)
def split_nodes(node_type, operand_ptr, operands, operand_output, number, home, part_type, origin_ptr, origin):
    """The nodes of the split graph: types, operand borders, operands and their outputs.

    `home[t, j]` is (part, output) of output j of type t; `part_type[part, t]` the type of a part; `origin` the operands
    of parts as (part or WHOLE, index), those of part p of type t from `origin_ptr[p, t]` to `origin_ptr[p, t + 1]`. A
    type without parts has the type itself as its core's, and its core every operand that the whole node has.
    """
    n = len(node_type)
    total = 0
    for part in range(3):
        for v in range(n):
            total += number[part, v] >= 0
    new_type = np.empty(total, np.int32)
    new_ptr = np.zeros(total + 1, np.int32)
    for part in range(3):
        for v in range(n):
            at, t = number[part, v], node_type[v]
            if at >= 0:
                new_type[at] = part_type[part, t]
                whole = part_type[CORE, t] == t
                has = operand_ptr[v + 1] - operand_ptr[v] if whole else origin_ptr[part, t + 1] - origin_ptr[part, t]
                new_ptr[at + 1] = has
    for at in range(total):
        new_ptr[at + 1] += new_ptr[at]
    new_operands = np.empty(new_ptr[total], np.int32)
    new_output = np.zeros(new_ptr[total], np.int32)
    for part in range(3):
        for v in range(n):
            if number[part, v] < 0:
                continue
            t, begin, at = node_type[v], operand_ptr[v], new_ptr[number[part, v]]
            whole = part_type[CORE, t] == t
            first = begin if whole else origin_ptr[part, t]
            last = operand_ptr[v + 1] if whole else origin_ptr[part, t + 1]
            for i in range(first, last):
                k = i if whole else begin + origin[i, 1]
                if not whole and origin[i, 0] != WHOLE:
                    new_operands[at], new_output[at] = number[origin[i, 0], v], origin[i, 1]
                elif operands[k] < 0:
                    new_operands[at] = operands[k]
                else:
                    u, j = operands[k], operand_output[k]
                    of = node_type[u]
                    new_operands[at], new_output[at] = number[home[of, j, 0], u], home[of, j, 1]
                at += 1
    return new_type, new_ptr, new_operands, new_output
