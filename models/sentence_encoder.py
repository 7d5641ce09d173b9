"""Transformer encoder with a class for each sentence: one sentence at a time, of any length, nothing padded.

Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.1, with the norms first and positions added as
sines; the classifier reads the mean of the last layer.

Input: text, one sentence per line.
Output: `scores`, one tensor of 4 classes per sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from _sentences import ENGLISH_WORDS, read_words, sample_sentences
from _text import word_id
from torch import Tensor, nn


class SentenceEncoder(nn.Module):
    """Words that attend to each other."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(size, 2, 2 * size, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(vocab_size, size)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(size, 4)
        self.register_buffer("positions", sines(512, size), persistent=False)

    def forward(self, words: list[int]) -> dict[str, list[Tensor]]:
        h = self.embedding(torch.tensor(words)) + self.positions[: len(words)]
        h = self.layers(h.unsqueeze(0)).squeeze(0)
        return {"scores": [self.out(h.mean(0))]}


def sines(length: int, size: int) -> Tensor:
    """Positions, (length, size): section 3.5 of the paper."""
    rates = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return SentenceEncoder(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[list[int]]:
    for path in paths:
        for words in read_words(path):
            yield [word_id(word, vocab_size) for word in words]


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[list[int]]:
    return sample_sentences(count, seed, vocab_size, ENGLISH_WORDS)
