"""Small whole models of many fields, as their authors publish them."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal

from ordinary.data import FEATURES, LABELS, VOCAB, graph, picture, points, sentence, series, tree, vector
from ordinary.registry import program


@program(series)
class DilatedCausal(nn.Module):
    """WaveNet: padded on the left, gated, with skip connections."""

    def __init__(self, size):
        super().__init__()
        self.first = nn.Conv1d(FEATURES, size, 1)
        self.gated = nn.ModuleList(nn.Conv1d(size, 2 * size, 2, dilation=2**i) for i in range(3))
        self.skip = nn.Conv1d(size, LABELS, 1)

    def forward(self, series):
        x, skips = self.first(series.t().unsqueeze(0)), 0
        for i, layer in enumerate(self.gated):
            x = x + F.glu(layer(F.pad(x, (2**i, 0))), dim=1)
            skips = skips + self.skip(x)
        return skips[0, :, -1]


@program(series)
class RotaryAttention(nn.Module):
    """Positions turn halves of queries and keys."""

    def __init__(self, size):
        super().__init__()
        self.size, self.qkv = size, nn.Linear(FEATURES, 3 * size, bias=False)

    def turn(self, x):
        half = self.size // 2
        rates = 10000 ** (-torch.arange(half) / half)
        angles = torch.arange(x.shape[0]).unsqueeze(1) * rates
        a, b = x[:, :half], x[:, half:]
        return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)

    def forward(self, series):
        q, k, v = self.qkv(series).chunk(3, dim=-1)
        scores = self.turn(q) @ self.turn(k).t() / math.sqrt(self.size)
        return (scores.softmax(-1) @ v).mean(0)


@program(series)
class BiasByDistance(nn.Module):
    """ALiBi."""

    def __init__(self, size):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(FEATURES, size) for _ in range(3))

    def forward(self, series):
        at = torch.arange(len(series))
        distance = (at[None, :] - at[:, None]).abs()
        scores = self.q(series) @ self.k(series).T - 0.5 * distance
        return torch.softmax(scores, -1) @ self.v(series)


@program(series)
class DecoderLayer(nn.Module):
    """A Transformer's decoder over its own past and a memory."""

    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)
        self.layer = nn.TransformerDecoderLayer(size, 2, 2 * size, dropout=0.0, batch_first=True)
        self.memory = nn.Parameter(torch.randn(1, 3, size))

    def forward(self, series):
        mask = nn.Transformer.generate_square_subsequent_mask(len(series))
        return self.layer(self.up(series).unsqueeze(0), self.memory, tgt_mask=mask).squeeze(0)


@program(sentence)
class TwoLayersOfLSTM(nn.Module):
    """Two directions, two layers, the last states of both."""

    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, size)
        self.lstm = nn.LSTM(size, size, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * size, LABELS)

    def forward(self, words):
        _, (h, _) = self.lstm(self.embed(torch.tensor([words])))
        return self.out(torch.cat((h[-2], h[-1]), dim=1)).squeeze(0)


@program(sentence)
class PlainRNN(nn.Module):
    """`nn.RNN` with a first state of zeros."""

    def __init__(self, size):
        super().__init__()
        self.size, self.embed = size, nn.Embedding(VOCAB, size)
        self.rnn = nn.RNN(size, size, nonlinearity="relu")

    def forward(self, words):
        outputs, last = self.rnn(self.embed(torch.LongTensor(words)), torch.zeros(1, self.size))
        return outputs.mean(0) + last[0]


@program(sentence)
class BagModule(nn.Module):
    """`nn.EmbeddingBag`."""

    def __init__(self, size):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(VOCAB, size, mode="mean"), nn.Linear(size, LABELS)

    def forward(self, words):
        return self.out(self.bag(torch.tensor(words), torch.tensor([0])))[0]


@program(sentence)
class PaddedMean(nn.Module):
    """Padded to a fixed length and masked."""

    def __init__(self, size):
        super().__init__()
        self.embed, self.out = nn.Embedding(VOCAB + 1, size, padding_idx=VOCAB), nn.Linear(size, LABELS)

    def forward(self, words):
        ids = torch.full((10,), VOCAB)
        ids[: len(words)] = torch.tensor(words)
        mask = (ids != VOCAB).unsqueeze(-1)
        x = self.embed(ids).masked_fill(~mask, 0.0)
        return self.out(x.sum(0) / mask.sum())


