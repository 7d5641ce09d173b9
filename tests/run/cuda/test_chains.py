"""Chains of steps, without a device: how runs of steps are cut, what is captured and what a replay issues."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from edbc.run.cuda.chains import LENGTHS, NODE, REPLAY, Chains, WarmUp, cut, launches


def cost(chains: tuple[int, ...]) -> float:
    """Microseconds, written down anew."""
    return sum(REPLAY + NODE * length for length in chains)


def test_a_cut_holds_all_steps() -> None:
    """At least as many, in lengths that there are; less than a chain of them without work."""
    for steps in (*range(700), 5000):
        chains = cut(steps)
        assert set(chains) <= {*LENGTHS}
        assert 0 <= sum(chains) - steps < max([1, *chains])
        assert launches(steps) == len(chains)


@pytest.mark.parametrize("steps", [1, 3, 9, 17, 61, 104, 180, 230, 300])
def test_no_cut_of_few_chains_costs_less(steps: int) -> None:
    """Of all multisets of up to six."""
    others = (c for n in range(1, 7) for c in itertools.combinations_with_replacement(LENGTHS, n))

    assert cost(cut(steps)) <= min(cost(chains) for chains in others if sum(chains) >= steps) + 1e-9


class Graphs:
    """A fake of CUDA graphs: notes what is captured while nothing runs, and what is replayed."""

    def __init__(self) -> None:
        self.captured: list[int] = []
        self.replayed: list[int] = []
        self.issued: list[tuple[int, int]] = []

    def launch(self, cursor: torch.Tensor, number: int, ahead: int) -> None:
        self.issued.append((number, ahead))

    def capture(self, launches: Callable[[], None], device: torch.device) -> Callable[[], None]:
        before, self.issued = self.issued, []
        launches()
        nodes, self.issued = self.issued, before
        assert nodes == chain(len(nodes))
        self.captured.append(len(nodes))
        return lambda: self.replayed.append(len(nodes))


def chain(length: int) -> list[tuple[int, int]]:
    """What a chain's launches are told."""
    return [(0, length), *((number, 0) for number in range(1, length - 1)), (-1, 0)]


def test_chains_are_captured_once_and_replayed() -> None:
    """Every length once, whatever runs; the shortest runs before capturing, so that the kernel is compiled."""
    graphs, warm_up = Graphs(), WarmUp()
    chains = Chains(graphs.launch, torch.device("cpu"), 2, graphs.capture)
    chains.prepare(torch.tensor([7, 0]), warm_up)
    assert graphs.captured == list(LENGTHS)
    assert graphs.issued == chain(LENGTHS[-1])
    assert chains.cursor.tolist() == [7, 0]
    assert str(warm_up).startswith("1 step kernel compiled and 5 chains captured in")

    for steps in (61, 104, 2, 61):
        chains.run(steps)
    assert graphs.replayed == [length for n in (61, 104, 2, 61) for length in cut(n)]
    assert graphs.issued == chain(LENGTHS[-1])
    assert len(graphs.captured) == len(LENGTHS)
