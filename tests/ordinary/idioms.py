"""Idioms of other people's code: scatters into buffers, masks of what was visited, levels, heaps, `match`."""

from __future__ import annotations

import enum
import functools
import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, LABELS, VOCAB, binary_tree, dag, edge_graph, normal, points, sentence, series, tree
from ordinary.registry import program


def gapped(rng: Random) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
    """A series some of whose numbers are missing, which ones, and the times between its rows."""
    values = series(rng)
    seen = torch.tensor([[rng.random() < 0.7 for _ in range(FEATURES)] for _ in range(len(values))])
    return values, seen, [rng.random() for _ in range(len(values))]


@program(gapped)
class DecayOfMissing(nn.Module):
    """GRU-D: what is missing decays from what was seen last towards the mean."""

    def __init__(self, size):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(FEATURES))
        self.rate_x, self.rate_h = nn.Linear(1, FEATURES), nn.Linear(1, size)
        self.cell, self.size = nn.GRUCell(2 * FEATURES, size), size

    def forward(self, instance):
        values, seen, gaps = instance
        h, last = torch.zeros(self.size), self.mean
        for x, m, gap in zip(values, seen, gaps, strict=True):
            gap = torch.tensor([gap])
            decay = torch.exp(-F.relu(self.rate_x(gap)))
            guess = decay * last + (1 - decay) * self.mean
            last = torch.where(m, x, last)
            x = torch.where(m, x, guess)
            h = h * torch.exp(-torch.relu(self.rate_h(gap)))
            h = self.cell(torch.cat((x, m.float().to(x.dtype))).unsqueeze(0), h.unsqueeze(0)).squeeze(0)
        return h


@program(edge_graph)
class ScatterAdd(nn.Module):
    """Messages added into a buffer by index, degrees counted in another."""

    def __init__(self, size):
        super().__init__()
        self.up, self.message, self.size = nn.Linear(FEATURES, size), nn.Linear(size + 3, size), size

    def forward(self, data):
        x = torch.relu(self.up(data.x))
        source, target = data.edge_index
        messages = self.message(torch.cat([x[source], data.edge_attr], dim=-1))
        summed = torch.zeros(data.num_nodes, self.size)
        summed.scatter_add_(0, target.unsqueeze(-1).expand_as(messages), messages)
        degree = torch.bincount(target, minlength=data.num_nodes).clamp(min=1).unsqueeze(-1)
        return {"nodes": summed / degree, "graph": summed.sum(0)}


@program(points)
class VisitInTurn(nn.Module):
    """A pointer network that may not visit a place twice: a mask of integers that grows."""

    def __init__(self, size):
        super().__init__()
        self.up, self.cell = nn.Linear(3, size), nn.GRUCell(size, size)
        self.q, self.k, self.v = nn.Linear(size, size), nn.Linear(size, size), nn.Parameter(torch.randn(size))

    def forward(self, places):
        x = self.up(places)
        visited, h, total = torch.zeros(len(x), dtype=torch.bool), x.mean(0), 0.0
        for step in range(len(x)):
            scores = torch.tanh(self.q(h) + self.k(x)) @ self.v
            scores = scores.masked_fill(visited, -1e4)
            total = total + F.log_softmax(scores, dim=0)[step]
            visited = visited.clone()
            visited[step] = True
            h = self.cell(x[step][None], h[None])[0]
        return -total / len(x)


@program(sentence)
class BiaffineArcs(nn.Module):
    """A parser's scores of all arcs, with their labels, one einsum."""

    def __init__(self, size):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, size), nn.Embedding(16, size)
        self.head, self.dependent = (nn.Sequential(nn.Linear(size, size), nn.ELU()) for _ in range(2))
        self.weight = nn.Parameter(torch.randn(LABELS, size, size) / size)

    def forward(self, words):
        ids = torch.tensor(words, dtype=torch.long)
        x = self.words(ids) + self.places(torch.arange(len(ids)))
        arcs = torch.einsum("id,ldk,jk->lij", self.dependent(x), self.weight, self.head(x))
        arcs = arcs + torch.diag(torch.full((len(words),), -1e3))
        best = arcs.logsumexp(0)
        return best.log_softmax(-1).diagonal(-1).sum(), arcs.mean((1, 2))


