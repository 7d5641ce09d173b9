"""Waves: fewest steps always, what a table changes, text, the checker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, random_lattice_graph, random_tree_graph
from wavecheck import check_waves

from edbc.base.graph import Graph
from edbc.errors import PlanError, ScheduleError
from edbc.schedule.learn.learnwaves import learn_round, learn_waves, new_memory_of, state_of
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run
from edbc.schedule.waves.waverun import least_steps, run_due, run_waves, steps_of
from edbc.schedule.waves.wavetable import WAIT, Waves


def longest_path(graph: Graph) -> int:
    """Nodes on it, in plain Python."""
    depth = [0] * graph.num_nodes
    for v in range(graph.num_nodes):
        read = graph.operands[graph.operand_ptr[v] : graph.operand_ptr[v + 1]].tolist()
        depth[v] = 1 + max((depth[u] for u in read if u >= 0), default=0)
    return max(depth, default=0)


def table_of(graph: Graph, seed: int) -> Waves:
    """Random actions in the states that random walks visit."""
    memory = new_memory_of(graph.num_types)
    learn_round([graph], memory, (1.0, 0.0, 1, 0.0), np.array([seed], np.int64))
    rng, table = np.random.default_rng(seed), {}
    for row in range(memory.table.used[0]):
        state = state_of(memory, row)
        table[state] = int(rng.choice([WAIT, *(word // 4 for word in state if word % 4 != 1)]))
    return Waves(table)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_every_table_reaches_the_bound(graph: Graph, seed: int) -> None:
    """As many steps as the longest path has nodes, whatever the table says; no other schedule has fewer."""
    for waves in (Waves(), table_of(graph, seed)):
        schedule, step = run_waves(graph, waves)
        check_waves(graph, schedule, step)
        assert int(step.max(initial=-1)) + 1 == least_steps(graph) == longest_path(graph)
        assert steps_of(schedule) == least_steps(graph)
    for kind in ("critical", "depth", "agenda", "random"):
        assert steps_of(run(graph, Policy(kind))) >= least_steps(graph)
    assert steps_of(run(graph, Policy("depth"))) == least_steps(graph)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_the_rule_in_closed_form_is_the_walk(graph: Graph, seed: int) -> None:
    """The same steps, node by node, as from step to step; with stages as many as the longest path has, and what a batch
    reads is done before it; nothing where a type takes no stage."""
    schedule, step = run_waves(graph, Waves())
    due = run_due(graph, np.ones(graph.num_types, np.int64))
    assert due is not None
    assert due.step is not None
    assert due.batch_type.tolist() == schedule.batch_type.tolist()
    assert due.step.tolist() == step.tolist()
    assert all(set(a) == set(b) for (_, a), (_, b) in zip(due.batches(), schedule.batches(), strict=True))

    stages = np.random.default_rng(seed).integers(1, 4, graph.num_types)
    due = run_due(graph, stages)
    assert due is not None
    check_waves(graph, due, due.step, stages)
    if graph.num_nodes:
        stages[graph.node_type[0]] = 0
        assert run_due(graph, stages) is None


def test_what_can_wait_waits() -> None:
    """Projections of all nodes of trees are one batch in the last step; leaves one in the first."""
    graph = random_tree_graph(3, 9, 4)
    schedule, step = run_waves(graph, Waves())
    out, leaf = (names.index(name) for names in [[t.name for t in graph.types]] for name in ("out", "leaf"))
    batches = schedule.batch_type.tolist()

    assert batches.count(out) == batches.count(leaf) == 1
    assert step[batches.index(out)] == least_steps(graph) - 1
    assert step[batches.index(leaf)] == 0


def test_learning_needs_no_more_batches_than_the_rule() -> None:
    """On training graphs as recorded and on validation graphs; the same table for the same seed."""
    training = [random_lattice_graph(seed, 20, 6) for seed in range(2)]
    validation = [random_lattice_graph(seed, 20, 6) for seed in range(2, 4)]
    waves, record = learn_waves(training, validation, 0)
    again, _ = learn_waves(training, validation, 0)

    assert waves.table == again.table
    assert record["batches"] <= record["due"]
    assert sum(record["validation"]) <= sum(record["validation_due"])
    assert record["batches"] == sum(run_waves(graph, waves)[0].num_batches for graph in training)
    assert record["batches_bound"] <= record["batches"]
    assert record["steps"] == sum(map(longest_path, training))


def test_learning_lets_a_type_run_early_where_that_saves_a_batch() -> None:
    """`first` waits as long as it can by the rule, so that the `join` behind it comes a step after the other one; when
    it runs in the first step, both are one batch."""
    nodes: list[tuple[str, list[int]]] = [("long", []), ("long", [0]), ("join", [1]), ("long", [2]), ("first", []),
                                          ("join", [4])]  # fmt: skip
    graph = Graph.build(["long", "join", "first"], nodes)
    waves, record = learn_waves([graph], [graph], 0)

    assert (record["batches"], record["due"], record["batches_bound"]) == (5, 6, 5)
    assert len(waves.table) == 1


def test_tables_and_their_text() -> None:
    """There and back; a name with a mark's letter in it is quoted; what is wrong is told."""
    names = ["char", "sum!2", "out"]
    waves = Waves({(1, 4, 10): 1, (3, 9): 0})
    text = waves.to_text(names)

    assert text == {"char! sum%212 out*": "sum!2", "char~ out!": "char"}
    assert Waves.from_text(text, names).table == waves.table
    for state, action, why in [
        ("char! sum%212", "char", "a ready type that does not run yet"),
        ("char! sum%212", "out", "a ready type that does not run yet"),
        ("nobody", "char", "types of the plan"),
        ("out char", "char", "in the plan's order"),
    ]:
        with pytest.raises(PlanError, match=why):
            Waves.from_text({state: action}, names)


def test_the_checker_can_fail() -> None:
    """A batch too early, two of a type in a step, a step too many."""
    graph = random_lattice_graph(5, 8, 2)
    schedule, step = run_waves(graph, Waves())
    for wrong, why in [
        (np.zeros_like(step), "has a batch of that type already|reads node"),
        (step + 1, "expected .* steps"),
        (step[:-1], "a step for every batch"),
        (step[::-1], "in order"),
    ]:
        with pytest.raises(ScheduleError, match=why):
            check_waves(graph, schedule, wrong)
    with pytest.raises(ScheduleError):
        check_waves(graph, replace(schedule, nodes=schedule.nodes[::-1].copy()), step)
