"""Mined patterns against eager: what is fused computes what was not, whichever way instances come."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from gradients import require_equal_gradients, tensors
from helpers import bound, require_eager, seeded
from random_models import CODE, RandomModel
from torch import nn

from edbc.base.graph import Graph
from edbc.errors import PlanError, UnsupportedError
from edbc.plan.reader import parse_plan
from edbc.plan.writer import plan_text
from edbc.run.session import Net, Stats
from edbc.schedule.policy import Policy
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import run
from edbc.tools.compile import mining
from edbc.tools.compile.compiler import compile_model
from edbc.tools.compile.modelobject import ModelObject

SIZE = 6
Tree = Any


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair pays."""
    monkeypatch.setattr(mining, "NODE_US", 1e3)
    monkeypatch.setattr(mining, "FEWEST", 2)
    monkeypatch.setattr(mining, "MOST_TRIED", 32)


class Operations(nn.Module):
    """A tree of operations that no code shows: functions are looked up in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, SIZE)
        self.x, self.h, self.out = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 3)
        self.functions = [torch.tanh, torch.sigmoid, torch.mul]

    def visit(self, tree: Tree) -> torch.Tensor:
        tanh, sigmoid, mul = self.functions
        x = self.words.weight[tree[0]]
        if len(tree) == 1:
            return tanh(self.x(x))
        left, right = self.visit(tree[1]), self.visit(tree[2])
        gate = sigmoid(self.h(left) + self.h(right))
        return mul(gate, tanh(self.x(x) + self.h(right))) + mul(gate, left)

    def forward(self, tree: Tree) -> torch.Tensor:
        return self.out(self.visit(tree))


def trees(count: int, seed: int, depth: int = 4) -> list[Tree]:
    """Binary trees of words."""
    rng = Random(seed)

    def tree(left: int) -> Tree:
        is_leaf = left == 0 or rng.random() < 0.2
        return (rng.randrange(9), *(() if is_leaf else (tree(left - 1), tree(left - 1))))

    return [tree(depth) for _ in range(count)]


def codes(seed: int, count: int) -> list[bytes]:
    """Instances of a random model that repeat a few snippets, so that patterns occur."""
    rng = Random(seed)
    snippets = [rng.randbytes(CODE * rng.randrange(2, 6)) for _ in range(3)]
    snippets = [bytes(b & ~1 if i % CODE == CODE - 1 and rng.random() < 0.8 else b for i, b in enumerate(s))
                for s in snippets]  # fmt: skip
    return [b"".join(rng.choice(snippets) for _ in range(rng.randrange(1, 5))) for _ in range(count)]


def fused_nodes(net: Net, instances: Sequence[Any]) -> int:
    """How many nodes of a mini-batch are patterns."""
    graph = net.mini_batch(instances).graph
    return sum(count for t, count in zip(graph.types, graph.counts().tolist(), strict=True) if t.op == "graph")


SEEDS = [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 60))]
MET: dict[int, int] = {}
"""Nodes that are patterns, by seed."""


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_give_eager_results_and_gradients(seed: int) -> None:
    """Recorded, captured, and in training. Some of their values are
    float32, whose gradients are added up in another order."""
    model = RandomModel(seed, num_cells=2)
    pool = codes(seed, 16)
    net = bound(model, pool, cells="auto")
    for batch in (pool[:12], pool[12:], pool[:1]):
        with torch.no_grad():
            require_eager(net, batch, net(batch))
            found = zip(net.capture_each(batch), batch, strict=True)
            require_eager(net, batch, net([x if isinstance(one, UnsupportedError) else one for one, x in found]))
    if any(True for _ in tensors(net(pool[:12]))):
        require_equal_gradients(net, pool[:12], tolerance=1e-6)
    MET[seed] = fused_nodes(net, pool[:12])


def test_the_random_programs_have_patterns() -> None:
    """Of the models above some have many."""
    assert len(MET) < 5 or sum(MET.values()) > 50


class ManyTypes(nn.Module):
    """A chain in which no type occurs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.functions = nn.Embedding(9, 24), [torch.tanh, torch.sigmoid]

    def forward(self, word: int) -> torch.Tensor:
        h = self.words.weight[word]
        for i in range(1, 23):
            h = self.functions[i % 2](h).roll(i).reshape(2, 12)[:, : 12 - i % 2].sum(0, keepdim=True)[0].repeat(3)[:24]
        return h


