"""The parity rule itself: what passes, what fails, and when eager is no yardstick."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from helpers import bound
from torch import nn

import edbc
from edbc.errors import CheckFailed
from edbc.run.precision import convolution_precision
from edbc.tools.compile import compiler, decisions
from edbc.tools.console import warn_unstable
from edbc.tools.parity import Eager, Parity
from edbc.tools.parity import compared as compare

INF, NAN = math.inf, math.nan


def compared(ours, eager, exact, dtype=torch.float32) -> Parity:
    """One output of each, as lists of numbers."""
    parity = Parity()
    parity.add(
        torch.tensor(ours, dtype=dtype), torch.tensor(eager, dtype=dtype), torch.tensor(exact, dtype=torch.float64)
    )
    return parity


@pytest.mark.parametrize(
    ("ours", "eager", "exact", "dtype", "holds"),
    [
        ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], torch.float64, True),
        ([1.0, 2.0 + 1.9e-12], [1.0, 2.0], [1.0, 2.0], torch.float64, True),
        ([1.0, 2.0 + 2.2e-12], [1.0, 2.0], [1.0, 2.0], torch.float64, False),
        ([1.0 + 1e-6, 1.0], [1.0, 1.0], [1.0, 1.0], torch.float32, True),
        ([1.0 + 3e-6, 1.0], [1.0, 1.0], [1.0, 1.0], torch.float32, False),
        ([1.0 + 3e-6, 1.0], [1.0 + 1e-6, 1.0], [1.0, 1.0], torch.float32, True),
        ([1.0 + 3e-6, 1.0], [1.0 + 1e-6, 1.0], [1.0, 1.0], torch.float64, True),
        ([3, 4], [3, 4], [3.0, 4.0], torch.int64, True),
        ([3, 5], [3, 4], [3.0, 4.0], torch.int64, False),
        ([True, False], [True, True], [1.0, 1.0], torch.bool, False),
    ],
)
def test_the_rule_by_dtype(ours, eager, exact, dtype, holds) -> None:
    """Limits are those of the module's docstring, on either side of the border; integers and masks are exact."""
    parity = compared(ours, eager, exact, dtype)
    assert parity.holds == holds
    assert not parity.unstable


@pytest.mark.parametrize(
    ("in_tf32", "in_ieee", "holds"), [(1e-3, 1e-7, True), (3e-2, 1e-7, False), (1e-3, 3e-6, False)]
)
def test_in_tf32_both_settings_must_hold(in_tf32: float, in_ieee: float, holds: bool) -> None:
    """As torch is set with float16's slack, of which tf32 has the bits, and in IEEE float32 with its own."""
    parity = Parity(in_ieee=Parity())
    errors, seen = iter((in_tf32, in_ieee)), list[str]()

    def add(to: Parity) -> None:
        seen.append(convolution_precision())
        to.add(torch.tensor([1.0 + next(errors)]), torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64))

    compare(parity, add)
    assert seen == ["tf32", "ieee"]
    assert parity.holds == holds
    assert "in IEEE float32 max error" in parity.remark
    with nullcontext() if holds else pytest.raises(CheckFailed):
        parity.require()


@pytest.mark.parametrize(
    ("ours", "eager", "exact"),
    [
        ([INF], [-INF], [-INF]),
        ([1.0], [INF], [INF]),
        ([NAN], [INF], [INF]),
        ([1.0], [NAN], [NAN]),
        ([NAN, 1.0], [1.0, NAN], [1.0, NAN]),
        ([NAN], [1.0], [1.0]),
        ([1.0], [NAN], [1.0]),
        ([1.0], [INF], [1e39]),
    ],
)
def test_not_a_number_and_infinities_must_agree_with_eager(ours, eager, exact) -> None:
    """Another sign, another place, or a number instead: broken, whatever the reference says."""
    with pytest.raises(CheckFailed, match="in one of them only"):
        compared(ours, eager, exact).require()


@pytest.mark.parametrize("results", [None, 3, [], torch.tensor([NAN, INF]), {"h": torch.empty(0)}])
def test_of_nothing_finite_no_equality_is_claimed(results: object) -> None:
    """A forgotten return, numbers of Python, and a model of nothing but not-a-numbers: the rule holds, and says so."""
    parity = Parity()
    parity.add(results, results, results)
    assert parity.holds
    assert parity.says_nothing
    assert parity.errors == "nothing was compared: no result holds a finite number in a tensor"
    assert not compared([0.0], [0.0], [0.0]).says_nothing
    assert not compared([NAN], [1.0], [1.0]).says_nothing


