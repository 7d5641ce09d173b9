"""Dealing mini-batches to ranks by cost, and the batch sampler that does."""

from __future__ import annotations

from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
from helpers import bound
from hypothesis import given
from hypothesis import strategies as st
from small import fresh, sequences

from edbc.errors import EdbcError
from edbc.reach import NodeBalancedSampler, costs_of
from edbc.reach.sampler import deal

COSTS = st.lists(st.integers(0, 1000), max_size=40)


@given(COSTS, st.integers(1, 9))
def test_a_deal_gives_every_instance_once_and_equal_numbers(costs: list[int], ranks: int) -> None:
    """Every position once, and hands of n // W or one more, the first ranks first."""
    hands = deal(costs, ranks)

    assert sorted(position for hand in hands for position in hand) == list(range(len(costs)))
    assert [len(hand) for hand in hands] == [len(costs) // ranks + (r < len(costs) % ranks) for r in range(ranks)]


@given(st.lists(st.integers(1, 50), min_size=4, max_size=10).filter(lambda c: len(c) % 2 == 0))
def test_two_hands_are_near_the_best(costs: list[int]) -> None:
    """Against all deals to two ranks: no exchange of two instances is left that would help, and at most 7/6 of the best
    (the bound of two-machine longest-processing-time scheduling)."""
    best = min(max(sum(hand), sum(costs) - sum(hand)) for hand in combinations(costs, len(costs) // 2))

    assert max(sum(costs[i] for i in hand) for hand in deal(costs, 2)) <= 7 / 6 * best + 1e-9


@pytest.mark.parametrize(("ranks", "size", "drawn"), [(8, 32, 1.12), (8, 8, 1.25)])
def test_treebank_ranks_are_balanced(ranks: int, size: int, drawn: float, data_dir: Path) -> None:
    """Real trees: the slowest of 8 ranks has 1.12 (1.25) times the mean when drawn, at most 1.01 when dealt."""
    lines = (data_dir / "sst_trees" / "train-first4000.txt").read_text().splitlines()
    costs = np.array([2 * (4 * (line.count("(") + 1) // 2 - 1) // 2 for line in lines], float)
    samplers = [
        NodeBalancedSampler(costs, size, num_replicas=ranks, rank=rank, drop_last=True) for rank in range(ranks)
    ]
    dealt, at_random = [], []
    for hands in zip(*samplers, strict=True):
        sums = [costs[hand].sum() for hand in hands]
        dealt.append(max(sums) / np.mean(sums))
        union = np.random.default_rng(len(dealt)).permutation(np.concatenate(hands))
        of_random = costs[union].reshape(ranks, size).sum(axis=1)
        at_random.append(of_random.max() / of_random.mean())

    assert np.mean(dealt) <= 1.01
    assert np.mean(at_random) == pytest.approx(drawn, abs=0.03)


def epoch_of(ranks: int, epoch: int = 0, done: int = 0, **options: bool) -> list[list[int]]:
    """The global mini-batches of an epoch over 23 items, 3 per rank."""
    samplers = [NodeBalancedSampler(list(range(23)), 3, num_replicas=ranks, rank=r, **options) for r in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch, done)
    return [list(chain.from_iterable(hands)) for hands in zip(*samplers, strict=True)]


def test_an_epoch_has_every_item_and_another_epoch_another_order() -> None:
    """The last mini-batch is filled up from the first, or left out."""
    batches = epoch_of(2)

    assert [len(batch) for batch in batches] == [6, 6, 6, 6]
    assert set(chain.from_iterable(batches)) == set(range(23))
    assert epoch_of(2) == batches
    assert epoch_of(2, 1) != batches
    assert [len(batch) for batch in epoch_of(2, drop_last=True)] == [6, 6, 6]
    assert set(epoch_of(2, shuffle=False)[0]) == set(range(6))


def test_an_epoch_goes_on_where_it_stopped() -> None:
    """After `set_epoch(1, done=2)` come the mini-batches that were left, and the next epoch is whole."""
    assert epoch_of(2, 1, done=2) == epoch_of(2, 1)[2:]
    sampler = NodeBalancedSampler(list(range(23)), 3, num_replicas=2, rank=0)
    sampler.set_epoch(1, done=2)
    assert len(list(sampler)) == 2
    assert len(list(sampler)) == 4


def test_costs_are_nodes_or_the_plans_times() -> None:
    """Nodes are those of the instance's graph; without a cost table, times are refused."""
    net = bound(fresh(), sequences(10))

    assert costs_of(net, sequences(10)) == [net.capture(x).num_nodes for x in sequences(10)]
    assert costs_of(net, net.capture_all(sequences(3))) == costs_of(net, sequences(3))
    with pytest.raises(EdbcError, match="by='time': expected a plan with a cost table"):
        costs_of(net, sequences(1), by="time")


def test_times_are_the_rows_of_the_plans_table() -> None:
    """Microseconds per row of each node's type, added up."""
    from dataclasses import replace

    from edbc.plan.plan import BatchCost
    from edbc.run.session import Net

    net = bound(fresh(), sequences(10))
    table = {t.name: BatchCost(100, 1 + i) for i, t in enumerate(net.plan.types)}
    net = Net(replace(net.plan, costs=table), net.model)
    (capture,) = [net.prepare(sequences(1), without=("parts", "share")).whole[0]]
    by_hand = sum(
        table[t.name].row_us * c for t, c in zip(capture.graph.types, capture.graph.counts(), strict=True) if c
    )

    assert costs_of(net, sequences(1), by="time") == [by_hand]


@pytest.mark.parametrize(("costs", "options"), [([1.0, float("nan")], {}), ([-1.0], {}), ([1.0], {"rank": 2})])
def test_nonsense_is_refused(costs: list[float], options: dict[str, int]) -> None:
    """Costs that are no finite numbers from 0 on, and a rank that is not there."""
    with pytest.raises(EdbcError, match="expected"):
        NodeBalancedSampler(costs, 1, **{"num_replicas": 2, "rank": 0, **options})