@pytest.mark.usefixtures("always")
def test_types_that_the_rule_looks_at_count_as_nodes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of many types and batches take long to schedule, however few nodes they have."""
    seen: list[int] = []

    def counted(graph: Graph, policy: Policy) -> Schedule:
        schedule = run(graph, policy)
        seen.append(graph.num_nodes + schedule.num_batches * len({*graph.node_type.tolist()}) // 3)
        return schedule

    model, words = seeded(ManyTypes), [0, 1, 2]
    monkeypatch.setattr(mining, "run", counted)
    bound(model, words, "auto")
    whole, first = sum(seen), seen[0]
    monkeypatch.setattr(mining, "MOST_VISITED", 2 * first)
    seen.clear()
    bound(model, words, "auto")
    assert sum(seen[:-1]) <= 2 * first < whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_trees_of_operations_are_fused(dtype: torch.dtype) -> None:
    """Fewer nodes and batches than without, the same numbers and gradients in each dtype, no type that no plan has."""
    model = seeded(Operations)
    net, plain = bound(model, trees(16, 0), "auto"), bound(model, trees(16, 0))
    if dtype is not torch.float32:
        net = Net(net.plan, copy.deepcopy(model).to(dtype))
    stats, without = Stats(), Stats()
    with torch.no_grad():
        for seed in (0, 1):
            batch = trees(16, seed)
            require_eager(net, batch, net.run(batch, stats)[0])
            plain.run(batch, without)
    assert net.plan.fused
    assert stats.nodes < without.nodes / 3
    assert stats.batches < without.batches / 2
    assert not stats.unseen_types
    if dtype is torch.float64:
        require_equal_gradients(net, trees(16, 2))


def test_what_reads_inside_stays_as_it_is() -> None:
    """A node that the plan's patterns would be inside of, were its value not returned, runs by the plan's own types."""

    class Returns(Operations):
        def forward(self, tree: Tree) -> Any:
            gates = [torch.sigmoid(self.h(self.words.weight[word])) for word in tree]
            tanh = self.functions[0]
            kept = [tanh(gate) for gate in gates]
            return (kept, gates) if len(tree) == 1 else kept

    model, rng = seeded(Returns), Random(0)
    lists = [[rng.randrange(9) for _ in range(rng.randrange(2, 6))] for _ in range(16)]
    net = bound(model, lists, "auto")
    assert net.plan.fused
    stats = Stats()
    with torch.no_grad():
        require_eager(net, [*lists, [3]], net.run([*lists, [3]], stats)[0])
    assert not stats.unseen_types


def test_instances_captured_before_are_joined_of_fused_nodes() -> None:
    """As many nodes as a recording has, the same numbers, through bytes too."""
    net, batch = bound(seeded(Operations), trees(16, 0), "auto"), trees(8, 1)
    found = [pickle.loads(pickle.dumps(one)) for one in net.capture_all(batch)]
    assert net.mini_batch(found).graph.num_nodes == net.mini_batch(batch).graph.num_nodes
    with torch.no_grad():
        assert all(map(torch.equal, net(found), net(batch)))


def test_a_plan_holds_its_patterns_and_refuses_others() -> None:
    """Written and read they are the same; what is no pattern of the plan's types names its place."""
    compiled = compile_model(ModelObject(seeded(Operations), trees(24, 0)), trials=1, measure_gain=False)
    text = plan_text(compiled.plan)
    assert compiled.plan.fused
    assert parse_plan(text, "plan.yaml") == compiled.plan
    line = next(line for line in text.splitlines() if line.startswith("  - v1 = "))
    for wrong in ("  - v1 = nothing(v0)", "  - v1 = __import__(v0)", line.replace("v0", "v7")):
        with pytest.raises(PlanError, match=r"plan.yaml:\d+"):
            parse_plan(text.replace(line, wrong), "plan.yaml")


def test_nothing_is_mined_where_marks_alone_count() -> None:
    """`--cells marked`."""
    compiled = compile_model(
        ModelObject(seeded(Operations), trees(24, 0)), trials=1, measure_gain=False, cells="marked"
    )
    assert not compiled.plan.fused