@pytest.mark.parametrize("values", [[NAN, 1.0], [INF, -INF], [NAN], []])
def test_equal_values_that_are_not_finite_hold(values) -> None:
    """Not-a-number meets not-a-number, infinity its like; nothing meets nothing."""
    parity = compared(values, values, values)
    parity.require()
    assert not parity.unstable


@pytest.mark.parametrize(
    ("ours", "eager", "exact", "how"),
    [
        ([1.47 + 5], [2.32 + 5], [5.0], "its error against float64 is 2.32 at scale 5"),
        ([INF], [INF], [1e39], "finite where the float64 reference is not, or the reverse"),
        ([1.0], [1.0], [NAN], "finite where the float64 reference is not, or the reverse"),
        ([1.0], [1.0], [1.0, 2.0], r"in float64 it gives \(2,\), not \(1,\)"),
    ],
)
def test_unstable_eager_is_told(ours, eager, exact, how, capsys: pytest.CaptureFixture[str]) -> None:
    """Where eager's own error, or a wrong reference, lets anything pass, the rule holds and says that it shows
    little."""
    parity = compared(ours, eager, exact)
    parity.require()
    assert list(parity.unstable) == ["output"]
    warn_unstable(parity)
    err = capsys.readouterr().err
    assert err.startswith("Warning: output 'output': eager itself is unstable here: ")
    assert re.search(how, err)


class Chaotic(nn.Module):
    """The logistic map, which doubles every error: float32 has forgotten its start after some thirty steps."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([3.99]))

    def forward(self, steps: int) -> torch.Tensor:
        x = self.rate / 10
        for _ in range(steps):
            x = self.rate * x * (1 - x)
        return x


def test_a_chaotic_model_is_unstable_and_a_short_run_of_it_is_not() -> None:
    """Eager against itself: 60 steps in float32 share no digit with float64, 5 steps share six."""
    for steps, unstable in ((60, True), (5, False)):
        eager, parity = Eager(Chaotic()), Parity()
        parity.add(eager.run([steps])[0], eager.run([steps])[0], eager.reference([steps])[0])
        assert bool(parity.unstable) == unstable


class Threads(nn.Module):
    """Keeps with how many threads it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[int] = []

    def forward(self, instance: int) -> torch.Tensor:
        self.ran.append(torch.get_num_threads())
        return torch.tensor(float(instance))


@pytest.mark.parametrize("best", [1, 2])
def test_eager_runs_with_the_threads_that_serve_it_best(best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told once, from the first instances; what was set before is set again, also after an error."""
    asked: list[tuple[list[int], int]] = []

    def seconds(self: Eager, instances: list[int], threads: int) -> float:
        asked.append((instances, threads))
        return abs(threads - best)

    monkeypatch.setattr(Eager, "seconds", seconds)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        eager = Eager(Threads())
        for _ in range(2):
            with eager.at_its_best([5, 6]):
                eager.run([5, 6])
                assert torch.get_num_threads() == best
            assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), eager.at_its_best([5]):
            raise KeyError
        assert torch.get_num_threads() == 2
        monkeypatch.undo()
        with pytest.raises(ValueError, match="could not convert"), Eager(Threads()).at_its_best(["a"]):
            pass
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

    assert asked == [([5, 6], 2), ([5, 6], 1)]
    assert eager.model.ran == [best] * 4


def test_seconds_of_eager_are_those_of_so_many_threads() -> None:
    """A first run, then each instance, all with them."""
    before = torch.get_num_threads()
    try:
        eager = Eager(Threads())
        assert eager.seconds([1, 2], 2) > 0
    finally:
        torch.set_num_threads(before)
    assert eager.model.ran == [2] * 3


def of_nodes(ours: float, count: int = 8) -> Parity:
    """Outputs by node id of one number each: eager is exact in node 0 and off by 1e-6 of the scale in the others."""
    parity = Parity()
    exact = {str(node): torch.full((1,), 10.0**node, dtype=torch.float64) for node in range(count)}
    eager = {name: (value * (1 + 1e-6 * (name != "0"))).float() for name, value in exact.items()}
    parity.add({name: (value * (1 + ours)).float() for name, value in exact.items()}, eager, exact)
    return parity


@pytest.mark.parametrize(("ours", "holds"), [(3e-6, True), (1e-5, False)])
def test_small_outputs_share_eagers_error(ours, holds) -> None:
    """A dict by node id is judged by eager's error in all of its nodes, as shares of each one's own scale."""
    assert of_nodes(ours).holds == holds


def test_large_outputs_share_nothing() -> None:
    """An output of many numbers is judged by eager's own error in it, however far others are off."""
    exact = {name: torch.ones(1000, dtype=torch.float64) for name in "ab"}
    eager = {"a": exact["a"].float(), "b": (exact["b"] * (1 + 1e-5)).float()}
    parity = Parity()
    parity.add({"a": (exact["a"] + 3e-6).float(), "b": eager["b"]}, eager, exact)
    assert not parity.holds
    assert parity.outputs["b"].holds


def test_a_model_that_kept_states_with_a_history_has_a_twin() -> None:
    """A model that ran eagerly with gradients and keeps what it computed, at any depth, is compared as any other."""
    model = nn.Linear(2, 2)
    model.kept = {"states": [model(torch.ones(2))]}
    model.last = model.kept["states"][0]
    model.last.sum().backward()
    twin = Eager(model).twin
    assert twin.last is twin.kept["states"][0]
    assert twin.last.equal(model.last)
    assert not twin.last.requires_grad


class Pins(nn.Module):
    """What `middle` makes of a row, in the model's own dtype again."""

    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.middle = nn.Embedding(9, 40), middle

    def forward(self, word: int) -> torch.Tensor:
        row = torch.tanh(self.table.weight[word])
        return row + self.middle(row).to(row.dtype)


PINNED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cast": lambda row: torch.softmax(row.float(), -1),
    "made": lambda row: torch.full((40,), 0.3, dtype=torch.float32).sin(),
    "keyword": lambda row: torch.softmax(row, -1, dtype=torch.float32),
    "class": lambda row: torch.mv(
        torch.sparse.FloatTensor(torch.arange(40).expand(2, 40), torch.full((40,), 0.3, dtype=torch.float32), (40, 40)),
        row.float(),
    ),
}


