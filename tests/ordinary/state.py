"""State: on self, in caches, in closures, generators and objects."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import nn

from ordinary.data import FEATURES, VOCAB, dag, sentence, series, tree, vector
from ordinary.registry import program


@program(sentence)
class StateOnSelf(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.step, self.h = nn.Embedding(VOCAB, size), nn.GRUCell(size, size), None

    def reset(self):
        self.h = torch.zeros_like(self.words.weight[0])

    def forward(self, words):
        self.reset()
        for word in words:
            self.h = self.step(self.words(torch.tensor(word)), self.h)
        return self.h


@program(series)
class MaskToTheDevice(nn.Module):
    """A buffer and a parameter that forward assigns as they are, on the device where they stand."""

    def __init__(self, size):
        super().__init__()
        self.step, self.scale = nn.Linear(FEATURES, size), nn.Parameter(torch.ones(size))
        self.register_buffer("mask", torch.linspace(0, 1, size))

    def forward(self, series):
        self.mask = self.mask.to(series.device)
        self.scale = self.scale
        return self.step(series).tanh().mul(self.mask).sum(0) * self.scale


@program(dag)
class MemoOnSelf(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.places, self.step, self.memo = nn.Embedding(10, size), nn.Linear(size, size), {}

    def forward(self, reads):
        self.memo = {}
        return self.visit(reads, len(reads) - 1)

    def visit(self, reads, i):
        if i not in self.memo:
            below = sum(self.visit(reads, j) for j in reads[i])
            self.memo[i] = torch.tanh(self.step(self.places.weight[i] + below))
        return self.memo[i]


@program(tree)
class ParametersOfForward(nn.Module):
    """Initial states that are parameters which forward makes, as those of blocks of instructions are."""

    def __init__(self, size):
        super().__init__()
        self.words, self.cell, self.size = nn.Embedding(VOCAB, size), nn.LSTM(size, size), size

    def first(self):
        return nn.Parameter(torch.zeros(1, 1, self.size, requires_grad=True)), nn.Parameter(torch.ones(1, 1, self.size))

    def below(self, states):
        return torch.max(states[0], states[-1]) if states else self.first()[0]

    def forward(self, tree):
        return self.visit(tree)[0].squeeze() + self.below([]).squeeze()

    def visit(self, tree):
        x = self.words(torch.tensor([tree.word])).unsqueeze(1)
        if not tree.children:
            return self.cell(x, self.first())[1]
        h, c = zip(*map(self.visit, tree.children), strict=True)
        return self.cell(x, (self.below(h), self.below(c)))[1]


class State(NamedTuple):
    """A pair of states."""

    h: torch.Tensor
    c: torch.Tensor


@program(series)
class NamedStates(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.cell = size, nn.LSTMCell(FEATURES, size)

    def forward(self, series):
        state = State(torch.zeros(self.size), torch.zeros(self.size))
        for x in series:
            state = State(*self.cell(x, state))
        return state


@program(sentence)
class GeneratorOfStates(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.step = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def states(self, words):
        h = self.words.weight[0]
        for word in words:
            h = torch.tanh(self.step(h) + self.words.weight[word])
            yield h

    def forward(self, words):
        return max(enumerate(self.states(words)), key=lambda pair: pair[0])[1]


class Beam:
    """An item of a beam: a state and what led to it."""

    __slots__ = ("h", "words")

    def __init__(self, h, words=()):
        self.h = h
        self.words = words


@program(sentence)
class ObjectsWithSlots(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.step = nn.Embedding(VOCAB, size), nn.GRUCell(size, size)

    def forward(self, words):
        beam = Beam(torch.zeros_like(self.words.weight[0]))
        for word in words:
            beam = Beam(self.step(self.words(torch.tensor(word)), beam.h), (*beam.words, word))
        return beam.h, len(beam.words)


@program(tree)
class CopiedNodes(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.up = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, root):
        root = copy.deepcopy(root)
        return self.visit(root).state

    def visit(self, node):
        node.state = self.words(torch.tensor(node.word))
        for child in node.children:
            node.state = node.state + torch.tanh(self.up(self.visit(child).state))
        return node


@program(sentence)
class ClosureOverState(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.step = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)

    def forward(self, words):
        h = torch.zeros(self.words.embedding_dim)

        def feed(word):
            nonlocal h
            h = torch.relu(self.step(torch.cat([h, self.words(torch.tensor(word))])))

        for word in words:
            feed(word)
        return h


@program(vector)
class LastActivation(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.out, self.last = nn.Linear(FEATURES, size), nn.Linear(size, 1), None

    def forward(self, x):
        self.last = torch.tanh(self.up(x))
        return self.out(self.last), self.last


@program(sentence)
class GrowingContext(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, words):
        context = torch.zeros(0, self.words.embedding_dim)
        for word in words:
            context = torch.cat([context, self.words(torch.tensor([word]))])
        return self.out(context)


@program(sentence)
class ExternalStack(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.join = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, words):
        stack = [(self.words(torch.tensor(words[0])), 0)]
        for word in words[1:]:
            while len(stack) > 1 and word % 2:
                (a, depth), (b, _) = stack.pop(), stack.pop()
                stack.append((torch.tanh(self.join(a * b)), depth + 1))
            stack.append((self.words(torch.tensor(word)), 0))
        return [h for h, _ in stack]
