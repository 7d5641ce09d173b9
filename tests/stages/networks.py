"""What the tests of stages share: the four static networks, small ones and as they are, and their units."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from helpers import model_file
from torch import nn

from edbc.stages.capture import trace
from edbc.stages.fusion import fuse
from edbc.stages.graph import UnitGraph
from edbc.stages.table import CONCURRENT, Schedule

TINY: dict[str, tuple[dict[str, Any], int]] = {
    "inception_v3": ({"width": 2}, 75),
    "squeezenet": ({"width": 2, "num_classes": 5}, 63),
    "nasnet_a": ({"filters": 8, "repeats": 1, "num_classes": 5}, 33),
    "randwire": ({"channels": 4, "nodes": 8, "features": 6, "num_classes": 5}, 32),
}
"""Arguments of `build`, and the size of images."""


def tiny(name: str, seed: int = 0) -> nn.Module:
    """A small network in eval mode whose batch norms are not the identity."""
    torch.manual_seed(seed)
    model = model_file(name).build(**TINY[name][0]).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for value in (module.weight, module.bias, module.running_mean):
                nn.init.uniform_(value, 0.5, 1.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


def tiny_images(name: str, count: int, seed: int = 0) -> list[torch.Tensor]:
    """Images for it."""
    return model_file(name).sample(count, seed, image_size=TINY[name][1])


def sequential(graph: UnitGraph) -> Schedule:
    """Every unit a stage of its own, in one thread."""
    return [(((unit,),), CONCURRENT) for unit in range(len(graph.units))]


@lru_cache
def units(name: str) -> UnitGraph:
    """The units of a network as large as it is; on the meta device, where weights take no memory."""
    file = model_file(name)
    with torch.device("meta"):
        network = file.build().eval()
    return fuse(trace(network, file.sample(1, 0)[0], name))
