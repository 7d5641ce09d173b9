"""Made-up images, one per instance: what the convolutional models of this folder run on where there are no files."""

from __future__ import annotations

import torch


def images(count: int, seed: int, size: int) -> list[torch.Tensor]:
    """`count` images `(1, 3, size, size)` of standard normal values."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 3, size, size, generator=generator) for _ in range(count)]