@pytest.mark.filterwarnings("ignore:torch.sparse.SparseTensor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("middle", PINNED)
def test_a_model_that_asks_for_float32_itself_is_compared_in_float32(middle: str, dtype: torch.dtype) -> None:
    """A float64 model is not held to float64's rule where its forward computes in float32, and the report says so."""
    model = Pins(PINNED[middle]).to(dtype).eval()
    eager, parity = Eager(model), Parity()
    for ours, theirs, exact in zip(
        bound(model, [1, 2])([1, 2]), eager.run([1, 2]), eager.reference([1, 2]), strict=True
    ):
        parity.add(ours.detach(), theirs, exact)
    parity.pins = eager.pins

    parity.require()
    assert parity.pins
    assert "forward itself asks for float32" in parity.remark


def test_a_model_of_one_dtype_pins_none() -> None:
    """Instances that bring float32, and what forward makes in the default dtype, are no wish of forward's."""
    model = Pins(lambda row: torch.zeros(40) + torch.softmax(row, -1)).double()
    eager = Eager(model)
    eager.reference([1, 2])

    assert not eager.pins
    assert Parity().remark == ""


class PinsAndReads(nn.Module):
    """Asks for float32, and reads a decision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        h = self.layer(rows)
        best = int(h.sum(1).argmax())
        return torch.zeros(5, 4).index_add(0, torch.arange(len(rows)), h.float() * (best + 1))


def test_a_model_that_pins_float32_may_read() -> None:
    """Its float64 reference decides as edbc did, and computes in float64 where it met float32."""
    torch.manual_seed(0)
    net = edbc.compile(PinsAndReads(), [torch.randn(n, 4) for n in (2, 3, 4, 5)], force=True)
    rows = [torch.randn(n, 4) for n in (3, 5)]

    assert net.plan.reads
    for ours, one in zip(net(rows), rows, strict=True):
        assert torch.allclose(ours, net.model(one), atol=1e-6)


def test_a_cell_may_be_given_a_number_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is known to be looked at at once it is Python's own, and the call is a cell; a copy of the model that
    is recorded anew has to know it, too."""

    def all_candidates(sample: decisions.Sample, given: Any) -> decisions.Decided:
        return decisions.Decided({c.name: c.location for c in decisions._candidates(sample, None)}, ())

    monkeypatch.setattr(compiler, "decide", all_candidates)
    net = edbc.compile(PinsAndReads(), [torch.randn(n, 4) for n in (2, 3, 4, 5)], force=True)

    assert set(net.plan.automatic) == {"forward:1", "forward:2"}


def test_what_is_written_into_float32_that_forward_asks_for_is_there_in_float64() -> None:
    """An item of a tensor that keeps float32 is changed in that tensor, not in what float64 sees of it."""

    def filled(row: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(2, 20).float()
        scores[0], scores[1, :] = row[:20], row[20:]
        return scores.reshape(40)

    eager = Eager(Pins(filled))
    ours, exact = eager.run([1, 2]), eager.reference([1, 2])

    assert eager.pins
    for one, other in zip(ours, exact, strict=True):
        assert torch.allclose(one.double(), other, atol=1e-6)
