"""Units as functions on the CPU: what a stage's tasks are made of.

A unit is a list of *steps*, each with at most one product: what is cheap before it, the product, batch norm (folded)
and element-wise functions behind it. A task is a unit in one thread; or, where all threads work on one unit (`split`)
or on a merged product, in torch's own threads, for which weights are packed apart.

Values of images stand channels last: oneDNN then reads and writes them without reordering. A unit's result is written
where the layout says (`stages.cpu.lifetimes`); operands of a concatenation that nothing else reads are written in their
place in it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from edbc.stages.capture import Traced
from edbc.stages.cpu.products import Product, Runner, merged, product_of
from edbc.stages.fusion import CATS, NORMS, RELUS
from edbc.stages.graph import Unit, UnitGraph

Value = int | fx.Node
Task = Callable[[], None]
OUT_OF_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add, "add_": "add", "relu_": "relu", F.relu_: F.relu, "sub_": "sub", "mul_": "mul",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """Part of a unit with at most one product."""

    nodes: tuple[fx.Node, ...]
    product: fx.Node | None
    norm: fx.Node | None


class Bound:
    """The units of a graph with a model's weights, of which tasks are made."""

    def __init__(self, traced: Traced, graph: UnitGraph, model: nn.Module):
        self.traced, self.graph, self.model = traced, graph, model
        self.called = {node: self._called(node) for node in traced.nodes}
        self.constants = self._constants()
        self.steps = [self._steps(unit) for unit in graph.units]
        self.products: dict[fx.Node, Product] = {}
        self._runners: WeakValueDictionary[Hashable, Runner] = WeakValueDictionary()
        self.layers = {i: layer for i in range(len(graph.units)) if (layer := self._only_layer(i)) is not None}
        self.placed = placed_operands(graph, self._operands_of_cats())

    def _called(self, node: fx.Node) -> Any:
        if node.op == "call_module":
            return self._out_of_place(self.model.get_submodule(str(node.target)))
        return self._out_of_place(node.target) if node.op in ("call_function", "call_method") else None

    def _constants(self) -> dict[fx.Node, Any]:
        """Values of nodes that are computed from parameters alone."""
        env: dict[fx.Node, Any] = {}
        for node in self.traced.nodes:
            if node.op == "get_attr":
                env[node] = operator.attrgetter(str(node.target))(self.model).detach()
            elif self.called[node] is not None and all(operand in env for operand in node.all_input_nodes):
                env[node] = self.call(node, env)
        return env

    def call(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
        """What a node gives for the values of its operands."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
        called = self.called[node]
        if node.op == "call_method":
            return getattr(args[0], called)(*args[1:], **kwargs)
        return called(*args, **kwargs)

    def _out_of_place(self, called: Any) -> Any:
        """A call that changes none of its operands: others may be reading them. (`stages.fusion` refuses calls that
        change what others read.)"""
        if isinstance(called, nn.Module) and getattr(called, "inplace", False):
            called = copy.copy(called)
            called.inplace = False
        return OUT_OF_PLACE.get(called, called) if isinstance(called, Hashable) else called

    def product(self, step: Step) -> Product:
        """The product of a step; made once."""
        assert step.product is not None
        if step.product not in self.products:
            norm = None if step.norm is None else self.called[step.norm]
            self.products[step.product] = product_of(self.called[step.product], norm)
        return self.products[step.product]

    def runner(self, key: Hashable, make: Callable[[], Runner]) -> Runner:
        """What runs a product, by all that it is packed for: once for all schedules that run it."""
        found = self._runners.get(key)
        if found is None:
            self._runners[key] = found = make()
        return found

    def _steps(self, unit: Unit) -> list[Step]:
        parts: list[list[fx.Node]] = [[]]
        for node in unit.nodes:
            is_product = isinstance(self.called[node], nn.Conv2d | nn.Linear)
            if is_product and any(isinstance(self.called[n], nn.Conv2d | nn.Linear) for n in parts[-1]):
                parts.append([])
            parts[-1].append(node)
        return [self._step(part) for part in parts]

    def _step(self, nodes: list[fx.Node]) -> Step:
        product = next((n for n in nodes if isinstance(self.called[n], nn.Conv2d | nn.Linear)), None)
        if product is None or not _is_plain(self.called[product]):
            return Step(tuple(nodes), None, None)
        behind = nodes[nodes.index(product) + 1 :]
        norm = next((n for n in behind[:1] if isinstance(self.called[n], NORMS)), None)
        return Step(tuple(nodes), product, norm)

    def _key(self, node: fx.Node) -> Any:
        called = self.called[node]
        return type(called) if isinstance(called, nn.Module) else called

    def _only_layer(self, unit: int) -> nn.Module | None:
        """The layer of a unit that is a dense product with nothing before it and at most a relu behind it."""
        steps = self.steps[unit]
        product, norm = steps[0].product, steps[0].norm
        if len(steps) != 1 or product is None or getattr(self.called[product], "groups", 1) > 1:
            return None
        behind = [n for n in steps[0].nodes if n not in (product, norm)]
        is_direct = steps[0].nodes[0] is product and product.all_input_nodes[0] in self._sources
        return self.called[product] if is_direct and all(self._key(n) in RELUS for n in behind) else None

    def ends_in_relu(self, unit: int) -> bool:
        """Whether a unit's last operation is a relu."""
        return self._key(self.graph.units[unit].value) in RELUS

    @property
    def _sources(self) -> set[fx.Node]:
        return {*self.graph.inputs, *self.graph.of_node}

    def source(self, number: int) -> fx.Node:
        """The node whose value `Unit.reads` calls by this number."""
        return self.graph.inputs[-1 - number] if number < 0 else self.graph.units[number].value

    def _operands_of_cats(self) -> dict[int, list[tuple[int, int]]]:
        """Per concatenation of channels that is nothing else, the units that it reads and at which channels."""
        found: dict[int, list[tuple[int, int]]] = {}
        for number, unit in enumerate(self.graph.units):
            if unit.kind == "cat" and len(unit.shape) == 4 and all(self._key(n) in CATS for n in unit.nodes):
                flat = self._flat(unit.value, unit)
                if flat is not None and all(node in self.graph.of_node for node, _ in flat):
                    found[number] = [(self.graph.of_node[node], at) for node, at in flat]
        return found

    def _flat(self, node: fx.Node, unit: Unit, at: int = 0) -> list[tuple[fx.Node, int]] | None:
        """The operands of nested concatenations of channels with their first channels; None for others."""
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        operands: Any = node.kwargs.get("tensors", node.args[0] if node.args else ())
        if dim not in (1, -3) or not isinstance(operands, list | tuple):
            return None
        found: list[tuple[fx.Node, int]] = []
        for operand in operands:
            inner = self._flat(operand, unit, at) if operand in unit.nodes else [(operand, at)]
            if inner is None:
                return None
            found += inner
            at += self.traced.values[operand].shape[1]
        return found


def _is_plain(layer: Any) -> bool:
    """Layers whose product `stages.cpu.products` computes: no padding but zeros, dense or one kernel per channel."""
    if isinstance(layer, nn.Linear):
        return type(layer) is nn.Linear
    is_depthwise = layer.groups == layer.in_channels == layer.out_channels
    has_zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Conv2d and has_zeros and (layer.groups == 1 or is_depthwise)


def placed_operands(graph: UnitGraph, cats: Mapping[int, list[tuple[int, int]]]) -> dict[int, tuple[int, int]]:
    """Units whose values are written where a concatenation has them: the concatenation, and the first channel."""
    readers = graph.readers()
    placed = {}
    for cat, operands in cats.items():
        read = [unit for unit, _ in operands]
        for unit, at in operands:
            if readers[unit] == [cat] and read.count(unit) == 1 and len(graph.units[unit].shape) == 4:
                placed[unit] = (cat, at)
    return placed


class Tasks:
    """Makes the tasks of units; `values` are by the numbers of `Unit.reads`, `threads` torch's own in a task for all
    threads."""

    def __init__(self, bound: Bound, values: Mapping[int, Any], threads: int):
        self.bound, self.values, self.threads = bound, values, threads
        self._operands = bound._operands_of_cats()
        self.packed: list[Runner] = []
        """What these tasks run, which lives as long as they."""

    def _runner(self, nodes: tuple[fx.Node, ...], product: Callable[[], Product], shape: Sequence[int],
                positions: Sequence[int]) -> Runner:  # fmt: skip
        """What runs the products of some nodes as one, on an input of a shape, in as many threads as torch has now;
        packed for as long as these tasks live."""
        key = (nodes, *shape, torch.get_num_threads())
        self.packed.append(self.bound.runner(key, lambda: Runner(product(), shape, positions)))
        return self.packed[-1]

    def _result(self, unit: int, nodes: Sequence[fx.Node | None]) -> Callable[[Tensor], None]:
        """What takes a unit's value, but for a last relu, as the products of some nodes give it."""
        out, relu = self.values[unit], self.bound.ends_in_relu(unit)
        return lambda value: _write(value, out, relu)

    def whole(self, unit: int) -> Task:
        """A unit in one thread."""
        if unit in self._operands:
            return self._cat(unit)
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

    def split(self, unit: int) -> Task:
        """A unit in all threads."""
        return self._in_all_threads(self.whole(unit))

    def merge(self, units: Sequence[int]) -> Task:
        """Units as one product, in all threads."""
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

        return self._in_all_threads(run)

    def _in_all_threads(self, task: Task) -> Task:
        def run() -> None:
            before = torch.get_num_threads()
            torch.set_num_threads(self.threads)
            try:
                task()
            finally:
                torch.set_num_threads(before)

        return run

    def _computed(self, step: Step) -> Callable[[dict[fx.Node, Any]], Any]:
        """What gives a step's value, but for a last relu, and leaves it with the others."""
        call = self.bound.call
        nodes = [n for n in step.nodes if n is not step.norm]
        if self.bound._key(step.nodes[-1]) in RELUS and step.nodes[-1] in self.bound.graph.of_node:
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

    def _cat(self, unit: int) -> Task:
        """Copies of the operands that are not in place."""
        out, copies = self.values[unit], []
        for operand, at in self._operands[unit]:
            if operand not in self.bound.placed:
                value = self.values[operand]
                copies.append((out.narrow(1, at, value.shape[1]), value))

        def run() -> None:
            for target, value in copies:
                target.copy_(value)

        return run


def _evaluate(nodes: Sequence[fx.Node], env: dict[fx.Node, Any], call: Callable[..., Any]) -> Any:
    """The value of the last of some nodes."""
    value = None
    for node in nodes:
        value = env[node] = call(node, env)
    return value


def _write(value: Tensor, out: Tensor, relu: bool) -> None:
    if relu:
        torch.clamp_min(value, 0, out=out)
    else:
        out.copy_(value)
