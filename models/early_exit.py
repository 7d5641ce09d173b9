"""Early exit: a deep classifier of sentences that stops at the first layer that is confident.

After each layer a branch classifies; where its probability reaches `threshold` the layers above do not run
(Teerapittayanon, McDanel and Kung, "BranchyNet: Fast Inference via Early Exiting from Deep Neural Networks", ICPR
2016). How deep a sentence goes depends on its numbers: one is read per layer.

Input: text, one sentence per line.
Output: `classes`, one tensor over the classes per layer that ran, in order: the last one is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _sentences import read_words, sample_sentences
from _text import word_id
from torch import Tensor, nn

import edbc

CLASSES = 5


@edbc.cell
class Layer(nn.Module):
    """A residual layer."""

    def __init__(self, size: int):
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.outer = nn.Linear(size, size)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.outer(torch.tanh(self.inner(h)))


@edbc.cell
class Branch(nn.Module):
    """Scores of the classes, and the probability of the likeliest."""

    def __init__(self, size: int):
        super().__init__()
        self.out = nn.Linear(size, CLASSES)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.out(h)
        return scores, torch.softmax(scores, dim=-1).amax(dim=-1)


class EarlyExit(nn.Module):
    """The sum of a sentence's words through layers, each with a branch."""

    def __init__(self, size: int, vocab_size: int, layers: int, threshold: float):
        super().__init__()
        self.threshold = threshold
        self.embedding = nn.Embedding(vocab_size, size)
        self.word = nn.Linear(size, size)
        self.layers = nn.ModuleList(Layer(size) for _ in range(layers))
        self.branches = nn.ModuleList(Branch(size) for _ in range(layers))

    def forward(self, words: list[int]) -> dict[str, list[Tensor]]:
        h = sum(self.word(self.embedding.weight[word]) for word in words) / len(words) ** 0.5
        classes = []
        for layer, branch in zip(self.layers, self.branches, strict=True):
            h = layer(h)
            scores, confidence = branch(h)
            classes.append(scores)
            if confidence >= self.threshold:
                break
        return {"classes": classes}


def build(
    hidden_size: int = 256, vocab_size: int = 20000, layers: int = 12, threshold: float = 0.33, **config: Any
) -> nn.Module:
    return EarlyExit(hidden_size, vocab_size, layers, threshold)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[list[int]]:
    for path in paths:
        for words in read_words(path):
            yield [word_id(word, vocab_size) for word in words]


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[list[int]]:
    return sample_sentences(count, seed, vocab_size)
