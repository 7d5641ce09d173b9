"""What training knows of a bound model: what its types depend on, what their forward passes keep, their gradients.

A type's gradient is native when the back end is, and its program has an adjoint (`training.adjoint`): then its forward
pass gives out what the adjoint reads, as further outputs of the type, in arenas like any other output. All other types
are recomputed under autograd (`training.recompute`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from edbc.base.graph import Graph, NodeType
from edbc.cells.opgraph import CellGraph
from edbc.cells.rows.reduction import ReductionKernel
from edbc.cells.rows.segmented import RunKernel
from edbc.native.pool import Pool
from edbc.run.backend import Segment
from edbc.run.cpu.walktables import NativeKernel
from edbc.run.passes.boundary import boundary_of
from edbc.run.passes.cut import AUTO, cut_of
from edbc.run.passes.excerptrows import ExcerptKernel
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.passes.placement import Placement, place
from edbc.run.weights import touched
from edbc.train.autogradfunction import Run, RunFunction
from edbc.train.backward.backtables import COPIES, TypeTables, bytes_in_training, tables_of, with_hidden_outputs
from edbc.train.backward.recompute import CellGradient, ReductionGradient
from edbc.train.backward.reverse import TypeGradient
from edbc.train.backward.typeadjoint import Adjoint, adjoint_of
from edbc.train.dependence import (
    Dependence,
    dependence_of_cell,
    dependence_of_excerpt,
    dependence_of_reduction,
    dependence_of_run,
)
from edbc.train.inputs import inputs_of
from edbc.train.reach import reach_of
from edbc.train.results import restore

if TYPE_CHECKING:
    from edbc.capture.forward.build import Capture
    from edbc.run.session import Net
    from edbc.schedule.schedule import Schedule


class Trainer:
    """See the module's docstring. Without `native` every type is recomputed."""

    def __init__(self, net: Net, native: bool = True):
        self.net = net
        self.native = native and net.backend.name == "cpu" and net.autocast is None
        """False under torch.autocast: native code adds up no gradients of short floats."""
        self.in_steps = native and net.backend.name == "cuda" and net.autocast is None
        """True where backward passes may run in steps (`training.stepwise`)."""
        self._step_gradients: dict[int, TypeGradient] = {}
        self._dependences: dict[int, Dependence] = {}
        self._gradients: dict[int, TypeGradient] = {}
        self._adjoints: dict[int, Adjoint | None] = {}
        self._kernels: dict[int, Any] = {}
        self._types: tuple[Any, frozenset[int], tuple[NodeType, ...]] | None = None
        self._tables: tuple[Any, list[int], TypeTables] | None = None
        self._lock = threading.RLock()
        self.pool = Pool()
        """Memory of backward passes."""
        tables = (m for m in net.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse)
        self._scheduling = net.passes.span("share", "schedule")
        self._untrained = net.passes.span("parts", "execute")
        self.sparse = {m.weight for m in tables}
        """Parameters whose gradients are sparse."""

    def run(self, instances: Sequence[Any]) -> list[Any]:
        """What the instances return, connected to autograd where anything of the mini-batch requires a gradient."""
        run = partial(self._run_captured, [])
        return run(self.net.mini_batch(instances, run_segment=run))

    def _run_captured(self, begun: list[bool], captured: Capture) -> list[Any]:
        """The same for a captured mini-batch, or a segment of one; `begun` is empty where none before asked for a
        gradient: weights are packed once for all of them."""
        batch = self._scheduling(MiniBatch(capture=captured))
        capture = batch.capture
        dependences = self.dependences(capture)
        inputs = inputs_of(capture, dependences, self.net.view)
        if not any(tensor.requires_grad for tensor in inputs.tensors):
            return self._untrained(batch).results
        if not begun:
            touched.count()
            begun.append(True)
        batch = self.place(batch)
        trainable = [
            [] if d is None else [any(map(inputs.require, refs)) for refs in d.parameters] for d in dependences
        ]
        run = Run(self, batch, inputs, reach_of(capture.graph, dependences, trainable, capture.detached))
        named = [p for p in self.net.model.parameters() if p.requires_grad] if self.net.names_all else []
        tensors = RunFunction.apply(run, *run.inputs.tensors, *named)
        return restore(batch.capture, run.groups, tensors)

    # --- the forward pass ------------------------------------------------------------------------------------------

    def place(self, batch: MiniBatch) -> MiniBatch:
        """Pass `place` in training: with room for what types save."""
        capture, schedule = batch.capture, batch.schedule
        graph = replace(capture.graph, types=self._types_of(capture.graph.types, np.unique(schedule.batch_type)))
        placement = self._placement(capture, graph, schedule)
        demand = self.net.backend.demand(Segment(graph, schedule, placement), self.kernel)
        return batch.changed(placement=placement, demand=demand, boundary=boundary_of(capture, placement))

    def _placement(self, capture: Capture, graph: Graph, schedule: Schedule) -> Placement:
        """Cut as the net says; with "auto" only where that takes less memory."""
        how = self.net.recompute
        cut = cut_of(graph, schedule, capture.result_node, capture.result_output, how)
        placement = place(graph, schedule, capture.result_node, cut)
        if how == AUTO and cut is not None:
            whole = place(graph, schedule, capture.result_node)
            adjoints = [a for kind in np.unique(schedule.batch_type).tolist() if (a := self.adjoint(kind)) is not None]
            if bytes_in_training(whole, adjoints) <= bytes_in_training(placement, adjoints):
                return whole
        return placement

    def segment(self, prepared: MiniBatch) -> Segment:
        """All batches of a mini-batch, over types with what they save."""
        kinds = np.unique(prepared.schedule.batch_type)
        graph = replace(prepared.capture.graph, types=self._types_of(prepared.capture.graph.types, kinds))
        return Segment(graph, prepared.schedule, prepared.placement)

    def _types_of(self, types: tuple[NodeType, ...], kinds: Any) -> tuple[NodeType, ...]:
        """Types with what they save, those of a mini-batch at least; one tuple while nothing is new."""
        known = self._types
        wanted = frozenset(kinds.tolist())
        if known is None or known[0] is not types or not wanted <= known[1]:
            with self._lock:
                wanted |= known[1] if known is not None else frozenset()
                adjoints = {kind: self.adjoint(kind) for kind in sorted(wanted)}
                full = tuple(
                    t if (a := adjoints.get(kind)) is None else with_hidden_outputs(t, a)
                    for kind, t in enumerate(types)
                )
                known = self._types = (types, wanted, full)
        return known[2]

    def kernel(self, kind: int) -> Any:
        """The forward kernel of a type: one that saves what its adjoint reads, where it has one."""
        known = self._kernels.get(kind)
        if known is None:
            adjoint = self.adjoint(kind)
            known = self.net.kernel(kind)
            if adjoint is not None:
                known = NativeKernel(known.program, adjoint.forward, self.net.view, adjoint.rendered.constants)
            known = self._kernels.setdefault(kind, known)
        return known

    # --- gradients -------------------------------------------------------------------------------------------------

    def adjoint(self, kind: int) -> Adjoint | None:
        """The adjoint of a type that is differentiated natively."""
        if kind not in self._adjoints:
            kernel = self.net.kernel(kind)
            is_native = self.native and isinstance(kernel, NativeKernel) and kernel.dtype != torch.bfloat16
            self._adjoints[kind] = adjoint_of(kernel.program, kernel.values) if is_native else None
        return self._adjoints[kind]

    def tables(self, placement: Placement, kinds: Sequence[int]) -> TypeTables:
        """Tables of the types of a mini-batch that are differentiated natively."""
        classes = placement.class_index
        if self._tables is None or self._tables[0] is not classes or self._tables[1] != list(kinds):
            adjoints = {kind: a for kind in kinds if (a := self.adjoint(kind)) is not None}
            reductions: dict[int, tuple[str, int]] = {}
            for kind in kinds:
                kernel, node_type = self.net.kernel(kind), self.net.table.types[kind]
                assert node_type is not None
                if self.native and _is_native_reduction(kernel, node_type):
                    reductions[kind] = (kernel.op, kernel.num_fields)
            self._tables = (classes, list(kinds), tables_of(adjoints, reductions, placement))
        return self._tables[2]

    def dependences(self, capture: Capture) -> list[Dependence | None]:
        """What each type of the graph depends on; None for types without nodes."""
        counts = capture.graph.counts().tolist()
        return [self.dependence(kind) if count else None for kind, count in enumerate(counts)]

    def dependence(self, kind: int) -> Dependence:
        """What the outputs of a type depend on."""
        known = self._dependences.get(kind)
        if known is None:
            node_type = self.net.table.types[kind]
            assert node_type is not None
            known = self._dependences[kind] = self._new_dependence(kind, node_type)
        return known

    def _new_dependence(self, kind: int, node_type: NodeType) -> Dependence:
        if node_type.is_excerpt:
            return dependence_of_excerpt(node_type)
        if node_type.is_run:
            return dependence_of_run(node_type)
        return dependence_of_reduction(node_type) if node_type.variadic else dependence_of_cell(self._cell(kind))

    def gradient(self, kind: int) -> TypeGradient:
        """The gradient of a type by recomputation."""
        known = self._gradients.get(kind)
        if known is None:
            with self._lock:
                known = self._gradients.setdefault(kind, self._new_gradient(kind))
        return known

    def _new_gradient(self, kind: int) -> TypeGradient:
        kernel = self.net.kernel(kind)
        node_type = self.net.table.types[kind]
        assert node_type is not None
        if isinstance(kernel, ReductionKernel):
            return ReductionGradient(kernel, node_type)
        if isinstance(kernel, ExcerptKernel | RunKernel):
            return kernel
        return CellGradient(self._cell(kind))

    def step_gradients(self, segment: Segment, kinds: Sequence[int]) -> dict[int, TypeGradient] | None:
        """The gradients of a mini-batch's types in steps of a device; None where one has none."""
        if not self.in_steps:
            return None
        from edbc.train.backward.stepwise import runs_in_steps

        found = {kind: self._step_gradient(kind) for kind in kinds}
        return found if runs_in_steps(segment, found) else None

    def _step_gradient(self, kind: int) -> TypeGradient:
        with self._lock:
            known = self._step_gradients.get(kind)
            if known is None:
                from edbc.train.backward.devicegradient import step_gradient

                kernel = self.net.kernel(kind)
                if getattr(kernel, "stages", None) is not None:
                    known = step_gradient(kernel.program, self.net.view, self.net.device)
                known = self._step_gradients[kind] = known or self.gradient(kind)
            return known

    def _cell(self, kind: int) -> CellGraph:
        return self.net.cell(self.net.table.operation_of_type[kind])


def _is_native_reduction(kernel: Any, node_type: NodeType) -> bool:
    """True when native code knows the reduction (or it is an excerpt), and the one dtype of its fields."""
    if not isinstance(kernel, ReductionKernel | ExcerptKernel) or kernel.op not in COPIES:
        return False
    dtypes = {c.dtype for c in node_type.outputs}
    return len(dtypes) == 1 and dtypes <= {"f32", "f64"}
