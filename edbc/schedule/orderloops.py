"""The native passes of `edbc.schedule.order`.

No keys are compared: when the order of a batch is final, its operands are dealt out to the batches that made them, and
each of those fills up in the order that it must have.

Indices are unsigned, see `kernelcache.U`.
"""

from __future__ import annotations

import numpy as np

from edbc.base.graph import Ints
from edbc.native.kernelcache import U
from edbc.native.kinds import inner, inner_uncounted, native


@native
def ordered(operand_ptr: Ints, operands: Ints, batch_ptr: Ints, nodes: Ints) -> Ints:
    """Nodes in batch order, inside batches as the two passes of `edbc.schedule.order` leave them. O(n + m)."""
    n = len(nodes)
    reader = chosen_readers(operand_ptr, operands, n)
    batch_of, result, unread = np.empty(n, np.int32), np.empty_like(nodes), np.empty(len(batch_ptr) - 1, np.int32)
    head, behind = np.full(n + 1, -1, np.int32), np.empty(n, np.int32)
    lay_out(operand_ptr, operands, batch_ptr, nodes, reader, batch_of, unread, head, behind, result)
    order_read(operand_ptr, operands, batch_ptr, batch_of, reader, unread, result)
    order_unread(batch_of, reader, unread, head, behind, result)
    return result


@inner
def chosen_readers(operand_ptr: Ints, operands: Ints, n: int) -> Ints:
    """The operand entry by which a node's reader, definition (1) of `edbc.schedule.order`, reads it; -1 without one.

    Last nodes first, so that whether a node has readers is known when it is met as one.
    """
    entry, is_settled = np.full(n, -1, np.int32), np.zeros(n, np.bool_)
    v = U(n)
    while v > U(0):
        v -= U(1)
        is_read = entry[v] >= 0
        j, low = U(operand_ptr[v + U(1)]), U(operand_ptr[v])
        while j > low:
            j -= U(1)
            if operands[j] >= 0:
                u = U(operands[j])
                if is_read or not is_settled[u]:
                    entry[u], is_settled[u] = j, is_read
    return entry


@inner_uncounted
def lay_out(
    operand_ptr: Ints, operands: Ints, batch_ptr: Ints, nodes: Ints, reader: Ints, batch_of: Ints, unread: Ints,
    head: Ints, behind: Ints, result: Ints,
) -> None:  # fmt: skip
    """Unread nodes to the end of their batches, in the order that they have; `unread[b]` is where they begin.

    They are also listed by their first operand that is a node, n where none is: `head` of it, then `behind` each.
    """
    n = len(nodes)
    for b in range(U(len(unread))):
        at = U(batch_ptr[b + U(1)])
        i, low = at, U(batch_ptr[b])
        while i > low:
            i -= U(1)
            v = U(nodes[i])
            batch_of[v] = b
            if reader[v] >= 0:
                continue
            at -= U(1)
            result[at] = v
            first = U(n)
            for j in range(U(operand_ptr[v]), U(operand_ptr[v + U(1)])):
                if operands[j] >= 0:
                    first = U(operands[j])
                    break
            behind[v], head[first] = head[first], v
        unread[b] = at


@inner
def order_read(
    operand_ptr: Ints, operands: Ints, batch_ptr: Ints, batch_of: Ints, reader: Ints, unread: Ints, result: Ints
) -> None:
    """The backward pass: the read nodes of a batch, which end where its unread ones begin, fill up from their end, last
    reader first."""
    free = unread.copy()
    begin, dealt = np.empty(0, np.int32), np.empty(0, np.int32)
    b = U(len(batch_ptr) - 1)
    while b > U(0):
        b -= U(1)
        low, high = U(batch_ptr[b]), U(batch_ptr[b + U(1)])
        least, most = len(operands), 0
        for i in range(low, high):
            v = U(result[i])
            count = operand_ptr[v + U(1)] - operand_ptr[v]
            least, most = min(least, count), max(most, count)
        if least == most:
            for k in range(most - 1, -1, -1):
                i = high
                while i > low:
                    i -= U(1)
                    deal(operands, reader, batch_of, free, U(operand_ptr[U(result[i])]) + U(k), result)
            continue
        if len(begin) < most + 2:
            begin = np.empty(most + 2, np.int32)
        if len(dealt) == 0:
            dealt = np.empty(len(operands), np.int32)
        count = entries_by_position(operand_ptr, result[low:high], most, begin, dealt)
        for k in range(count - 1, -1, -1):
            deal(operands, reader, batch_of, free, U(dealt[k]), result)


@inner_uncounted
def deal(operands: Ints, reader: Ints, batch_of: Ints, free: Ints, entry: int, result: Ints) -> None:
    """The node that an operand entry reads takes its place, where the entry is its reader's."""
    if operands[entry] >= 0:
        u = U(operands[entry])
        if U(reader[u]) == entry:  # it has a reader
            b = U(batch_of[u])
            at = U(free[b]) - U(1)
            free[b] = at
            result[at] = u


@inner_uncounted
def entries_by_position(operand_ptr: Ints, batch: Ints, most: int, begin: Ints, entries: Ints) -> int:
    """Write the operand entries of a batch's nodes, of which none has more than `most`, first operands first, and
    return how many there are. `begin` is room for where each position begins, two more than there are positions."""
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
    return int(begin[most])


@inner_uncounted
def order_unread(batch_of: Ints, reader: Ints, unread: Ints, head: Ints, behind: Ints, result: Ints) -> None:
    """The forward pass: unread nodes by the place of their first operand that is a node, those without one last."""
    n = len(result)
    for i in range(U(n + 1)):
        u = U(result[i]) if i < U(n) else U(n)
        if i < U(n) and reader[u] < 0:
            continue
        v = head[u]
        while v >= 0:
            b = U(batch_of[U(v)])
            at = U(unread[b])
            result[at] = v
            unread[b] = at + U(1)
            v = behind[U(v)]


@native
def nodes_of_steps(batch_type, batch_ptr, steps, step, step_ptr):  # type: ignore[no-untyped-def]
    """Batches of steps as batches of their nodes, those without any left out; see `schedule.scheduler.with_nodes`."""
    kinds, ptr = np.empty(len(batch_type), np.int32), np.zeros(len(batch_type) + 1, np.int32)
    nodes = np.empty(step_ptr[-1], np.int32)
    at = count = 0
    for b in range(len(batch_type)):
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            number = step[steps[i]]
            for v in range(step_ptr[number], step_ptr[number + 1]):
                nodes[at] = v
                at += 1
        if at > ptr[count]:
            kinds[count] = batch_type[b]
            count += 1
            ptr[count] = at
    return kinds[:count], ptr[: count + 1], nodes[:at]
