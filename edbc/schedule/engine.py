"""The frontier engine: one native loop over a graph's arrays, shared by every policy and by training.

Definitions (Chen et al., "ED-Batch: Efficient Automatic Batching of Dynamic Neural Networks via Learned Finite State
Machines", ICML 2023, section 2), at any step, T types:

(1) Frontier(G): the unexecuted nodes whose operands have all run. Frontier_a(G): those of type a. A batch is a whole
    Frontier_a(G) (Algorithm 1).
(2) `reach[a, b]`: the largest number of type-b nodes on a path that starts in Frontier_a(G). Every unexecuted node
    follows a ready one, so the lower bound of what remains is the sum over b of `top[b]` = max over a of reach[a, b].
(3) a is *productive* when running Frontier_a(G) lowers that bound, which is when every unexecuted a-node that starts a
    longest chain of type a is ready: exactly when a alone reaches top[a] (a b-node that reaches it too has such an
    a-node behind it, not ready).
(4) a is *sufficient* when Frontier_a(G) is all of Frontier(G^a) (Lemma 2.1, with transitive paths). It is then
    productive too: an a-node with a longest chain has no unexecuted ancestor of type a.

Each node becomes ready once and each batch takes every ready node of a type, so the nodes of type a queue up in one
array, a batch is the stretch of it that is filled, and `reach[a]` only ever grows until the batch clears it. Work is
O(n + m) for the nodes, times T where `reach` is kept, and O(T^2) per batch.

Loops over nodes take arrays out of their named tuples first and call nothing: with either, numba counts the references
to all arrays at every step (measured: half of a walk's time). Indices are unsigned, see `kernelcache.U`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edbc.base.graph import Ints
from edbc.native.kernelcache import U
from edbc.native.kinds import copy, inlined, inner_uncounted, native, native_uncounted
from edbc.schedule.analysis import ALONE, FIRST, MORE, WAITS, Dag
from edbc.schedule.rows import raise_row


class Frontier(NamedTuple):
    """The state of one walk over a Dag; every array is overwritten."""

    left: Ints  # (n,) operand entries still to run
    ready: Ints  # (n,) grouped by type; ready[head[a]:tail[a]] is Frontier_a(G)
    head: Ints  # (T,)
    tail: Ints  # (T,)
    counted: Ints  # (T,) while a batch runs: `ready` up to here is in `reach`
    reach: Ints  # (T, W), definition (2); rows are padded with 0
    same_left: Ints  # (e,) elements still to run
    same_size: Ints  # (T,) |Frontier(G^a)|
    same_queue: Ints  # joins, all elements of which have run
    depth_sum: Ints  # (T,) of the unexecuted nodes' depths


@native
def new_frontier(dag: Dag) -> Frontier:
    """Room for a walk; `restart` makes it one."""
    n, num_types = len(dag.node_type), len(dag.type_ptr) - 1
    return Frontier(
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.empty(num_types, np.int32),
        np.empty(num_types, np.int32),
        np.empty(num_types, np.int32),
        np.zeros((num_types, dag.below.shape[1]), np.int32),
        np.empty(len(dag.same), np.int32),
        np.zeros(num_types, np.int32),
        np.empty(max(0, len(dag.same) - n) + 1, np.int32),
        np.zeros(num_types, np.int64),
    )


@native_uncounted
def restart(dag: Dag, frontier: Frontier) -> None:
    """Nothing has run: the nodes without node operands are ready."""
    n, num_types = len(dag.node_type), len(dag.type_ptr) - 1
    node_type, below, depth, same = dag.node_type, dag.below, dag.depth, dag.same
    left, ready, tail, reach = frontier.left, frontier.ready, frontier.tail, frontier.reach
    copy(dag.num_operands, 0, n, left, 0)
    copy(dag.type_ptr, 0, num_types, frontier.head, 0)
    copy(dag.type_ptr, 0, num_types, tail, 0)
    copy(dag.type_ptr, 0, num_types, frontier.counted, 0)
    reach[:] = 0
    for v in range(U(n)):
        if left[v] == 0:
            a = U(node_type[v])
            at = U(tail[a])
            ready[at] = v
            tail[a] = at + U(1)
    if len(below):
        raise_reach(dag, frontier)
    if len(depth):
        depth_sum = frontier.depth_sum
        depth_sum[:] = 0
        for v in range(U(n)):
            depth_sum[U(node_type[v])] += depth[v]
    if len(same):
        same_left = frontier.same_left
        for element in range(U(len(same))):
            same_left[element] = same[element, WAITS]
        copy(dag.same_size, 0, num_types, frontier.same_size, 0)


@inlined
def raise_reach(dag: Dag, frontier: Frontier) -> None:
    """Count what has become ready into `reach`."""
    below, ready, tail = dag.below, frontier.ready, frontier.tail
    counted, reach = frontier.counted, frontier.reach
    for a in range(U(len(tail))):
        for i in range(U(counted[a]), U(tail[a])):
            raise_row(reach, a, below, U(ready[i]))


@native_uncounted
def execute(dag: Dag, frontier: Frontier, a: int) -> None:
    """Run Frontier_a(G)."""
    node_type, user_ptr, users, below, depth = dag.node_type, dag.user_ptr, dag.users, dag.below, dag.depth
    left, ready, tail, reach = frontier.left, frontier.ready, frontier.tail, frontier.reach
    low, high = frontier.head[a], tail[a]
    frontier.head[a] = high
    copy(tail, 0, len(tail), frontier.counted, 0)
    for i in range(U(low), U(high)):
        v = U(ready[i])
        for k in range(U(user_ptr[v]), U(user_ptr[v + U(1)])):
            u = U(users[k])
            waits = left[u] - 1
            left[u] = waits
            b = U(node_type[u])
            at = tail[b]
            ready[U(at)] = u  # u is not ready yet, so there is room; another takes the place where it is not ready now
            tail[b] = at + (waits == 0)
    if len(below):
        for b in range(U(reach.shape[1])):
            reach[U(a), b] = 0
        raise_reach(dag, frontier)
    if len(depth):
        for i in range(U(low), U(high)):
            frontier.depth_sum[a] -= depth[U(ready[i])]
    if len(dag.same):
        frontier.same_size[a] += release(dag, frontier, low, high) - (high - low)


@inner_uncounted
def release(dag: Dag, frontier: Frontier, low: int, high: int) -> int:
    """The nodes `ready[low:high]` of one type have run: how many that waited for them alone, through joins too, join
    Frontier(G^a)."""
    same, edges, ready, left, queue = dag.same, dag.same_edges, frontier.ready, frontier.same_left, frontier.same_queue
    n, low, size, queued = U(len(dag.node_type)), U(low), U(high - low), U(0)
    joining, i = 0, U(0)
    while i < size + queued:
        element = U(ready[low + i]) if i < size else U(queue[i - size])
        i += U(1)
        joining += same[element, ALONE]
        target, k = U(same[element, FIRST]), same[element, MORE]
        while True:
            waits = left[target] - 1
            left[target] = waits
            joining += (waits == 0) & (target < n)
            queue[queued] = target
            queued += U((waits == 0) & (target >= n))
            if k < 0:
                break
            target, k = U(edges[U(k), U(0)]), edges[U(k), U(1)]
    return joining
