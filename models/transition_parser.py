"""Transition-based dependency parser: after every transition, scores of the next.

Kiperwasser and Goldberg, "Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature Representations",
TACL 2016, one of the networks on which Neubig et al. measure on-the-fly batching (NIPS 2017). Words are read by a
bidirectional LSTM; a configuration is scored from three words of the stack and one of the buffer. The transitions are
the given tree's (teacher forcing), so the parser's own choices change no shape.

Input: CoNLL-U with heads; sentences whose tree is not projective are left out, no transitions lead to them.
Output: `transitions`, a row of SHIFT, LEFT and RIGHT per transition, in order: two for each word.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from _conllu import read_conllu
from _samples import sample_sizes
from _sentences import sample_words
from _targets import count_right, cross_entropy
from _text import word_id
from _transitions import find_transitions, follow, sample_heads
from torch import Tensor, nn

import edbc

UD_WORDS = (1, 14, 38, 104)
"""Words per sentence of the training part of UD English EWT: minimum, median, 95th percentile, maximum."""


@dataclass(slots=True)
class Sentence:
    """Words as ids, and the transitions to their tree."""

    words: list[int]
    transitions: list[int]


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


@edbc.cell
class Word(nn.Module):
    """A word from what precedes and what follows it."""

    def __init__(self, size: int):
        super().__init__()
        self.both = nn.Linear(2 * size, size)

    def forward(self, f: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.both(torch.cat([f, b], dim=-1)))


@edbc.cell
class Score(nn.Module):
    """Scores of the transitions from three words of the stack and one of the buffer."""

    def __init__(self, size: int):
        super().__init__()
        self.hidden = nn.Linear(4 * size, size)
        self.out = nn.Linear(size, 3)

    def forward(self, third: Tensor, second: Tensor, first: Tensor, following: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(torch.cat([third, second, first, following], dim=-1))))


class TransitionParser(nn.Module):
    """Reads a sentence, then walks along its transitions and scores every configuration on the way."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.ahead = LSTMCell(size)
        self.back = LSTMCell(size)
        self.word = Word(size)
        self.score = Score(size)
        self.root = nn.Parameter(torch.randn(size))
        self.nothing = nn.Parameter(torch.randn(size))
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def forward(self, sentence: Sentence) -> dict[str, Tensor]:
        words = [self.root, *self.read(sentence.words)]
        scores = []
        for stack, following in follow(sentence.transitions):
            third, second, first = [self.nothing] * (3 - len(stack)) + [words[number] for number in stack[-3:]]
            scores.append(
                self.score(third, second, first, words[following] if following < len(words) else self.nothing)
            )
        return {"transitions": torch.stack(scores)}

    def read(self, words: list[int]) -> list[Tensor]:
        xs = [self.embedding.weight[word] for word in words]
        fs = self.run(self.ahead, xs)
        bs = self.run(self.back, xs[::-1])[::-1]
        return [self.word(f, b) for f, b in zip(fs, bs, strict=True)]

    def run(self, cell: LSTMCell, xs: list[Tensor]) -> list[Tensor]:
        h = c = self.zero
        hs = []
        for x in xs:
            h, c = cell(x, h, c)
            hs.append(h)
        return hs


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return TransitionParser(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Sentence]:
    for path in paths:
        for words in read_conllu(path):
            transitions = find_transitions([word.head for word in words])
            if transitions is not None:
                yield Sentence([word_id(word.form, vocab_size) for word in words], transitions)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Sentence]:
    rng = random.Random(seed)
    sentences = []
    for length in sample_sizes(count, UD_WORDS, rng):
        transitions = find_transitions(sample_heads(length, rng))
        assert transitions is not None, "sample_heads makes projective trees"
        sentences.append(Sentence(sample_words(length, vocab_size, rng), transitions))
    return sentences


def loss(outputs: dict[str, Tensor], sentence: Sentence) -> Tensor:
    """Cross-entropy of every transition, summed over the sentence."""
    return cross_entropy(outputs["transitions"], sentence.transitions)


def metrics(outputs: dict[str, Tensor], sentence: Sentence) -> dict[str, tuple[int, int]]:
    """Transitions that score highest and are the tree's."""
    return {"accuracy": count_right(outputs["transitions"], sentence.transitions)}
