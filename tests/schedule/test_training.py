"""Q-learning: its update by hand, determinism, and what the learned policies are worth."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import yaml
from budget import budget
from definitions import ReferenceFrontier
from strategies import chain_graph, random_lattice_graph, random_tree_graph, swapped_trees_graph

from edbc.base.graph import Graph
from edbc.schedule.analysis import analyse
from edbc.schedule.checker import check_schedule
from edbc.schedule.engine import new_frontier
from edbc.schedule.learn.qlearn import Memory, Settings, learn, new_memory
from edbc.schedule.learn.search import exact
from edbc.schedule.learn.train import (
    BASELINES,
    UNSEEN_LIMIT,
    Hyper,
    affordable,
    beside_where_it_pays,
    second_walks,
    select,
    total,
    train,
    unseen_share,
)
from edbc.schedule.policy import ENCODINGS, Policy, State
from edbc.schedule.scheduler import lower_bound, run, total_cost

LATTICES = [random_lattice_graph(seed, 16, 4) for seed in range(3)]
UNSEEN = [random_lattice_graph(seed, 16, 4) for seed in range(10, 13)]


def learned_values(graph: Graph, trials: int, **settings: float) -> dict[State, list[float]]:
    """Q over E_base after some greedy trials."""
    dag = analyse(graph.node_type, graph.operand_ptr, graph.operands, graph.num_types, True, True, True)
    memory: Memory = new_memory(graph.num_types, 256)
    chosen = {"exploration": 0.0, "rate": 0.5, "n": 1, "alpha": 0.0, "prior": 0.0, "potential": 0.0} | settings
    ran = learn(
        dag,
        new_frontier(dag),
        memory,
        Settings(
            0,
            chosen["exploration"],
            chosen["rate"],
            int(chosen["n"]),
            chosen["alpha"],
            chosen["prior"],
            chosen["potential"],
        ),
        np.ones(graph.num_types),
        trials,
        np.array([0], np.int64),
    )
    assert ran == trials
    table = memory.table
    return {
        tuple(table.words[row, : table.num_words[row]].tolist()): memory.q[row].tolist() for row in range(table.used[0])
    }


CHAIN = chain_graph(["abc"])
NOT_READY = float("-inf")


def test_one_step_updates_by_hand() -> None:
    """Three states in a chain, rate 1/2: values are negative and bootstrap from the next state's maximum."""
    once, twice = learned_values(CHAIN, 1), learned_values(CHAIN, 2)

    assert once == {
        (0,): [-0.5, NOT_READY, NOT_READY],  # 1/2 x (-1 + 0)
        (1,): [NOT_READY, -0.5, NOT_READY],
        (2,): [NOT_READY, NOT_READY, -0.5],
    }
    assert twice == {
        (0,): [-0.5 + 0.5 * (-1 - 0.5 + 0.5), NOT_READY, NOT_READY],  # the target holds the next state's -0.5
        (1,): [NOT_READY, -0.5 + 0.5 * (-1 - 0.5 + 0.5), NOT_READY],
        (2,): [NOT_READY, NOT_READY, -0.5 + 0.5 * (-1 + 0.5)],
    }


def test_n_step_updates_by_hand() -> None:
    """With n = 2 the first state's target is two rewards and the maximum of the third state."""
    values = learned_values(CHAIN, 1, n=2)

    assert [max(values[(a,)]) for a in range(3)] == [0.5 * (-2 + 0), 0.5 * -2, 0.5 * -1]


def test_reward_has_the_second_term_of_equation_1() -> None:
    """alpha adds |Frontier_a(G)| / |Frontier(G^a)|: at the start one of two b, then all."""
    graph = chain_graph(["ab", "b"])
    values = learned_values(graph, 1, alpha=0.5)

    assert values[(0, 1)][0] == 0.5 * (-1 + 0.5)
    assert values[(1,)][1] == 0.5 * (-1 + 0.5)
    assert values[(0, 1)][1] == 0.0


def test_the_potential_makes_productive_batches_free() -> None:
    """Along a chain every batch is productive, so with the potential no batch costs anything."""
    values = learned_values(CHAIN, 3, potential=1.0)

    assert [max(values[(a,)]) for a in range(3)] == [0.0, 0.0, 0.0]


