"""What is computed once per graph, before any batch is chosen; native loops over the Graph's arrays.

For a graph of n nodes, m operand entries and T types:

(1) producers: the nodes among a node's operands, each once, however many of its outputs are read; users: the inverse.
(2) `below[v, a]`: the largest number of nodes of type a on a path that starts at v, v itself counted. The largest
    `below[., a]` over the unexecuted nodes is the depth of G^a, so their sum over a is ED-Batch's lower bound (Eq. 2).
(3) the same-type graph: for every type a, which nodes must have run before a node of type a joins Frontier(G^a), the
    nodes of type a with no unexecuted ancestor of type a through any path (Eq. 1, with transitive paths). Its
    *elements* are the n nodes and, from n on, *joins*. Node v depends on the elements that stand for its ancestors of
    its own type. An ancestor set is passed along edges by reference; where two different sets meet, one join stands for
    their union. So a -> b -> a with 1,000 a on either side needs 2,000 entries and one join, not 1,000,000 pairs.

(4) topological depth: 0 for a node without node operands, else one more than its deepest operand.

(1) and (4) are O(n + m), (2) and (3) O(T (n + m)). Indices are unsigned, see `schedule.native.U`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edbc.graph import Ints
from edbc.schedule.native import U, inner, inner_uncounted, native


class Dag(NamedTuple):
    """A graph as the engine reads it. Arrays that a policy does not need are empty."""

    node_type: Ints  # (n,)
    num_operands: Ints  # (n,) producers, each counted once
    user_ptr: Ints  # (n + 1,)
    users: Ints
    type_ptr: Ints  # (T + 1,) the nodes of type a fill type_ptr[a]:type_ptr[a + 1] of any array grouped by type
    depth: Ints  # (n,), or (0,): topological depth
    below: Ints  # (n, T), or (0, T): definition (2)
    same_ptr: Ints  # (e + 1,) over the e elements of definition (3), or (1,)
    same_users: Ints
    same_left: Ints  # (e,) elements that an element waits for


@native
def analyse(
    node_type: Ints,
    operand_ptr: Ints,
    operands: Ints,
    num_types: int,
    with_depth: bool,
    with_below: bool,
    with_same: bool,
) -> Dag:
    """Everything that a policy needs: definition (1), and (4), (2), (3) when asked. (3) implies (2)."""
    n = len(node_type)
    producer_ptr, producers, user_ptr, users = invert(operand_ptr, operands)
    num_operands, type_ptr = np.empty(n, np.int32), np.zeros(num_types + 1, np.int32)
    for v in range(U(n)):
        num_operands[v] = producer_ptr[v + U(1)] - producer_ptr[v]
        type_ptr[U(node_type[v]) + U(1)] += 1
    for a in range(num_types):
        type_ptr[a + 1] += type_ptr[a]
    depth = depths(producer_ptr, producers) if with_depth else np.zeros(0, np.int32)
    if with_below or with_same:
        below = chain_lengths(node_type, user_ptr, users, num_types)
    else:
        below = np.zeros((0, num_types), np.int32)
    if with_same:
        sources, targets, num_elements = same_type_edges(node_type, producer_ptr, producers, below)
        same_left, same_ptr, same_users = group_edges(sources, targets, num_elements)
    else:
        same_left, same_ptr, same_users = np.zeros(0, np.int32), np.zeros(1, np.int32), np.zeros(0, np.int32)
    return Dag(node_type, num_operands, user_ptr, users, type_ptr, depth, below, same_ptr, same_users, same_left)


@inner
def invert(operand_ptr: Ints, operands: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Producers and users as CSR: definition (1)."""
    n = len(operand_ptr) - 1
    producer_ptr, producers = np.empty(n + 1, np.int32), np.empty(len(operands), np.int32)
    user_ptr, last_user = np.zeros(n + 2, np.int32), np.full(n, -1, np.int32)
    count = U(0)
    for v in range(U(n)):
        producer_ptr[v] = count
        for k in range(U(operand_ptr[v]), U(operand_ptr[v + U(1)])):
            if operands[k] < 0:
                continue
            u = U(operands[k])
            if U(last_user[u]) != v:
                last_user[u] = v
                producers[count] = u
                count += U(1)
                user_ptr[u + U(2)] += 1
    producer_ptr[n] = count
    for v in range(U(n)):
        user_ptr[v + U(2)] += user_ptr[v + U(1)]
    users = np.empty(count, np.int32)
    for v in range(U(n)):
        for k in range(U(producer_ptr[v]), U(producer_ptr[v + U(1)])):
            u = U(producers[k]) + U(1)
            at = U(user_ptr[u])
            users[at] = v
            user_ptr[u] = at + U(1)
    return producer_ptr, producers[:count], user_ptr[: n + 1], users


