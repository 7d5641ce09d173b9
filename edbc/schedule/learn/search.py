"""Yardsticks: schedules found by search, and what is proven about the best possible.

`beam` finds good schedules of any graph and is what policies are compared with. `exact` finds a best one of a small
graph and is the tests' oracle: deciding whether a shorter schedule exists is NP-hard (ED-Batch, Chen et al., ICML 2023,
Appendix A.1), so its `budget` limits the states that it opens.

`exact` is A* over sets of executed nodes. Its heuristic h is the lower bound of Eq. 2 on what remains, which a batch
lowers by one at most, so a state's f = batches so far + h never falls along a walk, and

(1) the first complete schedule that leaves the queue is a shortest one;
(2) whatever has left the queue, every schedule goes through a state still in it, so the smallest f there bounds all
    schedules from below. `proven_bound` returns it when the budget ends first: at least Eq. 2, and more as soon as
    every way to reach Eq. 2's bound has been refuted.
(3) where a type is sufficient, some best schedule takes it (Lemma 2.1), so the others are not opened there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edbc.base.graph import Graph
from edbc.errors import ScheduleError
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import arrays_of, work_of

MOST_NODES = 20_000
"""Of the largest mini-batch that a beam searches beside a plan: about a second."""
MOST_WORK = 2_000_000
"""And its work (`schedule.scheduler.work_of`), which many types make large: about two seconds."""


def is_small(graph: Graph) -> bool:
    """Whether a beam takes seconds at most."""
    return graph.num_nodes <= MOST_NODES and work_of(graph) <= MOST_WORK


def beam(graph: Graph, width: int = 64) -> Schedule:
    """The schedule of a beam search (beam.py). O(width T (n + m)) time, O(width n) memory."""
    from edbc.schedule.analysis import analyse
    from edbc.schedule.learn.beam import beam_sequence
    from edbc.schedule.schedulewalk import follow

    dag = analyse(*arrays_of(graph), graph.num_types, False, True, False)
    return Schedule(graph, *follow(dag, beam_sequence(dag, width)))


def follow_sequence(graph: Graph, sequence: list[int]) -> Schedule:
    """The schedule of a batching sequence. Raises ScheduleError when it leaves nodes unexecuted."""
    from edbc.schedule.analysis import analyse
    from edbc.schedule.schedulewalk import follow

    dag = analyse(*arrays_of(graph), graph.num_types, False, False, False)
    batch_type, batch_ptr, nodes = follow(dag, np.array(sequence, np.int32))
    if len(nodes) < graph.num_nodes:
        raise ScheduleError(f"batching sequence: expected to run {graph.num_nodes} nodes, ran {len(nodes)}")
    return Schedule(graph, batch_type, batch_ptr, nodes)


def exact(graph: Graph, budget: int = 200_000) -> Schedule:
    """A shortest schedule. Raises ScheduleError when `budget` states do not suffice."""
    sequence, bound = _search(graph, budget)
    if sequence is None:
        raise ScheduleError(
            f"exact: expected to finish within {budget} states, got as far as a bound of {bound}; use beam"
        )
    return follow_sequence(graph, sequence)


def proven_bound(graph: Graph, budget: int = 2_000) -> int:
    """A lower bound on the batches of every schedule, Eq. 2's or more: (2). Exact when the search ends in time."""
    return _search(graph, budget)[1]


@dataclass(frozen=True)
class _Masks:
    """A graph as bit masks over its nodes."""

    node_type: list[int]
    operands: list[int]
    """Mask of a node's operands."""
    users: list[list[int]]
    below: np.ndarray
    """(n, T) largest number of nodes of a type on a path from a node."""
    ancestors: list[int]
    of_type: list[int]
    """Mask of a type's nodes."""

    @classmethod
    def of(cls, graph: Graph) -> _Masks:
        n = graph.num_nodes
        operands, ancestors, users = [0] * n, [0] * n, [[] for _ in range(n)]  # type: ignore[var-annotated]
        for v in range(n):
            for u in {u for u, _ in graph.operands_of(v) if u >= 0}:
                operands[v] |= 1 << u
                ancestors[v] |= ancestors[u] | 1 << u
                users[u].append(v)
        below = np.zeros((n, graph.num_types), np.int64)
        for v in reversed(range(n)):
            if users[v]:
                below[v] = below[users[v]].max(axis=0)
            below[v, graph.node_type[v]] += 1
        of_type = [0] * graph.num_types
        for v, a in enumerate(graph.node_type.tolist()):
            of_type[a] |= 1 << v
        return cls(graph.node_type.tolist(), operands, users, below, ancestors, of_type)

    def ready(self, executed: int) -> list[int]:
        return [v for v, needed in enumerate(self.operands) if not executed >> v & 1 and needed & ~executed == 0]

    def remaining(self, ready: list[int]) -> int:
        return int(self.below[ready].max(axis=0).sum()) if ready else 0

    def choices(self, executed: int, ready: list[int]) -> Iterator[tuple[int, int]]:
        """Types worth opening and the masks of their batches: one where a type is sufficient (3), else all ready."""
        batches: dict[int, int] = {}
        for v in ready:
            batches[self.node_type[v]] = batches.get(self.node_type[v], 0) | 1 << v
        for a, batch in batches.items():
            if self._is_sufficient(a, batch, executed):
                yield a, batch
                return
        yield from batches.items()

    def _is_sufficient(self, a: int, batch: int, executed: int) -> bool:
        waiting = self.of_type[a] & ~executed & ~batch
        while waiting:
            v = (waiting & -waiting).bit_length() - 1
            waiting &= waiting - 1
            if self.ancestors[v] & self.of_type[a] & ~executed == 0:
                return False
        return True


def _search(graph: Graph, budget: int) -> tuple[list[int] | None, int]:
    """A shortest batching sequence, or None when the budget ends, and the bound that is proven by then."""
    masks = _Masks.of(graph)
    everything = (1 << graph.num_nodes) - 1
    bound = masks.remaining(masks.ready(0))
    queue: list[tuple[int, int, int]] = [(bound, 0, 0)]  # f, minus batches so far (deepest first), executed
    came_from: dict[int, tuple[int, int]] = {}
    batches_to = {0: 0}
    opened = 0
    while queue:
        f, depth, executed = heapq.heappop(queue)
        bound = max(bound, f)
        if executed == everything:
            return _sequence(came_from, executed), bound
        if -depth > batches_to[executed]:
            continue
        opened += 1
        if opened > budget:
            return None, bound
        for a, batch in masks.choices(executed, masks.ready(executed)):
            after, steps = executed | batch, -depth + 1
            if steps < batches_to.get(after, steps + 1):
                batches_to[after] = steps
                came_from[after] = (executed, a)
                heapq.heappush(queue, (steps + masks.remaining(masks.ready(after)), -steps, after))
    return [], bound


def _sequence(came_from: dict[int, tuple[int, int]], executed: int) -> list[int]:
    sequence: list[int] = []
    while executed:
        executed, a = came_from[executed]
        sequence.append(a)
    return sequence[::-1]
