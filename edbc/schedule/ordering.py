"""The native passes of `edbc.schedule.order`."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from edbc.graph import Ints

Longs = NDArray[np.int64]


@njit(cache=True)
def ordered(operand_ptr: Ints, operands: Ints, batch_ptr: Ints, nodes: Ints) -> Ints:
    """Nodes in batch order, inside batches as the two passes of `edbc.schedule.order` leave them. O(n + m)."""
    n = len(nodes)
    num_batches = len(batch_ptr) - 1
    batch_of = np.empty(n, np.int64)
    for b in range(num_batches):
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            batch_of[nodes[i]] = b
    reader_ptr, reader, reader_slot = readers(operand_ptr, operands, n)
    place = np.empty(n, np.int64)
    result = nodes.copy()
    key = np.empty(n, np.int64)
    most = 1
    for v in range(n):
        most = max(most, operand_ptr[v + 1] - operand_ptr[v])
    for b in range(num_batches - 1, -1, -1):
        first, last = batch_ptr[b], batch_ptr[b + 1]
        for i in range(first, last):
            v = result[i]
            chosen = -1
            for r in range(reader_ptr[v], reader_ptr[v + 1]):
                u = reader[r]
                if chosen < 0 or (
                    reader_ptr[reader[chosen] + 1] == reader_ptr[reader[chosen]] and reader_ptr[u + 1] > reader_ptr[u]
                ):
                    chosen = r
            if chosen < 0:
                key[v] = np.int64(1) << 62
            else:
                u = reader[chosen]
                key[v] = (batch_of[u] * most + reader_slot[chosen]) * n + place[u]
        sort_by_key(result, key, first, last)
        for i in range(first, last):
            place[result[i]] = i
    for b in range(num_batches):
        first, last = batch_ptr[b], batch_ptr[b + 1]
        for i in range(first, last):
            v = result[i]
            if reader_ptr[v + 1] > reader_ptr[v]:
                key[v] = -1
                continue
            key[v] = n
            for j in range(operand_ptr[v], operand_ptr[v + 1]):
                if operands[j] >= 0:
                    key[v] = place[operands[j]]
                    break
        sort_by_key(result, key, first, last)
        for i in range(first, last):
            place[result[i]] = i
    return result


@njit(cache=True)
def readers(operand_ptr: Ints, operands: Ints, n: int) -> tuple[Longs, Longs, Longs]:
    """For every node the nodes that read it, ascending, and at which operand position, as CSR."""
    ptr = np.zeros(n + 1, np.int64)
    for j in range(len(operands)):
        if operands[j] >= 0:
            ptr[operands[j] + 1] += 1
    for v in range(n):
        ptr[v + 1] += ptr[v]
    at = ptr[:-1].copy()
    reader = np.empty(ptr[n], np.int64)
    slot = np.empty(ptr[n], np.int64)
    for v in range(n):
        for j in range(operand_ptr[v], operand_ptr[v + 1]):
            u = operands[j]
            if u >= 0:
                reader[at[u]] = v
                slot[at[u]] = j - operand_ptr[v]
                at[u] += 1
    return ptr, reader, slot


@njit(cache=True)
def sort_by_key(nodes: Ints, key: Longs, first: int, last: int) -> None:
    """Sort `nodes[first:last]` by their keys, stably; nothing to do when they are in order."""
    in_order = True
    for i in range(first + 1, last):
        if key[nodes[i]] < key[nodes[i - 1]]:
            in_order = False
            break
    if in_order:
        return
    part = nodes[first:last].copy()
    keys = np.empty(last - first, np.int64)
    for i in range(last - first):
        keys[i] = key[part[i]]
    permutation = np.argsort(keys, kind="mergesort")
    for i in range(last - first):
        nodes[first + i] = part[permutation[i]]
