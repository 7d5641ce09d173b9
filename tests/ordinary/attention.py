"""Attention: library modules, written out by hand, masks and positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, VOCAB, id_tensor, pair_of_sentences, series
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