@program(series)
class StateSpace(nn.Module):
    """A diagonal state space: a cumulative product, and a convolution by a kernel that is computed."""

    def __init__(self, size):
        super().__init__()
        self.log_rate = nn.Parameter(torch.randn(size))
        self.b, self.c = nn.Linear(FEATURES, size), nn.Linear(size, LABELS)
        self.register_buffer("skip", torch.linspace(0.1, 1.0, size))

    def forward(self, series):
        u = self.b(series)
        steps = torch.arange(len(u), dtype=u.dtype).unsqueeze(-1)
        kernel = torch.exp(-steps * F.softplus(self.log_rate))
        outputs = [(kernel[: t + 1].flip(0) * u[: t + 1]).sum(dim=0) for t in range(len(u))]
        return self.c(torch.stack(outputs) + self.skip * u).mean(dim=0)


def several(rng: Random) -> list[list[int]]:
    """A document: sentences."""
    return [sentence(rng) for _ in range(rng.randint(1, 4))]


@program(edge_graph)
class ContinuousFilters(nn.Module):
    """SchNet: radial functions of distances with a cosine cutoff, filters made of them."""

    def __init__(self, size):
        super().__init__()
        self.up, self.size = nn.Linear(FEATURES, size), size
        self.filters = nn.Sequential(nn.Linear(5, size), nn.Softplus(), nn.Linear(size, size))
        self.register_buffer("centres", torch.linspace(0, 2, 5))

    def forward(self, data):
        x = self.up(data.x)
        i, j = data.edge_index[0], data.edge_index[1]
        distance = data.edge_attr.norm(dim=1)
        radial = torch.exp(-2.0 * (distance.view(-1, 1) - self.centres.view(1, -1)) ** 2)
        cut = 0.5 * (torch.cos(distance * math.pi / 4.0) + 1.0) * (distance < 4.0)
        x = x + torch.zeros_like(x).index_add_(0, i, x[j] * (self.filters(radial) * cut[:, None]))
        return torch.tanh(x).sum(dim=0)


class Gate(enum.Enum):
    """Kinds of a circuit's nodes."""

    AND, OR, NOT = "and", "or", "not"


@dataclass(frozen=True)
class Wire:
    """A gate and what it reads."""

    kind: Gate
    reads: tuple[int, ...]


def wires(rng: Random) -> list[Wire]:
    """A circuit of frozen dataclasses with enumerations."""
    return [Wire(rng.choice(list(Gate)), tuple(reads)) for reads in dag(rng)]


@program(wires)
class GatesByMatch(nn.Module):
    """Structural matching over enumerations; `functools.reduce` over what a gate reads."""

    def __init__(self, size):
        super().__init__()
        self.pair = nn.ModuleDict({g.value: nn.Linear(2 * size, size) for g in (Gate.AND, Gate.OR)})
        self.invert, self.first = nn.Linear(size, size), nn.Parameter(torch.randn(size))

    def gate(self, wire, states):
        read = [states[i] for i in wire.reads] or [self.first]
        match wire:
            case Wire(kind=Gate.NOT):
                return torch.tanh(self.invert(read[0]))
            case Wire(kind=(Gate.AND | Gate.OR) as kind):
                layer = self.pair[kind.value]
                return functools.reduce(lambda a, b: torch.sigmoid(layer(torch.cat([a, b], -1))), read, self.first)

    def forward(self, circuit):
        states: dict[int, torch.Tensor] = {}
        for number, wire in enumerate(circuit):
            states[number] = self.gate(wire, states)
        return states[len(circuit) - 1]


