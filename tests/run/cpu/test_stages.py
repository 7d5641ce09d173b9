"""Dynamic graphs in stages: tasks cover and wait, costs decide, and bits are those of one batch after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound, model_file
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, random_lattice_graph

from edbc.base.graph import Graph
from edbc.capture.semantics.shapes import flat
from edbc.plan.plan import BatchCost
from edbc.run.cpu import team
from edbc.run.cpu.team import TEAM, Team
from edbc.run.session import Net
from edbc.schedule.checker import check_schedule
from edbc.schedule.policy import Policy
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import run
from edbc.schedule.waves import stages
from edbc.schedule.waves.stages import Beside, tasks_of
from edbc.schedule.waves.tasks import AFTER, BATCH, FIRST, LANE, LAST
from edbc.schedule.waves.waverun import run_waves
from edbc.schedule.waves.wavetable import Waves


def batches_read(schedule: Schedule, batch: int, batch_of: dict[int, int]) -> set[int]:
    """The batches that one reads."""
    graph, (_, nodes) = schedule.graph, list(schedule.batches())[batch]
    operands = [graph.operands[graph.operand_ptr[v] : graph.operand_ptr[v + 1]].tolist() for v in nodes.tolist()]
    return {batch_of[u] for some in operands for u in some if u >= 0}


@given(graphs(), st.booleans(), st.integers(2, 3))
def test_tasks_cover_all_rows_and_wait_for_what_they_read(graph: Graph, in_waves: bool, threads: int) -> None:
    """Every row in one task; what a task reads is done before it; a stage ends where the next batch reads one of it."""
    schedule = run_waves(graph, Waves())[0] if in_waves else run(graph, Policy("agenda"))
    tasks = tasks_of(schedule, threads, np.ones(graph.num_types, np.bool_))

    batch_of = {int(v): b for b, (_, nodes) in enumerate(schedule.batches()) for v in nodes}
    stage_of = {int(t[BATCH]): int(t[AFTER]) for t in tasks}
    rows = [(int(t[BATCH]), r) for t in tasks for r in range(t[FIRST], t[LAST])]
    assert rows == [(b, r) for b, (_, nodes) in enumerate(schedule.batches()) for r in range(len(nodes))]
    assert all(0 <= t[LANE] < threads for t in tasks)
    for i, task in enumerate(tasks):
        read = batches_read(schedule, int(task[BATCH]), batch_of)
        assert task[AFTER] <= i
        assert all(stage_of[b] < task[AFTER] for b in read)
        begins = i > 0 and task[AFTER] == i and tasks[i - 1][BATCH] != task[BATCH]
        assert not begins or any(stage_of[b] == tasks[i - 1][AFTER] for b in read), "two stages could be one"


def test_costs_decide() -> None:
    """A tagger's directions are staged, but not where threads take longer to meet; a tree's types wait for each
    other."""
    file = model_file("bilstm_tagger")
    torch.manual_seed(0)
    instances = list(file.sample(4, 1))
    net = bound(file.build(hidden_size=8).eval(), instances)
    graph = net.prepare(instances).whole[0].graph
    schedule = run(graph, net.policy)

    def chosen(fixed: float, row: float, of: Graph = graph, plain: Schedule = schedule) -> bool:
        return Beside({t.name: (fixed, row) for t in of.types}).chosen(of, plain, 2).staged

    assert chosen(1000.0, 0.0)
    assert not chosen(0.1, 0.0)
    trees = model_file("tree_lstm")
    other = bound(trees.build(hidden_size=8).eval(), list(trees.sample(2, 1)))
    one = other.prepare(list(trees.sample(2, 1))).whole[0].graph
    assert not chosen(1000.0, 0.0, one, run(one, other.policy))


def test_what_is_too_small_for_helpers_is_not_scheduled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below LEAST microseconds the policy's schedule stands, and waves are not asked for."""
    monkeypatch.setattr(stages, "run_due", None)
    graph = random_lattice_graph(0, 20, 6)
    schedule = run(graph, Policy("agenda"))

    assert Beside({"any": (stages.LEAST / schedule.num_batches / 2, 0.0)}).chosen(graph, schedule, 2) is schedule


@pytest.fixture
def tagger(monkeypatch: pytest.MonkeyPatch) -> tuple[Net, Net, list[Any]]:
    """A tagger's net by its policy and one in stages, with a helper, whatever cores there are."""
    monkeypatch.setattr(team, "helpers", lambda: 1)
    monkeypatch.setattr(team, "WORTH", 0)
    monkeypatch.setattr(stages, "LEAST", 0.0)
    monkeypatch.setattr(TEAM, "_penalty", 0)
    monkeypatch.setattr(TEAM, "_alone", 0)
    file = model_file("bilstm_tagger")
    torch.manual_seed(0)
    model, instances = file.build(hidden_size=24).eval(), list(file.sample(9, 1))
    plain = bound(model, instances)
    costs = {t.name: BatchCost(1000.0, 1.0) for t in plain.plan.types}
    return plain, Net(replace(plain.plan, costs=costs), model, rebind=True), instances


def outputs(net: Net, instances: list[Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [tensor for result in net(instances) for tensor in flat(result)]


@pytest.mark.compiled
@pytest.mark.parametrize("helpers", ["come", "come late", "are taken"])
def test_stages_give_the_same_bits(
    tagger: tuple[Net, Net, list[Any]], monkeypatch: pytest.MonkeyPatch, helpers: str
) -> None:
    """With a helper, with one that comes when all is done, and with none: the bits of one batch after the other."""
    plain, staged, instances = tagger
    late: list[Any] = []
    if helpers == "come late":
        monkeypatch.setattr(Team, "call", lambda self, count, run, size: late.append((run, team.words(size // 8))))
    prepared = staged.prepare(instances)
    check_schedule(prepared.whole[0].graph, prepared.whole[1])
    assert prepared.schedule.staged
    assert prepared.demand.tasks is not None
    assert len(set(prepared.demand.tasks[:, AFTER].tolist())) < prepared.schedule.num_batches

    expected = outputs(plain, instances)
    late.clear()
    if helpers == "are taken":
        assert TEAM._lock.acquire(blocking=False)
    try:
        found = [outputs(staged, instances) for _ in range(3)]
    finally:
        if helpers == "are taken":
            TEAM._lock.release()
    for run_late, memory in late:
        run_late(memory.ctypes.data)
    assert bool(late) == (helpers == "come late")
    assert all(torch.equal(a, b) for some in found for a, b in zip(some, expected, strict=True))


@pytest.mark.compiled
def test_training_in_stages(tagger: tuple[Net, Net, list[Any]]) -> None:
    """Gradients behind a forward pass in stages are those behind one by the policy."""
    plain, staged, instances = tagger
    found = []
    for net in (plain, staged):
        net.model.zero_grad()
        torch.stack([t.square().sum() for result in net(instances) for t in flat(result)]).sum().backward()
        found.append([p.grad.clone() for p in net.model.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(*found, strict=True))
