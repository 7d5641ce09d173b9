"""A proof-term encoder: a child-sum tree-LSTM over the terms of a goal and its hypotheses.

After Yang and Deng, Learning to Prove Theorems via Interacting with Proof Assistants (CoqGym, ASTactic), ICML 2019. A
term comes as its parsed tree: `{"data": "prod", "children": [...]}`, leaves with no children.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

NONTERMINALS = ("prod", "lambda", "app", "const", "ind", "construct", "rel", "sort", "case", "fix", "evar", "var")


class TermEncoder(nn.Module):
    """Gates of a node from its kind and the sum of its children; a forget gate per child."""

    def __init__(self, size: int = 128):
        super().__init__()
        kinds = len(NONTERMINALS)
        self.kinds = nn.Embedding(kinds, 3 * size)
        self.kinds_of_forget = nn.Embedding(kinds, size)
        self.gates, self.forget = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.size = size

    def forward(self, goal: list[dict[str, Any]]) -> Tensor:
        return torch.stack([self.encode(term)[0] for term in goal])

    def encode(self, term: dict[str, Any]) -> tuple[Tensor, Tensor]:
        kind = NONTERMINALS.index(term["data"])
        children = [self.encode(child) for child in term["children"]]
        total = sum(h for h, _ in children) if children else torch.zeros(self.size)
        i, o, u = (self.kinds.weight[kind] + self.gates(total)).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        for h_child, c_child in children:
            c = c + torch.sigmoid(self.kinds_of_forget.weight[kind] + self.forget(h_child)) * c_child
        return torch.sigmoid(o) * torch.tanh(c), c


def instances(count: int, seed: int = 0) -> list[list[dict[str, Any]]]:
    """Made-up goals with 1 to 6 hypotheses, terms up to 8 deep."""
    generator = random.Random(seed)

    def term(depth: int) -> dict[str, Any]:
        if depth == 0 or generator.random() < 0.2:
            return {"data": generator.choice(NONTERMINALS[3:8]), "children": []}
        kind = generator.choice(["prod", "lambda", "app", "app", "case"])
        return {"data": kind, "children": [term(depth - 1) for _ in range(generator.choice([2, 2, 3]))]}

    return [[term(generator.randint(2, 5)) for _ in range(generator.randint(2, 7))] for _ in range(count)]
