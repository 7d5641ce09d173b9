"""Units in threads against eager PyTorch: every strategy, every batch size, with and without barriers, under delays."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from events import require_arena
from fresh import run_script
from networks import TINY, sequential, tiny, tiny_images
from simulated import MACHINE, OVERHEAD, measured, unit_costs
from torch import Tensor, nn

from edbc.errors import InputError, UnsupportedError
from edbc.stages import Stages
from edbc.stages.cpu.execute import Team
from edbc.stages.cpu.lifetimes import plan_arena
from edbc.stages.cpu.net import StagedNet
from edbc.stages.endings import members
from edbc.stages.net import StaticModel
from edbc.stages.plan_graph import schedule_graph, whole_schedule
from edbc.stages.search import Machine
from edbc.stages.table import CONCURRENT, MERGE, SPLIT, Costs, CostTable, Schedule
from edbc.stages.units.products import merge_sets
from edbc.stages.units.tasks import Task
from edbc.tools.parity import Eager, Parity

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = sorted(TINY)


def scheduled(static: StaticModel, machine: Machine = MACHINE) -> Schedule:
    """A schedule of many groups and merges, by the simulated device."""
    head = CostTable(device="none", threads=2, dtype="float32", batch_size=1, overhead_ns=OVERHEAD)
    costs = unit_costs(static.graph)
    planned = schedule_graph(
        static, machine, Costs(head), Stages(), lambda block, groups, run: measured(costs, block, groups, run)
    )
    return whole_schedule(planned)


def merging(static: StaticModel) -> Schedule:
    """Every unit alone, but all products that can be one merged."""
    graph, schedule, done = static.graph, [], set()
    sets = [members(some) for some in merge_sets(graph, range(len(graph.units)), static.bound.layers)]
    for unit in range(len(graph.units)):
        if unit not in done:
            units = max((some for some in sets if some[0] == unit), key=len, default=[unit])
            done |= {*units}
            schedule.append((tuple((u,) for u in units), MERGE if len(units) > 1 else CONCURRENT))
    return schedule


def split(static: StaticModel) -> Schedule:
    """Every unit over all threads."""
    return [(((u,),), SPLIT) for u in range(len(static.graph.units))]


@pytest.fixture(scope="module", params=NAMES)
def network(request: pytest.FixtureRequest) -> StaticModel:
    """Each of the four networks, small, in float32."""
    return StaticModel(tiny(request.param), tiny_images(request.param, 1)[0], request.param)


def require_parity(static: StaticModel, schedule: Schedule, batch: int, barriers: bool = True) -> None:
    """Results of a batch are eager's, by the rule for the model's element type."""
    images, parity = tiny_images(static.name, batch), Parity()
    with StagedNet(static, schedule, 2, barriers) as net:
        for results in zip(net(images), *eager_of(static, batch), strict=True):
            parity.add(*results)
    parity.require()


@lru_cache
def eager_of(static: StaticModel, batch: int) -> tuple[list[Any], list[Any]]:
    """What eager execution gives for a batch of images, and what its float64 twin does."""
    eager, images = Eager(static.model), tiny_images(static.name, batch)
    return eager.run(images), eager.reference(images)


@pytest.mark.parametrize("batch", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 16, 32, 64, 128))])
def test_every_strategy_gives_eager_numbers(network: StaticModel, batch: int) -> None:
    """Sequential, split over threads, and in stages with merges, with and without barriers, at several batch sizes."""
    schedule = scheduled(network)
    for stages in (sequential(network.graph), split(network), merging(network), schedule):
        require_parity(network, stages, batch)
    require_parity(network, schedule, batch, barriers=False)


def test_double_precision_is_exact() -> None:
    """In float64 stages give eager's numbers to 1e-12, merges included."""
    model = tiny("inception_v3").double()
    images = [image.double() for image in tiny_images("inception_v3", 3)]
    static = StaticModel(model, images[0], "inception_v3")
    schedule = merging(static)
    assert sum(run == MERGE for _, run in schedule) >= 8

    with StagedNet(static, schedule, 2) as net, torch.no_grad():
        results = net(images)
        assert all(torch.allclose(r, model(x), rtol=0, atol=1e-12) for r, x in zip(results, images, strict=True))


def delayed(seed: int) -> object:
    """Delays every unit at random."""
    rng = random.Random(seed)

    def wrap(units: Sequence[int], task: Task) -> Task:
        def run() -> None:
            time.sleep(rng.random() * 0.002)
            task()

        return run

    return wrap


@pytest.mark.parametrize("barriers", [True, False])
def test_no_race(network: StaticModel, barriers: bool) -> None:
    """Every unit delayed at random, the arena poisoned: results are the same bits, as no concurrent groups share
    memory."""
    schedule = [(groups, CONCURRENT) for groups, _ in scheduled(network)]
    image = tiny_images(network.name, 1)[0]
    with StagedNet(network, sequential(network.graph), 1) as net:
        expected = net.batch(image)
    for seed in range(2):
        with StagedNet(network, schedule, 3, barriers, delayed(seed)) as net:
            net.batch(image)
            for ready in net._ready.values():
                ready.memory.fill_(float("nan"))
            assert torch.equal(net.batch(image), expected)