@program(graph)
class MaskedGraphAttention(nn.Module):
    """All pairs scored, those without an edge masked with a huge number."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(0.3 * torch.randn(FEATURES, size))
        self.a = nn.Parameter(0.3 * torch.randn(2 * size, 1))

    def forward(self, graph):
        x, edges = graph.x, graph.edges
        n = x.size(0)
        adjacency = torch.eye(n)
        for i, j in edges:
            adjacency[i, j] = adjacency[j, i] = 1
        h = torch.mm(x, self.w)
        pairs = torch.cat([h.repeat(1, n).view(n * n, -1), h.repeat(n, 1)], dim=1).view(n, n, -1)
        e = F.leaky_relu(torch.matmul(pairs, self.a).squeeze(2), 0.2)
        attention = torch.where(adjacency > 0, e, -9e15 * torch.ones_like(e))
        return F.elu(torch.matmul(F.softmax(attention, dim=1), h)).sum(0)


@program(graph)
class NormalisedConvolution(nn.Module):
    """Degrees to the power of minus a half on both sides."""

    def __init__(self, size):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, size), nn.Linear(size, LABELS)])

    def forward(self, graph):
        x, edges = graph.x, graph.edges
        a = torch.eye(len(x))
        for i, j in edges:
            a[i][j] = 1.0
        scale = torch.diag(a.sum(1).pow(-0.5))
        a = scale @ a @ scale
        for layer in self.layers:
            x = torch.relu(a @ layer(x))
        return x.max(dim=0).values


@program(graph)
class Relational(nn.Module):
    """A weight per kind of edge, made from a few bases."""

    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)
        self.bases = nn.Parameter(0.2 * torch.randn(2, size, size))
        self.mix = nn.Parameter(torch.randn(3, 2))

    def forward(self, graph):
        x, edges = graph.x, graph.edges
        h = self.up(x)
        weights = torch.einsum("rb,bij->rij", self.mix, self.bases)
        out = [h[i] for i in range(len(x))]
        for i, j in edges:
            out[j] = out[j] + h[i] @ weights[(i + j) % 3]
        return torch.stack(out).relu().mean(0)


@program(points)
class SetAttention(nn.Module):
    """Pooled by attention of a learned seed; heads side by side in the batch dimension."""

    def __init__(self, size):
        super().__init__()
        self.size, self.up = size, nn.Linear(3, size)
        self.seed = nn.Parameter(torch.randn(1, 1, size))
        self.norm = nn.LayerNorm(size)

    def forward(self, points):
        x = self.up(points).unsqueeze(0)
        q = torch.cat(self.seed.repeat(x.size(0), 1, 1).split(self.size // 2, 2), 0)
        k = torch.cat(x.split(self.size // 2, 2), 0)
        a = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(self.size), 2)
        out = torch.cat((q + a.bmm(k)).split(x.size(0), 0), 2)
        return self.norm(out).squeeze()


@program(points)
class FourierFeatures(nn.Module):
    """NeRF's encoding of coordinates."""

    def __init__(self, size):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3 * 9, size), nn.ReLU(inplace=True), nn.Linear(size, LABELS))

    def forward(self, points):
        parts = [points]
        for i in range(4):
            parts += [torch.sin(2.0**i * points), torch.cos(2.0**i * points)]
        return self.net(torch.cat(parts, -1)).sigmoid().mean(dim=0)


@program(vector)
class RungeKutta(nn.Module):
    """A neural differential equation."""

    def __init__(self, size):
        super().__init__()
        self.up, self.rate = nn.Linear(FEATURES, size), nn.Sequential(nn.Linear(size, size), nn.Tanh())

    def forward(self, x):
        y, dt = self.up(x), 0.25
        for _ in range(4):
            k1 = self.rate(y)
            k2 = self.rate(y + dt / 2 * k1)
            k3 = self.rate(y + dt / 2 * k2)
            k4 = self.rate(y + dt * k3)
            y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y


@program(series)
class KalmanFilter(nn.Module):
    """Small matrices solved at every step."""

    def __init__(self, size):
        super().__init__()
        self.move = nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4))
        self.look = nn.Linear(FEATURES, 2)
        self.h = nn.Parameter(torch.randn(2, 4))

    def forward(self, series):
        mean, cov = torch.zeros(4), torch.eye(4)
        for x in series:
            mean, cov = self.move @ mean, self.move @ cov @ self.move.T + 0.1 * torch.eye(4)
            s = self.h @ cov @ self.h.T + torch.eye(2)
            gain = torch.linalg.solve(s, self.h @ cov).T
            mean = mean + gain @ (self.look(x) - self.h @ mean)
            cov = (torch.eye(4) - gain @ self.h) @ cov
        return mean


