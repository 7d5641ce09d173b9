"""What training compares a network's outputs with: a class for each of several outputs of an instance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(scores: Tensor, classes: Sequence[int]) -> Tensor:
    """The sum over an instance's outputs, `(outputs, classes)`, of minus the logarithm of the right class's
    probability."""
    return functional.cross_entropy(scores, torch.tensor(classes, device=scores.device), reduction="sum")


def count_right(scores: Tensor, classes: Sequence[int]) -> tuple[int, int]:
    """How many outputs, `(outputs, classes)`, score their class highest, and how many there are."""
    best = scores.argmax(dim=-1).tolist()
    return sum(a == b for a, b in zip(best, classes, strict=True)), len(classes)
