"""What training compares a network's outputs with: a class for each of several outputs of an instance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(scores: Sequence[Tensor], classes: Sequence[int]) -> Tensor:
    """The sum over an instance's outputs of minus the logarithm of the right class's probability."""
    rows = torch.stack(list(scores))
    return functional.cross_entropy(rows, torch.tensor(classes, device=rows.device), reduction="sum")


def count_right(scores: Sequence[Tensor], classes: Sequence[int]) -> tuple[int, int]:
    """How many outputs score their class highest, and how many there are."""
    best = torch.stack(list(scores)).argmax(dim=-1).tolist()
    return sum(a == b for a, b in zip(best, classes, strict=True)), len(classes)
