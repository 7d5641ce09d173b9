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
def number_parts(batch_type, batch_ptr, nodes, has_part, node_type):
    """Numbers of the nodes' parts, (3, n), -1 where a node has no such part, and the batches of the split schedule.

    Eager parts come first, type after type, within a type in the order of the schedule; then the cores, numbered as the
    whole nodes were; then lazy parts. Batches: of each eager type one, then the schedule's, then of each lazy type one.
    Returns the numbers, the kinds of batches (part, type), their borders and their nodes.
    """
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
    num_batches = len(batch_type) + has_part[EAGER].sum() + has_part[LAZY].sum()
    kinds = np.zeros((num_batches, 2), np.int64)
    ptr = np.zeros(num_batches + 1, np.int64)
    order = np.empty(total, np.int64)
    at = b = 0
    for part in (EAGER, CORE, LAZY):
        if part == CORE:
            for c in range(len(batch_type)):
                for i in range(batch_ptr[c], batch_ptr[c + 1]):
                    order[at] = number[CORE, nodes[i]]
                    at += 1
                kinds[b, 0], kinds[b, 1] = CORE, batch_type[c]
                b += 1
                ptr[b] = at
            continue
        for t in range(has_part.shape[1]):
            if has_part[part, t]:
                for v in nodes:
                    if node_type[v] == t:
                        order[at] = number[part, v]
                        at += 1
                kinds[b, 0], kinds[b, 1] = part, t
                b += 1
                ptr[b] = at
    return number, kinds, ptr, order


@njit(cache=True)
def split_nodes(node_type, operand_ptr, operands, operand_output, number, home, part_type, origin_ptr, origin):
    """The nodes of the split graph: types, operand borders, operands and their outputs.

    `home[t, j]` is (part, output) of output j of type t; `part_type[part, t]` the type of a part; `origin` the operands
    of parts as (part or WHOLE, index), those of part p of type t from `origin_ptr[p, t]` to `origin_ptr[p, t + 1]`. A
    type without parts has the type itself as its core's, and its core every operand that the whole node has.
    """
    n = len(node_type)
    total = 0
    for part in (EAGER, CORE, LAZY):
        for v in range(n):
            total += number[part, v] >= 0
    new_type = np.empty(total, np.int64)
    size = np.zeros(total + 1, np.int64)
    whole = np.zeros(n, np.bool_)
    for v in range(n):
        t = node_type[v]
        whole[v] = part_type[CORE, t] == t
        for part in (EAGER, CORE, LAZY):
            at = number[part, v]
            if at >= 0:
                new_type[at] = part_type[part, t]
                has = operand_ptr[v + 1] - operand_ptr[v]
                size[at + 1] = has if whole[v] else origin_ptr[part, t + 1] - origin_ptr[part, t]
    new_ptr = np.cumsum(size)
    new_operands = np.empty(new_ptr[total], np.int64)
    new_output = np.zeros(new_ptr[total], np.int64)
    for v in range(n):
        t = node_type[v]
        for part in (EAGER, CORE, LAZY):
            if number[part, v] < 0:
                continue
            at = new_ptr[number[part, v]]
            first = operand_ptr[v] if whole[v] else origin_ptr[part, t]
            last = operand_ptr[v + 1] if whole[v] else origin_ptr[part, t + 1]
            for i in range(first, last):
                k = i if whole[v] else operand_ptr[v] + origin[i, 1]
                if not whole[v] and origin[i, 0] != WHOLE:
                    new_operands[at], new_output[at] = number[origin[i, 0], v], origin[i, 1]
                elif operands[k] < 0:
                    new_operands[at] = operands[k]
                else:
                    u = operands[k]
                    where = home[node_type[u], operand_output[k]]
                    new_operands[at], new_output[at] = number[where[0], u], where[1]
                at += 1
    return new_type, new_ptr, new_operands, new_output
