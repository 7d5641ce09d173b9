"""Running mini-batches of arrays: `Net` and `edbc run --front-end vertex`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from both_ways import MODELS
from click.testing import CliRunner
from torch import nn
from vertex_strategies import random_instance

from edbc.run.session import Net
from edbc.tools.cli import main
from edbc.vertex import Vertex, VertexFunction, VertexInstance, run_eagerly

MODEL_FILE = '''
"""A model that has vertex functions only."""
import torch
from vertex_strategies import everything, random_instance
from torch import nn
from edbc.vertex import run_eagerly

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = everything()

    def vertices(self):
        return self.inner.vertices()

    def forward(self, instance):
        return run_eagerly(self, instance)

def build(hidden_size=4):
    return Model()

def load(*paths):
    return iter(())

def sample(count, seed):
    return [random_instance(1000 * seed + i, 12) for i in range(count)]

def vertex_instance(instance):
    return instance
'''


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    """A plan for a model that has vertex functions only, bound."""
    from edbc.tools.compile.compiler import compile_model

    folder = tmp_path_factory.mktemp("vertices")
    (folder / "model.py").write_text(MODEL_FILE)
    compiled = compile_model(folder / "model.py", plan_folder=folder, trials=10)
    return Net(compiled.plan, compiled.captured.model)


def test_outputs_are_rows_by_name_in_vertex_order(net: Net) -> None:
    """Each instance gets one tensor per name that it pushed, with eager's numbers; names that it did not are absent."""
    instances = [random_instance(seed, seed) for seed in range(10)]
    for ours, instance in zip(net(instances), instances, strict=True):
        with torch.no_grad():
            theirs = run_eagerly(net.model, instance)

        assert ours.keys() == theirs.keys()
        for name, rows in ours.items():
            torch.testing.assert_close(rows, torch.stack(theirs[name]))


def test_outputs_own_their_memory(net: Net) -> None:
    """A later mini-batch changes nothing of an earlier one's outputs."""
    first = net([random_instance(5, 10)])[0]
    before = {name: rows.clone() for name, rows in first.items()}
    net([random_instance(6, 40)] * 4)

    assert all(torch.equal(first[name], rows) for name, rows in before.items())


class Parts(nn.Module):
    """Pushes a part of what a module returns."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))
        self.layer = nn.Linear(4, 6)

    def vertices(self) -> dict[str, VertexFunction]:
        return {"one": self.one}

    def one(self, v: Vertex) -> None:
        y = self.layer(v.pull("id", self.table))
        v.push("part", y.reshape(2, 3)[1])
        v.push("element", torch.tanh(y)[2:][1] * self.table[1, 3])
        v.push("row", v.pull("id", self.table))


def test_views_are_pushed_as_views(net: Net) -> None:
    """What is pushed of a value is taken of every row; a pushed look-up is an output without a node."""
    model = Parts().eval()
    instance = VertexInstance.build([(0, [])] * 3, {"id": [4, 0, 4]})
    ours = Net(net.plan, model)([instance])[0]
    theirs = run_eagerly(model, instance)

    torch.testing.assert_close(ours["part"], torch.stack(theirs["part"]).detach())
    torch.testing.assert_close(ours["element"], torch.stack(theirs["element"]).detach())
    torch.testing.assert_close(ours["row"], torch.stack(theirs["row"]).detach())


def test_command_runs_arrays(tmp_path: Path) -> None:
    """`edbc run --front-end vertex --verify` finds eager's numbers; a model without vertex functions is refused."""
    runner, plan = CliRunner(), str(tmp_path / "plan.yaml")
    settings = ["--set", "hidden_size=8", "--set", "vocab_size=30"]
    made = runner.invoke(main, ["compile", str(MODELS / "tree_lstm.py"), "-o", plan, "--quiet", *settings])
    assert made.exit_code == 0, made.output
    result = runner.invoke(main, ["run", plan, "--limit", "5", "--verify", "--front-end", "vertex"])

    assert result.exit_code == 0, result.output
    assert "equal to eager" in result.output
