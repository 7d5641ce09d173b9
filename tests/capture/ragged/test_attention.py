"""Attention over a ragged dimension, and values of two ragged dimensions, against eager PyTorch."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import bound
from rowparity import HIDDEN, VOCAB, of_model, require_eager, sentence
from torch import nn

from edbc.run.session import Stats


class OfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def rows(self, ids: list[int]) -> Any:
        return self.words(torch.tensor(ids))


class Written(OfWords):
    """Heads by view and transpose, products and a softmax."""

    def forward(self, ids: list[int]) -> Any:
        h = self.rows(ids)
        q, k, v = (f(h).view(-1, 2, HIDDEN // 2).transpose(0, 1) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(HIDDEN // 2)).softmax(-1)
        return (weights @ v).transpose(0, 1).flatten(1).mean(0)


class Causal(OfWords):
    """With a mask that forward makes."""

    def forward(self, ids: list[int]) -> Any:
        h, n = self.rows(ids), len(ids)
        scores = self.q(h) @ self.k(h).T * 0.3
        hidden = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        return (scores.masked_fill(hidden, -math.inf).softmax(1) @ self.v(h)).sum(0)


class Scores(OfWords):
    """Values of two ragged dimensions that are no attention."""

    def forward(self, ids: list[int]) -> Any:
        h = self.rows(ids)
        scores = torch.tanh(self.q(h) @ self.k(h).t())
        share = scores / (1 + scores.abs().sum(-1, keepdim=True))
        return scores.sum(1).sum(0), (share @ self.v(h)).amax(0), torch.cdist(h, self.v(h)).mean()


class Masked(OfWords):
    """A matrix of the instance's as a mask: neighbours of each word."""

    def forward(self, ids: list[int]) -> Any:
        h, number = self.rows(ids), torch.tensor(ids)
        near = (number[:, None] - number[None, :]).abs() < 7
        return F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h), attn_mask=near).sum(0)


class Module(OfWords):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, 2)

    def forward(self, ids: list[int]) -> Any:
        h = self.rows(ids)
        padding = torch.tensor(ids) % 3 == 0
        padding[0] = False
        masked = self.attention(h[:, None], h[:, None], h[:, None], key_padding_mask=padding[None])[0]
        return self.attention(h, h, h, need_weights=False)[0].sum(0) + masked.sum((0, 1))


class Across(Module):
    """Every second word attends to all words."""

    def forward(self, ids: list[int]) -> Any:
        h = self.rows(ids)
        return self.attention(h[::2], h, h, need_weights=False)[0].sum(0)


class Encoder(OfWords):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(HIDDEN, 2, 12, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: list[int]) -> Any:
        return self.encoder(self.rows(ids)[None])[0].mean(0)


class CausalEncoder(Encoder):
    def forward(self, ids: list[int]) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(len(ids))
        return self.encoder(self.rows(ids)[None], mask=mask)[0].mean(0)


@pytest.mark.parametrize("kind", [Written, Causal, Scores, Masked, Module, Across, CausalEncoder])
def test_attention_gives_eager_numbers_and_gradients(kind: type[nn.Module]) -> None:
    """Forward and backward; no function takes rows whole, and other lengths make no further type."""
    torch.manual_seed(0)
    least = 2 if kind in (Module, CausalEncoder) else 1  # a mask of one word is taken whole
    net = of_model(kind(), lambda rng: [1] * (least - 1) + sentence(rng), rounds=1)
    before = len(net.table.types)
    require_eager(net, net.model, [[k % VOCAB for k in range(length)] for length in (2, 13, 24)], 1e-4)
    assert not net.taken_whole()
    assert len(net.table.types) == before


@pytest.mark.parametrize("kind", [Written, Across])
def test_attention_in_float64_and_where_passes_are_checked(kind: type[nn.Module], monkeypatch: Any) -> None:
    """To the precision of doubles; what must hold after each pass does."""
    monkeypatch.setenv("EDBC_DEBUG", "1")
    model, rng = kind().double().eval(), Random(1)
    net = bound(model, [sentence(rng) for _ in range(5)], rows=True)
    require_eager(net, model, [sentence(rng) for _ in range(6)], 1e-10)
    stats = Stats()
    _, ran = net.run([sentence(rng)], stats)
    assert not [*net.depends_on_company(ran)]
    assert {str(path) for path in stats.paths.values()} == {"native"}
