"""LSTM language model: after every word, scores of the word that follows.

Mikolov et al., "Recurrent neural network based language model", Interspeech 2010, with an LSTM. Sentences as they come
have many lengths; `--set length=64` cuts the running text into pieces of 64 words instead, the case that needs no
dynamic batching and that Cavs measures as its fixed-length LSTM.

Input: text, one sentence per line.
Output: `words`, one tensor over the vocabulary per word, in order.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from _samples import sample_sizes
from _sentences import ENGLISH_WORDS, read_words, sample_words
from _text import word_id
from torch import Tensor, nn

import edbc
from edbc.errors import ModelError


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


class LSTMLanguageModel(nn.Module):
    """Reads a text and scores what comes next."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.lstm = LSTMCell(size)
        self.out = nn.Linear(size, vocab_size)
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def forward(self, words: list[int]) -> dict[str, list[Tensor]]:
        h = c = self.zero
        scores = []
        for word in words:
            h, c = self.lstm(self.embedding.weight[word], h, c)
            scores.append(self.out(h))
        return {"words": scores}


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return LSTMLanguageModel(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, length: int = 0, **config: Any) -> Iterator[list[int]]:
    sentences = (words for path in paths for words in read_words(path))
    for words in pieces(sentences, length) if length else sentences:
        yield [word_id(word, vocab_size) for word in words]


def pieces(sentences: Iterable[list[str]], length: int) -> Iterator[list[str]]:
    """Pieces of `length` words of the running text; what is left at its end is dropped."""
    check_length(length)
    waiting: list[str] = []
    for words in sentences:
        waiting += words
        while len(waiting) >= length:
            yield waiting[:length]
            del waiting[:length]


def sample(count: int, seed: int, vocab_size: int = 20000, length: int = 0, **config: Any) -> list[list[int]]:
    check_length(length)
    rng = random.Random(seed)
    lengths = [length] * count if length else sample_sizes(count, ENGLISH_WORDS, rng)
    return [sample_words(number, vocab_size, rng) for number in lengths]


def check_length(length: int) -> None:
    """0 stands for sentences as they come."""
    if length < 0:
        raise ModelError(f"length: expected a number of words, or 0 for whole sentences, got {length}; set it anew")