def test_trees_reach_the_lower_bound() -> None:
    """Every encoding learns trees to the bound, and keeps it on trees that it has not seen."""
    graphs = [random_tree_graph(seed, 20, 8) for seed in range(4)]
    unseen = [random_tree_graph(seed, 30, 16) for seed in range(20, 24)]
    for encoding in ("base", "sort", "critical", "rank"):
        result = train(graphs, encoding=encoding, trials=200)

        assert result.record["batches"] == result.record["lower_bound"]
        assert [run(g, result.policy).num_batches for g in unseen] == [lower_bound(g) for g in unseen]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_training_is_deterministic(encoding: str) -> None:
    """Equal arguments give equal tables and records; another seed explores otherwise."""
    first, second = (
        train(LATTICES, encoding=encoding, seed=3, trials=budget(150, 20), validation=UNSEEN) for _ in range(2)
    )

    assert first == second
    assert list(first.policy.table.items()) == list(second.policy.table.items())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_records_are_plain_and_true(encoding: str) -> None:
    """A record survives YAML, and its figures are what running the policy gives."""
    result = train(LATTICES, encoding=encoding, trials=budget(100, 20), validation=UNSEEN)
    record = result.record

    assert yaml.safe_load(yaml.safe_dump(dict(record))) == record
    assert record["batches"] == sum(run(g, result.policy).num_batches for g in LATTICES)
    assert record["lower_bound"] == sum(lower_bound(g) for g in LATTICES)
    assert record["baselines"] == {k: sum(run(g, Policy(k)).num_batches for g in LATTICES) for k in BASELINES}


def test_tables_hold_reached_states_only() -> None:
    """Every state of the table is met on a training or validation graph, and none is unseen there."""
    policy = train(LATTICES, encoding="critical", trials=budget(100, 20), validation=UNSEEN).policy
    met = set()
    for graph in (*LATTICES, *UNSEEN):
        slow = ReferenceFrontier(graph)
        while len(slow.executed) < graph.num_nodes:
            state = slow.encode("critical")
            met.add(state)
            slow.executed |= set(slow.ready(policy.table[state]))

    assert met == set(policy.table)


def test_progress_is_reported_every_50_trials() -> None:
    """The callback sees trials, the best batches so far, never more than before, and the bound."""
    seen: list[tuple[int, int, int]] = []
    result = train(LATTICES, encoding="sort", trials=120, progress=lambda *args: seen.append(args))

    assert [trials for trials, _, _ in seen] == [50, 100, 120]
    assert [best for _, best, _ in seen] == sorted((best for _, best, _ in seen), reverse=True)
    assert all(bound == result.record["lower_bound"] for _, _, bound in seen)


def test_a_baseline_is_chosen_where_nothing_that_competes_is_as_good() -> None:
    """Without tables, and where the agenda beats every rule that competes, the agenda is chosen."""
    draw, nodes = random.Random(20), []
    for start in (draw.randrange(6) for _ in range(6)):
        for step in range(10):
            kind = f"t{(start + step // 2) % 7}" if step % 2 == 0 else "add"
            nodes.append((kind, [len(nodes) - 1] if step else []))
    graph = Graph.build(["add", *(f"t{i}" for i in range(7))], nodes)
    result = select([graph], encodings=("base",), trials=100, time_limit=0.0)

    assert result.record["batches"] == min(result.record["baselines"].values())
    assert result.policy.kind == "agenda"


def test_training_stops_at_the_bound() -> None:
    """A chain is solved by the first table; no further trials are run."""
    assert train([CHAIN], encoding="base", trials=1000).record["trials"] == 50


def test_selection_never_loses_to_a_heuristic() -> None:
    """On the training graphs, the selected policy needs no more batches than the best baseline."""
    result = select(LATTICES, UNSEEN, seeds=(0, 1), trials=budget(150, 10))
    compared = result.record["compared"]

    assert result.record["batches"] <= min(result.record["baselines"].values())
    assert {entry["encoding"] for entry in compared} >= {*ENCODINGS, "chains"}
    limit = min(result.record["baselines"].values())
    allowed = [e for e in compared if e["training"] <= limit and e["unseen"] <= UNSEEN_LIMIT]
    chosen = [run(g, result.policy).num_batches for g in UNSEEN]
    assert chosen in [e["validation"] for e in allowed]
    assert all(sum(chosen) <= sum(e["validation"]) for e in allowed if e["kind"] != "fsm")


def test_schedules_of_learned_policies_are_legal() -> None:
    """Every encoding's policy gives schedules that the checker accepts, on graphs that it has not seen."""
    for encoding in ENCODINGS:
        policy = train(LATTICES, encoding=encoding, trials=budget(100, 10)).policy
        for graph in UNSEEN:
            check_schedule(graph, run(graph, policy))


def tables_over_base(graph: Graph) -> list[dict[State, int]]:
    """Every table over E_base that differs on a state where there is a choice."""
    types = range(graph.num_types)
    states = [s for size in types for s in itertools.combinations(types, size + 1)]
    return [dict(zip(states, actions, strict=True)) for actions in itertools.product(*states)]


