"""edbc: an ahead-of-time compiler for dynamic neural networks in PyTorch.

    net = edbc.compile(model, instances)         # learns a batching policy and a memory layout
    outputs = net(instances)                     # runs a mini-batch of differently shaped instances
    net.plan.save("plan.yaml")

    edbc.compile("model.py", "plan.yaml")        # the same of a model file, for the command line and CI
    net = edbc.load("plan.yaml").bind(model)     # binds a plan to a model with its weights
    @edbc.cell                                   # marks a module as one node of the dataflow graph
    edbc.closed(module)                          # promises that its calls are told by their arguments

Importing edbc imports no torch; what needs it is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edbc._version import __version__
from edbc.capture.code.mark import cell, closed
from edbc.errors import EdbcError

if TYPE_CHECKING:
    from edbc.api import LoadedPlan, compile, load
    from edbc.capture.captured.instance import Captured
    from edbc.plan.plan import Plan
    from edbc.run.dataset import CapturedDataset
    from edbc.run.workers import collate
    from edbc.stages import Stages

__all__ = [
    "Captured",
    "CapturedDataset",
    "EdbcError",
    "LoadedPlan",
    "Plan",
    "Stages",
    "__version__",
    "cell",
    "closed",
    "collate",
    "compile",
    "load",
]

_HOMES = {
    "Captured": "capture.captured.instance",
    "CapturedDataset": "run.dataset",
    "LoadedPlan": "api",
    "Plan": "plan.plan",
    "Stages": "stages",
    "collate": "run.workers",
    "compile": "api",
    "load": "api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"edbc.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'edbc' has no attribute {name!r}")
