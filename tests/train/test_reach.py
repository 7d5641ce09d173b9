"""Which values require and which get gradients: the native passes against the definitions in plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.train.dependence import Dependence
from edbc.train.reach import Reach, reach_of

SCALAR = ValueClass(())


@st.composite
def reaches(draw: st.DrawFn) -> tuple[Reach, np.ndarray]:
    """A random graph of types with up to three operands and outputs, some variadic, and which externals require."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans()), min_size=1, max_size=3))
    types = [
        NodeType(
            f"t{i}",
            f"t{i}",
            (SCALAR,) * operands,
            (SCALAR,) * outputs,
            variadic=variadic,
            segmented=variadic and outputs == 1,
        )
        for i, (operands, outputs, variadic) in enumerate(shapes)
    ]

    def bits(*shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        drawn = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        return np.array(drawn, np.bool_).reshape(shape)

    nodes: list[tuple[int, list[tuple[int, int]]]] = []
    available: list[int] = []
    for v in range(draw(st.integers(0, 12))):
        kind = draw(st.integers(0, len(types) - 1))
        groups = draw(st.integers(1, 3)) if types[kind].variadic else 1
        operands = []
        for _ in range(groups * len(types[kind].operands)):
            u = draw(st.integers(-4, v - 1))
            operands.append((u, draw(st.integers(0, available[u] - 1)) if u >= 0 else 0))
        nodes.append((kind, operands))
        available.append(groups if types[kind].segmented else len(types[kind].outputs))
    graph = Graph.build(types, nodes, externals=[SCALAR] * 4).lint()
    dependences = [Dependence(bits(outputs, operands), (frozenset(),) * outputs) for operands, outputs, _ in shapes]
    trainable = [bits(outputs).tolist() for _, outputs, _ in shapes]
    detached = bits(graph.num_nodes) if draw(st.booleans()) else None
    return reach_of(graph, dependences, trainable, detached), bits(4)


def edges(reach: Reach, node: int, output: int) -> list[tuple[int, int]]:
    """The operands that an output depends on."""
    kind = int(reach.graph.node_type[node])
    arity = len(reach.graph.types[kind].operands)
    operands = reach.graph.operands_of(node)
    of_type = 0 if reach.segmented[kind] else output
    return [operand for i, operand in enumerate(operands) if reach.depends[kind, of_type, i % arity]]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(case=reaches(), seed=st.integers(0, 99))
def test_passes_equal_the_definitions(case: tuple[Reach, np.ndarray], seed: int) -> None:
    """`requires` is the least set that holds the trainable and what depends on it, `reached` the values on a path from
    a used one that require."""
    reach, externals = case
    graph, rng = reach.graph, np.random.default_rng(seed)
    values = [(v, j) for v, count in enumerate(graph.num_outputs().tolist()) for j in range(count)]
    requires: dict[tuple[int, int], bool] = {(-1 - e, 0): bool(externals[e]) for e in range(4)}
    for v, j in values:
        kind = int(graph.node_type[v])
        own = bool(reach.trainable[kind, 0 if reach.segmented[kind] else j])
        passes = reach.detached is None or not reach.detached[v]
        requires[v, j] = passes and (own or any(requires[operand] for operand in edges(reach, v, j)))
    found = reach.requires(externals)
    assert [bool(found[reach.first_value[v] + j]) for v, j in values] == [requires[value] for value in values]

    sources = [*values, *((-1 - e, 0) for e in range(4))]
    used = [sources[i] for i in rng.choice(len(sources), 2)]
    todo, reached = [value for value in used if requires[value]], set()
    while todo:
        value = todo.pop()
        if value not in reached:
            reached.add(value)
            todo += [u for u in (edges(reach, *value) if value[0] >= 0 else ()) if requires[u]]
    numbers = reach.values(np.array([v for v, _ in used]), np.array([j for _, j in used]))
    internal, given_ = reach.reached(found, numbers, externals)
    assert {(v, j) for v, j in values if internal[reach.first_value[v] + j]} == {x for x in reached if x[0] >= 0}
    assert {-1 - e for e in range(4) if given_[e]} == {v for v, _ in reached if v < 0}
    kinds = [(int(graph.node_type[v]), j) for v, j in reached if v >= 0]
    of_types = {(kind, 0 if reach.segmented[kind] else j) for kind, j in kinds}
    assert {tuple(pair) for pair in np.argwhere(reach.outputs(internal)).tolist()} == of_types