def test_no_base_table_solves_swapped_trees() -> None:
    """Appendix A.4: of all tables over E_base none is optimal on two trees with swapped types in sequence."""
    graph = swapped_trees_graph(3)
    best = exact(graph).num_batches
    reachable = {(0,), (1,), (2,), (3,), (1, 2)}
    tables = {
        tuple(sorted((s, a) for s, a in table.items() if s in reachable)): table for table in tables_over_base(graph)
    }
    schedules = [run(graph, Policy("fsm", "base", "chains", table)) for table in tables.values()]

    assert all(schedule.unseen_states == 0 for schedule in schedules)
    assert min(schedule.num_batches for schedule in schedules) > best == lower_bound(graph)


@pytest.mark.parametrize("encoding", ["phase", "critical", "rank"])
def test_phase_and_critical_bits_solve_swapped_trees(encoding: str) -> None:
    """The same example is learned to the optimum with the phase (the paper's remedy) and with chain bits."""
    graph = swapped_trees_graph(4)
    result = train([graph], encoding=encoding, trials=300, hyper=Hyper(prior=0.0))

    assert run(graph, result.policy).num_batches == exact(graph).num_batches
    assert run(graph, result.policy).unseen_states == 0


def test_costs_change_the_schedule() -> None:
    """abab and baba: 5 batches however chosen, but which letter runs three times follows the costs."""
    graph = chain_graph(["abab", "baba"])
    dear_a = train([graph], encoding="sort", trials=400, cost=[10.0, 1.0], hyper=Hyper(exploration=0.3))
    dear_b = train([graph], encoding="sort", trials=400, cost=[1.0, 10.0], hyper=Hyper(exploration=0.3))
    count_a, count_b = (np.bincount(run(graph, r.policy).batch_type).tolist() for r in (dear_a, dear_b))

    assert count_a == [2, 3]
    assert count_b == [3, 2]
    assert dear_a.record["cost"] == dear_b.record["cost"] == 23.0


def test_total_cost_counts_what_it_has_no_cost_for() -> None:
    """Without costs a schedule costs its number of batches; past the end of the costs a batch costs 1."""
    kinds = np.array([0, 1, 0, 1, 2], np.int32)

    assert total_cost(kinds, ()) == 5.0
    assert total_cost(kinds, [2.0, 0.5]) == 6.0


def cheaper_when_longer() -> tuple[list[Graph], tuple[float, ...]]:
    """Lattices whose sums are nearly free: fewer cells are worth more sums."""
    graphs = [random_lattice_graph(seed, 24, 8) for seed in range(20, 26)]
    return graphs, tuple(0.02 if t.name.startswith("sum") else 1.0 for t in graphs[0].types)


def test_costs_buy_dear_batches_with_cheap_ones() -> None:
    """On unseen lattices with nearly free sums, what was selected by cost runs fewer cells and more batches than what
    was selected by count, and costs less."""
    unseen, cost = cheaper_when_longer()
    policies = [select(LATTICES, UNSEEN, seeds=(0,), trials=budget(150, 50), cost=c).policy for c in ((), cost)]
    by_count, by_cost = (np.concatenate([run(g, policy).batch_type for g in unseen]) for policy in policies)
    is_cell = np.array(cost) == 1.0

    assert is_cell[by_cost].sum() < is_cell[by_count].sum()
    assert len(by_cost) > len(by_count)
    assert total_cost(by_cost, cost) < total_cost(by_count, cost)


def test_policies_keep_the_costs_that_they_were_trained_with() -> None:
    """Costs are part of the policy and of what training compares, and of the record."""
    _, cost = cheaper_when_longer()
    result = train(LATTICES, encoding="rank", trials=budget(100, 20), cost=cost)

    assert result.policy.cost == cost
    assert result.record["cost"] == round(total(result.policy, LATTICES), 6)
    assert total(result.policy, LATTICES) <= total(Policy("critical", cost=cost), LATTICES)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("cost", [(), (1.0, 0.3, 0.1)], ids=["counted", "weighed"])
def test_no_table_loses_to_a_baseline_on_its_training_graphs(encoding: str, cost: tuple[float, ...]) -> None:
    """Trained too little to be any good, a table has the best baseline beside it, and costs no more in sum."""
    policy = train(LATTICES, encoding=encoding, trials=1, cost=cost, hyper=Hyper(prior=-1.0, refinements=0)).policy

    assert total(policy, LATTICES) <= min(total(Policy(kind, cost=cost), LATTICES) for kind in BASELINES)
    assert policy.beside in BASELINES


