"""A mini-batch as one function of autograd.

    net(instances)  ->  RunFunction.apply(run, *inputs)  ->  one tensor per group of results, seen as the results

Leaving the backward pass to autograd would cost an arena-sized zero gradient per gather, quadratic in the number of
batches. So autograd sees the whole mini-batch as one node between its inputs (`training.inputs`) and its results, and
`training.reverse` runs the schedule backwards.

The arenas of a mini-batch are *leased* to its node: they return to the pool when a backward pass that does not keep the
graph has run, or when the node dies. So any number of mini-batches may wait for their backward passes.

In-place changes of what the mini-batch reads, between forward and backward, are found by autograd's own version
counters, because all of it is saved: rows of a frozen table are read again too. `create_graph=True` is refused: the
reverse schedule is no function of autograd itself.

`Net.names_all` names all parameters to autograd, in one function: their hooks are called in every backward pass,
whether a mini-batch reaches them or not. Averaging gradients over processes waits for all of them (`edbc.reach.ranks`).

Where training cuts schedules (`runtime.cut`), only what crosses borders stays in the arenas, and the backward pass
executes each segment again, with the weights of the forward pass, before it runs it in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.record.table import SharedRef
from edbc.capture.semantics.autocast import entered
from edbc.capture.semantics.modes import on_host
from edbc.errors import UnsupportedError
from edbc.run.backend import Segment
from edbc.run.passes.arenas import Arenas
from edbc.run.passes.boundary import load_externals
from edbc.train.backward.nativebackward import NativeReversal
from edbc.train.backward.reverse import Reversal, rows_of
from edbc.train.externals import constant_gradients, parameter_gradients
from edbc.train.inputs import Inputs, Parameters, sources_of
from edbc.train.reach import Bools, Reach
from edbc.train.results import ClassGradient, as_rows, gathers_of, groups_of, tensors_of, used_results
from edbc.train.tape import Tape

if TYPE_CHECKING:
    from edbc.run.passes.minibatch import MiniBatch
    from edbc.train.trainer import Trainer


class Run:
    """One mini-batch from its forward to its backward pass, with the lease of its arenas."""

    def __init__(self, trainer: Trainer, prepared: MiniBatch, inputs: Inputs, reach: Reach):
        self.trainer = trainer
        self.prepared = prepared
        self.inputs = inputs
        self.reach = reach
        self.arenas: Arenas | None = None
        self.tape: Tape | None = None
        capture = prepared.capture
        self.externals = inputs.externals(capture)
        self.requires = reach.requires(self.externals)
        self.results = reach.values(capture.result_node, capture.result_output)
        self.groups = groups_of(capture, prepared.placement, reach.pick(self.results, self.requires, self.externals))
        self.inputs = self._reachable(inputs)
        self.others = [p for ref, p in inputs.parameters.items() if ref not in self.inputs.refs]
        """What the mini-batch reads beside its inputs: frozen parameters, buffers."""

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Give the arenas back."""
        arenas, self.arenas, self.tape = self.arenas, None, None
        if arenas is not None:
            arenas.release()

    def _reachable(self, inputs: Inputs) -> Inputs:
        """The inputs that results depend on."""
        reached, given = self.reach.reached(self.requires, self.results, self.externals)
        constants = inputs.constant_externals(self.prepared.capture)
        return inputs.only(self._refs(reached, given), [key for key, which in constants.items() if given[which].any()])

    def _refs(self, reached: Bools, given: Bools) -> set[SharedRef]:
        """The parameters that reached values and externals depend on."""
        capture = self.prepared.capture
        dependences = self.trainer.dependences(capture)
        refs: set[SharedRef] = set()
        for kind, output in np.argwhere(self.reach.outputs(reached)).tolist():
            dependence = dependences[kind]
            assert dependence is not None
            refs |= dependence.parameters[output]
        refs.update(ref for n in sources_of(capture, given) if (ref := capture.sources[n].ref) is not None)
        return refs

    def forward(self) -> list[torch.Tensor]:
        """Execute, keep the arenas, and return a tensor per group."""
        net, prepared = self.trainer.net, self.prepared
        self.segment = segment = self.trainer.segment(prepared)
        self.is_cut = len(prepared.placement.borders) > 2
        self.kinds: list[int] = np.unique(prepared.schedule.batch_type).tolist()
        self.arenas = net.backend.arenas(segment, prepared.demand)
        load_externals(prepared.capture, prepared.boundary.lookups, self.arenas, net.view)
        # What segments carry grows, and would have this one's results: a circle through autograd is never freed.
        self.prepared = prepared.changed(capture=prepared.capture.changed(constants={}))
        gathers = gathers_of(self.groups)
        for class_index, rows, *_ in gathers:
            self.arenas.expect(class_index, rows)
        asked = partial(rows_of, segment, self.reach, self.requires, self.externals)
        self.tape = None if self.is_cut else Tape(self.trainer, segment, self.inputs.parameters, asked)
        kernel = self.trainer.kernel if self.tape is None else self.tape.kernel
        net.backend.execute(segment, self.arenas, kernel)
        self.held = segment.segments()[-1].begin
        return tensors_of(gathers, self.arenas)

    # --- backward --------------------------------------------------------------------------------------------------

    def _compute_again(self, segment: Segment) -> None:
        """The values of a segment where the schedule is cut; `held` is the beginning of the one that is in memory."""
        if not self.is_cut:
            return
        if self.held != segment.begin:
            self.trainer.net.backend.execute(segment, self.arenas, self.trainer.kernel)
        self.held = -1  # the backward pass overwrites it

    @on_host
    def backward(self, gradients: Sequence[torch.Tensor | None], keeps_graph: bool) -> list[torch.Tensor | None]:
        """A gradient per input, None where eager has none."""
        values, results = used_results(self.results, as_rows(self.groups, gradients))
        reached, given = self.reach.reached(self.requires, values, self.externals)
        found, constants = self._reverse(reached, given, results, keeps_graph)
        wanted = self._refs(reached, given)
        of_parameters = [found.get(ref) if ref in wanted else None for ref in self.inputs.refs]
        return [*of_parameters, *(constants.get(key) for key in self.inputs.constants)]

    def _reverse(
        self, reached: Bools, given: Bools, results: list[ClassGradient], keeps_graph: bool
    ) -> tuple[dict[SharedRef, torch.Tensor], dict[tuple[int, int], torch.Tensor]]:
        """Gradients of parameters, and of constants that are reached."""
        assert self.arenas is not None
        trainer, capture, placement = self.trainer, self.prepared.capture, self.prepared.placement
        tables = trainer.tables(placement, self.kinds)
        parameters = Parameters(trainer.net.view, self.inputs.parameters)
        in_steps = None if self.is_cut else trainer.step_gradients(self.segment, self.kinds)
        if in_steps is not None:
            from edbc.train.backward.stepwise import StepReversal

            backend: Any = trainer.net.backend
            stepwise = StepReversal(backend, self.segment, self.arenas, in_steps, self.reach, reached, given)  # type: ignore[arg-type]
            return stepwise.run(results, capture, self.inputs, parameters)
        in_torch = {k: trainer.gradient(k) for k in self.kinds if k not in {*tables.adjoints, *tables.reductions}}
        whole = (self.segment, self.arenas, in_torch, self.reach, reached, given, parameters, trainer.net.device,
                 {} if self.tape is None else self.tape.recorded, keeps_graph and not self.is_cut,
                 self._compute_again)  # fmt: skip
        if tables.adjoints or tables.reductions:
            native = NativeReversal(*whole, capture, self.inputs, tables, trainer.pool)
            native.run(results)
            native.release()
            return native.found, native.constants
        reversal = Reversal(*whole)
        reversal.run(results)
        for ref, gradient in parameter_gradients(capture, placement, self.inputs, reversal, given):
            reversal.add_parameter(ref, gradient)
        found = {ref: gradient.to(parameters[ref].dtype) for ref, gradient in reversal.found.items()}
        return found, dict(constant_gradients(capture, placement, self.inputs, reversal, given))


class RunFunction(torch.autograd.Function):
    """See the module's docstring."""

    @staticmethod
    def forward(ctx: Any, run: Run, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Inputs are only named for autograd: forward reads the model. Its own come before those of `names_all`."""
        ctx.set_materialize_grads(False)
        ctx.run = run
        own = len(run.inputs.tensors)
        ctx.named = [_no_rows(p) if p in run.trainer.sparse else None for p in inputs[own:]]
        ctx.save_for_backward(*inputs[:own], *run.others)
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
        keeps_graph = _keeps_graph()
        with entered(None):  # products take the dtypes that the forward pass had
            found = run.backward(gradients, keeps_graph)
        if not keeps_graph:
            run.release()
        return (None, *found, *ctx.named)


def _no_rows(table: torch.Tensor) -> torch.Tensor:
    """The gradient of a table with sparse ones, of no row. Averaging expects a sparse gradient, and not none."""
    rows = torch.empty(1, 0, dtype=torch.int64, device=table.device)
    return torch.sparse_coo_tensor(rows, table.new_empty(0, *table.shape[1:]), table.shape, check_invariants=False)


def _keeps_graph() -> bool:
    """True when the backward pass under way may run again (`retain_graph=True`), or when torch cannot tell."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())
