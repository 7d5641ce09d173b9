"""Easy-first tree building: of all neighbours, those that score highest become one, until one is left.

A sentence is reduced to a binary tree as by Goldberg and Elhadad, "An Efficient Algorithm for Easy-First
Non-Directional Dependency Parsing", NAACL 2010, and by the greedy trees of Socher et al., "Semi-Supervised Recursive
Autoencoders", EMNLP 2011: after each step only the two new pairs of neighbours are scored. The tree is the network's
own choice, so the scores are read; a step computes both new ones before it reads the first, and waits once.

Input: text, one sentence per line.
Output: `nodes`, the vector of every inner node in the order in which they were built, or that of the only word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _sentences import read_words, sample_sentences
from _text import word_id
from torch import Tensor, nn

import edbc


@edbc.cell
class Compose(nn.Module):
    """Two neighbours as one."""

    def __init__(self, size: int):
        super().__init__()
        self.left = nn.Linear(size, size)
        self.right = nn.Linear(size, size, bias=False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.left(left) + self.right(right))


@edbc.cell
class Score(nn.Module):
    """How easy it is to compose two neighbours."""

    def __init__(self, size: int):
        super().__init__()
        self.left = nn.Linear(size, size)
        self.right = nn.Linear(size, size, bias=False)
        self.out = nn.Linear(size, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out(torch.tanh(self.left(left) + self.right(right)))


class EasyFirst(nn.Module):
    """Composes the easiest pair of neighbours first."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.word = nn.Linear(size, size)
        self.compose = Compose(size)
        self.score = Score(size)

    def forward(self, words: list[int]) -> dict[str, list[Tensor]]:
        parts = [self.word(self.embedding.weight[word]) for word in words]
        scores = self.read([self.score(left, right) for left, right in zip(parts, parts[1:], strict=False)])
        nodes = []
        while len(parts) > 1:
            at = max(range(len(scores)), key=scores.__getitem__)
            parts[at : at + 2] = [self.compose(parts[at], parts[at + 1])]
            nodes.append(parts[at])
            first = max(at - 1, 0)
            pairs = zip(parts[first : at + 1], parts[first + 1 : at + 2], strict=False)
            scores[first : at + 2] = self.read([self.score(left, right) for left, right in pairs])
        return {"nodes": nodes or parts}

    def read(self, scores: list[Tensor]) -> list[float]:
        """All exist when the first has been waited for."""
        return [score.item() for score in scores]


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return EasyFirst(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[list[int]]:
    for path in paths:
        for words in read_words(path):
            yield [word_id(word, vocab_size) for word in words]


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[list[int]]:
    return sample_sentences(count, seed, vocab_size)
