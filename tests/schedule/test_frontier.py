"""The native engine against the plain-Python reference, and the analysis against definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from definitions import ReferenceFrontier, run_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, random_graph, random_lattice_graph, swapped_trees_graph

from edbc.base.graph import Graph, NodeType
from edbc.schedule.analysis import ALONE, FIRST, analyse
from edbc.schedule.checker import check_schedule
from edbc.schedule.choice import describe, new_scratch
from edbc.schedule.engine import execute, new_frontier, restart
from edbc.schedule.learn.train import cover
from edbc.schedule.policy import ENCODINGS, FALLBACK, KINDS, RULES, Policy
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import lower_bound, run, total_cost

QUICK = settings(max_examples=40, deadline=None, derandomize=True)


def batches_of(schedule: Schedule) -> list[tuple[int, list[int]]]:
    """The batches with their nodes in ascending order."""
    return [(kind, sorted(nodes.tolist())) for kind, nodes in schedule.batches()]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fsm"])
@QUICK
@given(graph=graphs())
def test_fixed_rules_equal_the_reference(kind: str, graph: Graph) -> None:
    """Every rule gives the reference's batches, node by node."""
    schedule = run(graph, Policy(kind))

    check_schedule(graph, schedule)
    assert batches_of(schedule) == batches_of(run_reference(graph, Policy(kind)))
    assert (schedule.table_steps, schedule.unseen_states) == (0, 0)


@pytest.mark.parametrize("encoding", ENCODINGS)
@QUICK
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_tables_equal_the_reference(encoding: str, graph: Graph, seed: int) -> None:
    """Over every encoding, a table learned on half the states gives the reference's batches and unseen states."""
    fallback = FALLBACK.get(encoding, "chains")
    full = cover(Policy("fsm", encoding, fallback), [graph, random_graph(seed, 20, graph.num_types)])
    rng = np.random.default_rng(seed)
    half = {state: action for state, action in full.table.items() if rng.random() < 0.5}
    policy = Policy("fsm", encoding, fallback, half)
    schedule, expected = run(graph, policy, compare=False), run_reference(graph, policy)

    check_schedule(graph, schedule)
    assert batches_of(schedule) == batches_of(expected)
    assert (schedule.table_steps, schedule.unseen_states) == (expected.table_steps, expected.unseen_states)


@pytest.mark.parametrize("kind", ["chains", "critical"])
@QUICK
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_rules_with_costs_equal_the_reference(kind: str, graph: Graph, seed: int) -> None:
    """Whatever batches of each type cost, down to all but nothing, both rules give the reference's batches."""
    cost = tuple(np.random.default_rng(seed).choice([0.01, 0.25, 0.5, 1.0], graph.num_types).tolist())
    policy = Policy(kind, cost=cost)

    assert batches_of(run(graph, policy)) == batches_of(run_reference(graph, policy))


@QUICK
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_equal_costs_change_nothing(graph: Graph, seed: int) -> None:
    """With every batch costing the same the rule `critical` and a table over `rank` choose as without costs."""
    table = cover(Policy("fsm", "rank", "critical"), [random_graph(seed, 20, graph.num_types)]).table
    for policy in (Policy("critical"), Policy("fsm", "rank", "critical", table)):
        same = replace(policy, cost=(1.0,) * graph.num_types)

        assert batches_of(run(graph, same)) == batches_of(run(graph, policy))


@QUICK
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_bookkeeping_equals_its_definitions_on_random_walks(graph: Graph, seed: int) -> None:
    """After every batch of a random walk, frontiers, pending nodes, bound and scores are those of the definitions."""
    dag = analyse(graph.node_type, graph.operand_ptr, graph.operands, graph.num_types, True, True, True)
    frontier, scratch, slow = new_frontier(dag), new_scratch(np.ones(graph.num_types)), ReferenceFrontier(graph)
    restart(dag, frontier)
    rng = np.random.default_rng(seed)
    while len(slow.executed) < graph.num_nodes:
        describe(frontier, scratch)
        ready = slow.ready_types()

        assert np.flatnonzero(frontier.head < frontier.tail).tolist() == ready
        assert scratch.top.tolist() == slow.bound()
        for a in ready:
            assert sorted(frontier.ready[frontier.head[a] : frontier.tail[a]].tolist()) == slow.ready(a)
            assert frontier.same_size[a] == len(slow.pending(a))
            assert bool(scratch.bits[a] & 1) == slow.is_productive(a)
            assert scratch.score[a] == slow.chain_score(a)
        chosen = int(rng.choice(ready))
        slow.executed |= set(slow.ready(chosen))
        execute(dag, frontier, chosen)


