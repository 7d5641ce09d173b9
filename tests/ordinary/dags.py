"""DAGs: topological order, memo dictionaries, lattices and circuits."""

from __future__ import annotations

from collections import deque
from functools import reduce

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import VOCAB, dag, kinds_dag, sentence
from ordinary.registry import program


@program(dag)
class TopologicalSum(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.start, self.step = nn.Parameter(torch.randn(size)), nn.Linear(size, size)

    def forward(self, reads):
        states = []
        for sources in reads:
            h = sum((states[i] for i in sources), self.start)
            states.append(torch.tanh(self.step(h)))
        return states[-1]


@program(dag)
class MemoisedRecursion(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.places, self.step = nn.Embedding(10, size), nn.Linear(size, size)

    def forward(self, reads):
        memo = {}

        def visit(i):
            if i not in memo:
                memo[i] = torch.relu(self.step(sum([visit(j) for j in reads[i]], self.places(torch.tensor(i)))))
            return memo[i]

        return visit(len(reads) - 1)


@program(kinds_dag)
class Circuit(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.gates = nn.ModuleDict({kind: nn.GRUCell(size, size) for kind in ("and", "or", "not")})

    def forward(self, gates):
        states = {}
        for i, (kind, reads) in enumerate(gates):
            h = torch.ones(self.size)
            for j in reads:
                h = self.gates[kind](states[j], h)
            states[i] = h
        return {str(i): h for i, h in states.items()}


@program(dag)
class AttendToParents(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.places, self.score, self.step = nn.Embedding(10, size), nn.Linear(2 * size, 1), nn.GRUCell(size, size)

    def forward(self, reads):
        states = []
        for i, sources in enumerate(reads):
            x = self.places(torch.tensor(i))
            if sources:
                scores = torch.cat([self.score(torch.cat([states[j], x])) for j in sources])
                weights = F.softmax(scores, dim=0)
                x = self.step(sum(w * states[j] for w, j in zip(weights, sources, strict=True)), x)
            states.append(x)
        return torch.stack(states).mean(dim=0)


@program(dag)
class MaxOfParents(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.start, self.step = nn.Parameter(torch.randn(size)), nn.Linear(size, size)

    def forward(self, reads):
        states = [torch.tanh(self.start)]
        for sources in reads[1:]:
            states.append(torch.tanh(self.step(reduce(torch.maximum, [states[i] for i in sources]))))
        return states[-1]


@program(dag)
class QueueOfReady(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.places, self.step = nn.Embedding(10, size), nn.Linear(size, size)

    def forward(self, reads):
        states, queue = {}, deque(range(len(reads)))
        while queue:
            node = queue.popleft()
            if all(j in states for j in reads[node]):
                below = [self.step(states[j]) for j in reads[node]]
                states[node] = torch.sigmoid(self.places.weight[node] + sum(below))
            else:
                queue.append(node)
        return states[max(states)]


@program(sentence)
class WordLattice(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.chars, self.cell, self.jump = nn.Embedding(VOCAB, size), nn.GRUCell(size, size), nn.GRUCell(size, size)

    def forward(self, chars):
        states = [torch.zeros_like(self.chars.weight[0])]
        for i, char in enumerate(chars):
            h = self.cell(self.chars(torch.tensor(char)), states[i])
            if i >= 2 and char % 3 == 0:
                h = (h + self.jump(self.chars(torch.tensor(chars[i - 2])), states[i - 2])) / 2
            states.append(h)
        return states[-1]


@program(dag)
class AdjacencyRows(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.places, self.step = nn.Embedding(10, size), nn.Linear(size, size)

    def forward(self, reads):
        adjacency = torch.zeros(len(reads), len(reads))
        for i, sources in enumerate(reads):
            adjacency[i, sources] = 1.0
        h = self.places(torch.arange(len(reads)))
        for _ in range(3):
            h = torch.tanh(self.step(adjacency @ h) + h)
        return h[-1]


@program(dag)
class TypedEdges(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.places = nn.Embedding(10, size)
        self.kinds = nn.ParameterList([nn.Parameter(torch.randn(size, size) / 4) for _ in range(3)])

    def forward(self, reads):
        states = []
        for i, sources in enumerate(reads):
            h = self.places(torch.tensor(i))
            for kind, j in enumerate(sources):
                h = h + states[j] @ self.kinds[kind]
            states.append(torch.tanh(h))
        return states


@program(dag)
class BothDirections(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.places, self.there, self.back = nn.Embedding(10, size), nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, reads):
        count = len(reads)
        up = [self.places.weight[i] for i in range(count)]
        for i in range(count):
            for j in reads[i]:
                up[i] = up[i] + torch.tanh(self.there(up[j]))
        down = list(up)
        for i in reversed(range(count)):
            for j in reads[i]:
                down[j] = down[j] + torch.tanh(self.back(down[i]))
        return torch.cat([up[-1], down[0]])
