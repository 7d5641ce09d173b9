"""Segments: a mini-batch cut in two gives what it gives in one, and values stay readable until they are released."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from bound import RandomTreeModel, net_for, random_trees

from edbc.base.graph import Graph
from edbc.errors import GraphError
from edbc.run.backend import Segment
from edbc.run.passes.boundary import load_externals, lookups_of
from edbc.run.passes.placement import place
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run


def values(net, segment: Segment, arenas, nodes: list[int]) -> list[torch.Tensor]:
    """First outputs of nodes."""
    rows = segment.placement.value_rows(np.array(nodes, np.int64), np.zeros(len(nodes), np.int64))
    classes = [
        segment.placement.class_index[segment.graph.types[int(segment.graph.node_type[v])].outputs[0]] for v in nodes
    ]
    return [arenas.rows(c, rows[i : i + 1])[0] for i, c in enumerate(classes)]


def execute(net, segment: Segment, capture=None):
    arenas = net.backend.arenas(segment, net.backend.demand(segment, net.kernel))
    if capture is not None:
        load_externals(capture, lookups_of(capture, segment.placement), arenas, net.view)
        net.backend.execute(segment, arenas, net.kernel)
    return arenas


BACKENDS = pytest.mark.parametrize("backend", ["cpu", "reference"])


@BACKENDS
@pytest.mark.parametrize("mixed", [False, True])
def test_stopping_to_look_changes_nothing(backend: str, mixed: bool) -> None:
    """Executing batches up to any point, looking at values, then executing the rest, gives the results, and at every
    stop the values, of executing all."""
    instances = random_trees(11, 5)
    net = net_for(RandomTreeModel(11, 6, mixed), instances, backend)
    prepared = net.prepare(instances)
    batch_of, last = prepared.placement.batch_of, prepared.schedule.num_batches
    everything = list(range(prepared.capture.graph.num_nodes))
    with net.executing(prepared) as whole:
        whole.run()
        expected = values(net, prepared.segment, whole._arenas, everything)
    for cut in (0, 1, last // 2, last):
        with net.executing(prepared) as execution:
            execution.run(until=cut)
            known = [node for node in everything if batch_of[node] < cut]
            found = values(net, prepared.segment, execution._arenas, known)
            assert all(map(torch.equal, found, [expected[node] for node in known]))
            execution.run()
            assert all(map(torch.equal, values(net, prepared.segment, execution._arenas, everything), expected))
            for ours, theirs in zip(execution.results(), net.execute(prepared), strict=True):
                assert all(map(torch.equal, ours["logits"], theirs["logits"]))


def test_steps_that_do_not_exist_are_told() -> None:
    """Running backwards, and results before the end: each says what was wrong."""
    instances = random_trees(11, 5)
    net = net_for(RandomTreeModel(11, 6), instances)
    prepared = net.prepare(instances)
    with net.executing(prepared) as execution:
        execution.run(until=1)
        with pytest.raises(GraphError, match="got 0"):
            execution.run(until=0)
        with pytest.raises(GraphError, match="expected all"):
            execution.results()


def cut_graph(graph: Graph, at: int) -> tuple[Graph, Graph, list[tuple[int, int]]]:
    """Nodes before `at`, and the rest with the values that cross as further externals, in the order returned."""
    crossing = sorted({(u, o) for v in range(at, graph.num_nodes) for u, o in graph.operands_of(v) if 0 <= u < at})
    k = graph.num_externals
    number = {value: -1 - (k + i) for i, value in enumerate(crossing)}
    own = [graph.classes[int(c)] for c in graph.external_class]
    types = graph.types

    def operand(u: int, o: int) -> tuple[int, int]:
        return (u, 0) if u < 0 else (u - at, o) if u >= at else (number[u, o], 0)

    first = [(int(graph.node_type[v]), graph.operands_of(v)) for v in range(at)]
    last = [(int(graph.node_type[v]), [operand(*x) for x in graph.operands_of(v)]) for v in range(at, graph.num_nodes)]
    classes = [types[int(graph.node_type[u])].outputs[o] for u, o in crossing]
    return Graph.build(types, first, externals=own), Graph.build(types, last, externals=[*own, *classes]), crossing


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_graph_cut_in_two_equals_one(backend: str, part: float) -> None:
    """Two graphs, two schedules, the second one's externals bound to rows that the first computed; both stay
    readable."""
    instances = random_trees(12, 5)
    net = net_for(RandomTreeModel(12, 6), instances, backend)
    prepared = net.prepare(instances)
    graph = prepared.capture.graph
    at = int(part * graph.num_nodes)
    first, second, crossing = cut_graph(graph, at)
    nothing = np.zeros(0, np.int64)
    with torch.no_grad():
        whole = execute(net, prepared.segment, prepared.capture)
        expected = values(net, prepared.segment, whole, list(range(graph.num_nodes)))
        schedule = run(first, Policy("critical"))
        one = Segment(first, schedule, place(first, schedule, nothing))
        arenas = execute(net, one, prepared.capture)
        schedule = run(second, Policy("critical"))
        two = Segment(second, schedule, place(second, schedule, nothing))
        later = net.backend.arenas(two, net.backend.demand(two, net.kernel))
        lookups = lookups_of(prepared.capture, _own(two, graph.num_externals))
        load_externals(prepared.capture, lookups, later, net.view)
        for i, (node, output) in enumerate(crossing):
            c = one.placement.class_index[first.types[int(first.node_type[node])].outputs[output]]
            row = one.placement.value_rows(np.array([node]), np.array([output]))
            own = two.placement.external_row[graph.num_externals + i : graph.num_externals + i + 1]
            own_class = int(two.placement.external_class[graph.num_externals + i])
            later.bind(own_class, own, arenas.rows(c, row), np.zeros(1, np.int64))
        net.backend.execute(two, later, net.kernel)
        ours = values(net, one, arenas, list(range(at))) + values(net, two, later, list(range(second.num_nodes)))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def _own(segment: Segment, count: int):
    """The placement as far as the model's own externals go."""
    return replace(segment.placement, external_row=segment.placement.external_row[:count])