@program(tree)
class LevelsOfATree(nn.Module):
    """By levels with a deque, all nodes of a level as one matrix: `split` by lengths, `repeat_interleave`."""

    def __init__(self, size):
        super().__init__()
        self.words, self.down = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)
        self.score = nn.Linear(size, 1, bias=False)

    def forward(self, root):
        queue, levels = deque([(root, 0)]), defaultdict(list)
        while queue:
            node, depth = queue.popleft()
            levels[depth].append(node)
            queue.extend((child, depth + 1) for child in node.children)
        states = torch.zeros(1, self.words.embedding_dim)
        scores = []
        for depth in sorted(levels):
            nodes = levels[depth]
            x = self.words(torch.as_tensor([n.word for n in nodes]))
            states = torch.tanh(self.down(torch.cat((x, states), dim=1)))
            scores.append(self.score(states).squeeze(-1).max())
            counts = torch.tensor([len(n.children) for n in nodes])
            states = torch.repeat_interleave(states, counts, dim=0)
        return torch.stack(scores).sum()


def weighted(rng: Random) -> tuple[int, list[tuple[int, int, float]]]:
    """How many nodes, and edges with lengths."""
    count = rng.randint(4, 7)
    ring = [(i, (i + 1) % count, 1 + rng.random()) for i in range(count)]
    return count, ring + [(rng.randrange(count), rng.randrange(count), 1 + rng.random()) for _ in range(3)]


@program(weighted)
class AlongShortestPaths(nn.Module):
    """Dijkstra over the instance with a heap; a state moves along each edge that is settled."""

    def __init__(self, size):
        super().__init__()
        self.step, self.start = nn.Linear(size + 1, size), nn.Parameter(torch.randn(size))
        self.norm = nn.LayerNorm(size)

    def forward(self, instance):
        _, edges = instance
        near = defaultdict(list)
        for a, b, length in edges:
            near[a].append((b, length))
        queue, states = [(0.0, 0, None)], {}
        while queue:
            so_far, at, via = heapq.heappop(queue)
            if at in states:
                continue
            given = self.start if via is None else states[via]
            states[at] = self.norm(F.gelu(self.step(torch.cat((given, torch.tensor([so_far]))))))
            for to, length in near[at]:
                if to not in states:
                    heapq.heappush(queue, (so_far + length, to, at))
        return torch.stack([states[i] for i in sorted(states)], dim=1).amax(1)


@program(series)
class LocalWindows(nn.Module):
    """Unfolded windows, normalised by numpy's statistics of the instance; cosine similarity to prototypes."""

    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(2 * FEATURES, size)
        self.prototypes = nn.Parameter(torch.randn(LABELS, size))

    def forward(self, series):
        numbers = series.numpy()
        series = (series - float(np.mean(numbers))) / float(np.std(numbers) + 1e-5)
        windows = series.unfold(0, 2, 1).flatten(1)
        x = self.up(windows)
        similar = F.cosine_similarity(x[:, None], self.prototypes[None], dim=-1)
        return {"best": similar.max(dim=0).values, "mean": x.mean(0, keepdim=True)}


def _outer_product(a, b):
    return torch.outer(a, b).flatten()


def _merge(layer, pair):
    (left, i), (right, j) = pair
    return torch.tanh(layer(_outer_product(left, right))), max(i, j) + 1


@program(sentence)
class PairsByFunctions(nn.Module):
    """Plain functions outside the class that do all the work; pairs merged until one is left."""

    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(VOCAB, 8)
        self.layer = nn.Linear(64, 8)
        self.out = nn.Linear(8, size)

    def forward(self, words):
        items = [(self.words.weight[w], 0) for w in words]
        while len(items) > 1:
            merged = [_merge(self.layer, pair) for pair in zip(items[::2], items[1::2], strict=False)]
            items = merged + items[len(merged) * 2 :]
        state, depth = items[0]
        return self.out(state) / (1 + depth)


