"""The dataflow graph: lint, text, DOT."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.errors import GraphError

VECTOR, SCALAR = ValueClass((4,)), ValueClass((), "i64")
TYPES = (
    NodeType("leaf", "cell leaf", (VECTOR,), (VECTOR, VECTOR)),
    NodeType("pair", "cell pair", (VECTOR, VECTOR), (VECTOR,), sites=("a.py:3",)),
    NodeType("sum", "sum", (VECTOR,), (VECTOR,), variadic=True),
    NodeType("const", "torch.ones", (), (VECTOR,), "4"),
    NodeType("unused", "unused"),
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random typed DAGs with repeated operands, several outputs and externals."""
    externals = draw(st.lists(st.sampled_from([VECTOR, SCALAR]), min_size=1, max_size=4))
    nodes: list[tuple[int, list[int | tuple[int, int]]]] = []
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.integers(0, 3))
        arity = (1, 2, draw(st.integers(2, 4)), 0)[kind]
        operands: list[int | tuple[int, int]] = []
        for _ in range(arity):
            target = draw(st.integers(-len(externals), number - 1))
            outputs = len(TYPES[nodes[target][0]].outputs) if target >= 0 else 1
            operands.append((target, draw(st.integers(0, outputs - 1))))
        nodes.append((kind, operands))
    return Graph.build(TYPES, nodes, externals=externals)


@settings(derandomize=True, max_examples=20, deadline=None)
@given(graphs())
def test_text_and_dot_have_a_line_per_node(graph: Graph) -> None:
    """Every node and every edge between nodes is printed once."""
    assert len([line for line in graph.text().splitlines() if line.startswith("%")]) == graph.num_nodes
    assert graph.dot().count("[label=") == graph.num_nodes
    assert graph.dot().count("->") == int((graph.operands >= 0).sum())


def test_arrays_are_frozen() -> None:
    """Nobody changes a graph by accident."""
    graph = Graph.build(TYPES, [("const", []), ("leaf", [0])])

    with pytest.raises(ValueError, match="read-only"):
        graph.operands[0] = 1


def test_text() -> None:
    """Operands print as nodes, outputs and externals."""
    graph = Graph.build(TYPES, [("leaf", [-1]), ("pair", [(0, 1), (0, 1)]), ("sum", [1, 1, -1])], externals=[VECTOR])

    assert graph.text() == "%0 = leaf(x0)\n%1 = pair(%0.1, %0.1)\n%2 = sum(%1, %1, x0)"
    assert graph.text(limit=1).endswith("... 2 more")
    assert repr(graph) == "Graph(3 nodes: leaf 1, pair 1, sum 1, const 0, unused 0)"


GOOD = Graph.build(TYPES, [("leaf", [-1]), ("pair", [0, (0, 1)]), ("sum", [1, 1])], externals=[VECTOR])


def changed(name: str, position: int, value: int) -> Graph:
    array = getattr(GOOD, name).copy()
    array[position] = value
    return replace(GOOD, **{name: array})


BROKEN = {
    "unknown type": (changed("node_type", 1, 9), r"node 1: expected a type in 0\.\.4, got 9"),
    "arity": (changed("node_type", 0, 1), r"node 0 \(pair, a\.py:3\): expected 2 operands, got 1"),
    "order": (changed("operands", 1, 2), r"node 1 \(pair, a\.py:3\): operand 0 is node 2, used before"),
    "itself": (changed("operands", 3, 2), "operand 0 is node 2, used before"),
    "external": (changed("operands", 0, -2), r"node 0 \(leaf\): operand 0 is external 1, of 1"),
    "output": (changed("operand_output", 2, 5), r"operand 1 is output 5 of node 0, which has 2"),
    "class": (changed("external_class", 0, 3), r"class outside 0\.\.0"),
    "pointers": (changed("operand_ptr", 3, 4), "expected operand_ptr to run from 0 to 5"),
    "overlap": (changed("operand_ptr", 1, 4), "operand_ptr decreases"),
    "names": (replace(GOOD, types=(*TYPES[:4], replace(TYPES[4], name="sum"))), "unique type names"),
    "lengths": (replace(GOOD, operand_output=np.zeros(2, np.int32)), "expected 5 operand outputs, got 2"),
    "groups": (
        Graph.build([NodeType("s", "sum", (VECTOR, VECTOR), (VECTOR, VECTOR), variadic=True)], [("s", [-1])],
                    externals=[VECTOR]),
        "expected groups of 2 operands, got 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_lint_names_the_fault(fault: str) -> None:
    """Each invariant, broken alone, is told with its node."""
    graph, message = BROKEN[fault]

    with pytest.raises(GraphError, match=message):
        graph.lint()


def is_right(graph: Graph, node: int) -> bool:
    """Reference for lint: what the class promises of one node."""
    type_, operands = graph.types[int(graph.node_type[node])], graph.operands_of(node)
    arity = len(type_.operands)
    groups_fit = not arity or len(operands) % arity == 0
    if not (groups_fit if type_.variadic else len(operands) == arity):
        return False
    return all(
        -graph.num_externals <= v < node and (v < 0 or 0 <= output < len(graph.types[int(graph.node_type[v])].outputs))
        for v, output in operands
    )


@settings(derandomize=True, max_examples=200, deadline=None)
@given(graphs(), st.data())
def test_lint_finds_the_first_wrong_node(graph: Graph, data: st.DataObject) -> None:
    """A random graph with one number changed passes, or fails at the node that a node-by-node check finds first."""
    name = data.draw(st.sampled_from(["node_type", "operands", "operand_output"]))
    array = getattr(graph, name).copy()
    if len(array):
        bounds = (0, len(TYPES) - 1) if name == "node_type" else (-6, 13)
        array[data.draw(st.integers(0, len(array) - 1))] = data.draw(st.integers(*bounds))
    graph = replace(graph, **{name: array})
    wrong = next((v for v in range(graph.num_nodes) if not is_right(graph, v)), None)

    if wrong is None:
        assert graph.lint() is graph
    else:
        with pytest.raises(GraphError, match=rf"^node {wrong} "):
            graph.lint()
