"""Equal nodes run once: the same numbers, what is equal, and results that nobody else's change touches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from bound import RandomTreeModel, Tree, net_for, poison, random_trees
from helpers import bound, model_file, require_eager
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.capture.forward.build import Capture
from edbc.run.passes import share as rule
from edbc.run.passes import shareloops
from edbc.run.passes.share import share
from edbc.run.session import Stats
from edbc.schedule.checker import check_schedule
from edbc.schedule.scheduler import lower_bound


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal nodes are shared however few there are."""
    monkeypatch.setattr(rule, "FEWEST", 1)
    monkeypatch.setattr(rule, "WORTHWHILE", 0)


def with_words(tree: Tree, count: int) -> Tree:
    """The tree with no more than `count` different words."""
    return tree % count if isinstance(tree, int) else tuple(with_words(child, count) for child in tree)


def few_words(seed: int, words: int, count: int = 5, copies: int = 2) -> list[Tree]:
    """Trees in which words repeat, some of the trees several times, in any order."""
    trees = [with_words(tree, words) for tree in random_trees(seed, count)]
    rng = random.Random(seed)
    repeated = trees + [rng.choice(trees) for _ in range(copies)]
    rng.shuffle(repeated)
    return repeated


def tensors(results: Any) -> Iterator[torch.Tensor]:
    """All of them, in order."""
    if isinstance(results, torch.Tensor):
        yield results
    else:
        for item in results.values() if isinstance(results, dict) else results:
            yield from tensors(item)


def reference_leaders(capture: Capture) -> list[int]:
    """Definitions (1) to (3), node by node: what a node computes as a nest of types and rows."""
    graph = capture.graph
    values: list[Any] = []
    for v in range(graph.num_nodes):
        read = [
            (values[u], j) if u >= 0 else (int(capture.external_source[-1 - u]), int(capture.external_index[-1 - u]))
            for u, j in graph.operands_of(v)
        ]
        detached = capture.detached is not None and bool(capture.detached[v])
        values.append((int(graph.node_type[v]), detached, tuple(read)))
    is_first = [all(u < 0 for u, _ in graph.operands_of(v)) for v in range(graph.num_nodes)]
    alone: list[bool] = []
    leaders, known = [], {}
    for v, value in enumerate(values):
        below = [alone[u] for u, _ in graph.operands_of(v) if u >= 0]
        alone.append(values.count(value) == 1 if is_first[v] else any(below))
        leaders.append(known.setdefault(value if not alone[v] else (value, v), v))
    return leaders


@settings(derandomize=True, max_examples=12)
@given(seed=st.integers(0, 10_000), words=st.integers(1, 20))
@pytest.mark.long
def test_leaders_are_what_the_definitions_say(seed: int, words: int) -> None:
    """The native loop finds the first of all equal nodes, and the graph of the leaders computes their values: it keeps
    every invariant, and each of its nodes reads the leaders of what it read."""
    trees = few_words(seed, words)
    net = net_for(RandomTreeModel(seed % 50, 4), trees)
    captured = net.mini_batch(trees)
    leaders = reference_leaders(captured)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "FEWEST", 1)
        patch.setattr(rule, "WORTHWHILE", 0)
        patch.setattr(rule, "MOST", 0)
        shared = share(captured)

    kept = sorted(set(leaders))
    assert shared.graph.lint().num_nodes == len(kept)
    number = {v: kept.index(leader) for v, leader in enumerate(leaders)}
    for v in kept:
        assert shared.graph.node_type[number[v]] == captured.graph.node_type[v]
        expected = [(number[u], j) if u >= 0 else (u, 0) for u, j in captured.graph.operands_of(v)]
        assert shared.graph.operands_of(number[v]) == expected
    of_results = [number[v] if v >= 0 else v for v in captured.result_node.tolist()]
    assert shared.result_node.tolist() == of_results
    assert lower_bound(shared.graph) == lower_bound(captured.graph)


