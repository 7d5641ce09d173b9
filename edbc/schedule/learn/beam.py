"""Beam search over whole batching sequences; native. See search.py for what it is for.

Every kept walk advances by one batch per round. A candidate, a walk and a ready type, is ranked by the lower bound of
what remains after it, which is known without running it: one less than before when the type is productive (engine.py,
3). Walks that have executed the same nodes are kept once. Many candidates tie; they are taken in the order of a hash of
the executed nodes, as good as random and the same on every machine. (Ranking ties by the number of executed nodes keeps
near copies of one walk: 250 batches instead of 242 on 32 lattices at width 64.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Ints
from edbc.native.kinds import inner, inner_uncounted, native
from edbc.schedule.analysis import Dag
from edbc.schedule.choice import PRODUCTIVE, Scratch, describe, new_scratch
from edbc.schedule.engine import Frontier, execute, new_frontier, restart
from edbc.schedule.rows import padded
from edbc.schedule.statetable import mix

Hashes = NDArray[np.int64]
TIE = 1 << 40
"""More than the candidates' tie-breaks can differ by."""


class Candidates(NamedTuple):
    """Walks that one more batch would make; row k continues walk `parent[k]` with type `action[k]`."""

    rank: Hashes
    parent: Ints
    action: Ints
    executed: Hashes


class Walks(NamedTuple):
    """As many frontiers as the beam is wide, one per row."""

    left: Ints
    ready: Ints
    head: Ints
    tail: Ints
    reach: Ints
    executed: Hashes  # (width,) hash of the executed nodes
    done: Ints  # (width,) how many they are


@inner
def new_walks(n: int, num_types: int, width: int) -> Walks:
    """Room for `width` walks."""
    return Walks(
        np.empty((width, n), np.int32),
        np.empty((width, n), np.int32),
        np.empty((width, num_types), np.int32),
        np.empty((width, num_types), np.int32),
        np.zeros((width, num_types, padded(num_types)), np.int32),
        np.zeros(width, np.int64),
        np.zeros(width, np.int32),
    )


@inner
def walk_of(walks: Walks, i: int, shared: Frontier) -> Frontier:
    """Row i as a frontier; what a beam does not use is `shared`."""
    return Frontier(
        walks.left[i],
        walks.ready[i],
        walks.head[i],
        walks.tail[i],
        shared.counted,
        walks.reach[i],
        shared.same_left,
        shared.same_size,
        shared.same_queue,
        shared.depth_sum,
    )


@inner_uncounted
def copy_walk(source: Walks, i: int, target: Walks, j: int) -> None:
    """Make row j of `target` the same walk as row i of `source`. Assigned whole, rows compile numba's strings."""
    left, ready, head, tail, reach = target.left, target.ready, target.head, target.tail, target.reach
    for v in range(left.shape[1]):
        left[j, v], ready[j, v] = source.left[i, v], source.ready[i, v]
    for a in range(head.shape[1]):
        head[j, a], tail[j, a] = source.head[i, a], source.tail[i, a]
        for b in range(reach.shape[2]):
            reach[j, a, b] = source.reach[i, a, b]
    target.done[j] = source.done[i]


@inner_uncounted
def propose(
    frontier: Frontier, scratch: Scratch, parent: int, executed: int, candidates: Candidates, start: int
) -> int:
    """Write every continuation of one walk from row `start`; the row after the last."""
    describe(frontier, scratch)
    bound = 0
    for b in range(len(scratch.top)):
        bound += scratch.top[b]
    for a in range(len(scratch.top)):
        low, high = frontier.head[a], frontier.tail[a]
        if low == high:
            continue
        after = executed
        for i in range(low, high):
            after ^= mix(frontier.ready[i])
        remaining = bound - (scratch.bits[a] & PRODUCTIVE)
        candidates.rank[start] = np.int64(remaining) * TIE + (mix(after) & (TIE - 1))
        candidates.parent[start], candidates.action[start] = parent, a
        candidates.executed[start] = after
        start += 1
    return start


@native
def beam_sequence(dag: Dag, width: int) -> Ints:
    """The batching sequence that a beam of `width` walks finds."""
    n, num_types = len(dag.node_type), len(dag.type_ptr) - 1
    scratch, shared = new_scratch(np.ones(num_types)), new_frontier(dag)
    walks, spare = new_walks(n, num_types, width), new_walks(n, num_types, width)
    most = width * num_types
    candidates = Candidates(
        np.empty(most, np.int64), np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int64)
    )
    parents, actions = np.zeros((n + 1, width), np.int32), np.zeros((n + 1, width), np.int32)
    restart(dag, walk_of(walks, 0, shared))
    kept = 1
    for step in range(n):
        count = 0
        for i in range(kept):
            count = propose(walk_of(walks, i, shared), scratch, i, walks.executed[i], candidates, count)
        kept = 0
        for k in np.argsort(candidates.rank[:count]):
            if kept == width:
                break
            if kept and candidates.executed[k] == spare.executed[kept - 1]:
                continue  # equal walks have equal ranks, so they are neighbours
            a = candidates.action[k]
            parents[step, kept], actions[step, kept] = candidates.parent[k], a
            copy_walk(walks, candidates.parent[k], spare, kept)
            frontier = walk_of(spare, kept, shared)
            spare.executed[kept] = candidates.executed[k]
            spare.done[kept] += frontier.tail[a] - frontier.head[a]
            execute(dag, frontier, a)
            if spare.done[kept] == n:
                return trace_back(parents, actions, step, kept)
            kept += 1
        walks, spare = spare, walks
    return np.zeros(0, np.int32)


@inner
def trace_back(parents: Ints, actions: Ints, step: int, slot: int) -> Ints:
    """The sequence that ends in `slot` at `step`."""
    sequence = np.empty(step + 1, np.int32)
    for t in range(step, -1, -1):
        sequence[t] = actions[t, slot]
        slot = parents[t, slot]
    return sequence
