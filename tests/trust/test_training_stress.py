"""Training under everything that a long run may meet: see `training_stress`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_stress import stress

pytestmark = pytest.mark.compiled


@pytest.mark.long
def test_a_few_models() -> None:
    """Two models, four steps each."""
    report, wrong = stress(7, lambda number: number < 2, steps=4)

    assert not wrong, "\n".join(wrong)
    assert report["gradients in float32"] + report["gradients in float64"] > 5


@pytest.mark.slow
def test_forty_models() -> None:
    """Forty models, 25 steps each, in a process whose freed and fresh memory is never zeros."""
    script = Path(__file__).with_name("training_stress.py")
    environment = {**os.environ, "MALLOC_PERTURB_": "85", "PYTHONPATH": str(script.parents[2])}
    command = [sys.executable, script, "--minutes", "120", "--universes", "40"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    print(run.stdout)

    assert run.returncode == 0, run.stdout + run.stderr
