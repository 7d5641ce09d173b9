"""Tensors that change in place."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from ordinary.data import FEATURES, VOCAB, sentence, series, tree, vector
from ordinary.registry import program


@program(sentence)
class AugmentedAssignment(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.step = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, words):
        h = torch.zeros(self.words.embedding_dim)
        for word in words:
            h += torch.tanh(self.step(self.words(torch.tensor(word))))
        return h


@program(series)
class SumOfPairs(nn.Module):
    """A sum that grows in two loops over the states of a series, as one of relations does."""

    def __init__(self, size):
        super().__init__()
        self.states, self.pair, self.out = nn.LSTM(FEATURES, size), nn.Linear(2 * size, size), nn.Linear(size, 1)

    def forward(self, series):
        states, _ = self.states(series.unsqueeze(1))
        total = torch.autograd.Variable(torch.zeros(self.pair.out_features))
        for i in range(len(series)):
            for j in range(i, len(series)):
                total += torch.relu(self.pair(torch.cat((states[i].squeeze(), states[j].squeeze()), 0)))
        return self.out(total)


@program(sentence)
class BufferOfStates(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.step = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, words):
        states = torch.zeros(len(words), self.words.embedding_dim)
        h = self.words(torch.tensor(words[0]))
        for i, word in enumerate(words):
            h = torch.tanh(self.step(h) + self.words(torch.tensor(word)))
            states[i] = h
        return states.mean(0)


@program(vector)
class InPlaceActivation(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, size), nn.ReLU(inplace=True), nn.Linear(size, size))

    def forward(self, x):
        return self.net(x)


@program(vector)
class MethodsWithUnderscore(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, x):
        return self.up(x).mul_(2).add_(1).tanh_()


@program(series)
class PartOfARow(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, series):
        x = self.up(series)
        x[:, :4] *= 2
        return x.sum(0)


@program(tree)
class AccumulateOnNodes(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.up = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, node):
        node.state = self.up(self.words(torch.tensor(node.word)))
        for child in node.children:
            node.state += torch.tanh(self.forward(child))
        return node.state


@program(series)
class GatesChanged(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.x, self.h = size, nn.Linear(FEATURES, 2 * size), nn.Linear(size, 2 * size)

    def forward(self, series):
        h = torch.zeros(self.size)
        for x in series:
            gates = self.x(x)
            gates += self.h(h)
            z, n = gates.chunk(2)
            h = torch.sigmoid(z) * h + (1 - torch.sigmoid(z)) * torch.tanh(n)
        return h


@program(series)
class ChartOfSpans(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, series):
        x, count = self.up(series), len(series)
        chart = torch.zeros(count, count)
        for i in range(count):
            for j in range(i, count):
                chart[i, j] = x[i].dot(x[j])
        return torch.logsumexp(chart, dim=1)


@program(series)
class InsideByNumPy(nn.Module):
    """Scores of spans from those of their halves, in a chart whose indices are NumPy's integers."""

    def __init__(self, size):
        super().__init__()
        self.size, self.leaf, self.rules = size, nn.Linear(FEATURES, size), nn.Parameter(torch.randn(size, size))

    def forward(self, series):
        leaves, count = self.leaf(series).unsqueeze(0), len(series)
        chart = leaves.new_full((1, count, count, self.size), -1e4)
        for i in np.arange(count):
            chart[:, i, i] = leaves[:, i]
        for width in np.arange(1, min(count, 4)):
            for i in range(count - width):
                j = i + width
                splits = [chart[:, i, k, : self.size // 2] + chart[:, k + 1, j, -1:] for k in range(i, j)]
                chart[:, i, j, : self.size // 2] = torch.logsumexp(torch.stack(splits, 1), 1)
        return (chart[0, 0].softmax(-1) @ self.rules).sum(0)


@program(series)
class WrittenIntoACopy(nn.Module):
    """A deep copy of the last position, which what is predicted of it is written into."""

    def __init__(self, size):
        super().__init__()
        self.step, self.out = nn.GRUCell(FEATURES, size), nn.Linear(size, FEATURES)

    def forward(self, series):
        seen, h = copy.deepcopy(list(series[-1:])), None
        for _ in range(3):
            h = self.step(seen[0].clone()[None], h)
            seen[0][1:] = self.out(h)[0, 1:].detach()
        return seen[0], h


@program(series)
class BiasOfPositions(nn.Module):
    """Attention-free: a bias of positions, made of parameters, is masked in place; another call of the same function
    of parameters is not."""

    def __init__(self, size):
        super().__init__()
        self.up, self.bias = nn.Linear(FEATURES, size), nn.Parameter(torch.randn(16, 16))
        self.register_buffer("near", torch.ones(16, 16).tril(3).triu(-3))

    def forward(self, x):
        n = len(x)
        bias = (self.bias[:n, :n] * self.near[:n, :n]).unsqueeze(-1)
        bias.masked_fill_(~torch.ones(n, n, dtype=torch.bool).tril().unsqueeze(-1), -100.0)
        bias += 1
        whole = self.bias[:n, :n] * self.near[:n, :n]
        return torch.einsum("ijb,jd->id", torch.softmax(bias, 1), self.up(x)) + whole.sum()
