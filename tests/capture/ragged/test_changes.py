"""In-place activations of rows: rows stay rows where nobody else sees the change, and numbers are eager's anyway."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rowparity import HIDDEN, of_model
from torch import nn

from edbc.run.session import Net


class Equivariant(nn.Module):
    """A layer of sets, which gives a difference."""

    def __init__(self, inner: int):
        super().__init__()
        self.each, self.whole = nn.Linear(inner, HIDDEN), nn.Linear(inner, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        most = self.whole(x.max(0, keepdim=True)[0])
        x = self.each(x) - most
        return x  # noqa: RET504 - the variable is what is tested


class Keeping(Equivariant):
    """One that shows a part of its result to others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.each(x)
        self.seen = x[:1]
        return x


class Net3(nn.Module):
    """The sum over a set, through one idiom."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.norm = nn.ReLU(inplace=True), nn.LayerNorm(HIDDEN)
        self.inner, self.out = nn.Linear(3, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.layers = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(2)])
        self.elu = nn.ELU(inplace=True)
        self.net = nn.Sequential(nn.Linear(3, HIDDEN), nn.ELU(inplace=True), nn.Linear(HIDDEN, HIDDEN))
        self.sets = nn.Sequential(Equivariant(3), nn.Tanh(), Equivariant(HIDDEN), nn.ELU(inplace=True))
        self.keeping = nn.Sequential(Keeping(3), nn.ELU(inplace=True))


class Sequence(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.net(x).sum(0))


class OfUsers(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.sets(x).mean(0))


class Nested(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.act(self.norm(self.act(self.inner(x)))).sum(0))


class InTurn(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.inner(x)
        h = self.act(h)
        for number in range(2):
            h = self.elu(self.layers[number](h))
        h = self.norm(h)
        h = self.out(self.act(h))
        return h.sum(0)


class Residual(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.act(self.inner(x))
        g = self.out(h)
        g += h
        g = self.act(g)
        k = self.act(self.out(g) + h)
        return k.sum(0)


class Functions(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = F.relu(self.inner(x), inplace=True)
        h = self.out(h)
        h = F.leaky_relu(h, 0.1, inplace=True)
        return h.sum(0)


class Pooled(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.norm(x @ self.inner.weight.t()).sum(0)
        h = self.out(h)
        h += h.new_ones(HIDDEN)
        return self.out(self.act(h))


UNSEEN = [Sequence, OfUsers, Nested, InTurn, Residual, Functions, Pooled]


class HeldByAName(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = g = self.inner(x)
        h = self.act(h)
        return h.sum(0), g.mean(0)


class HeldByAView(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.inner(x)
        first = h[:1]
        h = self.act(h)
        return h.sum(0), first.sum(0), self.act(self.norm(h)[:1])


class HeldByAnArgument(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.inner(x)
        h = self.elu(h) + h
        return h.sum(0)


class HeldByAList(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        held = [x @ self.inner.weight.t()]
        for layer in (*self.layers, self.act, self.norm, self.act):
            held.append(layer(held[-1]))
        return [h.sum(0) for h in held]


class HeldByAModule(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.keeping(x)
        return h.sum(0), self.keeping[0].seen.sum(0)


class ChangedInTurn(Net3):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.inner(x)
        g = h
        g += 1.0
        h = self.act(h)
        return h.sum(0), g.sum(0)


SEEN = [HeldByAName, HeldByAView, HeldByAnArgument, HeldByAList, HeldByAModule, ChangedInTurn]


def checked(kind: type[Net3]) -> Net:
    def points(rng: Random) -> torch.Tensor:
        return torch.tensor([[rng.gauss(0, 1) for _ in range(3)] for _ in range(rng.randint(1, 8))])

    torch.manual_seed(0)
    return of_model(kind(), points)


@pytest.mark.parametrize("kind", UNSEEN)
def test_a_change_that_nobody_sees_leaves_rows(kind: type[Net3]) -> None:
    """No books of shared memory are kept for it, and lengths make no types."""
    net = checked(kind)

    assert net.plan.ragged
    assert not any("f32[5,8]" in t.signature for t in net.plan.types)


@pytest.mark.parametrize("kind", SEEN)
def test_a_change_that_others_see_is_eagers(kind: type[Net3]) -> None:
    """By another name, through a view, as another argument, in a list, by what a module keeps."""
    checked(kind)


class Appends(Net3):
    """A list that a method gets and changes is its caller's, whether the call may be kept or not."""

    def forward(self, x: torch.Tensor) -> Any:
        states = [self.inner(x)]
        for number in range(3):
            self.step(states, number)
        return [h.sum(0) for h in states]

    def step(self, states: list[Any], number: int) -> Any:
        states.append(self.out(states[-1]) * (number + 1))


class AppendsAndReturns(Appends):
    def forward(self, x: torch.Tensor) -> Any:
        states, h = [], self.inner(x)
        for _ in range(3):
            h = self.step(states, h)
        return [h.sum(0) for h in states]

    def step(self, states: list[Any], h: Any) -> Any:
        h = self.out(h)
        states.append(h)
        return h * 2


class Pops(Appends):
    def step(self, states: list[Any], number: int) -> Any:
        h = states.pop()
        states.append(self.out(h))
        states.insert(0, h * number)


class Puts(Appends):
    def step(self, states: list[Any], number: int) -> Any:
        states[0] = torch.tanh(self.out(states[0]) * number)
        return self.out(states[0])


class GivesBack(Appends):
    def forward(self, x: torch.Tensor) -> Any:
        states = [self.inner(x)]
        for _ in range(2):
            same, h = self.step(states, states[-1])
            same.append(h)
        return [h.sum(0) for h in states]

    def step(self, states: list[Any], h: Any) -> Any:
        return states, self.out(h)


class InATuple(Appends):
    def forward(self, x: torch.Tensor) -> Any:
        states = [x]
        for number in range(2):
            self.step((states, number), self.inner(x))
        return [h.sum(0) for h in states]

    def step(self, given: tuple[list[Any], int], h: Any) -> Any:
        states, number = given
        states.append(self.out(h) + number)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("kind", [Appends, AppendsAndReturns, Pops, Puts, GivesBack, InATuple])
def test_a_list_that_a_method_changes_is_its_callers(kind: type[Net3], is_open: bool) -> None:
    """Calls whose matrices had rows of every length got copies of their lists."""

    class Open(kind):  # type: ignore[misc,valid-type]
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(torch.tensor([[float(text) for text in str(row)[1:-1].split(", ")]
                                                 for row in x.tolist()]))  # fmt: skip

    checked(Open if is_open else kind)
