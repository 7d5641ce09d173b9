"""The order of nodes inside batches: still the same schedule, equal to a naive reference, and fewer gathers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edbc.base.graph import Graph
from edbc.schedule.checker import check_schedule
from edbc.schedule.order import order_nodes
from edbc.schedule.policy import Policy
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import run


def random_graph(seed: int) -> Graph:
    """Up to 60 nodes of up to 4 types with up to 3 operands, repeats and externals included."""
    rng = random.Random(seed)
    size = rng.randrange(1, 60)
    nodes = [
        (rng.randrange(4), [rng.randrange(v) if v and rng.random() < 0.9 else -1 for _ in range(rng.randrange(4))])
        for v in range(size)
    ]
    from edbc.base.graph import ValueClass

    return Graph.build(["a", "b", "c", "d"], nodes, externals=[ValueClass(())]).lint()


def reference(graph: Graph, schedule: Schedule) -> list[int]:
    """The two passes of `edbc.schedule.order` with sorted lists."""
    batches = [nodes.tolist() for _, nodes in schedule.batches()]
    batch_of = {v: b for b, nodes in enumerate(batches) for v in nodes}
    readers: dict[int, list[tuple[int, int]]] = {v: [] for v in batch_of}
    for u in range(graph.num_nodes):
        for slot, (v, _) in enumerate(graph.operands_of(u)):
            if v >= 0:
                readers[v].append((u, slot))
    place: dict[int, int] = {}

    def wanted(v: int) -> tuple[int, ...]:
        if not readers[v]:
            return (len(batches),)
        u, slot = next(((u, s) for u, s in readers[v] if readers[u]), readers[v][0])
        return batch_of[u], slot, place[u]

    for b in reversed(range(len(batches))):
        batches[b].sort(key=wanted)
        start = sum(map(len, batches[:b]))
        place.update({v: start + i for i, v in enumerate(batches[b])})
    for b, nodes in enumerate(batches):
        start = sum(map(len, batches[:b]))

        def row(v: int) -> int:
            inner = [place[u] for u, _ in graph.operands_of(v) if u >= 0]
            return -1 if readers[v] else (inner[0] if inner else graph.num_nodes)

        nodes.sort(key=row)
        place.update({v: start + i for i, v in enumerate(nodes)})
    return [v for nodes in batches for v in nodes]


@pytest.mark.parametrize("seed", range(150))
def test_native_order_equals_the_reference_and_is_a_schedule(seed: int) -> None:
    """On random graphs the native passes order as the naive ones do, and the result is the same valid schedule."""
    graph = random_graph(seed)
    schedule = run(graph, Policy("agenda"))
    ordered = order_nodes(graph, schedule)
    check_schedule(graph, ordered)

    assert ordered.nodes.tolist() == reference(graph, schedule)
    for (kind, before), (kind_after, after) in zip(schedule.batches(), ordered.batches(), strict=True):
        assert (kind, sorted(before.tolist())) == (kind_after, sorted(after.tolist()))


def test_chains_of_unequal_length_need_no_gather() -> None:
    """Steps of chains whose ends come first in the recording are reordered so that each step reads a prefix."""
    nodes: list[tuple[int, list[int]]] = []
    for length in (2, 5, 3, 4):
        for step in range(length):
            nodes.append((0, [len(nodes) - 1] if step else []))
    graph = Graph.build(["cell"], nodes).lint()
    ordered = order_nodes(graph, run(graph, Policy("depth")))
    batches = [batch for _, batch in ordered.batches()]

    for before, after in zip(batches, batches[1:], strict=False):
        read = [graph.operands_of(v)[0][0] for v in after.tolist()]
        assert read == before.tolist()[: len(after)]
    assert np.array_equal(np.sort(ordered.nodes), np.arange(14))
