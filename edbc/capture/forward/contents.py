"""Whether tensors still hold what they held, which their versions do not tell: a write through NumPy's view of their
memory or through `.data` counts nowhere, and tensors made in inference mode count nothing at all."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Written(NamedTuple):
    """A copy of a tensor's elements: where they begin in some memory."""

    memory: bytearray
    begin: int


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor has changed, as far as torch knows; inference tensors do not tell."""
    try:
        return tensor._version
    except RuntimeError:
        return 0


def holds(tensor: torch.Tensor, copied: Written | torch.Tensor) -> bool:
    """Whether a tensor has the elements that a copy of it has. O(elements)."""
    if isinstance(copied, Written):
        elements = tensor.numpy().tobytes()
        return copied.memory[copied.begin : copied.begin + len(elements)] == elements
    if tensor.layout is not torch.strided or torch.equal(tensor, copied):
        return True
    return bool(((tensor == copied) | ((tensor != tensor) & (copied != copied))).all())
