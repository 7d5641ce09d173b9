"""Pointer network over one sentence of any length: a reader points at words, three times, and classifies what it saw.

Vinyals, Fortunato and Jaitly, "Pointer Networks", NIPS 2015, section 2.3, for the attention that points; Vinyals,
Bengio and Kudlur, "Order Matters: Sequence to Sequence for Sets", ICLR 2016, section 4.1, for the reader: its state
asks, a softmax over all words answers, and what is pointed at is read by a GRU.

Input: text, one sentence per line.
Output: `scores`, one tensor of 4 classes per sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _sentences import ENGLISH_WORDS, read_words, sample_sentences
from _text import word_id
from torch import Tensor, nn


class PointerNetwork(nn.Module):
    """Words, and a state that points at them."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.words, self.keys, self.query = nn.Embedding(vocab_size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.score, self.cell, self.out = nn.Linear(size, 1, bias=False), nn.GRUCell(size, size), nn.Linear(size, 4)

    def forward(self, words: list[int]) -> dict[str, list[Tensor]]:
        h = self.words(torch.tensor(words))
        keys, state = self.keys(h), h.mean(0)
        for _ in range(3):
            pointer = self.score(torch.tanh(keys + self.query(state))).softmax(0)
            state = self.cell((pointer * h).sum(0), state)
        return {"scores": [self.out(state)]}


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return PointerNetwork(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[list[int]]:
    for path in paths:
        for words in read_words(path):
            yield [word_id(word, vocab_size) for word in words]


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[list[int]]:
    return sample_sentences(count, seed, vocab_size, ENGLISH_WORDS)
