"""SqueezeNet with complex bypass: image classification with few weights.

Iandola, Han, Moskewicz, Ashraf, Dally and Keutzer, "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and
< 0.5 MB model size" (2016), figure 2 on the right: around every fire module goes a connection that is added to its
output, through a 1x1 convolution where the number of channels changes. `width` scales every number of channels.
"""

from __future__ import annotations

import torch
from _images import images
from torch import Tensor, nn


class Conv(nn.Module):
    """Convolution and relu."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


class Fire(nn.Module):
    """Squeeze to few channels, expand by 1x1 and 3x3, add what goes around it."""

    def __init__(self, inputs: int, squeezed: int, expanded: int):
        super().__init__()
        self.squeeze = Conv(inputs, squeezed, 1)
        self.one = Conv(squeezed, expanded, 1)
        self.three = Conv(squeezed, expanded, 3, padding=1)
        self.bypass = nn.Identity() if inputs == 2 * expanded else nn.Conv2d(inputs, 2 * expanded, 1)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = self.squeeze(x)
        return torch.cat([self.one(squeezed), self.three(squeezed)], 1) + self.bypass(x)


class SqueezeNet(nn.Module):
    """Images `(N, 3, H, W)` to classes `(N, num_classes)`."""

    def __init__(self, c: int, num_classes: int):
        super().__init__()
        self.layers = nn.Sequential(
            Conv(3, 6 * c, 7, stride=2, padding=2),
            nn.MaxPool2d(3, stride=2),
            Fire(6 * c, c, 4 * c), Fire(8 * c, c, 4 * c), Fire(8 * c, 2 * c, 8 * c),
            nn.MaxPool2d(3, stride=2),
            Fire(16 * c, 2 * c, 8 * c), Fire(16 * c, 3 * c, 12 * c), Fire(24 * c, 3 * c, 12 * c),
            Fire(24 * c, 4 * c, 16 * c),
            nn.MaxPool2d(3, stride=2),
            Fire(32 * c, 4 * c, 16 * c),
            nn.Dropout(0.5),
            Conv(32 * c, num_classes, 1),
            nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).flatten(1)


def build(width: int = 16, num_classes: int = 1000) -> nn.Module:
    """The network; 16 is the paper's width."""
    return SqueezeNet(width, num_classes)


def sample(count: int, seed: int, image_size: int = 224) -> list[Tensor]:
    """Made-up images."""
    return images(count, seed, image_size)
