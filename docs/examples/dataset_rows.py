"""Rows of a Hugging Face data set: dicts of columns, of any length, with or without `with_format("torch")`."""

from __future__ import annotations

import random
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn

import edbc


class Classifier(nn.Module):
    """An LSTM over the tokens of one row; no padding."""

    def __init__(self, vocab_size: int = 100, size: int = 16):
        super().__init__()
        self.words, self.step, self.out = nn.Embedding(vocab_size, size), nn.LSTMCell(size, size), nn.Linear(size, 2)

    def forward(self, row: dict[str, Any]) -> Tensor:
        h = c = torch.zeros(self.step.hidden_size)
        for token in row["tokens"]:
            h, c = self.step(self.words.weight[token], (h, c))
        return self.out(h)


def rows(count: int, seed: int = 0) -> Dataset:
    """Made-up rows of 1 to 12 tokens."""
    generator = random.Random(seed)
    tokens = [[generator.randrange(100) for _ in range(generator.randint(1, 12))] for _ in range(count)]
    return Dataset.from_dict({"tokens": tokens, "label": [len(row) % 2 for row in tokens]})


def main(**options: Any) -> tuple[Any, nn.Module, list[dict[str, Any]]]:
    """Compile on a data set; give net, model and rows that it has not seen, as lists and as tensors."""
    model = Classifier()
    unseen = rows(8, seed=1)
    return edbc.compile(model, rows(40), **options), model, [*unseen, *unseen.with_format("torch")]


if __name__ == "__main__":
    net, _, unseen = main()
    print(net, [tuple(output.shape) for output in net(unseen)])
