"""Committed cost tables of a simulated device: planning from them gives what is known, without measuring."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import model_file
from simulated import MACHINE

from edbc.stages import Stages
from edbc.stages.net import StaticModel
from edbc.stages.plan_graph import schedule_graph, whole_schedule
from edbc.stages.table import Costs, read_table

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "cost", "stages"), [("inception_v3", 19_810_177, 51), ("squeezenet", 2_144_383, 31)], ids=str
)
def test_tables_give_their_schedules(name: str, cost: int, stages: int) -> None:
    """From a committed table a network as large as it is plans to the cost and stages that measuring gave, every block
    within one per cent of the optimum, and no baseline is cheaper."""
    file = model_file(name)
    with torch.device("meta"):
        model = file.build().eval()
    static = StaticModel(model, file.sample(1, 0)[0], name)

    planned = schedule_graph(static, MACHINE, Costs.of(read_table(DATA / f"{name}.costs.yaml")), Stages())

    assert sum(p.scheduled.cost for p in planned) == cost
    assert len(whole_schedule(planned)) == stages
    assert all(p.scheduled.gap <= 0.01 for p in planned)
    assert all(p.scheduled.cost <= 1.01 * p.scheduled.cost_of("sequential") for p in planned)
    assert sum(p.scheduled.measured for p in planned) < sum(p.scheduled.distinct for p in planned)
