"""What the tests of the CUDA back end run on: a GPU where there is one, else Triton's interpreter on the CPU."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from bound import plan_for
from helpers import opened
from torch import nn
from zoo_names import short_instances

from edbc.cells.parts import splittable
from edbc.plan.plan import Plan
from edbc.run.backend import Demand, Segment
from edbc.run.cuda.cudabackend import CudaBackend
from edbc.run.cuda.devicearenas import CudaArenas
from edbc.run.session import Net
from edbc.tools.parity import Eager, Parity

MODELS = Path(__file__).resolve().parents[3] / "models"
NINE = ("tree_lstm", "tree_gru", "tree_lstm_2type", "mv_rnn", "lattice_lstm", "lattice_gru", "bilstm_tagger",
        "bilstm_tagger_char", "lstm_nmt")  # fmt: skip
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed; 'make triton' installs it, and its interpreter needs no GPU",
)


class PoisonedBackend(CudaBackend):
    """Arenas and workspace start as not-a-number, so that reading what nobody wrote shows."""

    def arenas(self, segment: Segment, demand: Demand) -> CudaArenas:
        arenas = super().arenas(segment, demand)
        for tensor in (*arenas.tensors, arenas.memory[int(segment.placement.begins[-1]) :].view(torch.float32)):
            tensor.fill_(torch.nan if tensor.is_floating_point() else -1)
        return arenas


def on_device(plan: Plan, model: nn.Module, use_triton: bool = True) -> Net:
    """The model on the device of these tests, bound to poisoned arenas."""
    return Net(plan, model.eval().to(DEVICE), backend=PoisonedBackend(DEVICE, use_triton),
               rebind=any(p.dtype != torch.float32 for p in model.parameters()) or None)  # fmt: skip


def zoo_net(name: str, dtype: torch.dtype, use_triton: bool = True, count: int = 6) -> tuple[Net, list[Any]]:
    """A model of the zoo and instances for it."""
    file, config = opened(name)
    instances = short_instances(file, count, 3, config)
    model = file.build(config, 0)
    return on_device(plan_for(model, instances, split=splittable), model.to(dtype), use_triton), instances


def require_parity(net: Net, instances: Sequence[Any]) -> None:
    """Batched outputs are eager's by the project's rule; eager runs on the CPU."""
    results = net(instances)
    parity = Parity()
    parity.add_all(results, None, Eager(copy.deepcopy(net.model).cpu()), instances)
    parity.require()


def paths(net: Net, instances: Sequence[Any]) -> dict[str, str]:
    """What runs each type of a mini-batch."""
    graph = net.mini_batch(instances).graph
    counts = graph.counts()
    return {t.name: net.backend.path(t, net.kernel(i)).name for i, t in enumerate(graph.types) if counts[i]}
