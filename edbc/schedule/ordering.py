"""The native passes of `edbc.schedule.order`.

No keys are compared: when the order of a batch is final, its operands are dealt out to the batches that made them, and
each of those fills up in the order that it must have.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from edbc.graph import Ints
from edbc.schedule.native import inner


@njit(cache=True)
def ordered(operand_ptr: Ints, operands: Ints, batch_ptr: Ints, nodes: Ints) -> Ints:
    """Nodes in batch order, inside batches as the two passes of `edbc.schedule.order` leave them. O(n + m)."""
    n, num_batches = len(nodes), len(batch_ptr) - 1
    batch_of = np.empty(n, np.int32)
    for b in range(num_batches):
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            batch_of[nodes[i]] = b
    reader = chosen_readers(operand_ptr, operands, n)
    unread = batch_ptr[:num_batches].copy()
    for v in range(n):
        unread[batch_of[v]] += reader[v] >= 0
    result = np.empty_like(nodes)
    order_read(operand_ptr, operands, batch_ptr, nodes, batch_of, reader, unread, result)
    order_unread(operand_ptr, operands, batch_ptr, nodes, batch_of, reader, unread, result)
    return result


@inner
def chosen_readers(operand_ptr: Ints, operands: Ints, n: int) -> Ints:
    """The operand entry by which a node's reader, definition (1) of `edbc.schedule.order`, reads it; -1 without one."""
    is_read = np.zeros(n, np.bool_)
    for u in operands:
        if u >= 0:
            is_read[u] = True
    entry, is_settled = np.full(n, -1, np.int32), np.zeros(n, np.bool_)
    for v in range(n):
        for j in range(operand_ptr[v], operand_ptr[v + 1]):
            u = operands[j]
            if u >= 0 and not is_settled[u] and (entry[u] < 0 or is_read[v]):
                entry[u], is_settled[u] = j, is_read[v]
    return entry


@inner
def order_read(
    operand_ptr: Ints, operands: Ints, batch_ptr: Ints, nodes: Ints, batch_of: Ints, reader: Ints, unread: Ints,
    result: Ints,
) -> None:  # fmt: skip
    """The backward pass: the read nodes of a batch, which end where its unread ones begin, fill up from their end, last
    reader first. Unread nodes stay in the order that they have."""
    at, free = unread.copy(), unread.copy()
    for v in nodes:
        if reader[v] < 0:
            result[at[batch_of[v]]] = v
            at[batch_of[v]] += 1
    most = 0
    for v in range(len(nodes)):
        most = max(most, operand_ptr[v + 1] - operand_ptr[v])
    begin = np.zeros(most + 2, np.int32)
    dealt = np.empty(len(operands), np.int32)
    for b in range(len(batch_ptr) - 2, -1, -1):
        count = entries_by_position(operand_ptr, result[batch_ptr[b] : batch_ptr[b + 1]], begin, dealt)
        for k in range(count - 1, -1, -1):
            u = operands[dealt[k]]
            if u >= 0 and reader[u] == dealt[k]:
                free[batch_of[u]] -= 1
                result[free[batch_of[u]]] = u


@inner
def entries_by_position(operand_ptr: Ints, batch: Ints, begin: Ints, entries: Ints) -> int:
    """Write the operand entries of a batch's nodes, first operands first, and return how many there are. `begin` is
    room for where each position begins, two more than there are positions."""
    most = 0
    for v in batch:
        most = max(most, operand_ptr[v + 1] - operand_ptr[v])
    begin[: most + 2] = 0
    for v in batch:
        for k in range(operand_ptr[v + 1] - operand_ptr[v]):
            begin[k + 2] += 1
    for k in range(most):
        begin[k + 2] += begin[k + 1]
    for v in batch:
        for k in range(operand_ptr[v + 1] - operand_ptr[v]):
            entries[begin[k + 1]] = operand_ptr[v] + k
            begin[k + 1] += 1
    return begin[most]


@inner
def order_unread(
    operand_ptr: Ints, operands: Ints, batch_ptr: Ints, nodes: Ints, batch_of: Ints, reader: Ints, unread: Ints,
    result: Ints,
) -> None:  # fmt: skip
    """The forward pass: unread nodes by the place of their first operand that is a node, those without one last."""
    n = len(nodes)
    head, behind = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    end = batch_ptr[1:].copy()
    for i in range(n - 1, -1, -1):
        v = nodes[i]
        if reader[v] >= 0:
            continue
        first = -1
        for j in range(operand_ptr[v], operand_ptr[v + 1]):
            if operands[j] >= 0:
                first = operands[j]
                break
        if first < 0:
            end[batch_of[v]] -= 1
            result[end[batch_of[v]]] = v
        else:
            behind[v], head[first] = head[first], v
    at = unread.copy()
    for i in range(n):
        if reader[result[i]] < 0:
            continue
        v = head[result[i]]
        while v >= 0:
            result[at[batch_of[v]]] = v
            at[batch_of[v]] += 1
            v = behind[v]
