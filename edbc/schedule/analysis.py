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

(1) and (4) are O(n + m), (2) and (3) O(T (n + m)). Indices are unsigned, see `kernelcache.U`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edbc.base.graph import Ints
from edbc.native.kernelcache import U
from edbc.native.kinds import inner, inner_uncounted, native
from edbc.schedule.rows import LANES, add_row, copy_row, differing_lanes, lower_row, padded, put_row, raise_row


class Dag(NamedTuple):
    """A graph as the engine reads it. Arrays that a policy does not need are empty."""

    node_type: Ints  # (n,)
    num_operands: Ints  # (n,) producers, each counted once
    user_ptr: Ints  # (n + 1,)
    users: Ints
    type_ptr: Ints  # (T + 1,) the nodes of type a fill type_ptr[a]:type_ptr[a + 1] of any array grouped by type
    depth: Ints  # (n,), or (0,): topological depth
    below: Ints  # (n, W), or (0, W): definition (2); rows are padded with 0
    same: Ints  # (e, 4) by ALONE, FIRST, MORE and WAITS over the e elements of definition (3), or (0, 4)
    same_edges: Ints  # (edges, 2) an element that waits, and where here the next one that waits for the same is, or -1
    same_size: Ints  # (T,) |Frontier(G^a)| before anything has run


ALONE, FIRST, MORE, WAITS = range(4)
"""Of an element: how many nodes wait for it alone; an element that waits for it and others too, or 0, which waits for
none; where in `same_edges` the next such element is, or -1; for how many it waits itself, where for several."""


def terms(dag: Dag) -> Ints:
    """Per type its term of the lower bound, from `below`."""
    return dag.below[:, : len(dag.type_ptr) - 1].max(axis=0, initial=0)


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
    """Everything that a policy needs: definition (1), and (4), (2), (3) when asked."""
    n = len(node_type)
    producer_ptr, producers, user_ptr, users = invert(operand_ptr, operands)
    num_operands, type_ptr = np.empty(n, np.int32), np.zeros(num_types + 1, np.int32)
    for v in range(U(n)):
        num_operands[v] = producer_ptr[v + U(1)] - producer_ptr[v]
        type_ptr[U(node_type[v]) + U(1)] += 1
    for a in range(num_types):
        type_ptr[a + 1] += type_ptr[a]
    depth = depths(producer_ptr, producers) if with_depth else np.zeros(0, np.int32)
    width = padded(num_types)
    below, units = (
        np.zeros((n if with_below or with_same else 0, width), np.int32),
        np.zeros((num_types, width), np.int32),
    )
    for a in range(num_types):
        units[a, a] = 1
    if len(below):
        chain_lengths(node_type, user_ptr, users, units, below)
    if with_same:
        elements, edges, size = same_type_graph(node_type, producer_ptr, producers, user_ptr, below, units)
    else:
        elements, edges, size = np.zeros((0, 4), np.int32), np.zeros((0, 2), np.int32), np.zeros(0, np.int32)
    return Dag(
        node_type,
        num_operands,
        user_ptr,
        users,
        type_ptr,
        depth,
        below if with_below else below[:0],
        elements,
        edges,
        size,
    )


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


@inner_uncounted
def chain_lengths(node_type: Ints, user_ptr: Ints, users: Ints, units: Ints, below: Ints) -> None:
    """`below`, definition (2), users before operands; all 0 before."""
    v = U(len(node_type))
    while v > U(0):
        v -= U(1)
        for k in range(U(user_ptr[v]), U(user_ptr[v + U(1)])):
            raise_row(below, v, below, U(users[k]))
        add_row(below, v, units, U(node_type[v]))


