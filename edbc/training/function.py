"""A mini-batch as one function of autograd.

    net(instances)  ->  MiniBatch.apply(run, *inputs)  ->  one tensor per group of results, seen as the results

Leaving the backward pass to autograd would cost an arena-sized zero gradient per gather, quadratic in the number of
batches. So autograd sees the whole mini-batch as one node between its inputs (`training.inputs`) and its results, and
`training.reverse` runs the schedule backwards.

The arenas of a mini-batch are *leased* to its node: they return to the pool when a backward pass that does not keep the
graph has run, or when the node dies. So any number of mini-batches may wait for their backward passes.

In-place changes of inputs between forward and backward are found by autograd's own version counters, because all inputs
are saved. `create_graph=True` is refused: the reverse schedule is no function of autograd itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.cells.graph import CellGraph
from edbc.errors import UnsupportedError
from edbc.runtime import changes
from edbc.runtime.arenas import Arenas
from edbc.runtime.boundary import load_externals
from edbc.runtime.reduction import ReductionKernel
from edbc.training.dependence import Dependence, dependence_of_cell, dependence_of_reduction
from edbc.training.externals import constant_gradients, parameter_gradients
from edbc.training.inputs import Inputs, inputs_of
from edbc.training.reach import Reach, reach_of
from edbc.training.recompute import CellGradient, ReductionGradient
from edbc.training.results import groups_of, restore
from edbc.training.reverse import Reversal, TypeGradient

if TYPE_CHECKING:
    from edbc.runtime.session import Net, Prepared


class Trainer:
    """What training knows of a bound model: what its types depend on, and their gradients."""

    def __init__(self, net: Net):
        self.net = net
        self._dependences: dict[int, Dependence] = {}
        self._gradients: dict[int, TypeGradient] = {}
        self._lock = threading.RLock()

    def dependences(self, prepared: Prepared) -> list[Dependence | None]:
        """What each type of the graph depends on; None for types without nodes."""
        counts = prepared.capture.graph.counts().tolist()
        return [self.dependence(kind) if count else None for kind, count in enumerate(counts)]

    def dependence(self, kind: int) -> Dependence:
        """What the outputs of a type depend on."""
        known = self._dependences.get(kind)
        if known is None:
            node_type = self.net.table.types[kind]
            assert node_type is not None
            known = dependence_of_reduction(node_type) if node_type.variadic else dependence_of_cell(self._cell(kind))
            self._dependences[kind] = known
        return known

    def gradient(self, kind: int) -> TypeGradient:
        """The gradient of a type."""
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
        return CellGradient(self._cell(kind))

    def _cell(self, kind: int) -> CellGraph:
        return self.net.cell(self.net.table.operation_of_type[kind])

    def run(self, instances: Sequence[Any]) -> list[Any]:
        """What the instances return, connected to autograd where anything of the mini-batch requires a gradient."""
        changes.count()
        prepared = self.net.prepare(instances, split=False)
        dependences = self.dependences(prepared)
        inputs = inputs_of(prepared.capture, dependences, self.net.view)
        if not any(tensor.requires_grad for tensor in inputs.tensors):
            return self.net.execute(prepared)
        trainable = [
            [] if d is None else [any(map(inputs.require, refs)) for refs in d.parameters] for d in dependences
        ]
        run = Run(self, prepared, inputs, reach_of(prepared.capture.graph, dependences, trainable))
        tensors = MiniBatch.apply(run, *run.inputs.tensors)
        return restore(prepared.capture, prepared.placement, run.groups, tensors)


class Run:
    """One mini-batch from its forward to its backward pass, with the lease of its arenas."""

    def __init__(self, trainer: Trainer, prepared: Prepared, inputs: Inputs, reach: Reach):
        self.trainer = trainer
        self.prepared = prepared
        self.inputs = inputs
        self.reach = reach
        self.arenas: Arenas | None = None
        capture = prepared.capture
        self.externals = inputs.externals(capture)
        self.requires = reach.requires(self.externals)
        self.results = reach.values(capture.result_node, capture.result_output)
        self.groups = groups_of(capture, prepared.placement, reach.pick(self.results, self.requires, self.externals))
        self.inputs = self._reachable(inputs)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Give the arenas back."""
        arenas, self.arenas = self.arenas, None
        if arenas is not None:
            arenas.release()

    def _reachable(self, inputs: Inputs) -> Inputs:
        """The inputs that results depend on."""
        reached, given = self.reach.reached(self.requires, self.results, self.externals)
        dependences = self.trainer.dependences(self.prepared)
        refs = {
            ref
            for kind, output in zip(*np.nonzero(self.reach.outputs(reached)), strict=True)
            for ref in dependences[kind].parameters[output]
        }
        capture = self.prepared.capture
        refs |= {capture.sources[s].ref for s in np.unique(capture.external_source[given]).tolist()}
        constants = [key for key, which in inputs.constant_externals(capture).items() if given[which].any()]
        return inputs.only(refs, constants)

    def forward(self) -> list[torch.Tensor]:
        """Execute, keep the arenas, and return a tensor per group."""
        net, prepared = self.trainer.net, self.prepared
        self.arenas = net.backend.arenas(prepared.segment, prepared.demand)
        load_externals(prepared.capture, prepared.placement, self.arenas, net.view)
        net.backend.execute(prepared.segment, self.arenas, net.kernel)
        return [self.arenas.rows(group.class_index, group.rows) for group in self.groups]

    # --- backward --------------------------------------------------------------------------------------------------

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """A gradient per input, None where eager has none."""
        assert self.arenas is not None
        used = [
            (group, group.used(gradient), gradient)
            for group, gradient in zip(self.groups, gradients, strict=True)
            if gradient is not None
        ]
        values = np.concatenate([np.zeros(0, np.int64), *(self.results[g.which[rows]] for g, rows, _ in used)])
        reached, given = self.reach.reached(self.requires, values, self.externals)
        parameters = {ref: p.detach().requires_grad_(p.requires_grad) for ref, p in self.inputs.parameters.items()}
        kinds = np.unique(self.prepared.schedule.batch_type).tolist()
        reversal = Reversal(self.prepared.segment, self.arenas, {k: self.trainer.gradient(k) for k in kinds},
                            self.reach, self.requires, reached, given, parameters)  # fmt: skip
        reversal.run([(group.class_index, group.rows, gradient) for group, _, gradient in used])
        whole = (self.prepared.capture, self.prepared.placement, self.inputs, reversal, given)
        for ref, gradient in parameter_gradients(*whole):
            reversal.add_parameter(ref, gradient)
        of_parameters = [reversal.found.get(ref) for ref in self.inputs.refs]
        return [*of_parameters, *constant_gradients(*whole)]


class MiniBatch(torch.autograd.Function):
    """See the module's docstring."""

    @staticmethod
    def forward(ctx: Any, run: Run, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Inputs are only named for autograd: forward reads the model."""
        ctx.set_materialize_grads(False)
        ctx.run = run
        ctx.save_for_backward(*inputs)
        tensors = run.forward()
        ctx.mark_non_differentiable(*(t for t, g in zip(tensors, run.groups, strict=True) if not g.requires_grad))
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The reverse schedule."""
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "create_graph=True: gradients of gradients are not supported through a bound net; run the model "
                "itself for this loss, or leave create_graph out"
            )
        _ = ctx.saved_tensors  # raises for a graph that has been freed, and for inputs changed in place
        run: Run = ctx.run
        found = run.backward(gradients)
        if not _keeps_graph():
            run.release()
        return (None, *found)


def _keeps_graph() -> bool:
    """True when the backward pass under way may run again (`retain_graph=True`), or when torch cannot tell."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())
