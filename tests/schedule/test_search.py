"""Beam and exact search: oracles for policies, checked against each other and against supersequences."""

from __future__ import annotations

from functools import cache

import pytest
from definitions import ReferenceFrontier
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import chain_graph, graphs, random_graph, random_lattice_graph, random_tree_graph

from edbc.base.graph import Graph
from edbc.errors import ScheduleError
from edbc.schedule.checker import check_schedule
from edbc.schedule.learn.search import beam, exact, follow_sequence, proven_bound
from edbc.schedule.policy import RULES, Policy
from edbc.schedule.scheduler import lower_bound, run

QUICK = settings(max_examples=40, deadline=None, derandomize=True)


def shortest_supersequence(strings: tuple[str, ...]) -> int:
    """Length of a shortest common supersequence, by dynamic programming over the strings' suffixes."""

    @cache
    def rest(suffixes: tuple[str, ...]) -> int:
        letters = {suffix[0] for suffix in suffixes if suffix}
        return min((1 + rest(tuple(s[1:] if s[:1] == a else s for s in suffixes)) for a in letters), default=0)

    return rest(strings)


def shortest_schedule(graph: Graph) -> int:
    """Fewest batches by trying every sequence of ready types, without any bound or shortcut."""
    slow = ReferenceFrontier(graph)

    @cache
    def rest(executed: frozenset[int]) -> int:
        slow.executed = set(executed)
        batches = [executed | set(slow.ready(a)) for a in slow.ready_types()]
        return min((1 + rest(after) for after in batches), default=0)

    return rest(frozenset())


@QUICK
@given(strings=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3))
def test_exact_solves_supersequences(strings: list[str]) -> None:
    """One chain per string: the fewest batches are a shortest common supersequence (ED-Batch, A.1)."""
    graph = chain_graph(strings)
    schedule = exact(graph)

    check_schedule(graph, schedule)
    assert schedule.num_batches == shortest_supersequence(tuple(strings))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_exact_equals_exhaustive_search(seed: int) -> None:
    """Neither the heuristic nor Lemma 2.1's shortcut loses a shorter schedule."""
    graph = random_graph(seed, 12, 3)

    assert exact(graph).num_batches == shortest_schedule(graph)


@QUICK
@given(graph=graphs(40))
def test_bounds_optimum_and_heuristics_are_in_order(graph: Graph) -> None:
    """lower bound <= proven bound <= optimum <= beam and every rule."""
    best = exact(graph).num_batches
    wide = beam(graph, 32)

    check_schedule(graph, wide)
    assert lower_bound(graph) <= proven_bound(graph, 3) <= best <= wide.num_batches
    assert all(best <= run(graph, Policy(rule)).num_batches for rule in RULES)


def test_beam_is_optimal_on_small_graphs() -> None:
    """Width 64 finds a best schedule of every one of 60 lattices and trees of some 40 nodes."""
    small = [random_lattice_graph(seed, 8) for seed in range(30)]
    small += [random_tree_graph(seed, 10, 2, ("i", "k")) for seed in range(30)]

    assert [beam(graph).num_batches for graph in small] == [exact(graph).num_batches for graph in small]


def test_a_proven_bound_can_exceed_equation_2() -> None:
    """Two chains ab and ba need three batches; Eq. 2 says two."""
    graph = chain_graph(["ab", "ba"])

    assert lower_bound(graph) == 2
    assert proven_bound(graph, 10) == 3 == exact(graph).num_batches


def test_exact_says_when_its_budget_is_too_small() -> None:
    """The error names the budget and the bound that was reached."""
    with pytest.raises(ScheduleError, match="expected to finish within 2 states, got as far as a bound of"):
        exact(chain_graph(["abcabc", "cbacba", "bcabca"]), budget=2)


def test_following_an_incomplete_sequence_is_an_error() -> None:
    """A sequence that leaves nodes unexecuted is refused."""
    with pytest.raises(ScheduleError, match="expected to run 2 nodes, ran 1"):
        follow_sequence(chain_graph(["ab"]), [0])


def test_search_is_deterministic() -> None:
    """Two beams give the same sequence."""
    graph = random_lattice_graph(11, 20, 4)

    assert beam(graph, 16).batch_type.tolist() == beam(graph, 16).batch_type.tolist()


def test_empty_graphs_need_no_batch() -> None:
    """Searching nothing finds nothing."""
    empty = Graph.build(["a"], [])

    assert beam(empty).num_batches == exact(empty).num_batches == proven_bound(empty) == 0
