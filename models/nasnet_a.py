"""NASNet-A large: image classification by cells that a search found.

Zoph, Vasudevan, Shlens and Le, "Learning Transferable Architectures for Scalable Image Recognition" (CVPR 2018),
NASNet-A (6 @ 4032): eighteen normal cells, two reduction cells and two more in the stem; figure 4 and appendix A.4. A
cell reads the two cells before it. Drop path and the auxiliary classifier are for training and left out. `filters` is
the number of channels of a branch in the first cells, 168 in the paper.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _images import images
from torch import Tensor, nn


class Separable(nn.Module):
    """Relu, depthwise and pointwise convolution, batch norm: twice, as everywhere in NASNet."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__()
        padding = kernel // 2
        self.depthwise1 = nn.Conv2d(inputs, inputs, kernel, stride, padding, groups=inputs, bias=False)
        self.pointwise1 = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, eps=0.001)
        self.depthwise2 = nn.Conv2d(outputs, outputs, kernel, 1, padding, groups=outputs, bias=False)
        self.pointwise2 = nn.Conv2d(outputs, outputs, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.pointwise1(self.depthwise1(F.relu(x))))
        return self.norm2(self.pointwise2(self.depthwise2(F.relu(x))))


class Fit(nn.Module):
    """Relu, 1x1 convolution, batch norm: another number of channels."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(F.relu(x)))


class Halve(nn.Module):
    """Half the height and width, and another number of channels: even pixels on one path, odd ones on the other."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        even = F.avg_pool2d(x, 1, stride=2)
        odd = F.avg_pool2d(F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:], 1, stride=2)
        return self.norm(torch.cat([self.even(even), self.odd(odd)], 1))


def average(x: Tensor, stride: int = 1) -> Tensor:
    """The mean of 3x3 pixels, those outside not counted."""
    return F.avg_pool2d(x, 3, stride, padding=1, count_include_pad=False)


class Normal(nn.Module):
    """Five sums of two; as large as what it reads, with six times `filters` channels."""

    def __init__(self, before: int, inputs: int, filters: int, halve: bool):
        super().__init__()
        self.fit_before = Halve(before, filters) if halve else Fit(before, filters)
        self.fit = Fit(inputs, filters)
        self.five0, self.three0 = Separable(filters, filters, 5), Separable(filters, filters, 3)
        self.five1, self.three1 = Separable(filters, filters, 5), Separable(filters, filters, 3)
        self.three4 = Separable(filters, filters, 3)

    def forward(self, before: Tensor, x: Tensor) -> Tensor:
        p, x = self.fit_before(before), self.fit(x)
        return torch.cat(
            [
                p,
                self.five0(x) + self.three0(p),
                self.five1(p) + self.three1(p),
                average(x) + p,
                average(p) + average(p),
                self.three4(x) + x,
            ],
            1,
        )


class Reduction(nn.Module):
    """Half as large as what it reads, with four times `filters` channels. In the first one `before` is not fitted."""

    def __init__(self, before: int, inputs: int, filters: int, fit_before: str):
        super().__init__()
        fits = {"halve": Halve, "fit": Fit}
        self.fit_before = fits[fit_before](before, filters) if fit_before in fits else nn.Identity()
        p = filters if fit_before in fits else before
        self.fit = Fit(inputs, filters)
        self.five0, self.seven0 = Separable(filters, filters, 5, 2), Separable(p, filters, 7, 2)
        self.seven1, self.five2 = Separable(p, filters, 7, 2), Separable(p, filters, 5, 2)
        self.three4 = Separable(filters, filters, 3)

    def forward(self, before: Tensor, x: Tensor) -> Tensor:
        p, x = self.fit_before(before), self.fit(x)
        first = self.five0(x) + self.seven0(p)
        second = F.max_pool2d(x, 3, 2, padding=1) + self.seven1(p)
        third = average(x, 2) + self.five2(p)
        fourth = average(first) + second
        fifth = self.three4(first) + F.max_pool2d(x, 3, 2, padding=1)
        return torch.cat([second, third, fourth, fifth], 1)


class NASNetA(nn.Module):
    """Images `(N, 3, H, W)` to classes `(N, num_classes)`."""

    def __init__(self, filters: int, repeats: int, num_classes: int):
        super().__init__()
        stem = 96 * filters // 168
        self.conv = nn.Conv2d(3, stem, 3, 2, bias=False)
        self.norm = nn.BatchNorm2d(stem, eps=0.001)
        self.stem0 = Reduction(stem, stem, filters // 4, "as it is")
        self.stem1 = Reduction(stem, filters // 4 * 4, filters // 2, "halve")
        cells: list[nn.Module] = []
        before, inputs, halve = filters // 4 * 4, filters // 2 * 4, True
        for group in range(3):
            size = filters * 2**group
            if group:
                cells.append(Reduction(before, inputs, size, "fit"))
                before, inputs, halve = inputs, 4 * size, True
            for _ in range(repeats):
                cells.append(Normal(before, inputs, size, halve))
                before, inputs, halve = inputs, 6 * size, False
        self.cells = nn.ModuleList(cells)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.classes = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        before, x = x, self.stem0(x, x)
        before, x = x, self.stem1(before, x)
        for cell in self.cells:
            before, x = x, cell(before, x)
        x = self.pool(F.relu(x))
        return self.classes(self.dropout(x.flatten(1)))


def build(filters: int = 168, repeats: int = 6, num_classes: int = 1000) -> nn.Module:
    """The network; 168 filters and 6 repeats are the large one of the paper."""
    return NASNetA(filters, repeats, num_classes)


def sample(count: int, seed: int, image_size: int = 331) -> list[Tensor]:
    """Made-up images."""
    return images(count, seed, image_size)