@QUICK
@given(graph=graphs())
def test_lower_bound_is_the_sum_of_longest_chains(graph: Graph) -> None:
    """`lower_bound` is Eq. 2 by definition, and no rule goes below it."""
    assert lower_bound(graph) == sum(ReferenceFrontier(graph).bound())
    assert all(run(graph, Policy(rule)).num_batches >= lower_bound(graph) for rule in RULES)


@QUICK
@given(graph=graphs())
def test_sufficient_types_are_productive(graph: Graph) -> None:
    """Where all of Frontier(G^a) is ready, running it lowers the bound (engine.py, 4)."""
    slow = ReferenceFrontier(graph)
    sufficient = [a for a in slow.ready_types() if slow.ready(a) == slow.pending(a)]

    assert all(slow.is_productive(a) for a in sufficient)


@pytest.mark.parametrize("encoding", ["critical", "rank"])
@QUICK
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_a_table_never_loses_to_its_rule(encoding: str, graph: Graph, seed: int) -> None:
    """A table of arbitrary actions runs when it is as short as its fallback rule, else the rule does, and says so."""
    covered = cover(Policy("fsm", encoding, "random"), [graph])
    policy = Policy("fsm", encoding, "critical", covered.table, beside="critical")
    schedule, alone = run(graph, policy), run(graph, policy, compare=False)
    rule = run(graph, Policy("critical"))

    check_schedule(graph, schedule)
    assert schedule.num_batches == min(alone.num_batches, rule.num_batches)
    assert schedule.by_rule == (rule.num_batches < alone.num_batches)
    assert batches_of(schedule) == batches_of(rule if schedule.by_rule else alone)


@pytest.mark.parametrize("beside", ["depth", "agenda", "chains"])
@QUICK
@given(graph=graphs())
def test_any_rule_can_run_beside_a_table(beside: str, graph: Graph) -> None:
    """A rule that is not the table's fallback is simulated as it runs alone, and the cheaper schedule is taken."""
    cost = tuple(0.1 + 0.3 * a for a in range(graph.num_types))
    covered = cover(Policy("fsm", "base", "random"), [graph])
    policy = replace(covered, beside=beside, cost=cost)
    schedule, rule = run(graph, policy), run(graph, Policy(beside, cost=cost))
    alone = run(graph, policy, compare=False)
    costs = [total_cost(s.batch_type, cost) for s in (alone, rule)]

    check_schedule(graph, schedule)
    assert schedule.by_rule == (costs[1] < costs[0])
    assert batches_of(schedule) == batches_of(rule if schedule.by_rule else alone)


@pytest.mark.parametrize("encoding", ENCODINGS)
@QUICK
@given(graph=graphs(), more=st.integers(1, 3))
def test_types_without_a_node_change_nothing(encoding: str, graph: Graph, more: int) -> None:
    """Types that a table of types has gained since (parts of cells), and that have no node, are no matter."""
    policy = cover(Policy("fsm", encoding, "critical", beside="critical"), [graph])
    types = (*graph.types, *(replace(graph.types[0], name=f"new{i}") for i in range(more)))
    first, second = run(graph, policy), run(replace(graph, types=types), policy)

    assert batches_of(first) == batches_of(second)
    assert (first.table_steps, first.unseen_states, first.by_rule) == (
        second.table_steps, second.unseen_states, second.by_rule,
    )  # fmt: skip


def test_same_type_graph_stays_linear() -> None:
    """1,000 a -> 1 b -> 1,000 a: a join, for which 1,000 wait and which waits for 1,000, stands for a million pairs."""
    nodes = [("a", [])] * 1000 + [("b", list(range(1000)))] + [("a", [1000])] * 1000
    graph = Graph.build(["a", "b"], nodes)
    dag = analyse(graph.node_type, graph.operand_ptr, graph.operands, 2, False, True, True)

    assert len(dag.same) == graph.num_nodes + 1
    assert dag.same[:, ALONE].sum() == np.count_nonzero(dag.same[:, FIRST]) == 1000
    assert len(dag.same_edges) == 0
    assert run(graph, Policy("sufficient")).batch_type.tolist() == [0, 1, 0]


