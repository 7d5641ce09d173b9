"""Matrices of an instance's as large as its rows are many, in forwards that are kept: against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import bound
from rowparity import HIDDEN, require_eager
from torch import nn

from edbc.capture.ragged.together.forwards import Forwards

FEATURES = 12


def matrix(rng: Random, n: int, m: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return (torch.rand(n, m, generator=generator) < 0.4).float() + 0.1


def features(rng: Random, n: int) -> torch.Tensor:
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(rng.randrange(1 << 30)))


def size(rng: Random) -> int:
    """As many as features are now and then."""
    return rng.choice([2, 3, 9, 12, 17, 20, 25])


def graph(rng: Random) -> tuple[torch.Tensor, torch.Tensor]:
    n = size(rng)
    return features(rng, n), matrix(rng, n, n)


class OfGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.out = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, 3)
        self.a, self.b = nn.Linear(HIDDEN, 1), nn.Linear(HIDDEN, 1)


class Convolution(OfGraphs):
    def forward(self, of: Any) -> Any:
        x, near = of
        h = near @ self.up(x).relu()
        return self.out((near @ h) / near.sum(1, keepdim=True))


class BatchesOfOne(OfGraphs):
    """Graphs as code for padded batches has them, and weights of edges of two heads."""

    def forward(self, of: Any) -> Any:
        x, near = of
        h = near.bmm(self.up(x).relu())
        weights = (self.a(h) + self.b(h).transpose(1, 2)).masked_fill(near == 0, -1e9).softmax(-1)
        return self.out(weights @ h).mean(1)


class Attention(OfGraphs):
    def forward(self, of: Any) -> Any:
        x, near = of
        h = self.up(x)
        scores = F.leaky_relu(self.a(h) + self.b(h).t(), 0.2)
        scores = torch.where(near > 0.5, scores, -9e15 * torch.ones_like(scores))
        return F.elu(F.softmax(scores, dim=1) @ h).mean(0), near.sum()


class MatrixFirst(OfGraphs):
    def forward(self, of: Any) -> Any:
        near, x = of
        return self.out(near.t() @ self.up(x)).amax(0)


class OfBools(OfGraphs):
    """Masks, in a dict."""

    def forward(self, of: Any) -> Any:
        h = self.up(of["x"])
        scores = (h @ h.T).masked_fill(~of["near"], -1e9)
        return (scores.softmax(-1) @ h).sum(0)


class Bipartite(OfGraphs):
    def forward(self, of: Any) -> Any:
        x, y, links = of
        return (links @ self.up(y)).mean(0) + (links.T @ self.up(x)).amax(0)


class Elements(OfGraphs):
    """What loops do not know: the matrix as it is, a type per size."""

    def forward(self, of: Any) -> Any:
        x, near = of
        return self.up(x).sum(0) * near[0, 1] + near.diagonal().sum() + torch.linalg.matrix_norm(near)


def bools(rng: Random) -> dict[str, torch.Tensor]:
    x, near = graph(rng)
    return {"x": x, "near": near > 0.5}


def bipartite(rng: Random) -> tuple[torch.Tensor, ...]:
    n, m = size(rng), size(rng) + 1
    return features(rng, n), features(rng, m), matrix(rng, n, m)


def alone(of: Any) -> Any:
    """In a batch of one."""
    return tuple([x[None] for x in of])


MODELS: list[tuple[type[nn.Module], Callable[[Random], Any]]] = [
    (Convolution, graph),
    (BatchesOfOne, lambda rng: alone(graph(rng))),
    (Attention, graph),
    (MatrixFirst, lambda rng: graph(rng)[::-1]),
    (OfBools, bools),
    (Bipartite, bipartite),
    (Elements, graph),
]


@pytest.mark.parametrize(("kind", "instance"), MODELS, ids=[kind.__name__ for kind, _ in MODELS])
def test_matrices_of_instances_are_eagers(kind: type[nn.Module], instance: Callable[[Random], Any]) -> None:
    """Outputs and gradients, of graphs with as many nodes as features too; in other company, and captured."""
    torch.manual_seed(0)
    model, rng = kind().eval(), Random(1)
    net = bound(model, [instance(rng) for _ in range(16)], rows=True)
    assert net.plan.ragged
    for count in (16, 1, 40, 7):
        require_eager(net, model, [instance(rng) for _ in range(count)], 1e-4)
    batch = [instance(rng) for _ in range(12)]
    with torch.no_grad():
        found = net([*net.capture_all(batch[:6]), *batch[6:]])
        for ours, of in zip(found, batch, strict=True):
            torch.testing.assert_close(ours, model(of), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [Convolution, Attention, BatchesOfOne])
def test_known_graphs_are_recorded_at_once(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """No Python of forward runs for graphs of sizes that nobody has seen, and there is no further type."""
    torch.manual_seed(0)
    model, rng = kind().eval(), Random(2)
    shown: Callable[[Any], Any] = alone if kind is BatchesOfOne else tuple
    net = bound(model, [shown(graph(rng)) for _ in range(16)], rows=True)
    with torch.no_grad():
        for _ in range(3):
            net([shown(graph(rng)) for _ in range(16)])
        types, at_once, taken = len(net.table.types), Forwards.at_once, []
        monkeypatch.setattr(Forwards, "at_once", lambda self: taken.append(found := at_once(self)) or found)
        batch = [shown((features(rng, n), matrix(rng, n, n))) for n in (4, 13, 31, 40, 12)]
        found = net(batch)
    assert [of is not None for of in taken] == [True]
    assert len(net.table.types) == types
    for ours, of in zip(found, batch, strict=True):
        torch.testing.assert_close(ours, model(of), atol=1e-4, rtol=1e-4)


def test_a_matrix_that_requires_gradients_gets_them() -> None:
    torch.manual_seed(0)
    model, rng = Convolution().eval(), Random(3)
    net = bound(model, [graph(rng) for _ in range(16)], rows=True)
    for _ in range(2):
        batch = [(x, near.requires_grad_()) for x, near in (graph(rng) for _ in range(6))]
        wanted = torch.autograd.grad(sum(model(of).square().sum() for of in batch), [near for _, near in batch])
        found = torch.autograd.grad(sum(y.square().sum() for y in net(batch)), [near for _, near in batch])
        for ours, eagers in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, eagers, atol=1e-3, rtol=1e-3)


class Hides(OfGraphs):
    """A mask as wide as the features, and no grid but where there are as many rows."""

    def forward(self, of: Any) -> Any:
        x, hidden = of
        return self.out(self.up(x.masked_fill(hidden, 0.0))).amax(0) + hidden.float().mean()


class Weighs(OfGraphs):
    """A mask of one size."""

    def forward(self, of: Any) -> Any:
        x, hidden = of
        return self.out(self.up(x)).sum(0) + hidden.sum()


@pytest.mark.parametrize("kind", [Hides, Weighs])
def test_masks_that_are_no_grids(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, rng = kind().eval(), Random(1)

    def instance() -> tuple[torch.Tensor, torch.Tensor]:
        n = size(rng)
        return features(rng, n), features(rng, n if kind is Hides else 3) > 0

    net = bound(model, [instance() for _ in range(16)], rows=True)
    for count in (16, 1, 30):
        require_eager(net, model, [instance() for _ in range(count)], 1e-4)
        with torch.no_grad():
            batch = [instance() for _ in range(count)]
            for ours, of in zip(net(batch), batch, strict=True):
                torch.testing.assert_close(ours, model(of), atol=1e-4, rtol=1e-4)
