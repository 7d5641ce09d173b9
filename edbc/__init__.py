"""edbc: an ahead-of-time compiler for dynamic neural networks in PyTorch.

    net = edbc.compile(model, instances)         # learns a batching policy and a memory layout
    outputs = net(instances)                     # runs a mini-batch of differently shaped instances
    net.plan.save("plan.yaml")

    edbc.compile("model.py", "plan.yaml")        # the same of a model file, for the command line and CI
    net = edbc.load("plan.yaml").bind(model)     # binds a plan to a model with its weights
    @edbc.cell                                   # marks a module as one node of the dataflow graph

Importing edbc imports no torch; what needs it is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edbc._version import __version__
from edbc.errors import EdbcError
from edbc.trace.mark import cell

if TYPE_CHECKING:
    from edbc.api import LoadedPlan, compile, load
    from edbc.captured import Captured, CapturedDataset, collate
    from edbc.plan.plan import Plan

__all__ = [
    "Captured",
    "CapturedDataset",
    "EdbcError",
    "LoadedPlan",
    "Plan",
    "__version__",
    "cell",
    "collate",
    "compile",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("LoadedPlan", "compile", "load"):
        import edbc.api

        return getattr(edbc.api, name)
    if name in ("Captured", "CapturedDataset", "collate"):
        import edbc.captured

        return getattr(edbc.captured, name)
    if name == "Plan":
        from edbc.plan.plan import Plan

        return Plan
    raise AttributeError(f"module 'edbc' has no attribute {name!r}")
