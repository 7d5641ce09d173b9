"""Native code that a second process compiles while the first one records and schedules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edbc.native.secondprocess import num_cores
from edbc.run.cpu import ahead

pytestmark = pytest.mark.compiled
BEGIN = """
from edbc.run.cpu import ahead
ahead.begin()
print(ahead.SECOND.is_running, ahead.SECOND.join())
"""


def begun(cache: Path) -> list[str]:
    """Whether a process was started, and what it returned, in a fresh process with this folder for its cache."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", BEGIN], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(num_cores() < 2, reason="one core: nothing is compiled beside")
@pytest.mark.slow
def test_the_first_process_starts_one(tmp_path: Path) -> None:
    """With an empty cache a process compiles, and fills it: the next one starts nothing."""
    assert begun(tmp_path) == ["True", "0"]
    assert begun(tmp_path) == ["False", "None"]


def test_types_are_those_of_a_mini_batch() -> None:
    """What is compiled ahead is what a float32 mini-batch calls: running one adds no signature."""
    import torch
    from helpers import bound
    from torch import nn

    for function, arguments in ahead.late():
        function.compile(arguments)
    before = [set(function.signatures) for function, _ in ahead.late()]
    net = bound(nn.Linear(3, 2), [torch.ones(3), torch.zeros(3)])
    net([torch.ones(3)])

    assert [set(function.signatures) for function, _ in ahead.late()] == before