def test_a_same_type_graph_of_many_joins_outgrows_its_room() -> None:
    """More joins and edges than are expected at first: what has been made is kept."""
    graph = random_graph(5, 120, 9, max_operands=7)
    dag = analyse(graph.node_type, graph.operand_ptr, graph.operands, graph.num_types, False, True, True)

    assert len(dag.same) > 2 * graph.num_nodes
    assert len(dag.same_edges) > len(dag.users)
    for kind in ("sufficient", "critical"):
        assert batches_of(run(graph, Policy(kind))) == batches_of(run_reference(graph, Policy(kind)))


@pytest.mark.parametrize("kind", ["agenda", "depth", "sufficient", "chains", "critical"])
def test_an_empty_graph_has_an_empty_schedule(kind: str) -> None:
    """No instances: no batches, and no division by zero."""
    schedule = run(Graph.build(["a"], []), Policy(kind))

    assert schedule.num_batches == 0
    check_schedule(schedule.graph, schedule)
    assert lower_bound(schedule.graph) == 0


def test_repeated_operands_release_their_user_once() -> None:
    """x + x: the user is ready when x has run, and runs once."""
    graph = Graph.build(["x", "sum"], [("x", []), ("sum", [0, 0])])

    assert run(graph, Policy("critical")).nodes.tolist() == [0, 1]


def test_runs_are_deterministic() -> None:
    """Two runs give the same arrays."""
    graph = random_lattice_graph(3, 30, 4)
    first, second = (run(graph, Policy("critical")) for _ in range(2))

    assert first.nodes.tolist() == second.nodes.tolist()
    assert first.batch_ptr.tolist() == second.batch_ptr.tolist()


def test_unseen_states_use_the_fallback_and_are_counted() -> None:
    """An empty table sees nothing: every batch is the fallback's, and the schedule says so."""
    graph = swapped_trees_graph()
    schedule = run(graph, Policy("fsm", "base", "chains", {}))

    assert batches_of(schedule) == batches_of(run(graph, Policy("chains")))
    assert schedule.unseen_states == schedule.num_batches
    assert schedule.table_steps == 0


def test_states_with_an_unknown_type_are_unseen() -> None:
    """A type appended after the plan's types makes every state that contains it unseen, and only those."""
    known = Graph.build(["a", "b"], [("a", []), ("b", [0])])
    policy = cover(Policy("fsm", "base", "chains"), [known])
    schedule = run(Graph.build(["a", "b", "new"], [("a", []), ("b", [0]), ("new", [1])]), policy)

    assert (schedule.table_steps, schedule.unseen_states) == (2, 1)


@pytest.mark.parametrize("kind", [*KINDS[1:], *ENCODINGS])
def test_types_that_have_no_node_change_no_schedule(kind: str) -> None:
    """A net that has met 10,000 sizes has as many types, of which a mini-batch has some: the engine, whose arrays grow
    with the square of their number, gets those that have nodes beside the policy's own."""
    known = [random_graph(seed, 30, num_types=6) for seed in range(3)]
    policy = cover(Policy("fsm", kind, "chains"), known) if kind in ENCODINGS else Policy(kind, cost=(1.0, 0.5))
    graph = random_graph(7, 30, num_types=9)
    number = np.concatenate([np.arange(6), [3_000, 70_000, 150_000]]).astype(np.int32)
    types = [*graph.types[:6], *[NodeType(f"unused{k}", "unused") for k in range(150_001 - 6)]]
    for few, many in enumerate(number.tolist()):
        types[many] = graph.types[few]
    sparse = replace(graph, types=tuple(types), node_type=number[graph.node_type])

    schedule, expected = run(sparse, policy), run(graph, policy)

    assert [(number[kind], nodes) for kind, nodes in batches_of(expected)] == batches_of(schedule)
    assert (schedule.table_steps, schedule.unseen_states) == (expected.table_steps, expected.unseen_states)
    assert lower_bound(sparse) == lower_bound(graph)
    check_schedule(sparse, schedule)
