"""Every two rows of an instance: relations, messages over all pairs, scores of pairs, distances."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, edge_graph, normal, points
from ordinary.registry import program


def scene(rng):
    """Objects, and a question about them."""
    return normal(rng, rng.randint(3, 14), FEATURES), normal(rng, 1, 6)[0]


def adjacent(rng):
    """Features of nodes, and which of them are joined, for every head."""
    n = rng.randint(3, 14)
    near = torch.tensor([[i == j or rng.random() < 0.3 for j in range(n)] for i in range(n)])
    return normal(rng, n, FEATURES), near.unsqueeze(-1)


def residues(rng):
    """Features of residues, and of every two of them."""
    n = rng.randint(3, 10)
    return normal(rng, n, FEATURES), normal(rng, n * n, 5).view(n, n, 5)


@program(scene)
class RelationNetwork(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.g = nn.Sequential(nn.Linear(2 * FEATURES + 6, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU())
        self.f = nn.Linear(size, 4)

    def forward(self, item):
        x, question = item
        n = x.size(0)
        asked = question.unsqueeze(0).repeat(n, 1).unsqueeze(1)
        one = x.unsqueeze(0).repeat(n, 1, 1)
        other = torch.cat([x.unsqueeze(1), asked], 2).repeat(1, n, 1)
        return self.f(self.g(torch.cat([one, other], 2).view(n * n, -1)).sum(0))


@program(adjacent)
class AttentionOfPairs(nn.Module):
    """Scores of every two nodes by a layer after the activation."""

    def __init__(self, size):
        super().__init__()
        self.heads = 4
        self.left, self.right = nn.Linear(FEATURES, size, bias=False), nn.Linear(FEATURES, size, bias=False)
        self.score = nn.Linear(size // 4, 1, bias=False)

    def forward(self, item):
        x, near = item
        n = x.shape[0]
        left, right = self.left(x).view(n, self.heads, -1), self.right(x).view(n, self.heads, -1)
        both = (left.repeat(n, 1, 1) + right.repeat_interleave(n, dim=0)).view(n, n, self.heads, -1)
        scores = self.score(F.leaky_relu(both, 0.2)).squeeze(-1).masked_fill(near == 0, float("-inf"))
        return torch.einsum("ijh,jhf->ihf", scores.softmax(1), right).reshape(n, -1)


@program(points)
class EquivariantMessages(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(3, size)
        self.edge = nn.Sequential(nn.Linear(2 * size + 1, size), nn.SiLU(), nn.Linear(size, size), nn.SiLU())
        self.shift = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, 1))
        self.node = nn.Linear(2 * size, size)

    def forward(self, x):
        h, n = self.up(x), x.shape[0]
        apart = x.unsqueeze(1) - x.unsqueeze(0)
        squared = (apart**2).sum(dim=-1, keepdim=True)
        ends = h.unsqueeze(1).expand(n, n, -1), h.unsqueeze(0).expand(n, n, -1)
        messages = self.edge(torch.cat((*ends, squared), dim=-1))
        moved = x + (self.shift(messages) * apart).sum(dim=1) / n
        return (h + self.node(torch.cat((h, messages.sum(dim=1)), dim=-1))).sum(0), moved


@program(points)
class FiltersOfDistance(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, 4, 9))
        self.up = nn.Linear(3, size)
        self.filter = nn.Sequential(nn.Linear(9, size), nn.Softplus(), nn.Linear(size, size))
        self.out = nn.Linear(size, 1)

    def forward(self, x):
        d = (x[:, None] - x[None]).norm(dim=-1)
        cut = 0.5 * (torch.cos(d * math.pi / 4) + 1) * (d < 4)
        w = self.filter(torch.exp(-2 * (d.unsqueeze(-1) - self.centres) ** 2)) * cut.unsqueeze(-1)
        h = self.up(x)
        h = h + (h.unsqueeze(0) * w).sum(1)
        return self.out(F.softplus(h)).sum(0)


@program(residues)
class PairFeatures(nn.Module):
    """Numbers of every two residues beside those of each."""

    def __init__(self, size):
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, size), nn.Linear(5, size)
        self.norm, self.mix = nn.LayerNorm(size), nn.Linear(size, size)

    def forward(self, item):
        x, z = item
        h = self.one(x)
        z = self.norm(self.two(z) + h[:, None] * h[None])
        return (self.mix(z).relu().mean(1) + h).amax(0)


@program(edge_graph)
class MeansBySize(nn.Module):
    """Sizes in arithmetic."""

    def __init__(self, size):
        super().__init__()
        self.up, self.out = nn.Linear(FEATURES, size), nn.Linear(size, 3)

    def forward(self, data):
        h = torch.relu(self.up(data.x))
        n = h.size(0)
        others = (h.sum(0, keepdim=True) - h) / max(n - 1, 1)
        return self.out(others.sum(0) / n + h[n - 1] / math.sqrt(n))


@program(points)
class PairsInOrder(nn.Module):
    """Of every two the earlier one comes first; both halves beside."""

    def __init__(self, size):
        super().__init__()
        self.up, self.pair, self.out = nn.Linear(3, size), nn.Linear(2 * size, size), nn.Linear(3 * size, 4)

    def forward(self, x):
        h = torch.tanh(self.up(x))
        n = len(h)
        i, j = torch.triu_indices(n, n, offset=1)
        both = torch.relu(self.pair(torch.cat([h[i], h[j]], dim=-1))).sum(0)
        return self.out(torch.cat([both, h[: n // 2].sum(0), h[n // 2 :].amax(0)]))


@program(adjacent)
class AttentionOfRepeatedRows(nn.Module):
    """Every two rows side by side by `repeat`, as graph attention was first written in torch."""

    def __init__(self, size):
        super().__init__()
        self.up, self.score = nn.Linear(FEATURES, size, bias=False), nn.Linear(2 * size, 1, bias=False)

    def forward(self, item):
        x, near = item
        h = self.up(x)
        n = h.size(0)
        both = torch.cat([h.repeat(1, n).view(n * n, -1), h.repeat(n, 1)], dim=1).view(n, -1, 2 * h.size(1))
        scores = F.leaky_relu(self.score(both).squeeze(2), 0.2)
        scores = torch.where(near.squeeze(-1) > 0, scores, -9e15 * torch.ones_like(scores))
        return F.elu(torch.softmax(scores, dim=1) @ h)
