"""Chains of steps, without a device: how runs of steps are cut, what is captured and what a replay issues."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from edbc.run.cuda.chains import LAUNCH, LENGTHS, NODE, REPLAY, Chains, Loop, WarmUp, cut, launches
from edbc.run.cuda.issue import Issuer


def cost(chains: tuple[int, ...]) -> float:
    """Microseconds, written down anew."""
    return sum(2 * LAUNCH if length == 2 else REPLAY + NODE * length for length in chains)


def test_a_cut_holds_all_steps() -> None:
    """At least as many, in lengths that there are; less than a chain of them without work."""
    for steps in (*range(700), 5000):
        chains = cut(steps)
        assert set(chains) <= {2, *LENGTHS}
        assert 0 <= sum(chains) - steps < max([2, *chains])
        assert launches(steps) == len(chains) + chains.count(2)


@pytest.mark.parametrize("steps", [1, 3, 9, 17, 61, 104, 180, 230, 300])
def test_no_cut_of_few_chains_costs_less(steps: int) -> None:
    """Of all multisets of up to six."""
    others = (c for n in range(1, 7) for c in itertools.combinations_with_replacement((2, *LENGTHS), n))

    assert cost(cut(steps)) <= min(cost(chains) for chains in others if sum(chains) >= steps) + 1e-9


class Graphs:
    """A fake of CUDA graphs: notes what is captured while nothing runs, and what is replayed."""

    def __init__(self) -> None:
        self.captured: list[int] = []
        self.replayed: list[int] = []
        self.issued: list[int] = []

    def launch(self, cursor: torch.Tensor, parity: int) -> None:
        self.issued.append(parity)

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        before, self.issued = self.issued, []
        launches()
        nodes, self.issued = self.issued, before
        assert nodes == [0, 1] * (len(nodes) // 2)
        self.captured.append(len(nodes))
        return lambda: self.replayed.append(len(nodes))


def test_chains_are_captured_once_and_replayed() -> None:
    """Every length once, whatever runs; a pair of launches runs before capturing, so that the kernel is compiled."""
    graphs, warm_up = Graphs(), WarmUp()
    chains = Chains(graphs.launch, graphs, torch.device("cpu"), 2)
    chains.prepare(torch.tensor([7, 0]), warm_up)
    assert graphs.captured == list(LENGTHS)
    assert graphs.issued == [0, 1]
    assert chains.cursor.tolist() == [7, 0]
    assert str(warm_up).startswith("1 step kernel compiled and 3 chains captured in")

    for steps in (61, 104, 2, 61):
        chains.run(steps)
    assert graphs.replayed == [length for n in (61, 104, 61) for length in cut(n)]
    assert graphs.issued == [0, 1, 0, 1]
    assert len(graphs.captured) == len(LENGTHS)


def test_a_loop_goes_on_where_it_was() -> None:
    """Barriers are counted from the first step of a mini-batch on, over all of its stretches; steps are not padded."""
    issued: list[tuple[int, ...]] = []
    loop = Loop(lambda cursor, before, steps: issued.append((*cursor.tolist(), before, steps)), torch.device("cpu"), 1)
    loop.prepare(torch.tensor([7, 0]), WarmUp())
    for _ in range(2):
        loop.begin(torch.tensor([9, 0]))
        for steps in (5, 3):
            loop.run(steps)
    assert issued == [(7, 0, 0, 1), *2 * [(9, 0, 0, 5), (9, 0, 5, 3)]]
    assert [Loop.whole(steps) for steps in (1, 61)] == [1, 61]
    assert [Loop.launches(steps) for steps in (0, 61)] == [0, 1]


def test_what_launches_is_chosen_by_the_number_of_steps() -> None:
    """All stretches of a mini-batch together; chains, but for the numbers that are said to be faster in a loop."""
    issuer = Issuer(torch.device("cpu"), WarmUp())
    assert [issuer.launches([steps]) for steps in (1, 16, 61)] == [launches(steps) for steps in (1, 16, 61)]
    issuer.loops = range(20, 1000)
    expected = [launches(16), 1, 2, launches(10) + launches(9)]
    assert [issuer.launches(steps) for steps in ([16], [61], [10, 10], [10, 9])] == expected
