"""Structure that no training mini-batch had: unknown cells are refused by name, the rest runs, counted and reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from chains import MODEL, write_lengths
from helpers import bound
from torch import nn

import edbc as package
from edbc.errors import StaleError
from edbc.parity import Eager, Parity
from edbc.runtime.session import Net, Stats
from edbc.schedule.policy import Policy
from edbc.schedule.train import cover

RARE = MODEL.replace(
    'return {"h": [h]} if length else {}',
    "if length > 50:\n            h = self.rare(h, h)\n        if length > 20:\n            h = torch.cumsum(h, 0)\n"
    '        return {"h": [h]} if length else {}',
).replace("self.step = Step(size)", "self.step = Step(size)\n        self.rare = Rare(size)")
RARE = RARE.replace("class Chain(", "@edbc.cell\nclass Rare(Step):\n    pass\n\n\nclass Chain(")
"""Chains longer than 20 need a function, and those longer than 50 a cell, that no made-up chain has."""


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of RARE."""
    folder = tmp_path_factory.mktemp("rare")
    (folder / "rare.py").write_text(RARE)
    package.compile(folder / "rare.py", folder / "rare.yaml", policy="critical")
    return folder / "rare.yaml"


def test_an_unknown_cell_is_refused_by_name(edbc, rare: Path, tmp_path: Path) -> None:
    """Exit 4: which cell, with which shapes, at which line of the model, and what to do."""
    result = edbc("run", rare, "--input", write_lengths(tmp_path, 3, 60))

    assert result.exit_code == 4
    error = result.stderr.splitlines()[-1]
    assert "rare.py:" in error
    assert "type cell rare(f32[8], f32[8]) -> f32[8] is not in the plan" in error
    assert "compile again on instances that contain it" in error


def test_a_new_operation_runs_and_is_counted(edbc, rare: Path, tmp_path: Path) -> None:
    """A function that training did not meet gives eager's numbers by the generic rule; the report counts it by name."""
    lengths = write_lengths(tmp_path, 3, 30, 25)
    result = edbc("run", rare, "--input", lengths, "--verify", "--format", "json")
    report = json.loads(result.stdout)

    assert result.exit_code == 0
    assert (report["unseen_types"], report["unseen_type_names"]) == (1, ["cumsum"])
    assert "types: cumsum" in edbc("run", rare, "--input", lengths).stdout
    assert json.loads(edbc("run", rare, "--format", "json").stdout)["unseen_types"] == 0


def test_strict_refuses_a_new_operation(edbc, rare: Path, tmp_path: Path) -> None:
    """`--strict`: exit 4, the operation and both remedies."""
    result = edbc("run", rare, "--input", write_lengths(tmp_path, 30), "--strict")

    assert result.exit_code == 4
    assert "torch.cumsum" in result.stderr
    assert "compile again on instances that contain it, or run without --strict" in result.stderr


class Sums(nn.Module):
    """Sums of as many rows as the instance says, and a product with as many rows of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(12, 4, dtype=torch.float64))

    def forward(self, count: int):
        rows = [torch.tanh(self.table[i]) for i in range(count)]
        weights = torch.softmax(torch.stack([row @ self.table[0] for row in rows]), 0)
        return sum(rows), weights


def test_an_arity_and_a_length_never_seen_run() -> None:
    """A sum of arity 9 is the plan's own type; an attention over 9 is a new one; both give eager's numbers."""
    model = Sums().eval()
    net, stats, parity = bound(model, [2, 3]), Stats(), Parity()
    ours, _ = net.run([9, 2], stats)
    for results in zip(ours, Eager(model).run([9, 2]), Eager(model).reference([9, 2]), strict=True):
        parity.add(*results)
    parity.require()
    assert stats.unseen_types
    assert not any(name.startswith("sum") for name in stats.unseen_types)
    with pytest.raises(StaleError, match="run without --strict"):
        Net(net.plan, model, strict=True)([9])


def test_unseen_states_fall_back_and_are_counted(edbc, chain: Path) -> None:
    """A table that knows the states of one instance only: others fall back to its rule, counted, and equal eager."""
    model = Sums().eval()
    net, stats = bound(model, [2, 3, 5]), Stats()
    blank = Policy("fsm", "sort", "chains")
    net.policy = Policy("fsm", "sort", "chains", dict(cover(blank, [net.capture([2]).graph]).table))
    ours, _ = net.run([5, 3], stats)

    assert stats.unseen_states > 0
    assert stats.unseen_states + stats.table_steps == stats.batches
    for result, exact in zip(ours, Eager(model).run([5, 3]), strict=True):
        torch.testing.assert_close(result, exact, rtol=1e-12, atol=1e-12)
