"""Every function that torch lets others override, with stand-ins: fuzz/torch_functions.py, all of it or a sample."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "fuzz"))
import torch_functions

FAULTS = ("died", "wrong", "error")


def require_no_fault(chosen: Sequence[tuple[str, ...]]) -> None:
    """Each case is equal to eager, refused with its line, or raises in eager too."""
    results = list(torch_functions.outcomes(chosen))

    assert len({r.case for r in results}) >= len({candidates[0] for candidates in chosen})
    assert [r for r in results if r.outcome in FAULTS] == []


@pytest.mark.long
def test_a_sample_of_torchs_functions() -> None:
    """Thirty positions of stand-ins, drawn from all functions."""
    require_no_fault(torch_functions.sample(30, seed=21))


@pytest.mark.slow
def test_all_of_torchs_functions() -> None:
    """A stand-in at every position of every function: no process dies, no number is wrong."""
    require_no_fault(list(torch_functions.cases(1)))


@pytest.mark.long
def test_faults_are_seen() -> None:
    """What kills its process, and what draws random numbers, is told by its case; later cases still run."""
    died, kept = "__import__('os').abort()", "torch.sin(v)"
    results = list(torch_functions.outcomes([(died,), (kept,)]))

    assert [(r.case, r.outcome) for r in results] == [(died, "died"), (kept, "equal"), (kept, "equal")]