@inner
def chain_lengths(node_type: Ints, user_ptr: Ints, users: Ints, num_types: int) -> Ints:
    """`below`, definition (2), users before operands."""
    n = len(node_type)
    below = np.zeros((n, num_types), np.int32)
    v = U(n)
    while v > U(0):
        v -= U(1)
        for k in range(U(user_ptr[v]), U(user_ptr[v + U(1)])):
            u = U(users[k])
            for a in range(num_types):
                below[v, a] = max(below[v, a], below[u, a])
        below[v, U(node_type[v])] += 1
    return below


@inner
def same_type_edges(node_type: Ints, producer_ptr: Ints, producers: Ints, below: Ints) -> tuple[Ints, Ints, int]:
    """Edges of the same-type graph, definition (3), and its number of elements.

    `source[v, a]` is the element that stands for v's ancestors of type a, v counted, or -1. Only where a node of type
    a follows is it needed, so out-projections and the like cost nothing.
    """
    n, num_types = below.shape
    source = np.full((n, num_types), -1, np.int32)
    sources, targets = np.empty(len(producers) + 16, np.int32), np.empty(len(producers) + 16, np.int32)
    num_edges, num_elements = U(0), U(n)
    for v in range(U(n)):
        own = U(node_type[v])
        low, high = U(producer_ptr[v]), U(producer_ptr[v + U(1)])
        while num_edges + U(num_types) * (high - low) > U(len(sources)):
            sources, targets = grow(sources), grow(targets)
        for a in range(U(num_types)):
            if below[v, a] == 0:
                continue
            target = v if own == a else num_elements
            first, found, all_equal = np.int32(-1), U(0), True
            for k in range(low, high):
                element = source[U(producers[k]), a]
                if element >= 0:
                    all_equal = all_equal and (found == U(0) or element == first)
                    sources[num_edges + found], targets[num_edges + found] = element, target
                    first = element
                    found += U(1)
            if own == a:
                num_edges += found
                source[v, a] = v if below[v, a] > 1 else -1
            elif all_equal:
                source[v, a] = first
            else:
                num_edges += found
                source[v, a] = target
                num_elements += U(1)
    return sources[:num_edges], targets[:num_edges], np.int64(num_elements)  # type: ignore[return-value]


@inner_uncounted
def copy(source: Ints, begin: int, end: int, target: Ints, at: int) -> None:
    """`target[at:]` becomes `source[begin:end]`. A slice assignment compiles numba's strings, for its message."""
    for i in range(begin, end):
        target[at + i - begin] = source[i]


@inner
def grow(array: Ints) -> Ints:
    """A copy with twice the room and more."""
    larger = np.empty(2 * len(array) + 16, np.int32)
    copy(array, 0, len(array), larger, 0)
    return larger


@inner
def group_edges(sources: Ints, targets: Ints, num_elements: int) -> tuple[Ints, Ints, Ints]:
    """Edges as CSR by source, and how many arrive at each target."""
    arriving = np.zeros(num_elements, np.int32)
    ptr = np.zeros(num_elements + 1, np.int32)
    for k in range(U(len(sources))):
        ptr[U(sources[k]) + U(1)] += 1
        arriving[U(targets[k])] += 1
    for e in range(num_elements):
        ptr[e + 1] += ptr[e]
    grouped = np.empty(len(sources), np.int32)
    fill = ptr[:num_elements].copy()
    for k in range(U(len(sources))):
        source = U(sources[k])
        at = U(fill[source])
        grouped[at] = targets[k]
        fill[source] = at + U(1)
    return arriving, ptr, grouped


@inner
def depths(operand_ptr: Ints, operands: Ints) -> Ints:
    """Topological depth of every node: 0 without node operands, else one more than the deepest operand. Operands may be
    producers only."""
    n = len(operand_ptr) - 1
    depth = np.zeros(n, np.int32)
    for v in range(n):
        for k in range(operand_ptr[v], operand_ptr[v + 1]):
            u = operands[k]
            if u >= 0 and depth[u] >= depth[v]:
                depth[v] = depth[u] + 1
    return depth
