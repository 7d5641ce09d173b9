"""Units as functions: what a stage's tasks are made of, on every device.

A task computes a unit, or several that are merged, from the values that are there when it is made. What differs between
devices is what runs a product and where a unit's value goes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from edbc.stages.fusion import RELUS, kind_of
from edbc.stages.units.bound import Bound, Step
from edbc.stages.units.products import Product, Runner, merged

Task = Callable[[], None]


class Tasks(ABC):
    """Makes the tasks of units; `values` are by the numbers of `Unit.reads`."""

    def __init__(self, bound: Bound, values: Mapping[int, Any]):
        self.bound, self.values = bound, values
        self.packed: list[Runner] = []
        """What these tasks run, which lives as long as they."""

    @abstractmethod
    def _runner(self, nodes: tuple[fx.Node, ...], product: Callable[[], Product], shape: Sequence[int],
                positions: Sequence[int]) -> Runner:  # fmt: skip
        """What runs the products of some nodes as one, on an input of a shape."""

    @abstractmethod
    def _result(self, unit: int, nodes: Sequence[fx.Node | None]) -> Callable[[Tensor], None]:
        """What takes a unit's value, but for a last relu, as the products of some nodes give it."""

    def _call(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
        """What a node that is no product gives."""
        return self.bound.call(node, env)

    def whole(self, unit: int) -> Task:
        """A unit."""
        steps = [self._computed(step) for step in self.bound.steps[unit]]
        reads = {self.bound.source(n): self.values[n] for n in self.bound.graph.units[unit].reads}
        result = self._result(unit, [self.bound.steps[unit][-1].product])
        constants = self.bound.constants

        def run() -> None:
            env = {**constants, **reads}
            value: Any = None
            for step in steps:
                value = step(env)
            result(value)

        return run

    def merge(self, units: Sequence[int]) -> Task:
        """Units as one product."""
        steps = [self.bound.steps[unit][0] for unit in units]
        nodes = tuple(step.product for step in steps if step.product is not None)
        x = self.values[self.bound.graph.units[units[0]].reads[0]]
        results = [self._result(unit, nodes) for unit in units]
        channels = [self.bound.graph.units[unit].shape[1] for unit in units]
        positions = self.bound.graph.units[units[0]].shape[2:]
        runner: Runner | None = None

        def run() -> None:
            nonlocal runner
            if runner is None:
                runner = self._runner(
                    nodes, lambda: merged([self.bound.product(step) for step in steps]), x.shape, positions
                )
            for part, result in zip(runner(x).split(channels, 1), results, strict=True):
                result(part)

        return run

    def _computed(self, step: Step) -> Callable[[dict[fx.Node, Any]], Any]:
        """What gives a step's value, but for a last relu, and leaves it with the others."""
        call = self._call
        nodes = [n for n in step.nodes if n is not step.norm]
        if kind_of(self.bound.called[step.nodes[-1]]) in RELUS and step.nodes[-1] in self.bound.graph.of_node:
            nodes.pop()
        if step.product is None:
            return lambda env: _evaluate(nodes, env, call)
        node, end = step.product, step.norm or step.product
        at = nodes.index(node)
        before, behind = nodes[:at], nodes[at + 1 :]
        positions = self.bound.traced.values[node].shape[2:]
        runner: Runner | None = None

        def run(env: dict[fx.Node, Any]) -> Any:
            nonlocal runner
            _evaluate(before, env, call)
            x = env[node.all_input_nodes[0]]
            if runner is None:
                runner = self._runner((node,), lambda: self.bound.product(step), x.shape, positions)
            env[end] = env[node] = value = runner(x)
            return _evaluate(behind, env, call) if behind else value

        return run


def _evaluate(nodes: Sequence[fx.Node], env: dict[fx.Node, Any], call: Callable[..., Any]) -> Any:
    """The value of the last of some nodes."""
    value = None
    for node in nodes:
        value = env[node] = call(node, env)
    return value
