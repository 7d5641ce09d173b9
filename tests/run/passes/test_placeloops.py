"""Placement: native loops against the same in plain Python, and what a placement promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph, random_lattice_graph, random_tree_graph

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.run.passes.placeloops import count_work, externals_by_source
from edbc.run.passes.placement import Placement, place
from edbc.schedule.policy import Policy
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import run

SMALL, LARGE = ValueClass((2,)), ValueClass((3,))


def with_externals(graph: Graph, seed: int) -> Graph:
    """The same graph where nodes without operands, and some others, read externals of two classes."""
    rng = np.random.default_rng(seed)
    types = tuple(NodeType(t.name, t.op, (SMALL,), (SMALL,), variadic=True) for t in graph.types)
    nodes: list[tuple[int, list[int]]] = []
    used = 0
    for v in range(graph.num_nodes):
        operands = [u for u, _ in graph.operands_of(v)]
        if not operands or rng.random() < 0.3:
            operands.append(-1 - int(rng.integers(used + 1)))
            used = max(used, -operands[-1])
        nodes.append((int(graph.node_type[v]), operands))
    classes = [SMALL, LARGE]
    return Graph.build(types, nodes, externals=[classes[0]] * used + [LARGE])


def place_reference(graph: Graph, schedule) -> tuple[dict[int, int], dict[int, int], int]:
    """Rows of externals and of nodes' outputs, for graphs of one output per node and one class of values in use."""
    external_row: dict[int, int] = {}
    for _, nodes in schedule.batches():
        for v in nodes.tolist():
            for u, _ in graph.operands_of(v):
                if u < 0:
                    external_row.setdefault(-1 - u, len(external_row))
    row = len(external_row)
    node_row = {}
    for kind in dict.fromkeys(kind for kind, _ in schedule.batches()):
        for v in [v for k, nodes in schedule.batches() if k == kind for v in nodes.tolist()]:
            node_row[v] = row
            row += 1
    return external_row, node_row, row


GRAPHS = st.one_of(
    st.builds(random_graph, st.integers(0, 10_000)),
    st.builds(random_tree_graph, st.integers(0, 10_000)),
    st.builds(random_lattice_graph, st.integers(0, 10_000)),
)


def placed(graph: Graph, seed: int, results: list[int]) -> tuple[Graph, object, Placement]:
    graph = with_externals(graph, seed)
    schedule = run(graph, Policy("critical"))
    return graph, schedule, place(graph, schedule, np.array(results, np.int64))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(graph=GRAPHS, seed=st.integers(0, 100))
def test_rows_equal_the_reference(graph: Graph, seed: int) -> None:
    """Externals in the order in which batches read them, then outputs type by type in schedule order."""
    graph, schedule, placement = placed(graph, seed, [])
    external_row, node_row, rows = place_reference(graph, schedule)
    c = placement.class_index[SMALL]
    assert placement.class_rows[c] == rows
    assert placement.class_externals[c] == len(external_row)
    for e in range(graph.num_externals):
        assert placement.external_row[e] == external_row.get(e, -1)
    nodes = np.arange(graph.num_nodes)
    assert placement.value_rows(nodes, np.zeros_like(nodes)).tolist() == [node_row[v] for v in nodes.tolist()]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(graph=GRAPHS, seed=st.integers(0, 100))
def test_operand_rows_equal_the_reference(graph: Graph, seed: int) -> None:
    """Every operand entry has its row, its node's position in the batch, and runs are told exactly where they are."""
    graph, schedule, placement = placed(graph, seed, [])
    external_row, node_row, _ = place_reference(graph, schedule)
    for b, (_, nodes) in enumerate(schedule.batches()):
        expected = [
            (external_row[-1 - u] if u < 0 else node_row[u], position)
            for position, v in enumerate(nodes.tolist())
            for u, _ in graph.operands_of(v)
        ]
        span = slice(placement.start[b], placement.start[b + 1])
        assert list(zip(placement.rows[span].tolist(), placement.segment[span].tolist(), strict=True)) == expected
        rows = [row for row, _ in expected]
        is_run = bool(rows) and rows == list(range(rows[0], rows[0] + len(rows)))
        assert placement.run[b, 0] == (rows[0] if is_run else -1)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(graph=GRAPHS, seed=st.integers(0, 100))
def test_externals_by_source_equal_the_reference(graph: Graph, seed: int) -> None:
    """Externals with a row, sorted by source and row, also where only some of a class's rows are asked for."""
    graph, _, placement = placed(graph, seed, [])
    row, known = placement.external_row, graph.num_externals - seed % 2
    source = (2 * placement.external_class[:known] + np.arange(known) % 2).astype(np.int64)
    order, rows, ptr, classes = externals_by_source(
        source, placement.external_class, row[:known], placement.class_externals, 5
    )
    expected = sorted((int(source[e]), int(row[e]), e) for e in range(known) if row[e] >= 0)
    assert order.tolist() == [e for _, _, e in expected]
    assert rows.tolist() == [r for _, r, _ in expected]
    assert classes.tolist() == [
        next((int(placement.external_class[e]) for s, _, e in expected if s == number), -1) for number in range(5)
    ]
    assert ptr.tolist() == [sum(s < border for s, _, _ in expected) for border in range(6)]


def schedule_of(graph: Graph, batches: list[tuple[int, list[int]]]) -> Schedule:
    """A schedule from a list of batches."""
    sizes = np.cumsum([0, *(len(nodes) for _, nodes in batches)]).astype(np.int32)
    order = np.array([node for _, nodes in batches for node in nodes], np.int32)
    return Schedule(graph, np.array([kind for kind, _ in batches], np.int32), sizes, order)


