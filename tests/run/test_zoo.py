"""Every model of the zoo through the native back end, by a plan of other sizes and another dtype: eager's numbers at
every batch size. `models/test_zoo_parity.py` has the committed plans, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bound import plan_for
from helpers import opened, require_eager
from zoo_names import DYNAMIC, RAGGED, short_instances

from edbc.errors import StaleError, Unplanned
from edbc.run.session import Net

MODELS = Path(__file__).resolve().parents[2] / "models"


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_plan_serves_other_sizes_and_float64(name: str) -> None:
    """A plan made at hidden size 16 in float32 runs the model at 24 in float64: no cell is unknown, numbers are
    eager's, in mini-batches of 1, 3 and 8."""
    file, config = opened(name)
    instances = short_instances(file, 12, 3, config)
    plan = plan_for(file.build(config, 0), instances, rows=name in RAGGED)
    net = Net(plan, file.build({**config, "hidden_size": 24}, 0).double(), rebind=True)
    for batch in (instances[:1], instances[1:4], instances[4:]):
        require_eager(net, batch)
    graph = net.mini_batch(instances).graph
    counts = graph.counts()
    assert not [t.name for i, t in enumerate(graph.types) if i >= net.table.num_known and counts[i]]


def test_another_size_is_unknown_unless_asked_for() -> None:
    """Without rebinding a cell of another size runs without the plan's order, with a warning; `strict` refuses it."""
    file, config = opened("tree_lstm")
    instances = file.sample(4, 0, config)
    plan = plan_for(file.build(config, 0), instances)
    file, config = opened("tree_lstm", hidden_size=24)
    model = file.build(config, 0).eval()
    with pytest.warns(Unplanned, match="cell"):
        require_eager(Net(plan, model), instances)
    with pytest.raises(StaleError, match="not in the plan"):
        Net(plan, model, strict=True)(instances)


def test_an_ambiguous_type_is_refused() -> None:
    """Two sums of the plan that differ in size only: at a third size nobody can say which is meant."""

    class TwoSums(torch.nn.Module):
        def __init__(self, size: int):
            super().__init__()
            self.a = torch.nn.Parameter(torch.randn(5, size))
            self.b = torch.nn.Parameter(torch.randn(5, 2 * size))

        def forward(self, words: list[int]):
            return sum(self.a[w] for w in words), sum(self.b[w] for w in words)

    plan = plan_for(TwoSums(3), [[1, 2], [3, 4, 0]])
    with pytest.raises(StaleError, match="expected one type of the plan"):
        Net(plan, TwoSums(4).eval(), rebind=True)([[1, 2]])
