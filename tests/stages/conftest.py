"""What tests of stages share. Where there is no GPU, Triton interprets its kernels, which it is told before it is
imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pytest
import torch
from events import require_arena, require_program

from edbc.stages.cpu.lifetimes import Arena, plan_arena
from edbc.stages.cuda.program import Program, program_of
from edbc.stages.graph import UnitGraph
from edbc.stages.table import Schedule

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch's second thread waits spinning where tests run side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tests run in stages stands where it may, and is issued in an order that holds."""

    def arena_of(graph: UnitGraph, schedule: Schedule, placed: Mapping[int, tuple[int, int]],
                 barriers: bool = True) -> Arena:  # fmt: skip
        arena = plan_arena(graph, schedule, placed, barriers)
        require_arena(graph, schedule, placed, arena, barriers)
        return arena

    def program(graph: UnitGraph, schedule: Schedule, streams: int, barriers: bool = True) -> Program:
        found = program_of(graph, schedule, streams, barriers)
        require_program(graph, found)
        return found

    monkeypatch.setattr("edbc.stages.cpu.net.plan_arena", arena_of)
    monkeypatch.setattr("edbc.stages.cuda.net.program_of", program)