@program(series)
class Sinkhorn(nn.Module):
    """Rows and columns normalised in turn."""

    def __init__(self, size):
        super().__init__()
        self.score = nn.Linear(FEATURES, size)

    def forward(self, series):
        s = self.score(series)
        log = s @ s.T / 4
        for _ in range(3):
            log = log - log.logsumexp(dim=1, keepdim=True)
            log = log - torch.logsumexp(log, 0, keepdim=True)
        return log.exp() @ s


@program(series)
class Capsules(nn.Module):
    """Routing by agreement."""

    def __init__(self, size):
        super().__init__()
        self.size, self.votes = size, nn.Linear(FEATURES, 2 * size)

    @staticmethod
    def squash(v):
        n = (v**2).sum(-1, keepdim=True)
        return n / (1 + n) * v / torch.sqrt(n + 1e-8)

    def forward(self, series):
        u = self.votes(series).view(-1, 2, self.size)
        b = torch.zeros(u.size(0), 2)
        for _ in range(3):
            c = F.softmax(b, dim=1)
            v = self.squash((c.unsqueeze(-1) * u).sum(dim=0))
            b = b + (u * v).sum(-1)
        return v.norm(dim=-1)


@program(series)
class ExternalMemory(nn.Module):
    """A neural Turing machine's addressing by content."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.cell, self.head = nn.LSTMCell(FEATURES, size), nn.Linear(size, 2 * size + 1)

    def forward(self, series):
        memory = torch.full((4, self.size), 1e-2)
        state = (torch.zeros(1, self.size), torch.zeros(1, self.size))
        read = None
        for x in series:
            state = self.cell(x.unsqueeze(0), state)
            key, value, sharp = self.head(state[0]).squeeze(0).split([self.size, self.size, 1])
            weights = F.softmax(F.softplus(sharp) * F.cosine_similarity(memory, key.unsqueeze(0), dim=-1), dim=0)
            memory = memory * (1 - weights.unsqueeze(1)) + torch.ger(weights, value)
            read = weights @ memory
        return read


class Policy(NamedTuple):
    """What an actor and a critic say."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor


@program(vector)
class ActorCritic(nn.Module):
    """Distributions of torch."""

    def __init__(self, size):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, size), nn.PReLU())
        self.actor, self.critic = nn.Linear(size, LABELS), nn.Linear(size, 1)

    def forward(self, x):
        h = self.body(x)
        choice = Categorical(logits=self.actor(h), validate_args=False)
        return Policy(choice.log_prob(torch.tensor(1)), choice.entropy(), self.critic(h).squeeze(-1))


@program(vector)
class MixtureDensity(nn.Module):
    """The likelihood of one number under a mixture of normal distributions."""

    def __init__(self, size):
        super().__init__()
        self.body, self.heads = nn.Linear(FEATURES, size), nn.Linear(size, 9)

    def forward(self, x):
        weight, mean, scale = self.heads(torch.tanh(self.body(x))).view(3, 3)
        normal = Normal(mean, F.softplus(scale) + 1e-3, validate_args=False)
        return -torch.logsumexp(F.log_softmax(weight, -1) + normal.log_prob(x.mean()), dim=-1)


@program(points)
class Rotations(nn.Module):
    """Rotation matrices from angles, frames from cross products."""

    def __init__(self, size):
        super().__init__()
        self.angle, self.out = nn.Linear(3, 1), nn.Linear(3, size)

    def forward(self, points):
        centre = points.mean(0)
        a = self.angle(centre).squeeze()
        zero, one = torch.zeros(()), torch.ones(())
        turn = torch.stack([a.cos(), -a.sin(), zero, a.sin(), a.cos(), zero, zero, zero, one]).view(3, 3)
        moved = (points - centre) @ turn.T
        normal = torch.linalg.cross(moved[0], moved[1])
        return self.out(moved).mean(0) + self.out(F.normalize(normal, dim=0))


@program(picture)
class GroupNormalised(nn.Module):
    """GroupNorm, gates of channels, and pixels shuffled up."""

    def __init__(self, size):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1), nn.Sigmoid()
        )
        self.up = nn.PixelShuffle(2)

    def forward(self, picture):
        x = F.silu(self.norm(self.conv(picture.reshape(1, 1, *picture.shape[-2:]))))
        return self.up(x * self.gate(x)).squeeze(0).flatten(1).mean(1)


@program(series)
class SetToVector(nn.Module):
    """Attention by a state that an LSTM moves (Set2Set)."""

    def __init__(self, size):
        super().__init__()
        self.size, self.up, self.cell = size, nn.Linear(FEATURES, size), nn.LSTMCell(2 * size, size)

    def forward(self, series):
        x = self.up(series)
        h = c = x.new_zeros(self.size)
        read = x.new_zeros(2 * self.size)
        for _ in range(3):
            h, c = self.cell(read, (h, c))
            attention = F.softmax((x * h).sum(-1), dim=0)
            read = torch.cat([h, (attention.unsqueeze(-1) * x).sum(0)])
        return read


