"""A static model bound to a schedule: a callable on lists of instances, which it stacks, or on one batch.

Per batch size there is one arena, with views of it as the units' values and tasks made over them; the MOST_SIZES last
used are kept. A batch is copied into the layout that the tasks read, channels last, and results are copied out of the
arena, so that they own their memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from edbc.base.kept import Kept
from edbc.errors import InputError
from edbc.stages.capture import Traced, stacked, trace, unstacked
from edbc.stages.cpu.execute import Step, Team, Wrap, steps_of
from edbc.stages.cpu.kernels import Bound, Tasks
from edbc.stages.cpu.lifetimes import Arena, Schedule, plan_arena, verify_arena
from edbc.stages.fusion import fuse
from edbc.stages.graph import UnitGraph

MOST_SIZES = 4


class StaticModel:
    """A model with its static graph, and its weights where kernels find them."""

    def __init__(self, model: nn.Module, instance: Any, where: str):
        self.name, self.model, self.example = where, model, instance
        self.traced: Traced = trace(model, instance, where)
        self.graph: UnitGraph = fuse(self.traced)
        self.bound = Bound(self.traced, self.graph, model)


class StagedNet:
    """A static model that runs by a schedule; `with` it, or `close` it, to end its threads."""

    def __init__(self, static: StaticModel, schedule: Schedule, threads: int, barriers: bool = True,
                 wrap: Wrap = lambda units, task: task):  # fmt: skip
        self.static, self.schedule, self.barriers, self._wrap = static, schedule, barriers, wrap
        self.team = Team(threads)
        self.arena: Arena = plan_arena(static.graph, schedule, static.bound.placed, barriers)
        verify_arena(static.graph, schedule, static.bound.placed, self.arena, barriers)
        self._ready: Kept[Any, _Ready] = Kept(MOST_SIZES)

    def __enter__(self) -> StagedNet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads."""
        self.team.close()

    def __call__(self, instances: Sequence[Any]) -> list[Any]:
        """The results of each instance. Raises InputError for instances of another shape than the model's."""
        return unstacked(self.batch(stacked(instances)), len(instances)) if instances else []

    def batch(self, batch: Any, on_step: Callable[[Step], None] = lambda step: None) -> Any:
        """What forward gives for a batch; `on_step` is called behind every step."""
        ready = self._prepare(batch)
        with self.team.alone():
            for target, leaf in zip(ready.inputs, pytree.tree_leaves(batch), strict=True):
                target.copy_(leaf)
            for step in ready.steps:
                step.run(self.team)
                on_step(step)
            return ready.results()

    def _prepare(self, batch: Any) -> _Ready:
        leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
        expected = [leaf.shape[1:] for leaf in pytree.tree_leaves(self.static.example)]
        if [leaf.shape[1:] for leaf in leaves] != expected or not leaves:
            got = [tuple(leaf.shape) for leaf in leaves]
            raise InputError(
                f"batch: expected tensors of shapes {[('N', *map(int, shape)) for shape in expected]}, got {got}; a "
                "static plan is for one shape of instances"
            )
        key = (leaves[0].shape[0], *(leaf.dtype for leaf in leaves))
        return self._ready.of(key, lambda: self._new(batch))

    def _new(self, batch: Any) -> _Ready:
        with self.team.alone():
            return _Ready(self, batch)


class _Ready:
    """Tasks for batches of one size."""

    def __init__(self, net: StagedNet, batch: Any):
        self.graph, self.bound = net.static.graph, net.static.bound
        given = pytree.tree_map(_own, batch)
        self.inputs = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
        first = self.inputs[0]
        dtype = next((p.dtype for p in net.static.model.parameters()), first.dtype)
        self.memory = torch.empty(net.arena.size * first.shape[0], dtype=dtype)
        values = views_of(self.graph, self.bound.placed, net.arena, self.memory, first.shape[0])
        self.values = {**values, -1: given}
        tasks = Tasks(self.bound, self.values, net.team.threads)
        self.steps = steps_of(self.graph, net.schedule, tasks, net.barriers, net._wrap)

    def results(self) -> Any:
        """What forward returns, in memory of its own."""
        env: dict[fx.Node, Any] = {self.bound.source(n): self.values[n] for n in self.graph.results}
        env |= self.bound.constants
        for node in self.graph.tail:
            env[node] = self.bound.call(node, env)
        returned = fx.node.map_arg(self.graph.output.args[0], env.__getitem__)
        return pytree.tree_map(
            lambda value: value.clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value,
            returned,
        )


def _own(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.empty_like(leaf, memory_format=torch.channels_last if leaf.dim() == 4 else torch.contiguous_format)


def views_of(graph: UnitGraph, placed: Mapping[int, tuple[int, int]], arena: Arena, memory: Tensor,
             batch: int) -> dict[int, Tensor]:  # fmt: skip
    """The units' values as views of an arena's memory; placed ones are channels of their concatenation."""
    found: dict[int, Tensor] = {}

    def view(unit: int) -> Tensor:
        if unit not in found:
            shape = graph.units[unit].shape[1:]
            if unit in placed:
                cat, at = placed[unit]
                found[unit] = view(cat).narrow(1, at, shape[0])
            else:
                start = arena.offsets[unit] * batch
                flat = memory[start : start + batch * math.prod(shape)]
                found[unit] = _channels_last(flat, batch, shape)
        return found[unit]

    return {unit: view(unit) for unit in range(len(graph.units))}


def _channels_last(flat: Tensor, batch: int, shape: Sequence[int]) -> Tensor:
    if len(shape) != 3:
        return flat.view(batch, *shape)
    channels, height, width = shape
    return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