def test_what_makes_nodes_differ() -> None:
    """Of readers of equal nodes those are equal that are of one type and read the same outputs in the same order."""
    vector = ValueClass((2,))
    first = NodeType("first", "first", (vector,), (vector, vector))
    pair = NodeType("pair", "pair", (vector, vector), (vector,))
    other = NodeType("other", "other", (vector, vector), (vector,))
    pairs = [[(0, 0), (0, 1)], [(1, 0), (1, 1)], [(1, 1), (0, 0)], [(0, 0), -1], [-1, (1, 0)], [(1, 0), -2], [-3, -1]]
    nodes: list[Any] = [
        (0, [-1]),
        (0, [-2]),
        (0, [-3]),
        (0, [-3]),
        *((1, operands) for operands in pairs),
        (2, pairs[0]),
    ]
    graph = Graph.build([first, pair, other], nodes, externals=[vector] * 3)
    source, index = np.array([4, 4, 4]), np.array([7, 7, 8])
    arrays = (graph.node_type, graph.operand_ptr, graph.operands, graph.operand_output, source, index)

    found = shareloops.find_equal_nodes(*arrays, np.zeros(0, np.bool_), 1, 0.0)
    assert (found[0].tolist(), found[1]) == ([0, 0, 2, 2, 4, 4, 6, 7, 8, 7, 10, 11], 4)
    detached = np.arange(graph.num_nodes) == 1
    assert shareloops.find_equal_nodes(*arrays, detached, 1, 0.0)[0].tolist() == [0, 1, 2, 2, *range(4, 12)]


@settings(derandomize=True, max_examples=60)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 19), dtype=st.sampled_from(["u1", "i2", "f4", "f8"]))
def test_equal_constants_are_the_first_of_them(seed: int, size: int, dtype: str) -> None:
    """Of the sources that are told of, each external is the first constant of the same bytes; others stay."""
    rng = np.random.default_rng(seed)
    tables = [rng.integers(0, 2, (rng.integers(2, 20), size)).astype(dtype) for _ in range(3)]
    tables[2][0] *= -1.0 if dtype[0] == "f" else 1  # -0.0 has other bytes than 0.0
    told = np.array([(s, t.ctypes.data, len(t), t[0].nbytes) for s, t in enumerate(tables) if s != 1], np.int64)
    source = rng.integers(0, 3, 40)
    index = np.array([rng.integers(len(tables[s])) for s in source])
    found = shareloops.first_of_equal(source, index, told)

    rows = [[row.tobytes() for row in table] for table in tables]
    expected = [i if s == 1 else rows[s].index(rows[s][i]) for s, i in zip(source, index, strict=True)]
    assert found.tolist() == expected


@pytest.mark.usefixtures("always")
@settings(derandomize=True, max_examples=6)
@given(seed=st.integers(0, 10_000), words=st.integers(1, 6), backend=st.sampled_from(["cpu", "reference"]),
       mixed=st.booleans())  # fmt: skip
