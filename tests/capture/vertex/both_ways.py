"""Capturing one mini-batch by both front ends, and comparing what they give."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import Capture, capture
from edbc.capture.forward.returned import Result, Run, Stacked
from edbc.capture.record.table import TypeTable
from edbc.capture.standins.standin import Shared
from edbc.capture.vertex.vertexprogram import VertexProgram
from edbc.vertex import Vertex, VertexFunction, VertexInstance, run_eagerly

MODELS = Path(__file__).resolve().parents[3] / "models"
NAMES = sorted(path.stem for path in MODELS.glob("[!_]*.py") if "def vertex_instance" in path.read_text())


def model_file(name: str) -> ModuleType:
    """The model file of that name, imported."""
    return importlib.import_module(name)


def small(name: str, vocab_size: int = 50) -> nn.Module:
    """A small network of a model file, seed 0."""
    torch.manual_seed(0)
    return model_file(name).build(hidden_size=8, vocab_size=vocab_size).eval()


class BothWays:
    """One model behind both front ends, with one table of types."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.table = TypeTable()
        self.shadow, self.recorder = recording_shadow(ModelView(model), self.table)
        self.program = VertexProgram(self.shadow, self.recorder)

    def by_forward(self, instances: Sequence[Any]) -> Capture:
        """Define-by-run capture of `forward`."""
        return capture(self.shadow, self.recorder, instances)

    def by_vertices_one_by_one(self, instances: Sequence[VertexInstance]) -> Capture:
        """Define-by-run capture of the vertex functions: what joining must give. What is scattered is a value, where
        define-by-run would go on to see a parameter in it."""
        values = SimpleNamespace(
            vertices=lambda: {k: self._scattering_values(f) for k, f in self.program.functions.items()}
        )
        runner = SimpleNamespace(forward=lambda instance: run_eagerly(values, instance), named_modules=tuple)
        return capture(runner, self.recorder, instances)

    def _scattering_values(self, function: VertexFunction) -> VertexFunction:
        def run(v: Vertex) -> None:
            function(v)
            v.scattered = tuple(self.recorder.whole(x) if type(x) is Shared else x for x in v.scattered or ())

        return run

    def by_joining(self, instances: Sequence[VertexInstance]) -> Capture:
        """The vertex front end."""
        return self.program.join(instances)


Canonical = dict[str, list[Any]]


def canonical(captured: Capture) -> Canonical:
    """Per type, the operands of its nodes in order, nodes named by type and rank within it, externals by what they are.

    Two graphs with equal forms differ at most in how nodes of different types are interleaved.
    """
    graph = captured.graph
    name_of = [t.signature for t in graph.types]
    rank = np.zeros(graph.num_nodes, np.int64)
    form: Canonical = {}
    for node, kind in enumerate(graph.node_type.tolist()):
        nodes = form.setdefault(name_of[kind], [])
        rank[node] = len(nodes)
        nodes.append([value(captured, rank, operand, output) for operand, output in graph.operands_of(node)])
    form["results"] = results(captured, rank)
    return form


def value(captured: Capture, rank: np.ndarray, operand: int, output: int) -> Any:
    """What an operand is, without node and external numbers."""
    graph = captured.graph
    if operand >= 0:
        return graph.types[int(graph.node_type[operand])].signature, int(rank[operand]), output
    number, index = int(captured.external_source[-1 - operand]), int(captured.external_index[-1 - operand])
    source = captured.sources[number]
    assert graph.classes[int(graph.external_class[-1 - operand])] == source.value_class
    item = index if source.kind != "constant" else captured.constants[number][index].numpy().tobytes()
    return source.kind, repr(source.ref), item


def results(captured: Capture, rank: np.ndarray) -> list[dict[str, list[Any]]]:
    """Per instance, the values of each output."""
    pairs = zip(captured.result_node.tolist(), captured.result_output.tolist(), strict=True)
    values = [value(captured, rank, node, output) for node, output in pairs]
    each = zip(captured.results, captured.result_ptr, strict=False)
    return [{name: [values[first + i] for i in listed(item)] for name, item in r.items()} for r, first in each]


def listed(item: Result | Run | Stacked | list[Result]) -> list[int]:
    """Numbers of the results of one name."""
    if isinstance(item, Run | Stacked):
        return list(range(item.start, item.stop))
    return [r.index for r in ([item] if isinstance(item, Result) else item)]
