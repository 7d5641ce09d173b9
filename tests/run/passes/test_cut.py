"""Cutting schedules into segments: what a placement over a cut promises, certified by running it on names of values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph, random_lattice_graph, random_tree_graph

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.errors import EdbcError
from edbc.run.passes.arenas import arena_bytes
from edbc.run.passes.cut import Cut, cut_of, require_recompute
from edbc.run.passes.placement import Placement, place
from edbc.schedule.policy import Policy
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import run

SMALL, LARGE = ValueClass((2,)), ValueClass((3,))
GRAPHS = st.one_of(
    st.builds(random_graph, st.integers(0, 10_000)),
    st.builds(random_tree_graph, st.integers(0, 10_000)),
    st.builds(random_lattice_graph, st.integers(0, 10_000)),
)


def two_outputs(graph: Graph) -> Graph:
    """The same graph where every node has two outputs of one class and one that nobody reads, of another; an edge reads
    the first or the second, and nodes without operands read an external."""
    outputs = (SMALL, SMALL, LARGE)
    types = tuple(NodeType(t.name, t.op, (SMALL,), outputs, variadic=True) for t in graph.types)
    nodes = [
        (int(graph.node_type[v]), [(u, (u + v) % 2) for u, _ in graph.operands_of(v)] or [-1])
        for v in range(graph.num_nodes)
    ]
    return Graph.build(types, nodes, externals=[SMALL])


class Memory:
    """Rows of arenas that hold the names of values; None where there is none."""

    def __init__(self, graph: Graph, schedule: Schedule, placement: Placement):
        self.graph, self.schedule, self.placement = graph, schedule, placement
        self.rows: dict[tuple[int, int], object] = {}

    def find(self, node: int, output: int) -> object:
        """What stands where a value, or external -1 - node, should stand."""
        row = int(self.placement.value_rows(np.array([node]), np.array([output]))[0])
        return self.rows.get((self._class(node, output), row))

    def _class(self, node: int, output: int) -> int:
        if node < 0:
            return int(self.placement.external_class[-1 - node])
        return int(self.placement.output_class[self.graph.node_type[node], output])

    def put(self, node: int, output: int) -> None:
        row = int(self.placement.value_rows(np.array([node]), np.array([output]))[0])
        assert 0 <= row < self.placement.class_rows[self._class(node, output)]
        self.rows[self._class(node, output), row] = (node, output)

    def run(self, begin: int, end: int) -> None:
        """Batches begin to end: all operands are there, then all outputs are."""
        ptr = self.schedule.batch_ptr.tolist()
        for b in range(begin, end):
            nodes = self.schedule.nodes[ptr[b] : ptr[b + 1]].tolist()
            for v in nodes:
                for u, output in self.graph.operands_of(v):
                    assert self.find(u, output) == (u, 0 if u < 0 else output)
            for v in nodes:
                for output in range(3):
                    self.put(v, output)

    def forget(self) -> None:
        """What belongs to one segment is gone."""
        kept = self.placement.class_kept
        self.rows = {(c, row): name for (c, row), name in self.rows.items() if row < kept[c]}


@settings(derandomize=True, deadline=None, max_examples=40)
@given(graph=GRAPHS, recompute=st.one_of(st.just("auto"), st.integers(2, 40)), seed=st.integers(0, 100))
def test_every_segment_runs_again_from_what_crosses(graph: Graph, recompute: int | str, seed: int) -> None:
    """Forward once; then each segment, last first, from externals and what crosses alone; results are there to the
    end, and no value has a row of its own without a reader in a later segment."""
    graph = two_outputs(graph)
    schedule = run(graph, Policy("critical"))
    rng = np.random.default_rng(seed)
    results = rng.integers(0, graph.num_nodes, 2)
    outputs = rng.integers(0, 2, 2)
    cut = cut_of(graph, schedule, results, outputs, recompute)
    if cut is None:
        assert schedule.num_batches == 1 or recompute == "auto"
        return
    placement = place(graph, schedule, results, cut)
    memory = Memory(graph, schedule, placement)
    if graph.num_externals and placement.external_row[0] >= 0:
        memory.put(-1, 0)
    memory.run(0, schedule.num_batches)
    for begin, end in reversed(list(zip(cut.borders[:-1].tolist(), cut.borders[1:].tolist(), strict=True))):
        memory.forget()
        memory.run(begin, end)
    memory.forget()
    for node, output in zip(results.tolist(), outputs.tolist(), strict=True):
        assert memory.find(node, output) == (node, output)
    assert cut.crosses[:, :2].tolist() == crossing_reference(graph, schedule, results, outputs, cut)
    assert not cut.crosses[:, 2].any()


def crossing_reference(graph: Graph, schedule: Schedule, results: np.ndarray, outputs: np.ndarray,
                       cut: Cut) -> list[list[bool]]:  # fmt: skip
    """For every batch and its first two outputs, whether a value of it is read in a later segment or is a result."""
    batch_of = {v: b for b, (_, nodes) in enumerate(schedule.batches()) for v in nodes.tolist()}
    segment_of = np.searchsorted(cut.borders, np.arange(schedule.num_batches), side="right")
    crossing = {(batch_of[v], j) for v, j in zip(results.tolist(), outputs.tolist(), strict=True)}
    for v in range(graph.num_nodes):
        for u, j in graph.operands_of(v):
            if u >= 0 and segment_of[batch_of[u]] != segment_of[batch_of[v]]:
                crossing.add((batch_of[u], j))
    return [[(b, j) in crossing for j in range(2)] for b in range(schedule.num_batches)]


def chain(length: int) -> tuple[Graph, Schedule]:
    """One chain of nodes with a state and something large."""
    cell = NodeType("cell", "cell", (SMALL,), (SMALL, ValueClass((100,))))
    graph = Graph.build([cell], [(0, [(v - 1, 0) if v else -1]) for v in range(length)], externals=[SMALL])
    return graph, run(graph, Policy("critical"))


def test_memory_of_a_chain_grows_with_the_root_of_its_length() -> None:
    """A hundred segments of a hundred batches: a hundredth of what is large, and one state per segment more."""
    graph, schedule = chain(10_000)
    last = np.array([9_999]), np.array([0])
    cut = cut_of(graph, schedule, *last, "auto")
    assert cut is not None
    assert np.diff(cut.borders).tolist() == [100] * 100
    placement = place(graph, schedule, last[0], cut)
    whole = place(graph, schedule, last[0])
    assert arena_bytes(whole, externals=False) == 10_000 * 102 * 4
    assert arena_bytes(placement, externals=False) == 100 * 100 * 4 + (100 + 99) * 2 * 4


@pytest.mark.parametrize("segments", [1, 2, 3, 7, 500])
def test_segments_have_about_equal_numbers_of_bytes(segments: int) -> None:
    """As many segments as asked for, or batches where there are fewer; one is no cut."""
    graph, schedule = chain(100)
    cut = cut_of(graph, schedule, np.array([99]), np.array([0]), segments)
    if segments == 1:
        assert cut is None
        return
    assert cut is not None
    sizes = np.diff(cut.borders)
    assert len(sizes) == min(segments, 100)
    assert sizes.max() - sizes.min() <= 1


def test_a_mini_batch_without_nodes_is_not_cut() -> None:
    """There is nothing to compute again."""
    graph = Graph.build([], [], externals=[SMALL])
    nothing = np.zeros(0, np.int64)
    assert cut_of(graph, run(graph, Policy("critical")), nothing, nothing, "auto") is None


@pytest.mark.parametrize("recompute", [0, -1, "many", 2.0, True])
def test_other_words_are_refused(recompute: object) -> None:
    """Both sides in one line."""
    with pytest.raises(EdbcError, match=r"number of segments from 1 on, or 'auto', got"):
        require_recompute(recompute)