def test_results_own_their_memory(network: StaticModel) -> None:
    """A later batch does not change the results of an earlier one, and the caller's images stay as they are."""
    images = tiny_images(network.name, 2)
    before = [image.clone() for image in images]
    with StagedNet(network, sequential(network.graph), 2) as net:
        first = net.batch(images[0])
        kept = first.clone()
        net.batch(images[1])
    assert torch.equal(first, kept)
    assert all(torch.equal(a, b) for a, b in zip(images, before, strict=True))


def test_arenas_share_memory_and_verify(network: StaticModel) -> None:
    """Values share memory where their lives are in order; a value moved onto one that is alive is found."""
    graph, placed, schedule = network.graph, network.bound.placed, scheduled(network)
    arena = plan_arena(graph, schedule, placed)
    require_arena(graph, schedule, placed, arena)
    whole = sum(torch.Size(unit.shape[1:]).numel() for unit in graph.units)
    assert arena.size < whole

    reader = next(u for u, unit in enumerate(graph.units) if unit.reads[0] >= 0 and unit.reads[0] not in placed
                  and u not in placed)  # fmt: skip
    offsets = list(arena.offsets)
    offsets[reader] = offsets[graph.units[reader].reads[0]]
    with pytest.raises(AssertionError, match="memory of their own"):
        require_arena(graph, schedule, placed, replace(arena, offsets=tuple(offsets), size=whole * 2))


def test_layouts_follow_the_order_of_stages(network: StaticModel) -> None:
    """A layout for one unit after the other is refused where units run side by side, and one for stages where units
    need not wait for them; each form's own layout holds."""
    graph, placed = network.graph, network.bound.placed
    together = [(groups, CONCURRENT) for groups, _ in scheduled(network)]
    open_ones = plan_arena(graph, together, placed, barriers=False)
    require_arena(graph, together, placed, open_ones, barriers=False)

    in_order = plan_arena(graph, sequential(graph), placed)
    for schedule, barriers in ((together, True), (sequential(graph), False)):
        with pytest.raises(AssertionError):
            require_arena(graph, schedule, placed, in_order, barriers)


def test_other_shapes_are_refused(network: StaticModel) -> None:
    """Images of another size than the plan's are an error that says both."""
    with (
        StagedNet(network, sequential(network.graph), 1) as net,
        pytest.raises(InputError, match="expected tensors of shapes"),
    ):
        net.batch(torch.zeros(1, 3, 7, 7))


@pytest.mark.parametrize("threads", [1, 3])
def test_errors_in_threads_reach_the_caller(threads: int) -> None:
    """What a task raises in any thread is raised where the phase was run, and the team goes on."""
    team = Team(threads)
    try:
        with pytest.raises(ZeroDivisionError):
            team.phase([lambda: None, lambda: 1 // 0, lambda: None])  # type: ignore[list-item, return-value]
        done: list[int] = []
        team.phase([lambda i=i: done.append(i) for i in range(7)])
        assert sorted(done) == list(range(7))
    finally:
        team.close()


TRACED = f"""
import sys
sys.path.insert(0, {str(MODELS)!r})
import inception_v3
from edbc.stages.net import StaticModel

static = StaticModel(inception_v3.build().eval(), inception_v3.sample(1, 0)[0], "net")
print(len(static.graph.units), "torch._dynamo" in sys.modules)
"""
TEAM = """
import threading, torch
from edbc.stages.cpu.execute import Team

torch.set_num_threads(2)
found = []
team = Team(3)
team.together(lambda: found.append(torch.get_num_threads()), 3)
later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
later.start()
later.join()
print(sorted(found), torch.get_num_threads())
team.close()
"""


def test_a_team_leaves_the_threads_of_torch_to_others(tmp_path: Path) -> None:
    """Its own threads have one, the thread that makes it and those that begin later what was set before."""
    ended = run_script(TEAM, tmp_path)
    assert ended.printed == "[1, 1, 2, 2] 2\n", ended.traceback


def test_tracing_leaves_torchs_compiler_alone(tmp_path: Path) -> None:
    """It takes seconds to import, as many as checking a plan."""
    ended = run_script(TRACED, tmp_path)
    assert ended.printed == "119 False\n", ended.traceback


def test_in_place_calls_change_nothing_that_others_read() -> None:
    """A relu in place on a value that nothing else reads is run out of place; on another one it is refused."""

    class Net(nn.Module):
        def __init__(self, shared: bool) -> None:
            super().__init__()
            self.a, self.b, self.relu, self.shared = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.ReLU(True), shared

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            z = self.b(self.relu(y))
            return y + z if self.shared else z

    image = torch.randn(1, 3, 5, 5)
    static = StaticModel(Net(False).eval(), image, "net")
    with StagedNet(static, sequential(static.graph), 1) as net, torch.no_grad():
        assert torch.allclose(net.batch(image), static.model(image), atol=1e-6)
    with pytest.raises(UnsupportedError, match="in place"):
        StaticModel(Net(True).eval(), image, "net")
