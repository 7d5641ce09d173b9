"""The engine's definitions in plain Python, each computed anew at every step: slow, and what the engine is tested by.

Definitions (1) to (4) are engine.py's, (6) to (8) and the rules and encodings choice.py's. Nothing is incremental and
nothing is shared with the native code but the lists of names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edbc.base.graph import Graph
from edbc.schedule.policy import BITS, PHASES, Policy, State
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import cheap_types


class ReferenceFrontier:
    """A graph and the nodes of it that have run."""

    def __init__(self, graph: Graph, cost: Sequence[float] = ()) -> None:
        self.graph = graph
        self.cost = [*cost, *[1.0] * (graph.num_types - len(cost))]
        self.executed: set[int] = set()
        self.types = graph.node_type.tolist()
        self.operands = [{u for u, _ in graph.operands_of(v) if u >= 0} for v in range(graph.num_nodes)]
        self.ancestors: list[set[int]] = []
        for operands in self.operands:
            self.ancestors.append(operands.union(*(self.ancestors[u] for u in operands)))
        self.depth: list[int] = []
        for operands in self.operands:
            self.depth.append(max((self.depth[u] + 1 for u in operands), default=0))
        self.below = self._chain_lengths()

    def _chain_lengths(self) -> list[list[int]]:
        """Per node and type, the most nodes of the type on a path from the node."""
        below = [[0] * self.graph.num_types for _ in self.types]
        for v in reversed(range(len(self.types))):
            below[v][self.types[v]] += 1
            for u in self.operands[v]:
                below[u] = [max(pair) for pair in zip(below[u], below[v], strict=True)]
        return below

    def remaining(self) -> list[int]:
        return [v for v in range(len(self.types)) if v not in self.executed]

    def ready(self, a: int) -> list[int]:
        """Frontier_a(G), (1)."""
        return [v for v in self.remaining() if self.types[v] == a and self.operands[v] <= self.executed]

    def ready_types(self) -> list[int]:
        return [a for a in range(self.graph.num_types) if self.ready(a)]

    def pending(self, a: int) -> list[int]:
        """Frontier(G^a): unexecuted a-nodes with no unexecuted ancestor of type a through any path."""
        own = [v for v in self.remaining() if self.types[v] == a]
        return [v for v in own if not any(self.types[u] == a for u in self.ancestors[v] - self.executed)]

    def bound(self, executed: set[int] | None = None) -> list[int]:
        """The lower bound's terms: per type, the longest chain among nodes that have not run."""
        gone = self.executed if executed is None else executed
        left = [self.below[v] for v in range(len(self.types)) if v not in gone]
        return [max((below[b] for below in left), default=0) for b in range(self.graph.num_types)]

    def reaching(self, b: int) -> list[int]:
        """Ready types from which a chain of full length, top[b], starts."""
        top = self.bound()[b]
        return [a for a in self.ready_types() if top and max(self.below[v][b] for v in self.ready(a)) == top]

    def is_productive(self, a: int) -> bool:
        """(3), by running the batch and looking."""
        return sum(self.bound(self.executed | set(self.ready(a)))) < sum(self.bound())

    def held(self, a: int) -> list[int]:
        """Terms that a holds, (6)."""
        return [b for b in range(self.graph.num_types) if self.reaching(b) == [a]]

    def blocked(self, a: int) -> list[int]:
        """Types that a blocks, (7)."""
        return [b for b in self.ready_types() if b != a and self.reaching(b) == sorted([a, b])]

    def score(self, rule: str, a: int) -> float:
        """What a rule ranks the ready types by."""
        ready = self.ready(a)
        if rule == "most":
            return len(ready)
        if rule == "agenda":
            depths = [self.depth[v] for v in self.remaining() if self.types[v] == a]
            return -sum(depths) / len(depths)
        if rule == "random":
            n, first = len(self.types), sum(b < a for b in self.types) + self._executed_of(a)
            return _mix((a * n + first) * n + len(ready))
        ratio = len(ready) / len(self.pending(a))
        if rule == "sufficient":
            return ratio
        if rule == "chains":
            return self.chain_score(a) + len(ready) / sum(self.types[v] == a for v in self.remaining())
        return self.chain_score(a) + ratio

    def chain_score(self, a: int) -> float:
        """(8) without its last term."""
        held, blocked = (sum(self.cost[b] for b in which) for which in (self.held(a), self.blocked(a)))
        return 4 * (held - self.cost[a]) + 2 * blocked

    def _executed_of(self, a: int) -> int:
        return sum(self.types[v] == a for v in self.executed)

    def choose(self, rule: str) -> int:
        """The type that the rule takes."""
        cheap = cheap_types(self.graph).tolist() if rule == "agenda" else [0] * self.graph.num_types
        return max(self.ready_types(), key=lambda a: (self.score(rule, a), cheap[a], -a))

    def encode(self, encoding: str) -> State:
        """The state's words."""
        ready = self.ready_types()
        count = {a: len(self.ready(a)) for a in ready}
        if encoding == "max":
            return (*ready, max(ready, key=lambda a: (count[a], -a)))
        if encoding == "sort":
            return tuple(sorted(ready, key=lambda a: (count[a], a)))
        if encoding == "phase":
            return (len(self.executed) * PHASES // len(self.types), *ready)
        if encoding == "critical":
            return tuple(a * BITS + self._bits(a) for a in ready)
        if encoding == "rank":
            ranked = sorted(ready, key=lambda a: (-self.score("critical", a), a))[:2]
            return tuple(a * BITS + self.is_productive(a) for a in ranked)
        return tuple(ready)

    def _bits(self, a: int) -> int:
        others = [b for b in self.held(a) if b != a]
        return self.is_productive(a) + 2 * bool(others) + 4 * bool(self.blocked(a))


def _mix(value: int) -> float:
    """tables.py's `mix` on Python integers, as signed 64-bit."""

    def wrap(number: int) -> int:
        return (number + 2**63) % 2**64 - 2**63

    mixed = wrap((value + 1) * -7046029254386353131)
    mixed = wrap((mixed ^ mixed >> 31) * -4658895280553007687)
    return float(mixed ^ mixed >> 29)


def run_reference(graph: Graph, policy: Policy) -> Schedule:
    """`run` by definition, without a rule beside the table; nodes inside a batch in ascending order."""
    frontier = ReferenceFrontier(graph, policy.cost)
    batches: list[tuple[int, list[int]]] = []
    unseen = 0
    if policy.kind == "depth":
        pairs = sorted({(frontier.depth[v], a) for v, a in enumerate(frontier.types)})
        batches = [
            (a, [v for v, b in enumerate(frontier.types) if (frontier.depth[v], b) == (depth, a)]) for depth, a in pairs
        ]
    while policy.kind != "depth" and len(frontier.executed) < graph.num_nodes:
        action = policy.table.get(frontier.encode(policy.encoding)) if policy.encoding else None
        unseen += policy.kind == "fsm" and action is None
        a = frontier.choose(policy.rule) if action is None else action
        batches.append((a, frontier.ready(a)))
        frontier.executed |= set(batches[-1][1])
    return Schedule(
        graph,
        np.array([a for a, _ in batches], np.int32),
        np.cumsum([0, *(len(nodes) for _, nodes in batches)]).astype(np.int32),
        np.array([v for _, nodes in batches for v in nodes], np.int32),
        len(batches) - unseen if policy.kind == "fsm" else 0,
        unseen,
    )
