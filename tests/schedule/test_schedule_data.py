"""Policies on real mini-batches: the published baselines' figures, and how near to the best known ours come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from budget import budget
from helpers import imported

from edbc.base.graph import Graph
from edbc.schedule.checker import check_schedule
from edbc.schedule.learn.search import beam
from edbc.schedule.learn.train import TrainingResult, train
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import lower_bound, run

Batch = Callable[[str, int, int], Graph]


@pytest.fixture(scope="module")
def batch(data_dir: Path, repository: Path) -> Batch:
    """Mini-batch `number` of a workload at a size, by the benchmarks' readers."""
    path = repository / "benchmarks" / "_graphs.py"
    readers = imported(path, "edbc_benchmark_graphs", sys.modules.__setitem__)
    workloads = readers.workloads(data_dir)
    return lambda name, size, number: workloads[name].batch(size, number)


@pytest.fixture(scope="module")
def learned(batch: Batch) -> Callable[[str], TrainingResult]:
    """A table over ranked types from 8 mini-batches of 32 (from 1 where nothing is compiled), per workload."""
    results: dict[str, TrainingResult] = {}

    def of(name: str) -> TrainingResult:
        if name not in results:
            validation = [batch(name, 8, 33), batch(name, 64, 5), batch(name, 256, 1)][: budget(3, 1)]
            training = [batch(name, 32, i) for i in range(budget(8, 1))]
            results[name] = train(training, encoding="rank", validation=validation)
        return results[name]

    return of


@pytest.mark.parametrize(
    ("name", "size", "nodes", "bound", "depth", "agenda", "sufficient"),
    [
        ("lattice by arity", 1, 35, 22, 35, 28, 22),
        ("lattice by arity", 8, 1093, 145, 415, 279, 201),
        ("lattice by arity", 32, 4638, 215, 635, 510, 307),
        ("lattice by arity", 64, 7955, 215, 655, 510, 311),
        ("lattice by arity", 256, 30411, 252, 861, 638, 403),
        ("lattice one sum", 32, 4638, 208, 584, 433, 255),
        ("lattice one sum", 64, 7955, 208, 584, 423, 275),
        ("tree", 1, 142, 19, 36, 27, 19),
        ("tree", 32, 2396, 19, 36, 28, 19),
        ("tree", 256, 20560, 26, 50, 39, 26),
        ("tree 2type", 8, 828, 20, 47, 35, 26),
        ("tree 2type", 32, 2396, 20, 49, 36, 27),
        ("tree 2type", 256, 20560, 32, 69, 55, 42),
    ],
)
def test_baselines_need_their_known_numbers(
    batch: Batch, name: str, size: int, nodes: int, bound: int, depth: int, agenda: int, sufficient: int
) -> None:
    """Nodes, bound and the published heuristics agree with figures that other implementations gave."""
    graph = batch(name, size, 0)
    counts = [run(graph, Policy(kind)).num_batches for kind in ("depth", "agenda", "sufficient")]

    assert (graph.num_nodes, lower_bound(graph), counts) == (nodes, bound, [depth, agenda, sufficient])


@pytest.mark.parametrize("name", ["tree", "tagger", "tagger char", "nmt"])
@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.long
def test_trees_chains_and_translation_reach_the_bound(batch: Batch, learned, name: str, size: int) -> None:
    """The critical rule and the learned table are optimal on every mini-batch."""
    for number in range(3):
        graph = batch(name, size, 512 // size + number)
        for policy in (Policy("critical"), learned(name).policy):
            schedule = run(graph, policy)

            check_schedule(graph, schedule)
            assert schedule.num_batches == lower_bound(graph)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("name", "to_beam", "to_sufficient"),
    [("lattice by arity", 1.05, 0.88), ("lattice one sum", 1.03, 0.92), ("tree 2type", 1.05, 0.92)],
)
def test_learned_tables_come_near_the_beam(
    batch: Batch, learned, name: str, to_beam: float, to_sufficient: float
) -> None:
    """Over 8 unseen mini-batches: near a width-64 beam, well below the sufficient condition, few unseen states."""
    graphs = [batch(name, 32, 16 + i) for i in range(8)]
    schedules = [run(graph, learned(name).policy) for graph in graphs]
    batches = [schedule.num_batches for schedule in schedules]
    best = [beam(graph).num_batches for graph in graphs]

    assert sum(batches) <= to_beam * sum(best)
    assert sum(batches) <= to_sufficient * sum(run(graph, Policy("sufficient")).num_batches for graph in graphs)
    assert all(count <= max(1.12 * least, least + 1) for count, least in zip(batches, best, strict=True))
    assert sum(schedule.unseen_states for schedule in schedules) <= 0.01 * sum(batches)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["lattice by arity", "lattice one sum"])
def test_learning_beats_the_rule_that_it_starts_from(batch: Batch, learned, name: str) -> None:
    """Over unseen lattices the table alone needs fewer batches than its own fallback rule used throughout."""
    graphs = [batch(name, 32, 16 + i) for i in range(16)]
    policies = learned(name).policy, Policy("critical")
    table, rule = (sum(run(graph, policy, compare=False).num_batches for graph in graphs) for policy in policies)

    assert table < rule
