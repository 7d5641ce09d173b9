"""Five published models: eager, batched by hand, by edbc and captured give the same numbers."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import imported

import edbc

ROOT = Path(__file__).resolve().parents[2]
PORTS = ROOT / "docs" / "examples" / "ports"
NAMES = sorted(path.stem for path in PORTS.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_all_ways_give_eagers_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On instances that were not compiled on; and the gradients of the net are those of eager."""
    register = partial(monkeypatch.setitem, sys.modules)
    module = imported(PORTS / f"{name}.py", name, register)
    by_hand = imported(ROOT / "benchmarks" / "_by_hand.py", "_by_hand", register).BY_HAND[name]
    torch.manual_seed(0)
    model = getattr(module, type(by_hand).__name__)(8).eval()
    net = edbc.compile(model, module.instances(6), trials=4, measure_gain=False)
    unseen = module.instances(4, seed=9)

    with torch.no_grad():
        eager = [model(instance) for instance in unseen]
        ways = (by_hand.run(model, by_hand.prepare(module, unseen)), net(unseen), net(net.capture_all(unseen)))
    for found in ways:
        for ours, theirs in zip(found, eager, strict=True):
            torch.testing.assert_close(ours, theirs)
    torch.cat([each.flatten() for each in net(unseen)]).square().sum().backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    torch.cat([each.flatten() for each in map(model, unseen)]).square().sum().backward()
    for parameter, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(ours[parameter], value.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("page", ["from-prop-nodes-topo", "from-level-batching", "from-padding"])
def test_pages_show_what_runs(page: str) -> None:
    """Every line of code on a page stands in a port, an example, or what is written by hand."""
    files = [*PORTS.glob("*.py"), *PORTS.parent.glob("*.py"), ROOT / "benchmarks" / "_by_hand.py"]
    lines = {line.strip() for path in files for line in path.read_text().splitlines()}
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shown = [line.strip() for block in blocks for line in block.splitlines()]

    assert len(shown) >= 8
    assert [line for line in shown if line not in lines] == []