@pytest.mark.parametrize("per_node", [0.0, 1e-4, 1.0])
def test_a_rule_runs_beside_a_table_where_it_saves_more_than_its_walks(
    per_node: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price is per node of the graphs on which the table is above the bound; there is none at the bound, where
    nobody simulates the rule, nor for an encoding without a rule of its own."""
    monkeypatch.setattr("edbc.schedule.learn.train.SECOND_WALK", per_node)
    poor = train(LATTICES, encoding="rank", trials=1, hyper=Hyper(prior=-1.0, refinements=0)).policy
    alone = replace(poor, beside=None)
    beside = replace(poor, beside="critical")
    above = sum(g.num_nodes for g in LATTICES if run(g, alone).num_batches > lower_bound(g))
    saved = total(alone, LATTICES) - total(beside, LATTICES)
    at_bound = [chain_graph(["ab"]), chain_graph(["abc"])]

    assert 1e-4 * above < saved < above
    assert beside_where_it_pays(alone, LATTICES).beside == ("critical" if per_node < 1.0 else None)
    assert second_walks(beside, LATTICES) == pytest.approx(per_node * above)
    assert second_walks(beside, at_bound) == second_walks(alone, LATTICES) == 0.0
    assert beside_where_it_pays(Policy("fsm", "sort", "chains"), LATTICES).beside is None


def test_unseen_share_is_what_the_other_graphs_do_not_show() -> None:
    """A graph that has a twin among the others has no unseen state, one of another kind has nothing else."""
    empty = Policy("fsm", "base", "critical")
    twins, stranger = [chain_graph(["ab"]), chain_graph(["ab"])], chain_graph(["ab", "ba"])

    assert unseen_share(empty, twins) == 0.0
    assert unseen_share(empty, [twins[0]]) == 1.0
    assert unseen_share(empty, []) == 0.0
    assert 0.0 < unseen_share(empty, [*twins, stranger]) < 1.0


def test_memory_grows_without_losing_values() -> None:
    """A table that starts with too little room ends equal to one that had enough."""
    graph = LATTICES[0]
    dag = analyse(graph.node_type, graph.operand_ptr, graph.operands, graph.num_types, True, True, True)
    small, large = new_memory(graph.num_types, 4), new_memory(graph.num_types, 4096)
    settings = Settings(2, 0.2, 0.1, 5, 0.2, 0.5, 1.0)
    arguments = (settings, np.ones(graph.num_types), 10, np.array([1], np.int64))

    assert learn(dag, new_frontier(dag), small, *arguments) == 0
    assert learn(dag, new_frontier(dag), large, *arguments) == 10


def many_types(num_types: int, num_nodes: int, unused: int = 0) -> Graph:
    """A DAG over many types at random, with some types that no node has."""
    rng = random.Random(num_types)
    names = [f"t{i}" for i in range(num_types)]
    operands = [
        [rng.randrange(max(0, v - 60), v) for _ in range(rng.randrange(3) if v else 0)] for v in range(num_nodes)
    ]
    return Graph.build([*names, *(f"u{i}" for i in range(unused))], [(rng.choice(names), of) for of in operands])


@pytest.mark.parametrize("kind", ["critical", "chains", "sufficient"])
def test_many_types_are_scheduled_as_few_are(kind: str) -> None:
    """From MANY types on only ready ones are described: types that no node has change no schedule."""
    few, many = (run(many_types(50, 500, unused), Policy(kind)) for unused in (0, 30))

    assert np.array_equal(few.batch_type, many.batch_type)


def test_work_bounds_trials() -> None:
    """Trials fall with the work of one, to none where a round is too dear; a small graph gets all of them."""
    small, middle, large = many_types(5, 300), many_types(40, 800), many_types(300, 2000)

    assert affordable([small], 12, 1000) == 1000
    assert 50 <= affordable([middle], 12, 5000) < 5000
    assert affordable([large], 12, 1000) == 0
    assert affordable([middle], 1, 5000) >= affordable([middle], 12, 5000)


def test_where_rules_compete_alone_their_walks_count() -> None:
    """Of two that need as many batches the one that reads no chains is taken, another where it saves more batches."""
    layers = [(f"t{v // 10}", [v - 10, v - v % 10 - 1] if v >= 10 else []) for v in range(600)]
    flat, deep = Graph.build([f"t{i}" for i in range(60)], layers), many_types(100, 800)

    assert run(flat, Policy("agenda")).num_batches == run(flat, Policy("chains")).num_batches == 60
    assert select([flat], encodings=()).policy.kind == "agenda"
    assert select([deep], [deep], encodings=()).policy.kind == "chains"


def test_the_clock_leaves_fixed_rules_and_says_so() -> None:
    """A time limit that passes at once leaves the fixed rules, recorded; without one nothing is recorded."""
    graph = random_lattice_graph(0)
    cut = select([graph], seeds=(0,), encodings=("base",), trials=100, time_limit=0.0)
    whole = select([graph], seeds=(0,), encodings=("base",), trials=100, time_limit=1e6)

    assert cut.policy.kind != "fsm"
    assert cut.record["time_limit"] == 0.0
    assert "time_limit" not in whole.record
    assert whole == select([graph], seeds=(0,), encodings=("base",), trials=100)