@program(sentence)
class OneHotCharacters(nn.Module):
    """`F.one_hot` of numbers, `torch.tensor` of lists, `torch.full` and `arange` in every step."""

    def __init__(self, size):
        super().__init__()
        self.cell, self.size = nn.Linear(VOCAB + LABELS + size + 1, size), size

    def forward(self, words):
        h = torch.full((self.size,), 0.5)
        for place, word in enumerate(words):
            x = F.one_hot(torch.tensor(word), VOCAB).float()
            kind = torch.tensor([1.0 if word % LABELS == k else 0.0 for k in range(LABELS)])
            h = torch.tanh(self.cell(torch.cat([x.to(h.dtype), kind, h, torch.tensor([place / 10])])))
        return h


@program(several)
class HierarchyOfAttention(nn.Module):
    """Words to sentences to documents, attention at both levels by one method, with a mask of -inf."""

    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(VOCAB, size)
        self.inner, self.outer = nn.Linear(size, size), nn.Linear(size, size)
        self.context = nn.ParameterDict({"inner": torch.randn(size), "outer": torch.randn(size)})

    def pool(self, x, which):
        u = torch.tanh(getattr(self, which)(x))
        weights = torch.softmax(u @ self.context[which], dim=0)
        return torch.sum(weights.unsqueeze(1) * x, dim=0)

    def forward(self, document):
        sentences = [self.pool(self.words(torch.LongTensor(s)), "inner") for s in document]
        return self.pool(torch.stack(sentences), "outer")


def scored(rng: Random) -> dict[str, Any]:
    """Boxes with scores of an image."""
    count = rng.randint(2, 5)
    return {"boxes": normal(rng, count, 4), "scores": [rng.random() for _ in range(count)], "size": (4, 4)}


@program(scored)
class BoxesByScore(nn.Module):
    """Sorted by Python, chosen by a list of numbers, written into a canvas by rows."""

    def __init__(self, size):
        super().__init__()
        self.box, self.size = nn.Linear(4, size), size
        self.mix = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size), nn.SiLU(), nn.Dropout(0.1))

    def forward(self, image):
        order = sorted(range(len(image["scores"])), key=image["scores"].__getitem__, reverse=True)
        boxes = self.box(image["boxes"][order])
        canvas = torch.zeros(5, self.size)
        canvas[: len(order)] = boxes * torch.tensor(sorted(image["scores"], reverse=True)).unsqueeze(1)
        canvas += 0.1
        return self.mix(canvas).mean(0)


class GatesMadeInForward(nn.Module):
    """Gates of two children whose activations are modules made at each call."""

    def __init__(self, size):
        super().__init__()
        self.left, self.right = nn.Linear(size, 3 * size), nn.Linear(size, 3 * size)

    def forward(self, left, right):
        keep, take, new = (self.left(left) + self.right(right)).chunk(3, dim=1)
        return nn.Sigmoid()(keep) * left + nn.Sigmoid()(take) * right + nn.Tanh()(new)


@program(binary_tree)
class TreeOfMadeActivations(nn.Module):
    """A batch dimension of one, words as tensors, a module that makes modules."""

    def __init__(self, size):
        super().__init__()
        self.words, self.join = nn.Embedding(VOCAB, size), GatesMadeInForward(size)

    def forward(self, tree):
        if isinstance(tree, int):
            return nn.Tanh()(self.words(torch.tensor([tree])))
        return self.join(*[self.forward(part) for part in tree])


@program(binary_tree)
class RulesOfAGrammar(nn.Module):
    """Matrices and biases in lists of parameters, chosen by rule and by symbol."""

    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(VOCAB, size)
        self.rules = nn.ParameterList(torch.randn(size, 2 * size) * 0.1 for _ in range(3))
        self.symbols = nn.ParameterList(torch.zeros(size) for _ in range(4))

    def expand(self, tree, depth):
        bias = self.symbols[depth % 4]
        if isinstance(tree, int):
            h = self.words(torch.tensor([tree])) + bias
        else:
            parts = torch.cat([self.expand(part, depth + 1) for part in tree], dim=1)
            h = F.linear(parts, self.rules[depth % 3], bias)
        return torch.tanh(h)

    def forward(self, tree):
        return self.expand(tree, 0)


