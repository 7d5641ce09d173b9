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
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edbc.graph import Ints
from edbc.schedule.analysis import Dag, copy
from edbc.schedule.native import inner, native


class Frontier(NamedTuple):
    """The state of one walk over a Dag; every array is overwritten."""

    left: Ints  # (n,) operand entries still to run
    ready: Ints  # (n,) grouped by type; ready[head[a]:tail[a]] is Frontier_a(G)
    head: Ints  # (T,)
    tail: Ints  # (T,)
    reach: Ints  # (T, T), definition (2)
    same_left: Ints  # (e,) elements still to run
    same_size: Ints  # (T,) |Frontier(G^a)|
    same_stack: Ints
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
        np.zeros((num_types, num_types), np.int32),
        np.empty(len(dag.same_left), np.int32),
        np.zeros(num_types, np.int32),
        np.empty(max(1, len(dag.same_left) - n), np.int32),
        np.zeros(num_types, np.int64),
    )


@native
def restart(dag: Dag, frontier: Frontier) -> None:
    """Nothing has run: the nodes without node operands are ready."""
    n, num_types = len(dag.node_type), len(dag.type_ptr) - 1
    copy(dag.num_operands, 0, n, frontier.left, 0)
    copy(dag.type_ptr, 0, num_types, frontier.head, 0)
    copy(dag.type_ptr, 0, num_types, frontier.tail, 0)
    frontier.reach[:] = 0
    for v in range(n):
        if dag.num_operands[v] == 0:
            push(dag, frontier, v)
    if len(dag.depth):
        frontier.depth_sum[:] = 0
        for v in range(n):
            frontier.depth_sum[dag.node_type[v]] += dag.depth[v]
    if len(dag.same_left):
        copy(dag.same_left, 0, len(dag.same_left), frontier.same_left, 0)
        frontier.same_size[:] = 0
        for v in range(n):
            if dag.same_left[v] == 0:
                frontier.same_size[dag.node_type[v]] += 1


@inner
def push(dag: Dag, frontier: Frontier, v: int) -> None:
    """Node v becomes ready."""
    a = dag.node_type[v]
    frontier.ready[frontier.tail[a]] = v
    frontier.tail[a] += 1
    if len(dag.below):
        for b in range(dag.below.shape[1]):
            frontier.reach[a, b] = max(frontier.reach[a, b], dag.below[v, b])


@native
def execute(dag: Dag, frontier: Frontier, a: int) -> None:
    """Run Frontier_a(G)."""
    low, high = frontier.head[a], frontier.tail[a]
    frontier.head[a] = high
    if len(dag.below):
        frontier.reach[a] = 0
    for i in range(low, high):
        v = frontier.ready[i]
        for k in range(dag.user_ptr[v], dag.user_ptr[v + 1]):
            u = dag.users[k]
            frontier.left[u] -= 1
            if frontier.left[u] == 0:
                push(dag, frontier, u)
    if len(dag.depth):
        for i in range(low, high):
            frontier.depth_sum[a] -= dag.depth[frontier.ready[i]]
    if len(dag.same_left):
        frontier.same_size[a] -= high - low
        for i in range(low, high):
            release(dag, frontier, a, frontier.ready[i])


@inner
def release(dag: Dag, frontier: Frontier, a: int, element: int) -> None:
    """Node `element` of type a has run: whatever waited for it alone joins Frontier(G^a), through joins too."""
    n = len(dag.node_type)
    depth = 0
    while True:
        for k in range(dag.same_ptr[element], dag.same_ptr[element + 1]):
            target = dag.same_users[k]
            frontier.same_left[target] -= 1
            if frontier.same_left[target] > 0:
                continue
            if target < n:
                frontier.same_size[a] += 1
            else:
                frontier.same_stack[depth] = target
                depth += 1
        if depth == 0:
            return
        depth -= 1
        element = frontier.same_stack[depth]
