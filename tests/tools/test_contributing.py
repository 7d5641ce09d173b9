"""CONTRIBUTING.md's changes apply to the package as it is and do what they say; the pipeline's example prints what the
docs show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FUNCTION = """
from edbc.base.operations import OPERATIONS
assert "softsign" in OPERATIONS
import torch, edbc
from torch import nn
from torch.nn import functional as F

@edbc.cell
class Cell(nn.Module):
    def forward(self, x):
        return F.softsign(x) * 2

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell = nn.Embedding(5, 3), Cell()
    def forward(self, word):
        return self.cell(self.words.weight[word])

model = Model().eval()
net = edbc.compile(model, [0, 1, 2])
assert any("softsign" in line for cell in net.plan.cells.values() for line in cell.operations)
ours, eager = torch.stack(net([0, 1, 2])), torch.stack([model(word) for word in (0, 1, 2)])
torch.testing.assert_close(ours, eager)
given = [torch.autograd.grad(result.square().sum(), model.words.weight)[0] for result in (ours, eager)]
torch.testing.assert_close(*given)
"""
POLICY = """
from edbc.base.graph import Graph
from edbc.schedule.checker import check_schedule
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run
graph = Graph.build(["few", "many"], [("few", []), ("many", []), ("many", [])])
for rule, first in (("most", 1), ("fewest", 0)):
    schedule = run(graph, Policy(rule))
    check_schedule(graph, schedule)
    assert schedule.batch_type[0] == first
"""
PASS = """
import runpy, sys
assert "def _sorted" in open("edbc/run/session.py").read()
import numpy as np
from edbc.run.passes import minibatch
example = runpy.run_path(sys.argv[1])
heard = {}
told = minibatch.Passes.__call__
def listen(self, batch, observer=None, without=()):
    return told(self, batch, lambda name, b: (heard.__setitem__(name, b), observer and observer(name, b)), without)
minibatch.Passes.__call__ = listen
example["main"]()
assert list(heard) == ["capture", "share", "schedule", "sort", "parts", "place", "execute"]
assert all((np.diff(nodes) > 0).all() for _, nodes in heard["sort"].schedule.batches())
"""
CHANGES = {"A torch function": (FUNCTION, "AssertionError"), "A policy": (POLICY, "fewest"), "A pass": (PASS, "sort")}
"""What uses each change, and what is said where it has not been made."""


def run_in(folder: Path, *arguments: str) -> str:
    """What Python prints there, on the reference back end: nothing is compiled anew."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": "1", "EDBC_DEBUG": "1"}
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("heading", CHANGES)
def test_a_worked_change_applies_and_does_what_it_says(heading: str, repository: Path, tmp_path: Path) -> None:
    """Its diff applies to a copy of the package, in two files at most, and what it adds works there, not before."""
    text = (repository / "CONTRIBUTING.md").read_text()
    diff = re.search(rf"## {heading}\n.*?```diff\n(.*?)```", text, re.DOTALL)
    assert diff is not None
    shutil.copytree(repository / "edbc", tmp_path / "edbc", ignore=shutil.ignore_patterns("*.nb?"))
    example = str(repository / "docs/examples/passes.py")
    use, lacking = CHANGES[heading]
    (tmp_path / "use.py").write_text(use)
    with pytest.raises(AssertionError, match=lacking):
        run_in(tmp_path, "use.py", example)

    subprocess.run(["git", "apply", "-"], input=diff[1], text=True, cwd=tmp_path, check=True)
    run_in(tmp_path, "use.py", example)
    assert 1 <= diff[1].count("\n+++ ") <= 2


def test_the_pipeline_s_example_prints_what_the_docs_show(repository: Path) -> None:
    """docs/architecture.md has the example's output, byte counts aside, which are a back end's own."""
    shown = (repository / "docs/architecture.md").read_text()
    printed = run_in(repository, "docs/examples/passes.py")

    for line in printed.splitlines():
        assert line.endswith("bytes") or f"    {line}\n" in shown, line
    assert printed.count(":\n") == 6
