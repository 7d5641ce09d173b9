"""RandWire: image classification by a network that was wired at random.

Xie, Kirillov, Girshick and He, "Exploring Randomly Wired Neural Networks for Image Recognition" (ICCV 2019), table 2,
regular regime: four stages whose wiring is a Watts-Strogatz graph WS(k, p), of 16 nodes and three times 32. An edge
goes from the lower to the higher node; a node adds what it reads, each with a learned weight, then relu, separable
convolution and batch norm; what no node reads is averaged. `channels` is the paper's C.
"""

from __future__ import annotations

import networkx as nx
import torch
from _images import images
from torch import Tensor, nn


class Node(nn.Module):
    """The sum of what it reads, weighted; relu; separable 3x3 convolution; batch norm."""

    def __init__(self, reads: int, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(reads)) if reads > 1 else None
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, read: list[Tensor]) -> Tensor:
        if self.weight is None:
            total = read[0]
        else:
            weight = torch.sigmoid(self.weight)
            total = sum(weight[i] * x for i, x in enumerate(read))
        return self.norm(self.pointwise(self.depthwise(torch.relu(total))))


class Stage(nn.Module):
    """One random graph; half the height and width of what it reads."""

    def __init__(self, wiring: nx.Graph, inputs: int, outputs: int):
        super().__init__()
        self.reads = [sorted(other for other in wiring[node] if other < node) for node in sorted(wiring)]
        self.ends = [node for node in sorted(wiring) if all(other < node for other in wiring[node])]
        self.nodes = nn.ModuleList(
            Node(len(reads), outputs, outputs, 1) if reads else Node(1, inputs, outputs, 2) for reads in self.reads
        )

    def forward(self, x: Tensor) -> Tensor:
        values: list[Tensor] = []
        for node, reads in zip(self.nodes, self.reads, strict=True):
            values.append(node([values[i] for i in reads] if reads else [x]))
        return sum(values[i] for i in self.ends) / len(self.ends)


class RandWire(nn.Module):
    """Images `(N, 3, H, W)` to classes `(N, num_classes)`."""

    def __init__(self, channels: int, nodes: int, k: int, p: float, wiring_seed: int, features: int, num_classes: int):
        super().__init__()
        self.conv = nn.Conv2d(3, channels // 2, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels // 2)
        stages, inputs = [], channels // 2
        for number in range(4):
            count = nodes if number else nodes // 2
            wiring = nx.connected_watts_strogatz_graph(count, k, p, seed=wiring_seed + number)
            stages.append(Stage(wiring, inputs, channels * 2**number))
            inputs = channels * 2**number
        self.stages = nn.Sequential(*stages)
        self.features = nn.Sequential(nn.Conv2d(inputs, features, 1, bias=False), nn.BatchNorm2d(features), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(torch.relu(self.norm(self.conv(x))))
        return self.classes(torch.flatten(self.pool(self.features(x)), 1))


def build(
    channels: int = 154,
    nodes: int = 32,
    k: int = 4,
    p: float = 0.75,
    wiring_seed: int = 12,
    features: int = 1280,
    num_classes: int = 1000,
) -> nn.Module:
    """The network; these defaults are the paper's larger one."""
    return RandWire(channels, nodes, k, p, wiring_seed, features, num_classes)


def sample(count: int, seed: int, image_size: int = 224) -> list[Tensor]:
    """Made-up images."""
    return images(count, seed, image_size)
