"""A constituency parser's tree encoder: LSTMs over a constituent's children from both sides, with its label.

After Dyer et al., Recurrent Neural Network Grammars, NAACL 2016, section 4.1. A tree comes as a line of a treebank:
`(S (NP (DT the) (NN dog)) (VP (VBD ran)))`.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import torch
from torch import Tensor, nn

LABELS = ("S", "NP", "VP", "PP", "SBAR", "ADJP", "ADVP", "PRN")
WORDS = 2000


class TreeEncoder(nn.Module):
    """The state of a constituent is what a linear layer makes of both readings of its children."""

    def __init__(self, size: int = 128):
        super().__init__()
        self.words, self.labels = nn.Embedding(WORDS, size), nn.Embedding(len(LABELS), size)
        self.forth, self.back = nn.LSTMCell(size, size), nn.LSTMCell(size, size)
        self.merge, self.size = nn.Linear(2 * size, size), size

    def forward(self, line: str) -> Tensor:
        return self.encode(parsed(line))

    def encode(self, tree: Any) -> Tensor:
        if isinstance(tree, int):
            return self.words.weight[tree]
        label, children = tree
        states = [self.encode(child) for child in children]
        first = self.labels.weight[label]
        both = [self.read(self.forth, [first, *states]), self.read(self.back, [first, *states[::-1]])]
        return torch.tanh(self.merge(torch.cat(both)))

    def read(self, cell: nn.LSTMCell, items: list[Tensor]) -> Tensor:
        h = c = torch.zeros(self.size)
        for item in items:
            h, c = cell(item, (h, c))
        return h


def parsed(line: str) -> Any:
    """Label and children; a preterminal is its word's number."""
    tokens = line.replace("(", " ( ").replace(")", " ) ").split()
    stack: list[Any] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            label, *rest = stack.pop()
            word = zlib.crc32(rest[0].encode()) % WORDS if isinstance(rest[0], str) else None
            stack[-1].append(word if word is not None else (LABELS.index(label), rest))
        else:
            stack[-1].append(token)
    return stack[0][0]


def instances(count: int, seed: int = 0) -> list[str]:
    """Made-up sentences of some 5 to 40 words, constituents of 1 to 5 children."""
    generator = random.Random(seed)

    def grown(depth: int) -> str:
        if depth == 0 or generator.random() < 0.25:
            return f"(NN w{generator.randrange(WORDS)})"
        children = " ".join(grown(depth - 1) for _ in range(generator.choice([1, 2, 2, 3, 5])))
        return f"({generator.choice(LABELS)} {children})"

    return [f"(S {grown(4)} {grown(4)})" for _ in range(count)]
