"""Attention: library modules, written out by hand, masks and positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, LABELS, VOCAB, id_tensor, pair_of_sentences, series
from ordinary.registry import program


@program(series)
class MultiheadModule(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.attention = nn.Linear(FEATURES, size), nn.MultiheadAttention(size, 2)

    def forward(self, series):
        x = self.up(series).unsqueeze(1)
        return self.attention(x, x, x, need_weights=False)[0].squeeze(1)


@program(series)
class ScaledDotProduct(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.qkv = nn.Linear(FEATURES, 3 * size)

    def forward(self, series):
        q, k, v = self.qkv(series).unsqueeze(0).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v)[0].mean(0)


def masked_ids(rng):
    ids = id_tensor(rng)
    return ids, torch.ones(1, len(ids), dtype=torch.bool)


@program(masked_ids)
class ScoresMaskedThroughData(nn.Module):
    """What is padding, of which a batch of one has none, behind autograd's back."""

    def __init__(self, size):
        super().__init__()
        self.words, self.query, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, size), nn.Linear(size, LABELS)

    def forward(self, instance):
        ids, mask = instance
        x = self.words(ids).unsqueeze(0)
        scores = self.query(x).bmm(x.transpose(1, 2))
        scores.data.masked_fill_(~mask.unsqueeze(1), -float("inf"))
        weights = x.sum(-1)
        weights.data[~mask] = -1e9
        return self.out(F.softmax(scores, -1).bmm(x) * F.softmax(weights, 1).unsqueeze(-1))


@program(id_tensor)
class EncoderLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(VOCAB, size)
        self.layer = nn.TransformerEncoderLayer(size, 2, 2 * size, batch_first=True)

    def forward(self, ids):
        return self.layer(self.words(ids).unsqueeze(0)).mean(1)


@program(id_tensor)
class EncoderStack(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(VOCAB, size)
        layer = nn.TransformerEncoderLayer(size, 2, 2 * size, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.words(ids).unsqueeze(1))[0, 0]


@program(series)
class HeadsByHand(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.heads, self.width = 2, size // 2
        self.q, self.k, self.v = (nn.Linear(FEATURES, size) for _ in range(3))

    def split(self, x):
        return x.view(x.size(0), self.heads, self.width).transpose(0, 1)

    def forward(self, series):
        q, k, v = self.split(self.q(series)), self.split(self.k(series)), self.split(self.v(series))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.width), dim=-1)
        return (weights @ v).transpose(0, 1).reshape(series.size(0), -1)


@program(series)
class CausalMask(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def forward(self, series):
        x = self.up(series)
        mask = torch.triu(torch.ones(len(x), len(x), dtype=torch.bool), diagonal=1)
        return (x @ x.t()).masked_fill(mask, float("-inf")).softmax(-1) @ x


@program(series)
class RelativePositions(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.bias = nn.Linear(FEATURES, size), nn.Embedding(15, 1)

    def forward(self, series):
        x, places = self.up(series), torch.arange(len(series))
        distance = (places[:, None] - places[None, :]).clamp(-7, 7) + 7
        return F.softmax(x @ x.t() + self.bias(distance).squeeze(-1), dim=-1) @ x


@program(pair_of_sentences)
class CrossAttention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.query = nn.Embedding(VOCAB, size), nn.Linear(size, size)

    def forward(self, pair):
        a, b = (self.words(torch.tensor(s)) for s in pair)
        return torch.softmax(self.query(a) @ b.t(), dim=1).mm(b).mean(dim=0)


@program(id_tensor)
class SinePositions(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, size)
        angles = torch.arange(20).unsqueeze(1) / 100 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], dim=1))

    def forward(self, ids):
        return self.out(self.words(ids) + self.places[: len(ids)])


