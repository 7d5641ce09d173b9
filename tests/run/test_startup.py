"""What a process loads before its first result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
import torch
from edbc.api import load
from edbc.run.modelfile import import_model_file
file = import_model_file(sys.argv[1] + "/models/tree_lstm.py")
net = load(sys.argv[1] + "/plans/tree_lstm.yaml").bind()
instances = file.sample(2, 0, {})
net(instances)
net([file.vertex_instance({})(tree) for tree in instances])
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""
COMPILING = """
import json, sys
import torch
from torch import nn
import edbc
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(9, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    def forward(self, words):
        h = self.layer(self.words(words)[None])[0].cumsum(0)
        return h.std(0, unbiased=False) + torch.nn.functional.normalize(h @ h[0], dim=0) @ h
net = edbc.compile(Net().eval(), [torch.arange(n) for n in (1, 2, 3, 4, 5, 6)])
net([torch.arange(8)])
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""
HEAVY = [
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "networkx",
    "edbc.schedule.learn.train",
    "edbc.layout",
    "edbc.tools.report",
]


def loaded(script: str, repository: Path) -> list[str]:
    """The heavy modules that a script has loaded."""
    command = [sys.executable, "-c", script, str(repository), *HEAVY]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=repository)
    found: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.long
def test_a_first_result_needs_no_compiler(repository: Path) -> None:
    """Loading, binding and running by both front ends import neither torch's compiler (three seconds) nor edbc's."""
    assert loaded(SCRIPT, repository) == []


@pytest.mark.long
def test_compiling_needs_no_compiler_of_torch(repository: Path) -> None:
    """Shapes are found, and calls taken apart, without it."""
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & set(loaded(COMPILING, repository))
