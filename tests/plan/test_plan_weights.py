"""Plans of cells whose weights are views of parameters, or that compute with numbers that are not finite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import require_eager

import edbc

MODEL = """
import torch, torch.nn as nn, torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.emb, self.w = nn.Linear(4, 4), nn.Embedding(9, 4), nn.Parameter(torch.randn(8, 4))

    def forward(self, words):
        h = torch.tanh(self.emb.weight[words[0]])
        return [{}, h]

def build(hidden_size: int = 4):
    return Model()

def sample(count, seed):
    return [[(seed + i) % 9] for i in range(count)]

def load(*paths):
    return sample(3, 0)
"""
BODIES = {
    "computed": "torch.func.functional_call(self.lin, {'weight': self.lin.weight * 2, 'bias': self.lin.bias}, h)",
    "narrow": "F.linear(h, self.w.narrow(0, 2, 4)) + F.linear(h, self.w.mul(2)[:4])",
    "infinite": "torch.maximum(h, h + float('-inf')) + torch.clamp(h, max=float('inf'))",
    "not-a-number": "torch.where(h > 2, h * float('nan'), h)",
}


@pytest.mark.parametrize("name", BODIES)
def test_what_compiles_is_read_and_equals_eager(name: str, tmp_path: Path) -> None:
    """The plan that is written is one that may be read."""
    model = tmp_path / "model.py"
    model.write_text(MODEL.replace("{}", BODIES[name], 1))
    net = edbc.compile(model, tmp_path / "plan.yaml", policy="depth").bind()
    instances = [[2], [5], [2]]

    with torch.no_grad():
        require_eager(net, instances)
