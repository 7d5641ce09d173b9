"""LSTM translation that writes its own translation: each step reads the word that the step before chose.

The network of `lstm_nmt` without given translations. The encoder reads the source; the decoder starts from its last
state and from the word BEGIN, takes the word that scores highest, and goes on with it until that is END or there are
`max_words` of them (Sutskever, Vinyals and Le, "Sequence to Sequence Learning with Neural Networks", NIPS 2014).
`int(...)` of the arg-max waits for the value: this sentence is suspended, not the mini-batch.

Input: two files of equally many lines, of which the first is translated: `--input train.en --input train.vi`.
Output: `words`, one tensor over the target vocabulary per step, in order: the word that follows scores highest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _sentences import Pair, read_pairs, sample_pairs
from torch import Tensor, nn

import edbc
from edbc.errors import InputError

BEGIN, END = 0, 1
"""Words of no sentence's own."""


@edbc.cell
class LSTMCell(nn.Module):
    """One step of an LSTM."""

    def __init__(self, size: int):
        super().__init__()
        self.i_x = nn.Linear(size, size)
        self.f_x = nn.Linear(size, size)
        self.o_x = nn.Linear(size, size)
        self.g_x = nn.Linear(size, size)
        self.i_h = nn.Linear(size, size, bias=False)
        self.f_h = nn.Linear(size, size, bias=False)
        self.o_h = nn.Linear(size, size, bias=False)
        self.g_h = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i = torch.sigmoid(self.i_x(x) + self.i_h(h))
        f = torch.sigmoid(self.f_x(x) + self.f_h(h))
        o = torch.sigmoid(self.o_x(x) + self.o_h(h))
        g = torch.tanh(self.g_x(x) + self.g_h(h))
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, c


class GreedyTranslator(nn.Module):
    """Encoder, decoder and the projection to the vocabulary."""

    def __init__(self, size: int, vocab_size: int, max_words: int):
        super().__init__()
        self.max_words = max_words
        self.source_embedding = nn.Embedding(vocab_size, size)
        self.target_embedding = nn.Embedding(vocab_size, size)
        self.encoder = LSTMCell(size)
        self.decoder = LSTMCell(size)
        self.out = nn.Linear(size, vocab_size)
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def forward(self, pair: Pair) -> dict[str, list[Tensor]]:
        h = c = self.zero
        for word in pair.source:
            h, c = self.encoder(self.source_embedding.weight[word], h, c)
        word, scores = BEGIN, []
        while word != END and len(scores) < self.max_words:
            h, c = self.decoder(self.target_embedding.weight[word], h, c)
            scores.append(self.out(h))
            word = int(scores[-1].argmax())
        return {"words": scores}


def build(hidden_size: int = 256, vocab_size: int = 20000, max_words: int = 30, **config: Any) -> nn.Module:
    return GreedyTranslator(hidden_size, vocab_size, max_words)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Pair]:
    if len(paths) != 2:
        raise InputError(f"greedy_nmt: expected two files, source and target, got {len(paths)}; give --input twice")
    return read_pairs(*paths, vocab_size=vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Pair]:
    return sample_pairs(count, seed, vocab_size)
