"""Adaptive computation time: a recurrent network that thinks about each word as long as it likes.

Graves, "Adaptive Computation Time for Recurrent Neural Networks", arXiv 2016, section 2. At each word the state is
computed anew, at most `most` times, until the halting probabilities sum to 1 - `slack`; what goes on is their weighted
mean, the last state weighing what is left to 1. The sum is read once per step: how many steps a word takes depends on
numbers, and differs between the sentences of a mini-batch. Nobody waits for the tags, which are scored together at the
end.

Input: text, one sentence per line.
Output: `tags`, one tensor over the tags per word, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _samples import Quartet
from _sentences import read_words, sample_sentences
from _text import word_id
from torch import Tensor, nn

import edbc

TAGS = 17
WORDS: Quartet = (1, 6, 12, 16)
"""Per made-up sentence: minimum, median, 95th percentile, maximum. Short ones, as each word takes some steps."""


@edbc.cell
class Ponder(nn.Module):
    """One step of thought about a word."""

    def __init__(self, size: int):
        super().__init__()
        self.word = nn.Linear(size, size)
        self.state = nn.Linear(size, size, bias=False)
        self.halt = nn.Linear(size, 1)

    def forward(self, x: Tensor, h: Tensor, total: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The state, the sum of probabilities so far, and the mean: if it goes on, and if it ends here."""
        h = torch.tanh(self.word(x) + self.state(h))
        halt = torch.sigmoid(self.halt(h))
        return h, total + halt, mean + halt * h, mean + (1 - total) * h


class AdaptiveTime(nn.Module):
    """A network over the words of a sentence."""

    def __init__(self, size: int, vocab_size: int, most: int, slack: float):
        super().__init__()
        self.most, self.slack = most, slack
        self.embedding = nn.Embedding(vocab_size, size)
        self.ponder = Ponder(size)
        self.tag = nn.Linear(size, TAGS)
        self.register_buffer("zero", torch.zeros(size), persistent=False)
        self.register_buffer("nothing", torch.zeros(1), persistent=False)

    def forward(self, words: list[int]) -> dict[str, list[Tensor]]:
        h, tags = self.zero, []
        for word in words:
            h = self.think(self.embedding.weight[word], h)
            tags.append(self.tag(h))
        return {"tags": tags}

    def think(self, x: Tensor, h: Tensor) -> Tensor:
        """The mean state about a word."""
        total, mean = self.nothing, self.zero
        for _ in range(self.most - 1):
            h, total, mean, ended = self.ponder(x, h, total, mean)
            if total >= 1 - self.slack:
                return ended
        return self.ponder(x, h, total, mean)[3]


def build(
    hidden_size: int = 256, vocab_size: int = 20000, most: int = 4, slack: float = 0.01, **config: Any
) -> nn.Module:
    return AdaptiveTime(hidden_size, vocab_size, most, slack)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[list[int]]:
    for path in paths:
        for words in read_words(path):
            yield [word_id(word, vocab_size) for word in words]


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[list[int]]:
    return sample_sentences(count, seed, vocab_size, WORDS)
