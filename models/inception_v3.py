"""Inception v3: image classification by convolutions of several sizes side by side.

Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception Architecture for Computer Vision" (CVPR 2016),
without the auxiliary classifier. `num_classes=0` gives the 2,048 features that are classified. `width` scales every
number of channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _images import images
from torch import Tensor, nn

Size = int | tuple[int, int]


class Conv(nn.Module):
    """Convolution, batch norm, relu."""

    def __init__(self, inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size = 0):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Chain(nn.Sequential):
    """Convolutions one after the other; `sizes` are (channels, kernel, padding)."""

    def __init__(self, inputs: int, *sizes: tuple[int, Size, Size], stride: int = 1):
        steps, last = [], len(sizes) - 1
        for number, (channels, kernel, padding) in enumerate(sizes):
            steps.append(Conv(inputs, channels, kernel, stride if number == last else 1, padding))
            inputs = channels
        super().__init__(*steps)


class BlockA(nn.Module):
    """35 x 35: 1x1, 5x5, two 3x3, pool."""

    def __init__(self, inputs: int, pooled: int, c: int):
        super().__init__()
        self.one = Conv(inputs, 4 * c, 1)
        self.five = Chain(inputs, (3 * c, 1, 0), (4 * c, 5, 2))
        self.three = Chain(inputs, (4 * c, 1, 0), (6 * c, 3, 1), (6 * c, 3, 1))
        self.pooled = Conv(inputs, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.avg_pool2d(x, 3, stride=1, padding=1))
        return torch.cat([self.one(x), self.five(x), self.three(x), pooled], 1)


class BlockB(nn.Module):
    """35 x 35 to 17 x 17."""

    def __init__(self, inputs: int, c: int):
        super().__init__()
        self.three = Conv(inputs, 24 * c, 3, stride=2)
        self.deep = Chain(inputs, (4 * c, 1, 0), (6 * c, 3, 1), (6 * c, 3, 0), stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.three(x), self.deep(x), F.max_pool2d(x, 3, stride=2)], 1)


class BlockC(nn.Module):
    """17 x 17: 7x7 as 1x7 and 7x1."""

    def __init__(self, inputs: int, middle: int, c: int):
        super().__init__()
        row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))
        self.one = Conv(inputs, 12 * c, 1)
        self.seven = Chain(inputs, (middle, 1, 0), (middle, *row), (12 * c, *column))
        self.deep = Chain(
            inputs, (middle, 1, 0), (middle, *column), (middle, *row), (middle, *column), (12 * c, *row)
        )  # fmt: skip
        self.pooled = Conv(inputs, 12 * c, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.avg_pool2d(x, 3, stride=1, padding=1))
        return torch.cat([self.one(x), self.seven(x), self.deep(x), pooled], 1)


class BlockD(nn.Module):
    """17 x 17 to 8 x 8."""

    def __init__(self, inputs: int, c: int):
        super().__init__()
        self.three = Chain(inputs, (12 * c, 1, 0), (20 * c, 3, 0), stride=2)
        self.seven = Chain(
            inputs, (12 * c, 1, 0), (12 * c, (1, 7), (0, 3)), (12 * c, (7, 1), (3, 0)), (12 * c, 3, 0), stride=2
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.three(x), self.seven(x), F.max_pool2d(x, 3, stride=2)], 1)


class BlockE(nn.Module):
    """8 x 8: the last two products of two branches stand side by side."""

    def __init__(self, inputs: int, c: int):
        super().__init__()
        self.one = Conv(inputs, 20 * c, 1)
        self.split = Conv(inputs, 24 * c, 1)
        self.split_row = Conv(24 * c, 24 * c, (1, 3), padding=(0, 1))
        self.split_column = Conv(24 * c, 24 * c, (3, 1), padding=(1, 0))
        self.deep = Chain(inputs, (28 * c, 1, 0), (24 * c, 3, 1))
        self.deep_row = Conv(24 * c, 24 * c, (1, 3), padding=(0, 1))
        self.deep_column = Conv(24 * c, 24 * c, (3, 1), padding=(1, 0))
        self.pooled = Conv(inputs, 12 * c, 1)

    def forward(self, x: Tensor) -> Tensor:
        split, deep = self.split(x), self.deep(x)
        split = torch.cat([self.split_row(split), self.split_column(split)], 1)
        deep = torch.cat([self.deep_row(deep), self.deep_column(deep)], 1)
        pooled = self.pooled(F.avg_pool2d(x, 3, stride=1, padding=1))
        return torch.cat([self.one(x), split, deep, pooled], 1)


class InceptionV3(nn.Module):
    """Images `(N, 3, H, W)` of any size from 75 on to classes `(N, num_classes)`, or features `(N, 128 c)`."""

    def __init__(self, c: int, num_classes: int):
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, 2 * c, 3, stride=2), Conv(2 * c, 2 * c, 3), Conv(2 * c, 4 * c, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            Conv(4 * c, 5 * c, 1), Conv(5 * c, 12 * c, 3),
            nn.MaxPool2d(3, stride=2),
        )  # fmt: skip
        self.blocks = nn.Sequential(
            BlockA(12 * c, 2 * c, c), BlockA(16 * c, 4 * c, c), BlockA(18 * c, 4 * c, c),
            BlockB(18 * c, c),
            BlockC(48 * c, 8 * c, c), BlockC(48 * c, 10 * c, c), BlockC(48 * c, 10 * c, c), BlockC(48 * c, 12 * c, c),
            BlockD(48 * c, c),
            BlockE(80 * c, c), BlockE(128 * c, c),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(128 * c, num_classes) if num_classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


def build(width: int = 16, num_classes: int = 0) -> nn.Module:
    """The network; 16 is the paper's width."""
    return InceptionV3(width, num_classes)


def sample(count: int, seed: int, image_size: int = 299) -> list[Tensor]:
    """Made-up images."""
    return images(count, seed, image_size)