@inner
def same_type_graph(
    node_type: Ints, producer_ptr: Ints, producers: Ints, user_ptr: Ints, below: Ints, units: Ints
) -> tuple[Ints, Ints, Ints]:
    """The same-type graph, definition (3): `same`, `same_edges` and `same_size` of a Dag."""
    n, width = len(node_type), below.shape[1]
    elements, edges = np.empty((n + n // 2 + width, 4), np.int32), np.empty((len(producers) + 16, 2), np.int32)
    source, least = np.empty((n, width), np.int32), np.empty((1, width), np.int32)
    size, used = np.zeros(len(units), np.int32), np.array([n, 0], np.int32)
    v = U(0)
    while True:
        v = connect(
            node_type, producer_ptr, producers, user_ptr, below, units, v, elements, edges, used, source, least, size
        )
        if v == U(n):
            return elements[: used[0]], edges[: used[1]], size
        elements, edges = grow(elements, width), grow(edges, width * len(producers))


@inner_uncounted
def connect(
    node_type: Ints, producer_ptr: Ints, producers: Ints, user_ptr: Ints, below: Ints, units: Ints, v: int,
    elements: Ints, edges: Ints, used: Ints, source: Ints, least: Ints, size: Ints,
) -> int:  # fmt: skip
    """Nodes from v on; the first one for which there may be no room, or n. `used` counts elements and edges.

    `source[v, a]` is the element that stands for v's ancestors of type a, v counted, or -1. Those of a node's producers
    are one and the same where the largest is the smallest, none left out. Else the node waits for each of them, or,
    where a node of the type follows, a join does.
    """
    n, width = U(len(node_type)), U(below.shape[1])
    num_elements, num_edges = U(used[0]), U(used[1])
    while v < n:
        own = U(node_type[v])
        low, high = U(producer_ptr[v]), U(producer_ptr[v + U(1)])
        if num_elements + width > U(len(elements)) or num_edges + width * (high - low) > U(len(edges)):
            break
        elements[v, ALONE], elements[v, FIRST], elements[v, MORE], elements[v, WAITS] = 0, 0, -1, 0
        if high == low + U(1) and user_ptr[v] == user_ptr[v + U(1)]:  # no more than which element it waits for
            if source[U(producers[low]), own] < 0:
                size[own] += 1
            else:
                elements[U(source[U(producers[low]), own]), ALONE] += 1
            v += U(1)
            continue
        if low == high:
            for a in range(width):
                source[v, a] = -1
        else:
            copy_row(source, v, source, U(producers[low]))
        if high - low > U(1):
            copy_row(least, U(0), source, v)
            for k in range(low + U(1), high):
                raise_row(source, v, source, U(producers[k]))
                lower_row(least, U(0), source, U(producers[k]))
            for group in range(U(0), width, U(LANES)):
                differing = differing_lanes(source, v * width + group, least, group)
                a = group
                while differing != U(0):
                    if differing & U(1) != U(0) and below[v, a] > 0:
                        target = v
                        if a != own:
                            target = num_elements
                            num_elements += U(1)
                            elements[target, ALONE], elements[target, FIRST], elements[target, MORE] = 0, 0, -1
                        waits = 0
                        for k in range(low, high):
                            if source[U(producers[k]), a] < 0:
                                continue
                            waits += 1
                            element = U(source[U(producers[k]), a])
                            if elements[element, FIRST] == 0:
                                elements[element, FIRST] = target
                            else:
                                edges[num_edges, U(0)], edges[num_edges, U(1)] = target, elements[element, MORE]
                                elements[element, MORE] = num_edges
                                num_edges += U(1)
                        elements[target, WAITS] = waits
                        source[v, a] = target
                    differing >>= U(1)
                    a += U(1)
        if elements[v, WAITS] == 0:
            if source[v, own] < 0:
                size[own] += 1
            else:
                elements[U(source[v, own]), ALONE] += 1
        put_row(source, v, units, own, v)
        v += U(1)
    used[0], used[1] = num_elements, num_edges
    return v


@inner
def grow(array: Ints, more: int) -> Ints:
    """A copy with twice the rows and more."""
    larger = np.empty((2 * len(array) + more, array.shape[1]), np.int32)
    for i in range(U(len(array))):
        for k in range(U(array.shape[1])):
            larger[i, k] = array[i, k]
    return larger


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
