"""Masks of attention of every kind, made by forward or brought by the instance, against eager PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import bound
from rowparity import HIDDEN, VOCAB, require_eager
from torch import nn


class Layers(nn.Module):
    """Attention by module, by layers, and by function."""

    def __init__(self, attends: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.attends = attends
        self.words, self.kinds = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(5, HIDDEN)
        self.attention = nn.MultiheadAttention(HIDDEN, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(HIDDEN, 2, 12, batch_first=True)
        self.encoder = nn.TransformerEncoder(self.layer, 2, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoderLayer(HIDDEN, 2, 12, batch_first=True)

    def forward(self, instance):
        h = self.words(torch.tensor(instance.words))[None]
        return self.attends(self, h, instance).mean((0, 1))


def causal(n: int) -> torch.Tensor:
    """Above the diagonal, as a mask that hides."""
    return torch.ones(n, n, dtype=torch.bool).triu(1)


MASKS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "module: causal": lambda m, h, x: m.attention(h, h, h, attn_mask=causal(h.shape[1]))[0],
    "module: float": lambda m, h, x: m.attention(h, h, h, attn_mask=x.scores)[0],
    "module: boolean": lambda m, h, x: m.attention(h, h, h, attn_mask=x.far, need_weights=False)[0],
    "module: both": lambda m, h, x: m.attention(h, h, h, attn_mask=x.far, key_padding_mask=x.padding[None])[0],
    "module: float padding": lambda m, h, x: m.attention(h, h, h, key_padding_mask=x.weights[None])[0],
    "module: weights": lambda m, h, x: m.attention(h, h, h, key_padding_mask=x.padding[None])[1] @ h,
    "module: of heads": lambda m, h, x: m.attention(h, h, h, attn_mask=torch.stack([x.scores, x.scores * 2]))[0],
    "module: is causal": lambda m, h, x: m.attention(
        h, h, h, attn_mask=nn.Transformer.generate_square_subsequent_mask(h.shape[1]), is_causal=True
    )[0],
    "layer: mask": lambda m, h, x: m.layer(h, src_mask=x.far),
    "layer: padding": lambda m, h, x: m.layer(h, src_key_padding_mask=x.padding[None]),
    "layer: causal": lambda m, h, x: m.layer(h, src_mask=causal(len(x.words))),
    "encoder: both": lambda m, h, x: m.encoder(h, mask=x.far, src_key_padding_mask=x.padding[None]),
    "encoder: is causal": lambda m, h, x: m.encoder(
        h, mask=nn.Transformer.generate_square_subsequent_mask(len(x.words)), is_causal=True
    ),
    "decoder: target": lambda m, h, x: m.decoder(h, m.kinds(torch.tensor(x.kinds))[None], tgt_mask=causal(h.shape[1])),
    "decoder: memory": lambda m, h, x: m.decoder(
        h, m.kinds(torch.tensor(x.kinds))[None], memory_key_padding_mask=x.hidden[None]
    ),
    "function: boolean": lambda m, h, x: F.scaled_dot_product_attention(h, h, h, attn_mask=~x.far),
    "function: float": lambda m, h, x: F.scaled_dot_product_attention(h, h, h, attn_mask=x.scores),
    "function: causal": lambda m, h, x: F.scaled_dot_product_attention(h, h, h, is_causal=True),
    "function: scale": lambda m, h, x: F.scaled_dot_product_attention(h, h, h, attn_mask=~x.far, scale=0.3),
    "function: padding": lambda m, h, x: F.scaled_dot_product_attention(h, h, h, attn_mask=~x.padding[None, None]),
    "written: filled": lambda m, h, x: (h @ h.mT).masked_fill(x.far, -math.inf).softmax(-1) @ h,
    "written: added": lambda m, h, x: (h @ h.mT / 3 + x.scores).softmax(-1) @ h,
    "written: where": lambda m, h, x: torch.where(x.far, -1e9, h @ h.mT).softmax(-1) @ h,
    "written: times": lambda m, h, x: ((h @ h.mT).softmax(-1) * (~x.far)) @ h,
    "written: padding": lambda m, h, x: (h @ h.mT).masked_fill(x.padding[None, :], -1e9).softmax(-1) @ h,
}


def instance(rng: Random, n: int) -> Any:
    """Words, kinds, and masks of both; nothing hides all of a row."""
    far = torch.tensor([[rng.random() < 0.4 and i != j for j in range(n)] for i in range(n)])
    far[:, 0] = False
    padding = torch.tensor([i > 0 and rng.random() < 0.4 for i in range(n)])
    count = rng.randint(2, 5)
    return SimpleNamespace(
        words=[rng.randrange(VOCAB) for _ in range(n)], kinds=[rng.randrange(5) for _ in range(count)], far=far,
        padding=padding, hidden=torch.tensor([i > 0 and rng.random() < 0.4 for i in range(count)]),
        scores=torch.tensor([[rng.gauss(0, 1) for _ in range(n)] for _ in range(n)]),
        weights=torch.tensor([rng.gauss(0, 1) for _ in range(n)]),
    )  # fmt: skip


QUICK = ("module: float padding", "function: float", "written: added")


@pytest.mark.parametrize("name", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.slow) for m in MASKS])
def test_masks_hide_what_they_hide_in_eager(name: str) -> None:
    """In float64, numbers and gradients, of one word too; and types do not depend on sizes, nor on one that is the
    width of rows."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        rng = Random(0)
        model = Layers(MASKS[name]).eval()
        net = bound(model, [instance(rng, n) for n in (5, HIDDEN, 2, 6)], cells="auto", rows=True)
        assert not [t for t in net.plan.types if t.signature.startswith("torch.stack")] or name == "module: of heads"
        for _ in range(2):
            require_eager(net, model, [instance(rng, n) for n in (4, HIDDEN, 6, 1)], 1e-10)
    finally:
        torch.set_default_dtype(torch.float32)
