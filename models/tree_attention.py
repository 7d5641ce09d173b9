"""Encoder of syntax trees of any arity: each node attends over its children, whatever number it has.

Zhou, Liu and Pan, "Modelling Sentence Pairs with Tree-structured Attentive Encoder", COLING 2016, section 3.2, with the
node's own name in the place of the other sentence as what asks. Trees of programs are read as those of sentences are.

Input: one tree per line, `(ROOT (NP (DT the) (NN cat)))`: a name and children, or a name and a word.
Output: `scores`, one tensor of 4 classes per tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _text import word_id
from _treebank import Node, read_treebank, sample_treebank
from torch import Tensor, nn

Tree = tuple[int, list[Any]]
"""The id of a name or word, and children."""


class TreeAttention(nn.Module):
    """States of a tree's nodes, children first."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.words, self.query = nn.Embedding(vocab_size, size), nn.Linear(size, size)
        self.join, self.out = nn.Linear(2 * size, size), nn.Linear(size, 4)

    def forward(self, tree: Tree) -> dict[str, list[Tensor]]:
        return {"scores": [self.out(self.encode(tree))]}

    def encode(self, tree: Tree) -> Tensor:
        word = self.words.weight[tree[0]]
        if not tree[1]:
            return torch.tanh(self.join(torch.cat([word, word])))
        children = torch.stack([self.encode(child) for child in tree[1]])
        weights = (children @ self.query(word)).softmax(0)
        return torch.tanh(self.join(torch.cat([word, weights @ children])))


def tree_of(node: Node, vocab_size: int) -> Tree:
    name = node.word if not node.children else word_id(node.label, vocab_size)
    return name, [tree_of(child, vocab_size) for child in node.children]


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return TreeAttention(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Tree]:
    for path in paths:
        for node in read_treebank(path, vocab_size):
            yield tree_of(node, vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Tree]:
    return [tree_of(node, vocab_size) for node in sample_treebank(count, seed, vocab_size)]
