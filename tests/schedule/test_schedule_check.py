"""The schedule checker refuses every way in which a schedule can be wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs

from edbc.base.graph import Graph, NodeType
from edbc.errors import ScheduleError
from edbc.schedule.checker import check_schedule
from edbc.schedule.schedule import Schedule


def schedule_of(graph: Graph, batches: list[tuple[int, list[int]]]) -> Schedule:
    """A schedule from a list of batches."""
    return Schedule(
        graph,
        np.array([kind for kind, _ in batches], np.int32),
        np.cumsum([0, *(len(nodes) for _, nodes in batches)]).astype(np.int32),
        np.array([node for _, nodes in batches for node in nodes], np.int32),
    )


GRAPH = Graph.build(["leaf", "out"], [("leaf", []), ("leaf", []), ("out", [0]), ("out", [1])])


def test_a_right_schedule_passes() -> None:
    """Leaves, then outputs."""
    check_schedule(GRAPH, schedule_of(GRAPH, [(0, [1, 0]), (1, [2, 3])]))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([(0, [0, 1]), (1, [2])], "node 3: expected in exactly one batch, got none"),
        ([(0, [0, 1]), (1, [2, 3, 2])], "batch 1: node 2 has already run in batch 1"),
        ([(0, [0, 1]), (1, [2, 3]), (0, [0])], "batch 2: node 0 has already run in batch 0"),
        ([(0, [0, 1]), (1, [2, 4])], "batch 1: node 4 is not in the graph, which has 4 nodes"),
        ([(0, [0, 1, 2]), (1, [3])], "batch 0: expected nodes of type leaf, got node 2 of type out"),
        ([(0, [0]), (1, [2, 3]), (0, [1])], r"batch 1: node 3 reads node 1 before it is computed \(batch 2\)"),
        ([(0, [0, 1]), (1, []), (1, [2, 3])], "batch 1: expected at least one node, got none"),
    ],
    ids=["missing", "twice in a batch", "twice", "outside", "mixed types", "order", "empty"],
)
def test_each_fault_is_named(batches: list[tuple[int, list[int]]], message: str) -> None:
    """The message names the batch and the node."""
    with pytest.raises(ScheduleError, match=message):
        check_schedule(GRAPH, schedule_of(GRAPH, batches))


def test_memory_taken_too_early_is_named() -> None:
    """What a transient type computed is read before its next batch; any later the check names all three."""
    first = NodeType("leaf", "leaf", variadic=True, transient=True)
    graph = Graph.build([first, "out"], [("leaf", []), ("leaf", []), ("out", [0]), ("out", [1])])

    check_schedule(graph, schedule_of(graph, [(0, [0, 1]), (1, [2, 3])]))
    check_schedule(graph, schedule_of(graph, [(0, [0]), (1, [2]), (0, [1]), (1, [3])]))
    with pytest.raises(ScheduleError, match="batch 2: node 2 reads node 0 of batch 0, whose memory batch 1 has taken"):
        check_schedule(graph, schedule_of(graph, [(0, [0]), (0, [1]), (1, [2, 3])]))


def test_bounds_that_do_not_fit_are_refused() -> None:
    """`batch_ptr` must have one entry more than batches and end at n."""
    right = schedule_of(GRAPH, [(0, [0, 1]), (1, [2, 3])])

    with pytest.raises(ScheduleError, match="expected 3 batch bounds for 2 batches, got 2"):
        check_schedule(GRAPH, Schedule(GRAPH, right.batch_type, right.batch_ptr[:2], right.nodes))
    with pytest.raises(ScheduleError, match="expected batch bounds from 0 to 3, got 0 to 4"):
        check_schedule(GRAPH, Schedule(GRAPH, right.batch_type, right.batch_ptr, right.nodes[:3]))


def test_steps_follow_what_batches_read() -> None:
    """A device's first steps: one per batch, each behind those of the batches that it reads."""
    right = schedule_of(GRAPH, [(0, [0]), (0, [1]), (1, [2, 3])])

    check_schedule(GRAPH, replace(right, step=np.array([0, 0, 1])))
    with pytest.raises(ScheduleError, match="expected a first step for each of 3 batches, got 2"):
        check_schedule(GRAPH, replace(right, step=np.array([0, 1])))
    with pytest.raises(ScheduleError, match="batch 2: begins in step 1 and reads batch 1, which begins in step 1"):
        check_schedule(GRAPH, replace(right, step=np.array([0, 1, 1])))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graph=graphs(), data=st.data())
def test_moving_a_node_before_its_operand_is_refused(graph: Graph, data: st.DataObject) -> None:
    """One node per batch in program order passes; with a node moved before its operand it does not."""
    order = list(range(graph.num_nodes))
    check_schedule(graph, schedule_of(graph, [(int(graph.node_type[v]), [v]) for v in order]))
    users = [v for v in order if any(u >= 0 for u, _ in graph.operands_of(v))]
    if not users:
        return
    node = data.draw(st.sampled_from(users))
    operand = max(u for u, _ in graph.operands_of(node))
    order.remove(node)
    order.insert(order.index(operand), node)

    with pytest.raises(ScheduleError, match=f"node {node} reads node {operand}"):
        check_schedule(graph, schedule_of(graph, [(int(graph.node_type[v]), [v]) for v in order]))


def test_the_checker_and_the_runner_import_only_what_they_need() -> None:
    """Checking loads no engine; running loads neither training nor search."""
    loaded = [
        set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
        for code in (
            "import sys, edbc.schedule.checker; print(*sys.modules)",
            "import sys\nfrom edbc.base.graph import Graph\nfrom edbc.schedule.policy import Policy\n"
            "from edbc.schedule.scheduler import run\nrun(Graph.build(['a'], [('a', [])]), Policy('critical'))\n"
            "print(*sys.modules)",
        )
    ]

    assert not {"edbc.schedule.engine", "edbc.schedule.scheduler", "numba"} & loaded[0]
    assert "edbc.schedule.engine" in loaded[1]
    assert not {f"edbc.schedule.{name}" for name in ("train", "qlearn", "search", "beam")} & loaded[1]