@program(series)
class InducingPoints(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.points, self.up = nn.Parameter(torch.randn(3, size)), nn.Linear(FEATURES, size)

    def forward(self, series):
        x = self.up(series)
        return (torch.softmax(self.points @ x.t(), dim=-1) @ x).flatten()


@program(series)
class MemoryHops(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.keys, self.values, self.query = (nn.Linear(FEATURES, size) for _ in range(3))

    def forward(self, series):
        keys, values, q = self.keys(series), self.values(series), self.query(series[0])
        for _ in range(3):
            q = q + F.softmax(keys.mv(q), 0) @ values
        return q


@program(series)
class LinearAttention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.qkv = nn.Linear(FEATURES, 3 * size)

    def forward(self, series):
        q, k, v = self.qkv(series).chunk(3, dim=1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return (q @ (k.t() @ v)) / (q @ k.sum(0)).unsqueeze(1)


@program(series)
class CausalState(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.k, self.v = nn.Linear(FEATURES, 4), nn.Linear(FEATURES, size)

    def forward(self, series):
        k, v = self.k(series), self.v(series)
        state, out = torch.zeros(4, v.size(1)), []
        for i in range(len(series)):
            state = 0.9 * state + torch.outer(k[i], v[i])
            out.append(k[i] @ state)
        return torch.stack(out)


def _padded_pair(rng):
    """Two sentences as batches of one; every fifth has padding, which is number 1."""
    pads = rng.randint(1, 2) if rng.random() < 0.2 else 0
    first, second = ([[2 + rng.randrange(VOCAB - 2) for _ in range(rng.randint(2, 7))]] for _ in range(2))
    return torch.tensor([first[0] + [1] * pads]), torch.tensor(second)


class _Heads(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.heads = size, 4
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.out, self.scale = nn.Linear(size, size), torch.sqrt(torch.FloatTensor([size // 4]))

    def forward(self, query, key, value, mask=None):
        batch = query.shape[0]
        q, k, v = (
            layer(x).view(batch, -1, self.heads, self.size // self.heads).permute(0, 2, 1, 3)
            for layer, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / self.scale
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(attention, v).permute(0, 2, 1, 3).contiguous()
        return self.out(x.view(batch, -1, self.size)), attention


@program(_padded_pair, in_double=False)  # a scale that is no buffer
class MaskedTranslator(nn.Module):
    """Masks made of padding and of places, positions repeated for a batch, and the attention returned."""

    def __init__(self, size):
        super().__init__()
        self.words, self.places, self.pad = nn.Embedding(VOCAB, size), nn.Embedding(20, size), 1
        self.of_first, self.of_second, self.across = _Heads(size), _Heads(size), _Heads(size)
        self.norm, self.out, self.device = nn.LayerNorm(size), nn.Linear(size, LABELS), torch.device("cpu")

    def embedded(self, words):
        count = words.shape[1]
        places = torch.arange(0, count).unsqueeze(0).repeat(words.shape[0], 1).to(self.device)
        return self.words(words) + self.places(places)

    def masks(self, first, second):
        there = (first != self.pad).unsqueeze(1).unsqueeze(2)
        count = second.shape[1]
        before = torch.tril(torch.ones((count, count), device=self.device)).bool()
        return there, (second != self.pad).unsqueeze(1).unsqueeze(2) & before

    def forward(self, pair):
        first, second = pair
        there, before = self.masks(first, second)
        x = self.embedded(first)
        x = self.norm(x + self.of_first(x, x, x, there)[0])
        y = self.embedded(second)
        y = self.norm(y + self.of_second(y, y, y, before)[0])
        found, attention = self.across(y, x, x, there)
        return self.out(self.norm(y + found)), attention


@program(_padded_pair)
class MaskedMean(nn.Module):
    """A mean over what is no padding, and scores with a mask that is added."""

    def __init__(self, size):
        super().__init__()
        self.words, self.score = nn.Embedding(VOCAB, size), nn.Linear(size, 1)

    def forward(self, pair):
        words = pair[0]
        there = words.ne(1)
        x = torch.tanh(self.words(words))
        weights = torch.softmax(self.score(x).squeeze(-1) + (1.0 - there.float()) * -1e9, dim=1)
        kept = there.unsqueeze(-1).float()
        return (weights.unsqueeze(-1) * x).sum(1), (x * kept).sum(1) / kept.sum(1).clamp(min=1)


@program(_padded_pair)
class PaddedSecondLayers(nn.Module):
    """Convolutions behind constants, gated, over a batch of one."""

    def __init__(self, size):
        super().__init__()
        self.size, self.words = size, nn.Embedding(VOCAB, size)
        self.layers = nn.ModuleList(nn.Conv1d(size, 2 * size, 3) for _ in range(2))

    def forward(self, pair):
        x = self.words(pair[1]).permute(0, 2, 1)
        for layer in self.layers:
            behind = torch.zeros(x.shape[0], self.size, 2).fill_(1.0).to(x.device)
            x = x + F.glu(layer(torch.cat((behind, x), dim=2)), dim=1)
        return x.permute(0, 2, 1)