@program(tree)
class FoldedTree(nn.Module):
    """`functools.reduce` over children, `partial` and a match by number of children."""

    def __init__(self, size):
        super().__init__()
        self.embed, self.pair = nn.Embedding(VOCAB, size), nn.Linear(2 * size, size)
        self.merge = functools.partial(self.combine, act=torch.tanh)

    def combine(self, a, b, act):
        return act(self.pair(torch.cat((a, b), dim=-1)))

    def forward(self, node):
        own = self.embed.weight[node.word]
        match [self(child) for child in node.children]:
            case []:
                return own
            case [only]:
                return self.merge(own, only)
            case several:
                return functools.reduce(self.merge, several, own)


@program(sentence)
class Convolved(nn.Module):
    """Kim's classifier: filters of three widths, the most of each over time."""

    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, size)
        self.convs = nn.ModuleList([nn.Conv2d(1, 4, (k, size), padding=(k - 1, 0)) for k in (2, 3, 4)])
        self.fc = nn.Linear(12, LABELS)

    def forward(self, words):
        x = self.embed(torch.tensor(words)).unsqueeze(0).unsqueeze(0)
        pooled = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        pooled = [F.max_pool1d(p, p.size(2)).squeeze(2) for p in pooled]
        return F.log_softmax(self.fc(torch.cat(pooled, 1)), dim=1)[0]


@program(series)
class TensorFactors(nn.Module):
    """Several operands in one einsum, cumulative products and differences."""

    def __init__(self, size):
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, 3), nn.Linear(FEATURES, 3)
        self.core = nn.Parameter(torch.randn(3, 3, size))

    def forward(self, series):
        scores = torch.einsum("ti,tj,ijk->tk", self.a(series), self.b(series), self.core)
        keep = torch.cumprod(1 - torch.sigmoid(scores), dim=0)
        return (scores * keep).sum(0) + torch.diff(scores, dim=0).abs().sum(0)


@program(tree)
class FreshLeaves(nn.Module):
    """First states as older code makes them: `new`, `fill_` and `requires_grad_`."""

    def __init__(self, size):
        super().__init__()
        self.size, self.embed = size, nn.Embedding(VOCAB, size)
        self.own, self.below = nn.Linear(size, size), nn.Linear(size, size, bias=False)

    def visit(self, node, inputs):
        if node.children:
            below = torch.cat([self.visit(child, inputs) for child in node.children], dim=0)
        else:
            below = inputs[0].detach().new(1, self.size).fill_(0.5).requires_grad_()
        x = inputs[node.word % 3]
        return torch.tanh(self.own(x) + self.below(below).sum(dim=0, keepdim=True))

    def forward(self, node):
        return self.visit(node, self.embed(torch.tensor([node.word, 1, 2])))


@program(tree)
class DictsOnNodes(nn.Module):
    """A binary tree-LSTM whose states are dicts that hang on the nodes, with the class of every node in its loss."""

    def __init__(self, size):
        super().__init__()
        self.size, self.embed = size, nn.Embedding(VOCAB, size)
        self.gates, self.classify = nn.Linear(2 * size, 4 * size), nn.Linear(size, LABELS)
        self.score = self.of_every_node

    def combine(self, left, right, inputs=None):
        i, f, o, u = torch.split(self.gates(torch.cat([left["h"], right["h"]], dim=0)), self.size, dim=0)
        f = F.sigmoid(f) if inputs is None else F.sigmoid(f + inputs)
        c = F.sigmoid(i) * F.tanh(u) + f * (left["c"] + right["c"])
        return {"h": F.sigmoid(o) * F.tanh(c), "c": c}

    def visit(self, node):
        states = [self.visit(child) for child in node.children]
        if not states:
            h = self.embed(torch.tensor(node.word))
            node.state = {"h": h, "c": h.detach().new(self.size).fill_(0.0).requires_grad_()}
        else:
            node.state = self.combine(states[0], states[-1], inputs=None)
        return node.state

    def collect(self, node, holder):
        for child in node.children:
            self.collect(child, holder)
        holder.append(node.state["h"].unsqueeze(0))
        return holder

    def of_every_node(self, node):
        return self.classify(torch.cat(self.collect(node, []), dim=0))

    def forward(self, node):
        self.visit(node)
        scores = self.score(node)
        return F.cross_entropy(scores, torch.arange(len(scores)) % LABELS)
