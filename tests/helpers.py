"""What tests of capture and of cells share: compiling a model object in memory, and comparing it with eager."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from edbc.base.graph import Graph
from edbc.capture.code.closed import Closed
from edbc.capture.code.regions import Regions
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import Capture, capture
from edbc.capture.record.table import TypeTable
from edbc.plan.plan import ModelRef, Plan, PlanPolicy, PlanType, TrainedOn
from edbc.run.modelfile import ModelFile, import_model_file
from edbc.run.session import Net
from edbc.tools.compile.compiler import _with_types, fused_lines, plan_cells, planned_types
from edbc.tools.compile.decisions import Decisions, Sample, decide, ragged_classes
from edbc.tools.parity import Eager, Parity

MODELS = Path(__file__).resolve().parents[1] / "models"


def model_file(name: str) -> Any:
    """A model file of the zoo, imported."""
    if str(MODELS) not in sys.path:
        sys.path.insert(0, str(MODELS))
    return importlib.import_module(name)


def imported(path: Path, name: str, register: Callable[[str, ModuleType], object] | None = None) -> ModuleType:
    """A file as a module of a name; `register` tells it to whoever asks for it while it is imported."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if register is not None:
        register(name, module)
    spec.loader.exec_module(module)
    return module


def captured(model: nn.Module, instances: Sequence[Any]) -> Capture:
    """One mini-batch of a model, its graph linted."""
    result = capture(*recording_shadow(ModelView(model.eval()), TypeTable()), instances)
    result.graph.lint()
    return result


def graph_of(model: nn.Module, instances: Sequence[Any]) -> Graph:
    """The graph of one mini-batch."""
    return captured(model, instances).graph


def same_graph(one: Graph, other: Graph) -> bool:
    """True when types, nodes, operands, their order and externals are all equal."""
    arrays = (*zip(one.arrays, other.arrays, strict=True), (one.external_class, other.external_class))
    return (one.types, one.classes) == (other.types, other.classes) and all(np.array_equal(a, b) for a, b in arrays)


def counts(graph: Graph) -> dict[str, int]:
    """Nodes of each type that has any."""
    return {t.name: c for t, c in zip(graph.types, graph.counts().tolist(), strict=True) if c}


def bound(model: nn.Module, instances: Sequence[Any], cells: str = "marked", rows: bool | None = False,
          **options: Any) -> Net:  # fmt: skip
    """The model bound to a plan made in memory from these instances, with the critical-path policy; with automatic
    cells where `cells` is "auto" or, without mined patterns, "unmined"; and with all classes ragged that may be where
    there are to be `rows`, none where that is None, else those that pay."""
    model.eval()
    code = Regions(model, Closed(model))
    sample = Sample(model, code, instances)
    ragged = () if rows is None else ragged_classes(sample) if rows else None
    marked = () if cells == "marked" else None
    found = decide(sample, Decisions(marked, ragged, None if cells == "auto" else ()))
    taken = sample.taken(found) if cells == "marked" else sample.recorded_by(*found.of(model, code))
    view, table, _, parts, _ = taken
    recorded = [replace(part.graph, types=table.graph_types()).lint() for part in parts]
    types, present = planned_types(table, recorded) if any(g.num_nodes for g in recorded) else ((), ())
    graphs = [_with_types(graph, types, present) for graph in recorded if graph.num_nodes]
    compiling: Any = SimpleNamespace(
        types=types, table=table, view=view, table_index=present, split=True, training=graphs, validation=[]
    )
    plan = Plan(
        edbc="0",
        model=ModelRef("memory.py", "0" * 64, {}, 0),
        trained_on=TrainedOn("sample", (), len(instances), 0, sum(graph.num_nodes for graph in recorded)),
        requirements=(),
        types=tuple(PlanType(t.name, t.signature, t.source) for t in types),
        policy=PlanPolicy("critical", None, "critical", {}, {}),
        automatic=found.automatic,
        fused=fused_lines(table, types, present),
        ragged=found.ragged,
        reads=tuple(reads.sites()) if (reads := parts[-1].reads) else (),
        cells=plan_cells(compiling) if types else {},
        guards={},
    )
    return Net(plan, model, **options)


def require_parity(model: nn.Module, instances: Sequence[Any], sizes: Sequence[int] = (1, 5, 12)) -> Net:
    """Outputs equal to eager's by the parity rule, in mini-batches of several sizes. Returns the net."""
    net = bound(model, instances)
    eager = Eager(model)
    compared = instances[: 2 * max(sizes, default=0)]
    expected = list(zip(eager.run(compared), eager.reference(compared), strict=True))
    for size in sizes:
        for start in range(0, min(len(instances), 2 * size), size):
            batch = instances[start : start + size]
            for found in (net(batch), recorded(net, batch)):
                parity = Parity()
                for ours, (theirs, exact) in zip(found, expected[start : start + size], strict=True):
                    parity.add(ours, theirs, exact)
                assert parity.outputs, "expected tensors to compare"
                parity.require()
    return net


def require_eager(net: Any, instances: Sequence[Any], results: Sequence[Any] | None = None) -> None:
    """Results are eager's by the project's parity rule: what the net gives where none are given."""
    parity = Parity()
    parity.add_all(net(instances) if results is None else results, None, Eager(net.model), instances)
    parity.require()


def recorded(net: Net, instances: Sequence[Any]) -> list[Any]:
    """What a net gives where every instance is recorded, whatever it is alike."""
    net = net.in_mode()
    alike = net.alike
    vars(net)["alike"] = None
    try:
        return net(instances)
    finally:
        vars(net)["alike"] = alike


def seeded(build: Any, *args: Any, **kwargs: Any) -> nn.Module:
    """A model with seed 0, in eval mode."""
    torch.manual_seed(0)
    return build(*args, **kwargs).eval()


def opened(name: str, **settings: Any) -> tuple[ModelFile, dict[str, Any]]:
    """A model file of the zoo and a small config."""
    file = import_model_file(MODELS / f"{name}.py")
    known = file.config({})
    wanted = {"hidden_size": 16, "vocab_size": 40, "num_matrices": 10, **settings}
    return file, file.config({key: value for key, value in wanted.items() if key in known})


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Made-up numbers are of that, and what forward makes."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Halting(nn.Module):
    """A chain that stops by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(3, 3)

    def forward(self, steps: int) -> torch.Tensor:
        h = torch.ones(3)
        for _ in range(steps):
            h = torch.tanh(self.step(h))
            if h.sum().item() > 100:
                break
        return h