def test_shared_equals_unshared_equals_eager(seed: int, words: int, backend: str, mixed: bool) -> None:
    """Float64, in memory that holds no numbers; and in another order of the instances."""
    trees = few_words(seed, words)
    model = RandomTreeModel(seed % 50, 4, mixed)
    net, unshared = net_for(model, trees, backend), net_for(model, trees, backend, share=False)
    results, prepared = net.run(trees)
    check_schedule(prepared.capture.graph, prepared.schedule)
    require_eager(net, trees, results)
    for ours, theirs in zip(tensors(results), tensors(unshared.run(trees)[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    if backend == "cpu":
        poison(net)
        assert all(map(torch.equal, tensors(net.run(trees)[0]), tensors(results)))
    order = random.Random(seed).sample(range(len(trees)), len(trees))
    permuted = net.run([trees[i] for i in order])[0]
    for ours, theirs in zip(tensors(permuted), tensors([results[i] for i in order]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("always")
@pytest.mark.long
def test_most_of_the_seeds_above_share() -> None:
    """Nodes are shared there, inner ones too."""
    shared = inner = 0
    for seed in range(8):
        trees = few_words(seed, 3)
        prepared = net_for(RandomTreeModel(seed, 4), trees).prepare(trees)
        shared += prepared.shared_nodes > 0
        inner += prepared.shared_nodes > sum(str(trees).count(str(word)) for word in range(3))

    assert shared == 8
    assert inner > 2


@pytest.mark.parametrize("front_end", ["record", "vertex"])
def test_copies_of_an_instance_run_as_one(front_end: str) -> None:
    """A mini-batch of 32 copies executes the graph of one; their results are equal, each in memory of its own."""
    file = model_file("tree_lstm")
    torch.manual_seed(0)
    (instance,) = file.sample(1, 4)
    net = bound(file.build(hidden_size=16).eval(), [instance])
    if front_end == "vertex":
        instance = file.vertex_instance(instance)
    one, many = net.prepare([instance], without=("share",)), net.prepare([instance] * 32)
    assert many.capture.graph.num_nodes == one.capture.graph.num_nodes
    assert many.shared_nodes == 31 * one.capture.graph.num_nodes
    assert many.schedule.num_batches == one.schedule.num_batches

    results = net.run([instance] * 32)[0]
    before = [[t.clone() for t in tensors(result)] for result in results]
    for number, result in enumerate(results):
        for tensor in tensors(result):
            tensor.fill_(torch.nan)
        for later, untouched in zip(results[number + 1 :], before[number + 1 :], strict=True):
            assert all(map(torch.equal, tensors(later), untouched))


def test_counts_are_those_of_what_was_captured() -> None:
    """Nodes, batches and lower bound of a report do not depend on sharing, which has a count of its own."""
    file = model_file("tree_lstm")
    torch.manual_seed(0)
    instances = list(file.sample(24, 4, vocab_size=9))
    model = file.build(hidden_size=8, vocab_size=9).eval()
    found = []
    for shares in (True, False):
        bound(model, instances, share=shares).run(instances, stats := Stats())
        found.append(stats)

    on, off = found
    assert (on.nodes, on.lower_bound) == (off.nodes, off.lower_bound)
    assert on.shared_nodes > on.nodes / 4
    assert off.shared_nodes == 0


@pytest.mark.parametrize(("words", "copies"), [(20, 0), (1, 0), (20, 9)])
def test_where_little_is_equal_nothing_changes(words: int, copies: int) -> None:
    """Below the rule's limits what was captured executes as it is; copies of instances are found by it all the same."""
    trees = [((1, 2), 3 + i, (4, 3 + i)) if words > 1 else ((1, 1), 1) for i in range(1 + copies // 9)]
    trees += [trees[0]] * copies
    net = net_for(RandomTreeModel(1, 4), trees)
    captured = net.mini_batch(trees)
    shared = net.shared(captured)

    assert (shared is captured) == (copies == 0)
    assert net_for(RandomTreeModel(1, 4), trees, share=False).shared(captured) is captured


@pytest.mark.usefixtures("always")
def test_two_runs_give_the_same_bits_and_steps_may_stop() -> None:
    """The mini-batch in one go, again, and batch by batch."""
    trees = few_words(3, 3)
    net = net_for(RandomTreeModel(3, 4).float(), trees)
    first, prepared = net.run(trees)
    assert all(map(torch.equal, tensors(net.run(trees)[0]), tensors(first)))
    seen: list[int] = []
    assert all(map(torch.equal, tensors(net.run(trees, on_batch=lambda _, b: seen.append(b))[0]), tensors(first)))
    assert seen == list(range(prepared.schedule.num_batches))
    with net.executing(prepared) as execution:
        for batch in range(prepared.schedule.num_batches):
            execution.run(until=batch + 1)
        assert all(map(torch.equal, tensors(execution.results()), tensors(first)))
