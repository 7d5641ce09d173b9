"""LSTM translation by beam search: of all translations begun, the `width` likeliest go on.

The network of `greedy_nmt` (Sutskever, Vinyals and Le, "Sequence to Sequence Learning with Neural Networks", NIPS 2014,
section 3.2). Each step gives every hypothesis its likeliest next words; their probabilities are read, and Python sorts.
A hypothesis is a tuple of plain Python, and what it refers to goes on with it, in whatever order; those that fall out
of the beam are garbage. The numbers of all hypotheses of a step are waited for once.

Input: two files of equally many lines, of which the first is translated: `--input train.en --input train.vi`.
Output: `words`, of the likeliest translation one tensor of log-probabilities over the target vocabulary per word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from _sentences import Pair, read_pairs, sample_pairs
from torch import Tensor, nn
from torch.nn import functional as F

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


class Hypothesis(NamedTuple):
    """A translation so far, with its log-probability."""

    score: float
    word: int
    h: Tensor
    c: Tensor
    words: tuple[Tensor, ...]


class BeamTranslator(nn.Module):
    """Encoder, decoder and the projection to the vocabulary."""

    def __init__(self, size: int, vocab_size: int, max_words: int, width: int):
        super().__init__()
        self.max_words, self.width, self.choices = max_words, width, min(width, vocab_size)
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
        beam, ended = [Hypothesis(0.0, BEGIN, h, c, ())], []
        for _ in range(self.max_words):
            likeliest = sorted(self.next_of(beam), key=lambda each: -each.score)[: self.width]
            ended += [each for each in likeliest if each.word == END]
            beam = [each for each in likeliest if each.word != END]
            if not beam or (ended and max(each.score for each in ended) >= beam[0].score):
                break
        best = max([*ended, *beam], key=lambda each: each.score)
        return {"words": list(best.words)}

    def next_of(self, beam: list[Hypothesis]) -> list[Hypothesis]:
        """Every hypothesis with each of its likeliest next words. All are computed before the first is read."""
        steps = []
        for each in beam:
            h, c = self.decoder(self.target_embedding.weight[each.word], each.h, each.c)
            probabilities = F.log_softmax(self.out(h), dim=-1)
            steps.append((each, h, c, probabilities, probabilities.topk(self.choices)))
        return [
            Hypothesis(each.score + gain, word, h, c, (*each.words, probabilities))
            for each, h, c, probabilities, top in steps
            for gain, word in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]


def build(
    hidden_size: int = 256, vocab_size: int = 2000, max_words: int = 12, width: int = 4, **config: Any
) -> nn.Module:
    return BeamTranslator(hidden_size, vocab_size, max_words, width)


def load(*paths: str, vocab_size: int = 2000, **config: Any) -> Iterator[Pair]:
    if len(paths) != 2:
        raise InputError(f"beam_nmt: expected two files, source and target, got {len(paths)}; give --input twice")
    return read_pairs(*paths, vocab_size=vocab_size)


def sample(count: int, seed: int, vocab_size: int = 2000, **config: Any) -> list[Pair]:
    return sample_pairs(count, seed, vocab_size)