def test_operands_of_several_fields_stand_field_by_field() -> None:
    """The rows of operand k of a batch are together, for all its nodes; gathered rows count what is no run."""
    pair = NodeType("pair", "pair", (SMALL, LARGE, SMALL), (SMALL, LARGE))
    nodes = [(0, [-1, -2, -1]), (0, [-3, -2, -1]), (0, [(0, 0), (1, 1), (1, 0)])]
    graph = Graph.build([pair], nodes, externals=[SMALL, LARGE, SMALL]).lint()
    placement = place(graph, run(graph, Policy("depth")), np.zeros(0, np.int64))
    assert placement.rows.tolist() == [0, 1, 0, 0, 0, 0, 2, 2, 3]
    assert placement.run.tolist() == [[0, -1, -1], [2, 2, 3]]
    assert placement.gathered_rows == 4


def test_excerpts_know_the_class_of_what_they_are_taken_of() -> None:
    """Row and class of each excerpt's whole value, an output or an external of any class; no run is told of them."""
    offset = ValueClass((), "i64")
    make = NodeType("make", "make", (SMALL,), (SMALL, LARGE))
    excerpt = NodeType("excerpt", "excerpt", (SMALL, offset), (SMALL,))
    nodes = [(0, [-1]), (0, [-1]), (1, [(0, 0), -3]), (1, [(1, 1), -3]), (1, [-2, -4])]
    graph = Graph.build([make, excerpt], nodes, externals=[SMALL, LARGE, offset, offset]).lint()
    schedule = schedule_of(graph, [(0, [0, 1]), (1, [2, 3, 4])])
    placement = place(graph, schedule, np.zeros(0, np.int64))
    classes = [placement.class_index[c] for c in (SMALL, LARGE, LARGE)]
    at = int(placement.start[1])
    assert placement.origin[at : at + 3].tolist() == classes
    assert placement.rows[at : at + 6].tolist() == [1, 2, 0, 0, 0, 1]
    assert placement.run[1, 0] == -1


def test_states_of_all_nodes_of_a_type_are_one_run() -> None:
    """First outputs of a type stand together over all batches, so what reads them all at the end needs no gather."""
    cell = NodeType("cell", "cell", (SMALL,), (SMALL, SMALL))
    out = NodeType("out", "out", (SMALL,), (SMALL,))
    nodes = [(0, [-1]), (1, [(0, 0)]), (0, [(0, 1)]), (1, [(2, 0)]), (0, [(2, 1)]), (1, [(4, 0)])]
    graph = Graph.build([cell, out], nodes, externals=[SMALL]).lint()
    schedule = run(graph, Policy("critical"))
    placement = place(graph, schedule, np.zeros(0, np.int64))
    assert [kind for kind, _ in schedule.batches()] == [0, 0, 0, 1]
    assert placement.run[3, 0] >= 0


def test_batches_of_a_transient_type_share_their_rows() -> None:
    """They all begin at the same row, have as many as the largest of them, and nobody else's; readers find them."""
    halves = NodeType("halves", "halves", (SMALL,), (LARGE,), transient=True)
    core = NodeType("core", "core", (LARGE,), (LARGE,))
    nodes = [(0, [-1]), (0, [-1]), (1, [0]), (1, [1]), (0, [-1]), (1, [4])]
    graph = Graph.build([halves, core], nodes, externals=[SMALL]).lint()
    schedule = schedule_of(graph, [(0, [0, 1]), (1, [2, 3]), (0, [4]), (1, [5])])
    placement = place(graph, schedule, np.zeros(0, np.int64))

    assert placement.output_row[:, 0].tolist() == [0, 2, 0, 4]
    assert placement.class_rows[placement.class_index[LARGE]] == 5
    assert placement.run[:, 0].tolist() == [-1, 0, 0, 0]


@pytest.mark.parametrize("results", [[-1], [0, -1]])
def test_externals_that_are_results_have_rows(results: list[int]) -> None:
    """What an instance returns without computing on it is kept."""
    graph = Graph.build([NodeType("a", "a", (), (SMALL,))], [(0, [])], externals=[LARGE])
    placement = place(graph, run(graph, Policy("depth")), np.array(results, np.int64))
    assert placement.external_row.tolist() == [0]


def test_an_empty_graph_has_no_rows() -> None:
    """No nodes, no externals."""
    graph = Graph.build([NodeType("a", "a", (SMALL,), (SMALL,))], [])
    placement = place(graph, run(graph, Policy("depth")), np.zeros(0, np.int64))
    assert placement.class_rows.tolist() == [0]
    assert placement.gathered_rows == 0


@settings(derandomize=True, deadline=None, max_examples=30)
@given(graph=GRAPHS, seed=st.integers(0, 100))
def test_work_is_counted_batch_by_batch(graph: Graph, seed: int) -> None:
    """Multiplications of every node in a stretch of the schedule."""
    schedule = run(graph, Policy("critical"))
    rng = np.random.default_rng(seed)
    of_node = rng.integers(0, 9, graph.num_types).astype(float)
    begin, end = sorted(rng.integers(0, schedule.num_batches + 1, 2).tolist())
    expected = sum(len(v) * of_node[t] for t, v in list(schedule.batches())[begin:end])

    assert count_work(begin, end, schedule.batch_type, schedule.batch_ptr, of_node) == expected
