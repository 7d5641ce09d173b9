"""Reach: from one process to many, on engines that people already run. See docs/reach.md.

Adapters and nothing else: what starts processes, connects them and opens ports is the engine (torchrun, Ray, a model
server). Nothing of edbc imports this package but the command line, when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edbc.reach.batcher import Batcher, Busy, Late
    from edbc.reach.predictor import Predictor
    from edbc.reach.ranks import Module
    from edbc.reach.sampler import NodeBalancedSampler, costs_of

_HOMES = {"Batcher": "batcher", "Busy": "batcher", "Late": "batcher", "Module": "ranks",
          "NodeBalancedSampler": "sampler", "Predictor": "predictor", "costs_of": "sampler"}  # fmt: skip
__all__ = ["Batcher", "Busy", "Late", "Module", "NodeBalancedSampler", "Predictor", "costs_of"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"edbc.reach.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'edbc.reach' has no attribute {name!r}")
