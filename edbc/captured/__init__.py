"""Captured instances: the record of one instance as a value of plain arrays, joined natively to mini-batches.

    captured = net.capture(instance)        # forward runs once, on stand-ins
    outputs = net([captured, other])        # and never again for this instance

See docs/captured.md. Importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edbc.captured.dataset import CapturedDataset
    from edbc.captured.value import Captured
    from edbc.captured.workers import CapturedBatch, collate

__all__ = ["Captured", "CapturedBatch", "CapturedDataset", "collate"]
_MODULES = {"Captured": "value", "CapturedBatch": "workers", "CapturedDataset": "dataset", "collate": "workers"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"edbc.captured.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'edbc.captured' has no attribute {name!r}")
