"""What training compares a network's outputs with: a class for each of several outputs of an instance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(scores: Sequence[Tensor], classes: Sequence[int]) -> Tensor:
    """The sum over an instance's outputs of minus the logarithm of the right class's probability."""
    return functional.cross_entropy(torch.stack(list(scores)), torch.tensor(classes), reduction="sum")


def count_right(scores: Sequence[Tensor], classes: Sequence[int]) -> tuple[int, int]:
    """How many outputs score their class highest, and how many there are."""
    right = torch.stack(list(scores)).argmax(dim=-1) == torch.tensor(classes)
    return int(right.sum()), len(classes)
