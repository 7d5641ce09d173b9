"""An operation is one entry of `edbc.base.operations`: what reads the table reaches it, with no other line changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.compiled
@pytest.mark.long
def test_an_operation_is_one_entry(tmp_path: Path) -> None:
    """With `softsign` added: recorded, stated in plans, a loop of machine code and a line of Triton, differentiated,
    equal to eager; and the tests of the table hold for it."""
    script = Path(__file__).with_name("one_entry.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parents[2]), *sys.path])}
    run = subprocess.run([sys.executable, script, tmp_path], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)

    assert found["line"] == "y = softsign(x)"
    assert any(" = softsign(" in line for line in found["plan"])
    assert "softsign" in found["steps"]
    assert any("fabs" in text and "fdiv" in text for text in found["native"])
    assert any("tl.abs(" in text and " / (1.0 + " in text for text in found["triton"])
    assert found["forward"] < 1e-13
    assert found["backward"] < 1e-12
