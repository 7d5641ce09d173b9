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
from edbc.capture.semantics.modes import run
from edbc.run.modelfile import import_model_file
file = import_model_file(sys.argv[1] + "/models/tree_lstm.py")
net = load(sys.argv[1] + "/plans/tree_lstm.yaml").bind()
instances = file.sample(2, 0, {})
net(instances)
net([file.vertex_instance({})(tree) for tree in instances])
x = torch.empty(2, 2, device="meta")
run(torch.ops.aten.add.Tensor, (x, x), {})
run(torch.ops.aten.addmm.default, (x[0], x, x), {})
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


@pytest.mark.long
def test_a_first_result_needs_no_compiler(repository: Path) -> None:
    """Loading, binding and running by both front ends, and operators without data, import neither torch's compiler
    (three seconds) nor edbc's."""
    command = [sys.executable, "-c", SCRIPT, str(repository), *HEAVY]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=repository)

    assert json.loads(loaded.stdout.splitlines()[-1]) == []
