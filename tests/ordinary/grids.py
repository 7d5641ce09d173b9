"""Pictures and grids: convolutions, pooling, cells over a grid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import LABELS, normal, picture, sized_picture
from ordinary.registry import program


@program(picture)
class SmallCNN(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, LABELS)

    def forward(self, image):
        x = F.max_pool2d(F.relu(self.conv(image.unsqueeze(0))), 2)
        return self.out(x.view(x.size(0), -1))


@program(sized_picture)
class AdaptivePooling(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, size, 3, padding=1), nn.Linear(size, LABELS)

    def forward(self, image):
        return self.out(F.adaptive_avg_pool2d(torch.relu(self.conv(image)), 1).flatten())


@program(sized_picture)
class GridCells(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.step = size, nn.Linear(2 * size + 1, size)

    def forward(self, image):
        zero, rows = torch.zeros(self.size), {}
        _, height, width = image.shape
        for i in range(height):
            for j in range(width):
                above, left = rows.get((i - 1, j), zero), rows.get((i, j - 1), zero)
                rows[i, j] = torch.tanh(self.step(torch.cat([image[0, i, j].view(1), above, left])))
        return rows[height - 1, width - 1]


@program(lambda rng: [normal(rng, 1, 4, 4) for _ in range(rng.randint(1, 4))])
class ConvolutionalRecurrence(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.step = nn.Conv2d(5, 4, 3, padding=1)

    def forward(self, frames):
        h = torch.zeros(4, 4, 4)
        for frame in frames:
            h = torch.tanh(self.step(torch.cat([frame, h])))
        return h


@program(picture)
class Patches(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.place = nn.Linear(16, size), nn.Parameter(torch.randn(4, size))

    def forward(self, image):
        patches = F.unfold(image.unsqueeze(0), 4, stride=4).squeeze(0).t()
        return torch.relu(self.up(patches) + self.place).mean(dim=0)


@program(picture)
class NormalisedCNN(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())

    def forward(self, image):
        return self.layers(image[None])


@program(picture)
class UpAgain(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 4, 2, stride=2), nn.ConvTranspose2d(4, 1, 2, stride=2)

    def forward(self, image):
        return torch.sigmoid(self.up(torch.relu(self.down(image))))


@program(picture)
class SpatialSoftmax(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, image):
        weights = torch.softmax(self.conv(image).view(2, -1), dim=1).view(2, 8, 8)
        line = torch.linspace(-1, 1, 8)
        return torch.stack([(weights.sum(1) * line).sum(1), (weights.sum(2) * line).sum(1)])


@program(picture)
class ResidualBlocks(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(1, 1, 3, padding=1) for _ in range(3))
        self.norm = nn.GroupNorm(1, 1)

    def forward(self, image):
        x = image.unsqueeze(0)
        for block in self.blocks:
            x = x + F.relu(self.norm(block(x)))
        return x.mean()


@program(sized_picture)
class Interpolated(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.out = nn.Linear(16, size)

    def forward(self, image):
        scaled = F.interpolate(image.unsqueeze(0), size=(4, 4), mode="bilinear", align_corners=False)
        return self.out(scaled.flatten())
