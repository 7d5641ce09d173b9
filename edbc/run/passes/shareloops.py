"""Native loops that find equal nodes and equal operands. Each has a plain-Python reference in the tests.

Equal externals are the same row of the same source (`Capture.external_source`, `external_index`); of equal constants
the first one stands for all (`first_of_equal`). A draw is a row of
its own, so what reads random numbers equals nothing else. Indices of the longest loops are unsigned, see
`kernelcache.U`.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

import numpy as np

from edbc.native.hashing import mixed, slots_for
from edbc.native.kernelcache import INNER, U, njit, wrapping
from edbc.native.pointers import load

_FACTOR = U(0xD6E8FEB86659FD93)


@njit(inline="always")
def _row(source, index):
    """One integer for a row of a source, or for an output of a node; others may have the same."""
    return np.int64(source) * 1_000_003 + np.int64(index)


@wrapping
@njit(cache=True)
def find_equal_operands(
    batch_type, batch_ptr, nodes, operand_ptr, operands, external_source, external_index, asked_ptr, asked, shared
):
    """Which nodes of a type t have equal operands `asked[asked_ptr[t]:asked_ptr[t + 1]]`, by the batches of a schedule.

    Returns for every place in `nodes` a number that those of one type with equal operands have in common, below
    `len(nodes)`; and per type how many numbers there are, -1 where an operand that is asked for is not external in
    every node. Numbers mean something for such types alone where there are some: without `shared` there are none.
    O(nodes + their operands), type by type as batches are, since a processor cannot foresee the types of nodes.
    """
    num_types, one = len(asked_ptr) - 1, U(1)
    distinct = np.zeros(num_types, np.int64)
    number = np.empty(len(nodes), np.int32)
    count = 0
    for b in range(len(batch_type)):
        if asked_ptr[batch_type[b] + 1] > asked_ptr[batch_type[b]]:
            count += batch_ptr[b + 1] - batch_ptr[b]
    slots = slots_for(count if shared else 0)
    taken = np.full(slots, -1, np.int32)
    type_of, operands_of = np.empty(count, np.int32), np.empty(count, np.int32)
    made = 0
    for b in range(len(batch_type)):
        t = U(batch_type[b])
        first, last = U(asked_ptr[t]), U(asked_ptr[t + one])
        if first == last or distinct[t] < 0:
            continue
        for p in range(U(batch_ptr[b]), U(batch_ptr[b + 1])):
            begin = U(operand_ptr[U(nodes[p])])
            hashed, external = mixed(U(0), t), True
            for i in range(first, last):
                operand = operands[begin + U(asked[i])]
                external &= operand < 0
                if external and shared:
                    e = U(-1 - operand)
                    hashed = mixed(hashed, _row(external_source[e], external_index[e]))
            if not external:
                distinct[t] = -1
                break
            if not shared:
                continue
            at = hashed & U(slots - 1)
            while True:
                if taken[at] < 0:
                    taken[at], type_of[made], operands_of[made] = made, t, begin
                    number[p] = made
                    made += 1
                    distinct[t] += 1
                    break
                u = U(taken[at])
                equal = U(type_of[u]) == t
                i = first
                while equal and i < last:
                    d = U(-1 - operands[U(operands_of[u]) + U(asked[i])])
                    e = U(-1 - operands[begin + U(asked[i])])
                    equal = external_source[d] == external_source[e] and external_index[d] == external_index[e]
                    i += one
                if equal:
                    number[p] = u
                    break
                at = (at + one) & U(slots - 1)
    return number, distinct


@wrapping
@njit(cache=True)
def find_equal_nodes(node_type, operand_ptr, operands, operand_output, external_source, external_index, detached,
                     at_least, share_of_first):  # fmt: skip
    """Per node the first node that it equals, and how many of the others there are: definitions (1) to (3) of
    `edbc.run.passes.share`. `detached` (n,) is empty where no node is. O(nodes + operands); only a look at every node
    where fewer than `at_least` of the nodes that read no other can be shared, and fewer than `share_of_first` of them
    have an equal.

    One function, because arrays that are passed to others have their references counted: four times the time, measured.
    """
    n = len(node_type)
    leader = np.arange(n).astype(np.int32)
    reads_nodes = np.zeros(n, np.bool_)
    alone = np.zeros(n, np.bool_)
    num_first = 0
    for v in range(U(n)):
        i, last = U(operand_ptr[v]), U(operand_ptr[v + U(1)])
        while i < last and operands[i] < 0:
            i += U(1)
        reads_nodes[v] = i < last
        num_first += not reads_nodes[v]
    shared = num_alone = 0
    for reading in range(2):
        slots = slots_for(n - num_first if reading else num_first)
        taken = np.full(slots, -1, np.int32)
        hash_at = np.empty(slots, np.uint64)
        for v in range(U(n)):
            if reads_nodes[v] != (reading == 1):
                continue
            first, last = U(operand_ptr[v]), U(operand_ptr[v + U(1)])
            hashed = mixed(np.uint64(0), node_type[v])
            for i in range(first, last):
                if operands[i] < 0:
                    e = U(-1 - operands[i])
                    hashed = mixed(hashed, _row(external_source[e], external_index[e]))
                else:
                    u = U(operands[i])
                    alone[v] |= alone[u]
                    hashed = mixed(hashed, _row(-1 - operand_output[i], leader[u]))
            if alone[v]:
                continue
            at = hashed & U(slots - 1)
            while taken[at] >= 0:
                u = U(taken[at])
                k = U(operand_ptr[u])
                equal = hash_at[at] == hashed and node_type[u] == node_type[v]
                equal &= U(operand_ptr[u + U(1)]) - k == last - first
                if equal and len(detached):
                    equal = detached[u] == detached[v]
                i = first
                while equal and i < last:
                    a, b = operands[k], operands[i]
                    if a < 0 and b < 0:
                        d, e = U(-1 - a), U(-1 - b)
                        equal = external_source[d] == external_source[e] and external_index[d] == external_index[e]
                    else:
                        equal = a >= 0 and b >= 0 and leader[a] == leader[b] and operand_output[k] == operand_output[i]
                    i += U(1)
                    k += U(1)
                if equal:
                    leader[v] = u
                    shared += 1
                    num_alone -= alone[u]
                    alone[u] = False
                    break
                at = (at + U(1)) & U(slots - 1)
            if U(leader[v]) == v:
                taken[at] = v
                hash_at[at] = hashed
                alone[v] = not reading
                num_alone += not reading
        if shared < at_least and num_first - num_alone < share_of_first * num_first:
            return np.arange(n).astype(np.int32), 0
    return leader, shared


@wrapping
@njit(cache=True)
def first_of_equal(external_source, external_index, told):
    """What of its source each external is, of constants the first one of the same bytes. Each of `told` says a source,
    the address of its constants, how many they are, and the bytes of each. O(externals + bytes)."""
    index, end = external_index.copy(), told[:, 2].cumsum()
    every, begin = np.empty(end[-1] if len(end) else 0, np.int64), np.full(told[:, 0].max() + 1 if len(end) else 0, -1)
    for k in range(len(told)):
        source, address, count, size = told[k]
        begin[source] = end[k] - count
        first = every[begin[source] : end[k]]
        if size % 8 == 0 and address % 8 == 0:
            _find_equal_rows(address, count, size // 8, U(0), first)
        elif size % 4 == 0 and address % 4 == 0:
            _find_equal_rows(address, count, size // 4, np.uint32(0), first)
        else:
            _find_equal_rows(address, count, size, np.uint8(0), first)
    for e in range(len(index)):
        s = external_source[e]
        if s < len(begin) and begin[s] >= 0:
            index[e] = every[begin[s] + index[e]]
    return index


@njit(**INNER)
def _find_equal_rows(address, count, size, like, first):
    """Per row of `size` words the first row that it equals.

    The hash of a row is a polynomial of its even words and one of its odd ones, so that no multiplication waits for the
    one before.
    """
    if not count:
        return
    slots = slots_for(count)
    taken = np.full(slots, -1, np.int32)
    hash_at = np.empty(slots, np.uint64)
    for r in range(count):
        row, even, odd = r * size, U(0), U(0)
        for i in range(row, row + size - 1, 2):
            even = even * _FACTOR + U(load(address, i, like))
            odd = odd * _FACTOR + U(load(address, i + 1, like))
        if size & 1:
            even = even * _FACTOR + U(load(address, row + size - 1, like))
        hashed = mixed(mixed(U(0), even), odd)
        at = hashed & U(slots - 1)
        first[r] = r
        while taken[at] >= 0:
            other, i = taken[at] * size, 0
            equal = hash_at[at] == hashed
            while equal and i < size:
                equal = load(address, other + i, like) == load(address, row + i, like)
                i += 1
            if equal:
                first[r] = taken[at]
                break
            at = (at + U(1)) & U(slots - 1)
        if first[r] == r:
            taken[at], hash_at[at] = r, hashed


@njit(cache=True)
def share_nodes(node_type, operand_ptr, operands, operand_output, external_source, external_index, told, detached,
                result_node, at_least, share_of_first):  # fmt: skip
    """The graph of the nodes that lead, in their order: types, operand borders, operands and their outputs; what of its
    source each external is (`first_of_equal`); in that graph the nodes of results and what of it is `detached`; and how
    many nodes it lacks. See `find_equal_nodes`. Where fewer than `at_least` are shared, that number alone means
    something."""
    index = first_of_equal(external_source, external_index, told)
    leader, shared = find_equal_nodes(
        node_type, operand_ptr, operands, operand_output, external_source, index, detached, at_least,
        share_of_first,
    )  # fmt: skip
    n, entries = len(node_type) - shared, 0
    if shared < at_least:
        n = 0
    else:
        for v in range(len(node_type)):
            if leader[v] == v:
                entries += operand_ptr[v + 1] - operand_ptr[v]
    new_type, new_ptr = np.empty(n, np.int32), np.zeros(n + 1, np.int32)
    new_operands, new_output = np.empty(entries, np.int32), np.empty(entries, np.int32)
    new_result, new_detached = (
        np.empty(len(result_node) if n else 0, np.int64),
        np.empty(min(n, len(detached)), np.bool_),
    )
    if n == 0:
        return new_type, new_ptr, new_operands, new_output, index, new_result, new_detached, shared
    made = at = 0
    for v in range(len(node_type)):
        u = leader[v]
        if u != v:
            leader[v] = leader[u]
            continue
        # from here on `leader` is the number in the new graph
        leader[v] = made
        new_type[made] = node_type[v]
        for i in range(operand_ptr[v], operand_ptr[v + 1]):
            u = operands[i]
            new_operands[at], new_output[at] = u if u < 0 else leader[u], operand_output[i]
            at += 1
        if len(detached):
            new_detached[made] = detached[v]
        made += 1
        new_ptr[made] = at
    for r in range(len(result_node)):
        v = result_node[r]
        new_result[r] = v if v < 0 else leader[v]
    return new_type, new_ptr, new_operands, new_output, index, new_result, new_detached, shared
