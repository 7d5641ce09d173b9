"""Teams of threads: the same bits however many help, whenever they come; nobody waits for who has not begun."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from gradients import random_loss
from helpers import bound, model_file

from edbc.capture.semantics.shapes import flat
from edbc.run.cpu import team
from edbc.run.cpu.team import TEAM, Team
from edbc.run.cpu.teamwork import ARRIVED, ENLISTED, LATE
from edbc.run.session import Net

pytestmark = pytest.mark.compiled
HELPERS = 2
"""Beside one thread, whatever cores there are."""


def word(address: int, offset: int) -> Any:
    """A word that a team parts, as an array of one."""
    return np.ctypeslib.as_array((ctypes.c_int64 * 1).from_address(address + offset))


def trees(count: int = 12) -> tuple[Net, list[Any]]:
    """A tree-LSTM whose batches are worth sharing."""
    file = model_file("tree_lstm")
    torch.manual_seed(0)
    instances = list(file.sample(count, 3))
    return bound(file.build(hidden_size=64).eval(), instances), instances


def outputs(net: Net, instances: list[Any]) -> list[torch.Tensor]:
    """Of all instances."""
    with torch.no_grad():
        return [tensor.clone() for result in net.execute(net.prepare(instances)) for tensor in flat(result)]


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Helpers always come, and before the first step runs; how many parts each walk left to them."""
    parts: list[int] = []
    helping = Team.helping

    @contextmanager
    def after_all_have_come(self: Team, *job: Any) -> Iterator[int]:
        with helping(self, *job) as address:
            while address and word(address, ENLISTED)[0] < HELPERS:
                time.sleep(0)
            yield address
            parts.append(int(word(address, ARRIVED)[0]) if address else 0)

    monkeypatch.setattr(Team, "helping", after_all_have_come)
    monkeypatch.setattr(team, "helpers", lambda: HELPERS)
    monkeypatch.setattr(team, "WORTH", 0)
    monkeypatch.setattr(TEAM, "_penalty", 0)
    monkeypatch.setattr(TEAM, "_alone", 0)  # whatever a helper that came late has left behind
    return parts


def test_the_same_bits_with_help(monkeypatch: pytest.MonkeyPatch, helped: list[int]) -> None:
    """Every value of a mini-batch, shared by three threads and alone."""
    net, instances = trees()
    together = outputs(net, instances)
    assert sum(helped) > 0
    monkeypatch.setattr(team, "helpers", lambda: 0)
    alone = outputs(net, instances)

    assert helped[-1] == 0
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def test_gradients_have_the_same_bits_with_help(monkeypatch: pytest.MonkeyPatch, helped: list[int]) -> None:
    """Of all parameters, products and sums of outer products among them."""
    net, instances = trees()

    def gradients() -> list[torch.Tensor]:
        net.model.zero_grad()
        random_loss(net.trainer.run(instances)).backward()
        return [p.grad.clone() for p in net.model.parameters() if p.grad is not None]

    together = gradients()
    assert len([count for count in helped if count]) > 1  # backward too
    monkeypatch.setattr(team, "helpers", lambda: 0)

    assert all(torch.equal(a, b) for a, b in zip(gradients(), together, strict=True))
    assert together


def test_mini_batches_of_several_threads(helped: list[int]) -> None:
    """One has the team at a time, the others run by themselves."""
    net, instances = trees()
    expected, found = outputs(net, instances), {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: outputs(net, instances)})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(torch.equal(a, b) for of in found.values() for a, b in zip(of, expected, strict=True))
    assert len(found) == 3


def test_who_comes_late_finds_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that wakes when the mini-batch has ended writes nowhere and goes."""
    net, instances = trees()
    expected = outputs(net, instances)
    monkeypatch.setattr(team, "helpers", lambda: 1)
    monkeypatch.setattr(team, "WORTH", 0)
    monkeypatch.setattr(TEAM, "_helpers", 1)  # as if it were there
    monkeypatch.setattr(TEAM, "_alone", 0)
    monkeypatch.setattr(TEAM, "_jobs", type(TEAM._jobs)())
    found = outputs(net, instances)
    run, _ = TEAM._jobs.get(timeout=60)
    run(0)
    words = run.args[0]

    assert words[ENLISTED // 8] == 1
    assert words[ARRIVED // 8] == 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_after_one_that_was_late_mini_batches_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen, then twice as many, less one for each with good help in between."""
    monkeypatch.setattr(team, "helpers", lambda: 1)
    alone = Team()
    alone._helpers = 1  # nobody comes: nothing is run here

    def address() -> int:
        with alone.helping(lambda: float(team.WORTH), 4) as found:
            return found

    def late() -> None:
        with alone.helping(lambda: float(team.WORTH), 4) as found:
            word(found, LATE)[0] = 1

    for count in (16, 30):
        late()
        assert [address() != 0 for _ in range(count + 2)] == [False] * count + [True] * 2
    with alone.helping(lambda: 0.0, 4) as found:
        assert found == 0
