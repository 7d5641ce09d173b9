"""A mini-batch of two trees through every pass, as docs/architecture.md shows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import edbc
from edbc.run.passes.minibatch import MiniBatch


@edbc.cell
class Both(nn.Module):
    """What a node of a tree computes of its children."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.left(a) + self.right(b))


class Tree(nn.Module):
    """A tree is a word or a pair of trees."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.both = nn.Embedding(10, 4), Both()

    def forward(self, tree: Any) -> torch.Tensor:
        if isinstance(tree, int):
            return self.words.weight[tree]
        return self.both(*map(self.forward, tree))


TREES = [((1, 2), (3, 4)), (5, 6)]


def main() -> None:
    """Print what each pass makes of the trees."""
    torch.manual_seed(0)
    net = edbc.compile(Tree().eval(), TREES).in_mode()
    known: set[str] = set()

    def show(name: str, batch: MiniBatch) -> None:
        lines = [line for line in batch.text().splitlines() if line not in known]
        known.update(lines)
        print(f"{name}:", *[line for line in lines if line.startswith(" ")] or ["    as before"], sep="\n")

    with torch.no_grad():
        net.passes(MiniBatch(instances=TREES, first=0, segments=None), show)


if __name__ == "__main__":
    main()
