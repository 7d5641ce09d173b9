"""Joining against its reference: define-by-run capture of the same vertex functions, vertex by vertex."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from both_ways import BothWays, canonical
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from vertex_strategies import BOTH, FOLD, NUM_ROWS, PASS, WORD, everything, random_instance

from edbc.errors import InputError
from edbc.vertex import Vertex, VertexFunction, VertexInstance

WAYS = BothWays(everything())
MINI_BATCHES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12)), max_size=5)


@given(MINI_BATCHES)
@settings(derandomize=True, max_examples=120, deadline=None)
def test_joining_gives_the_reference_graph(seeds: list[tuple[int, int]]) -> None:
    """Random mini-batches of random instances: the same nodes, operands, types, externals and results."""
    instances = [random_instance(*seed) for seed in seeds]
    joined = WAYS.by_joining(instances)
    joined.graph.lint()

    assert canonical(joined) == canonical(WAYS.by_vertices_one_by_one(instances))


@given(MINI_BATCHES)
@settings(derandomize=True, max_examples=30, deadline=None)
def test_nodes_are_numbered_in_vertex_order(seeds: list[tuple[int, int]]) -> None:
    """Types and operand counts stand in the order in which define-by-run records them."""
    instances = [random_instance(*seed) for seed in seeds]
    joined, reference = WAYS.by_joining(instances).graph, WAYS.by_vertices_one_by_one(instances).graph

    assert joined.node_type.tolist() == reference.node_type.tolist()
    assert joined.operand_ptr.tolist() == reference.operand_ptr.tolist()
    assert np.where(joined.operands >= 0, joined.operands, -1).tolist() == (
        np.where(reference.operands >= 0, reference.operands, -1).tolist()
    )


def test_shared_externals_are_one_per_mini_batch() -> None:
    """A learned state that many vertices scatter is one external; a look-up is one per vertex."""
    instances = [
        VertexInstance.build([(WORD, []), (WORD, []), (FOLD, [0, 1])], {"id": [1, 1, 0], "row": [[0.0] * 3] * 3})
    ]
    joined = WAYS.by_joining(instances * 2)
    kinds = [joined.sources[s].kind for s in joined.external_source.tolist()]

    assert (kinds.count("row"), kinds.count("whole")) == (4, 1)


def test_no_instances_make_an_empty_graph() -> None:
    """A mini-batch of nothing, and an instance without vertices, have no nodes and no results."""
    empty = VertexInstance.build([])

    assert WAYS.by_joining([]).graph.num_nodes == 0
    assert list(WAYS.by_joining([]).results) == []
    assert list(WAYS.by_joining([empty, empty]).results) == [{}, {}]


def test_values_passed_on_reach_across_a_long_chain() -> None:
    """10,000 vertices that pass two values on, swapped: the last one's are the first one's, and no node is made."""
    chain = [(WORD, []), *((PASS, [at]) for at in range(10_000)), (FOLD, [10_000])]
    instance = VertexInstance.build(chain, {"id": [3] * len(chain), "row": np.zeros((len(chain), 3), np.float32)})
    graph = WAYS.by_joining([instance]).graph

    assert graph.num_nodes < 8
    assert set(graph.operands[graph.operands < 0].tolist()) == {-1, -2}


@pytest.mark.parametrize("row", [NUM_ROWS, -1, 2**40])
def test_look_ups_beyond_the_table_are_refused(row: int) -> None:
    """A row number outside of its table raises InputError that names instance, vertex, input and number."""
    good = VertexInstance.build([(WORD, [])], {"id": [0]})
    bad = VertexInstance.build([(WORD, []), (WORD, [])], {"id": [4, row]})

    with pytest.raises(InputError, match=f"instance 1, vertex 1: input 'id': expected a row of its table, got {row};"):
        WAYS.by_joining([good, bad])


def test_two_sums_over_externals_are_one_node() -> None:
    """A departure that `vertex.fragment` documents: sums of h and c over predecessors that scatter externals are one
    node here and two in define-by-run, which merges sums over nodes only."""
    words = VertexInstance.build([(WORD, []), (WORD, []), (BOTH, [0, 1])], {"id": [1, 2, 0]})
    joined, recorded = WAYS.by_joining([words]).graph, WAYS.by_vertices_one_by_one([words]).graph

    assert [sum(t.op == "sum" for t in (g.types[k] for k in g.node_type)) for g in (joined, recorded)] == [1, 2]


class Sums(nn.Module):
    """Scatters sums of sums."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 2))

    def vertices(self) -> dict[str, VertexFunction]:
        return {"word": lambda v: v.scatter(self.table[0] * v.pull("id", self.table)), "sum": self.add}

    def add(self, v: Vertex) -> None:
        total = sum(v.gather_all())
        v.scatter(total)
        if v.num_predecessors == 1:
            v.push("total", total)


def test_a_scattered_sum_stays_a_node() -> None:
    """The departure that the module documents: define-by-run adds a chain of sums in one node, joining in one per
    vertex."""
    vertices = [(0, []), (0, []), (0, []), (1, [0, 1]), (1, [3, 2]), (1, [4])]
    ways = BothWays(Sums().eval())
    instance = VertexInstance.build(vertices, {"id": [1, 2, 3, 0, 0, 0]})
    sums = [
        int(g.counts()[[t.op for t in g.types].index("sum")])
        for g in (ways.by_joining([instance]).graph, ways.by_vertices_one_by_one([instance]).graph)
    ]

    assert sums == [2, 1]


class Parts(nn.Module):
    """Parts of what is pulled, gathered and computed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 6))

    def vertices(self) -> dict[str, VertexFunction]:
        return {"word": self.word, "fold": self.fold}

    def word(self, v: Vertex) -> None:
        v.scatter(torch.tanh(v.pull("id", self.table)), torch.sigmoid(v.pull("id", self.table))[3:])

    def fold(self, v: Vertex) -> None:
        h, c = v.gather(0)
        total = torch.tanh(h[:3] + c * h[4] + self.table[1, 2])
        v.push("total", total)
        v.scatter(torch.cat([total, h[3:]]), torch.sigmoid(v.pull("id", self.table))[:3])


def test_parts_are_those_of_define_by_run() -> None:
    """Rows, slices and elements in vertex functions are excerpts of the same types, in the same graph."""
    torch.manual_seed(0)
    vertices = [(0, []), (1, [0]), (1, [1])]
    instances = [VertexInstance.build(vertices[: 2 + n % 2], {"id": [n % 4, 3, 1][: 2 + n % 2]}) for n in range(5)]
    ways = BothWays(Parts().eval())
    joined = canonical(ways.by_joining(instances))
    assert joined == canonical(ways.by_vertices_one_by_one(instances))
    assert sum(name.startswith("excerpt") for name in joined) == 2
