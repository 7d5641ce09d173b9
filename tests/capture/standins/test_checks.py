"""Checks: conditions that raise at once where they do not hold, presumed to hold until the mini-batch has run.

PYTEST_DONT_REWRITE: asserts are the code that Python makes of them.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from helpers import bound, require_eager, seeded
from torch import Tensor, nn
from torch.distributions import Normal

from edbc.capture.standins.unread import DoesNotHold, _found_way_on
from edbc.run.session import Net

GOOD = list(torch.linspace(0.5, 2.5, 36).view(9, 4))
BAD = torch.full((4,), float("nan"))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)


class Asserts(Layer):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.up(x))
        assert not h.isnan().any(), "not a number"
        if (h.abs() > 1).any():
            raise ValueError("too large")
        return h * 2


class Likelihood(Layer):
    def forward(self, x: Tensor) -> Tensor:
        mean, scale = self.up(x), x.abs() + 0.1
        return Normal(mean, scale).log_prob(x).sum()


class ChangesInPlace(Layer):
    """Books are kept, and what was checked changes behind it."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        view, fine = h[:2], h == h
        h += 1.0
        if not fine.all():
            raise ValueError("not a number")
        fine.logical_not_()
        is_large = (h.abs() > 100.0).any()
        assert not is_large
        is_large.fill_(True)
        return h * fine + view.sum()


class Part(Layer):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.up(x))
        for _ in range(6):
            h = torch.tanh(self.up(h)) + torch.sigmoid(h) * x
        if h.sum() != h.sum():
            raise ValueError("not a number")
        return h


class InACall(nn.Module):
    """The check is in a module's closed code, which is one run of rows; forward itself is open."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, x: Tensor) -> Tensor:
        names = ["part"] * 2
        for name in names:
            x = getattr(self, name)(x)
        return x.sum(0)


class OfRows(Layer):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        likelihood = Normal(self.up(x), torch.exp(self.up(x))).log_prob(x)
        return likelihood.sum(1), likelihood.mean()


class RaisesBehind(Layer):
    """What it raises behind a check that does not hold is not what eager raises."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        assert not h.isnan().any()
        if x.isnan().any():
            raise KeyError
        return h


class ReadsToo(Layer):
    def forward(self, x: Tensor) -> tuple[Tensor, list[int]]:
        h, chosen = x, []
        while len(chosen) < 5 and chosen[-1:] != [1]:
            h = torch.tanh(self.up(h))
            assert not h.isnan().any()
            chosen.append(int(h.argmax()))
        return h, chosen


class Catches(Layer):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return Normal(self.up(x), 1.0).log_prob(x)
        except ValueError:
            return torch.zeros(4)


class LeavesALoop(Layer):
    """What it raises is how it goes on."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            while True:
                x = torch.tanh(self.up(x)) + x + 1
                if x.sum() > 20:
                    raise StopIteration
        except StopIteration:
            return x


def net_of(kind: type[nn.Module], instances: list[Tensor], rows: bool = False) -> Net:
    return bound(seeded(kind), instances, cells="auto", rows=rows)


@pytest.fixture(params=[False, True], ids=["sizes", "rows"])
def rows(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def matrices(seed: int) -> list[Tensor]:
    """Of 2 to 7 rows each."""
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 4, generator=made) for n in (2, 3, 4, 5, 6, 7, 3, 5, 2)]


@pytest.fixture(autouse=True)
def _distributions_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do until something in the process calls torch.compile."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


@pytest.mark.parametrize("kind", [Asserts, Likelihood, ChangesInPlace])
def test_nobody_waits_for_a_check(kind: type[nn.Module]) -> None:
    """Nothing is read, so instances can be captured, and outputs are eager's, as a captured instance's are."""
    net = net_of(kind, GOOD[:5])
    require_eager(net, GOOD)
    require_eager(net, GOOD, net(net.capture_all(GOOD)))
    assert not net.plan.reads
    assert net.view.presumes


@pytest.mark.parametrize("kind", [OfRows, InACall])
def test_checks_of_rows(kind: type[nn.Module], rows: bool) -> None:
    """Kept forwards and kept calls have those of each instance that they serve."""
    net = net_of(kind, matrices(0), rows)
    for seed in range(1, 4):
        require_eager(net, matrices(seed))
    assert net.view.presumes
    assert not net.plan.reads
    with pytest.raises(ValueError, match=r"invalid values|not a number"):
        net([*matrices(4), torch.full((3, 4), float("nan"))])


@pytest.mark.parametrize(("kind", "error"), [(Asserts, AssertionError), (Likelihood, ValueError),
                                             (ChangesInPlace, ValueError), (RaisesBehind, AssertionError),
                                             (ReadsToo, AssertionError)])  # fmt: skip
def test_a_check_that_does_not_hold(kind: type[nn.Module], error: type[Exception]) -> None:
    """The model's own error is raised where it stands, by calls, runs and streams; the net goes on."""
    ways: list[Callable[[Net, list[Tensor]], Any]] = [
        lambda net, batch: net(batch),
        lambda net, batch: net.run(batch),
        lambda net, batch: list(net.stream(batch, 4)),
    ]
    for way in ways:
        net = net_of(kind, GOOD[:5])
        with pytest.raises(error):
            way(net, [*GOOD[:3], BAD, *GOOD[3:]])
        require_eager(net, GOOD)


def test_a_stream_gives_what_was_before() -> None:
    """Mini-batches before the one that has the instance."""
    stream: Iterator[Any] = net_of(Asserts, GOOD[:5]).stream([*GOOD[:4], BAD], 2)
    assert len(list(islice(stream, 4))) == 4
    with pytest.raises(AssertionError):
        next(stream)


def test_captured_instances_cannot_be_recorded_anew() -> None:
    """They tell which lines check."""
    net = net_of(Asserts, GOOD[:5])
    captured = net.capture_all([GOOD[0], BAD])
    with pytest.raises(DoesNotHold, match=r"test_checks.py:\d+, test_checks.py:\d+: .* run the instances as they are"):
        net(captured)


@pytest.mark.parametrize(("kind", "instances"), [(Catches, [*GOOD, BAD]), (LeavesALoop, GOOD)])
def test_who_catches_what_is_raised(kind: type[nn.Module], instances: list[Tensor]) -> None:
    """Gets what eager gets."""
    net = net_of(kind, GOOD[:5])
    with torch.no_grad():
        for found, expected in zip(net(instances), map(net.model, instances), strict=True):
            torch.testing.assert_close(found, expected)


def _asserts(x: Any) -> None:
    assert x


def _raises(x: Any) -> None:
    if x:
        raise ValueError(f"{x!r}")


def _either(x: Any, y: Any) -> None:
    if y or x:
        raise ValueError


def _prints(x: Any) -> None:
    if not x:
        print(x)


def _neither(x: Any) -> None:
    if x:
        raise ValueError
    raise TypeError


@pytest.mark.parametrize(
    ("function", "ways"),
    [(_asserts, {True}), (_raises, {False}), (_either, {False}), (_prints, {None}), (_neither, {None})],
)
def test_which_conditions_are_checks(function: Any, ways: set[bool | None]) -> None:
    """Those one value of which raises at once, and the other does not."""
    code = function.__code__
    jumps = [i.offset for i in dis.get_instructions(code) if "JUMP_IF" in i.opname or "JUMP_FORWARD_IF" in i.opname]
    assert {_found_way_on(code, offset) for offset in jumps} == ways