@program(sentence)
class StateOfAnotherTime(nn.Module):
    """A state made of a parameter's data, from before torch.zeros knew dtypes."""

    def __init__(self, size):
        super().__init__()
        self.words, self.cell, self.size = nn.Embedding(VOCAB, size), nn.LSTMCell(size, size), size

    def init_hidden(self):
        weight = next(self.parameters()).data
        return weight.new(1, self.size).zero_(), weight.new(1, self.size).zero_()

    def forward(self, words):
        h, c = self.init_hidden()
        for word in words:
            h, c = self.cell(self.words(torch.tensor([word])), (h, c))
        return h.squeeze(0)


def padded(rng: Random) -> torch.Tensor:
    """Words of a sentence, as a mini-batch of one, and zeros behind them."""
    words = [1 + rng.randrange(VOCAB - 1) for _ in range(rng.randint(2, 7))]
    return torch.tensor([words + [0] * rng.randint(0, 3)])


@program(padded)
class SizesThatAreTensors(nn.Module):
    """A length that is a tensor, in the place of a size: attention to the words before the padding."""

    def __init__(self, size):
        super().__init__()
        self.words, self.aspect = nn.Embedding(VOCAB, size), nn.Parameter(torch.randn(1, size))
        self.score = nn.Linear(2 * size, 1)

    def forward(self, words):
        length = (words != 0).sum(-1).max()
        h = torch.tanh(self.words(words)).narrow(1, 0, length)
        aspect = self.aspect.tanh().unsqueeze(1).expand(-1, length, -1)
        weights = F.softmax(self.score(torch.cat((h, aspect), dim=-1)).view(1, length), dim=-1)
        return torch.bmm(weights.unsqueeze(1), h).squeeze(1), h.mean(1, keepdim=True).repeat(1, length, 1)


@program(padded)
class DecodedIntoLongs(nn.Module):
    """The best path of a chain, written into an integer tensor that is made of its sizes alone."""

    def __init__(self, size):
        super().__init__()
        self.words, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, LABELS)
        self.moves = nn.Parameter(torch.randn(LABELS, LABELS))

    def forward(self, words):
        scores = self.out(self.words(words)).transpose(0, 1)
        best, back = scores[0], []
        for score in scores[1:]:
            best, previous = (best.unsqueeze(2) + self.moves).max(1)
            best = best + score
            back.append(previous)
        path = torch.autograd.Variable(torch.LongTensor(len(scores), 1))
        pointer = best.max(1)[1]
        path[-1] = pointer.detach()
        for i in range(len(back) - 1, -1, -1):
            pointer = torch.gather(back[i], 1, pointer.contiguous().view(1, 1))
            path[i] = pointer.detach().view(1)
        return best, path.transpose(1, 0)


def padded_document(rng: Random) -> torch.Tensor:
    """Sentences of words, each padded with zeros to the longest."""
    sentences = [sentence(rng) for _ in range(rng.randint(1, 4))]
    longest = max(map(len, sentences))
    return torch.tensor([[1 + w % (VOCAB - 1) for w in words] + [0] * (longest - len(words)) for words in sentences])


@program(padded_document)
class SentencesAsLongAsTheirMasksSay(nn.Module):
    """A document encoder: each sentence is cut by its length, which is a tensor, pooled, and padded with new zeros."""

    def __init__(self, size):
        super().__init__()
        self.words, self.rnn = nn.Embedding(VOCAB, size, padding_idx=0), nn.GRU(size, size, batch_first=True)
        self.out = nn.Linear(size, LABELS)

    def forward(self, ids):
        lengths = torch.sum(torch.sign(ids), dim=1)
        states = self.rnn(self.words(ids))[0]
        pooled = [F.max_pool1d(h[: lengths[i], :].t().unsqueeze(0), int(lengths[i])) for i, h in enumerate(states)]
        sentences = torch.cat(pooled).squeeze(2)
        padded = torch.cat([sentences, sentences.new_zeros(lengths.max(), sentences.size(1))])
        return self.out(padded.mean(0))
