"""Element types on the CPU: each by its own rule of `edbc.tools.parity`, through the default back end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from bound import RandomTreeModel, plan_for, random_trees
from commands import command
from helpers import bound, opened, require_eager
from zoo_names import short_instances

from edbc.cells.kernels.microkernel import shape_of
from edbc.cells.parts import splittable
from edbc.run.session import Net

PLANS = Path(__file__).resolve().parents[2] / "plans"
NINE = ("tree_lstm", "tree_gru", "tree_lstm_2type", "mv_rnn", "lattice_lstm", "lattice_gru", "bilstm_tagger",
        "bilstm_tagger_char", "lstm_nmt")  # fmt: skip


@pytest.mark.parametrize("name", NINE)
def test_bfloat16_equals_eager(name: str) -> None:
    """A plan compiled in float32 runs the model in bfloat16 to eager's accuracy; results are bfloat16."""
    file, config = opened(name)
    instances = short_instances(file, 4, 3, config)
    plan = plan_for(file.build(config, 0), instances, split=splittable)
    net = Net(plan, file.build(config, 0).bfloat16(), rebind=True)
    with torch.no_grad():
        require_eager(net, instances)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_random_cells_in_every_dtype(dtype: torch.dtype) -> None:
    """Sums, products and gates; the outputs have the model's dtype."""
    instances = random_trees(4, 6)
    model = RandomTreeModel(4, 6)
    plan = plan_for(model, instances)
    net = Net(plan, model.to(dtype).eval(), rebind=True)
    require_eager(net, instances)

    assert {result["root"].dtype for result in net(instances)} == {dtype}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_option_verifies(dtype: str) -> None:
    """`edbc run --dtype D --verify` holds for a committed plan, and the report names the dtype."""
    result = command(
        "run", PLANS / "tree_gru.yaml", "--limit", 6, "--dtype", dtype, "--set", "hidden_size=24", "--verify"
    )

    assert result.exit_code == 0, result.output
    assert f"cpu, {dtype}" in result.output
    assert "equal to eager" in result.output


class Tagger(torch.nn.Module):
    """A layer of several directions, whose first state is zeros that torch makes."""

    def __init__(self, size: int):
        super().__init__()
        self.words, self.lstm = torch.nn.Embedding(20, size), torch.nn.LSTM(size, size, bidirectional=True)

    def forward(self, words: list[int]) -> torch.Tensor:
        states, _ = self.lstm(self.words(torch.tensor(words)).unsqueeze(1))
        return states.mean(0)


@pytest.mark.parametrize(("size", "dtype"), [(6, torch.float64), (9, torch.float32)], ids=str)
def test_constants_in_cells_follow_size_and_dtype(size: int, dtype: torch.dtype) -> None:
    """A plan whose cell holds a constant serves a model of another size or dtype, where its bytes are others."""
    instances = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]]
    plan = plan_for(Tagger(6).eval(), instances)
    assert any("constant" in line for cell in plan.cells.values() for line in cell.operations)

    require_eager(Net(plan, Tagger(size).to(dtype).eval(), rebind=True), instances)


class Reductions(torch.nn.Module):
    """Sum, mean, largest and smallest of rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(40, 6)

    def forward(self, numbers: list[int]) -> list[torch.Tensor]:
        rows = torch.stack([self.rows.weight[number] * 1.5 for number in numbers])
        return [rows.sum(0), rows.mean(0), rows.amax(0), rows.amin(0)]


def test_reductions_of_bfloat16() -> None:
    """Natively, over any number of rows, not-a-number and infinity among them: as torch has it, but for roundings."""
    torch.manual_seed(0)
    model = Reductions().eval().bfloat16()
    with torch.no_grad():
        model.rows.weight[37, 1], model.rows.weight[38, 2], model.rows.weight[39, 3] = torch.nan, torch.inf, 2.0**-130
    rng = random.Random(0)
    instances = [[rng.randrange(40) for _ in range(count)] for count in (*range(1, 30), 2000)]
    net = bound(model, instances)
    with torch.no_grad():
        for found, instance in zip(net(instances), instances, strict=True):
            for ours, expected in zip(found, model(instance), strict=True):
                torch.testing.assert_close(ours, expected, equal_nan=True, rtol=2e-2, atol=2e-2)

    if shape_of(2) is not None:
        reductions = [k for k, t in enumerate(net.table.types) if t is not None and t.variadic]
        assert len(reductions) == 4
        assert all(net.backend.runs_natively(net.table.types[k], net.kernel(k)) for k in reductions)
