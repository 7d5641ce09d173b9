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
