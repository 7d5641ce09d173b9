"""Tree-FC: a fully connected layer at every inner node of complete binary trees of 256 leaves.

The benchmark of Looks, Herreshoff, Hutchins and Norvig, "Deep Learning with Dynamic Computation Graphs", ICLR 2017,
which Cavs measures too (Xu et al., USENIX ATC 2018): every instance has the same shape, so it shows what batching
costs when there is nothing to find out.

Input: 256 words per line (`--set leaves=64` for 64), the leaves from left to right.
Output: `root`, one tensor of the hidden size per tree.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from _sentences import sample_words
from _text import read_lines, split_words, word_id
from torch import Tensor, nn

import edbc
from edbc.errors import InputError, ModelError


@edbc.cell
class Internal(nn.Module):
    """A node from its two parts."""

    def __init__(self, size: int):
        super().__init__()
        self.fc = nn.Linear(2 * size, size)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.relu(self.fc(torch.cat([left, right], dim=-1)))


class TreeFC(nn.Module):
    """Joins neighbours until one node is left."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.internal = Internal(size)

    def forward(self, words: list[int]) -> dict[str, list[Tensor]]:
        return {"root": [self.encode(words)]}

    def encode(self, words: list[int]) -> Tensor:
        if len(words) == 1:
            return self.embedding.weight[words[0]]
        middle = len(words) // 2
        return self.internal(self.encode(words[:middle]), self.encode(words[middle:]))


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return TreeFC(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, leaves: int = 256, **config: Any) -> Iterator[list[int]]:
    check_leaves(leaves)
    for path in paths:
        for number, line in read_lines(path):
            words = split_words(line)
            if words and len(words) != leaves:
                raise InputError(f"{path}:{number}: expected {leaves} words, got {len(words)}; see --set leaves=")
            if words:
                yield [word_id(word, vocab_size) for word in words]


def sample(count: int, seed: int, vocab_size: int = 20000, leaves: int = 256, **config: Any) -> list[list[int]]:
    check_leaves(leaves)
    rng = random.Random(seed)
    return [sample_words(leaves, vocab_size, rng) for _ in range(count)]


def check_leaves(leaves: int) -> None:
    """Complete trees have 2, 4, 8, ... leaves."""
    if leaves < 2 or leaves & (leaves - 1):
        raise ModelError(f"leaves: expected a power of two from 2 on, got {leaves}; complete trees need one")
