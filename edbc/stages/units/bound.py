"""The units of a graph with a model's weights: what the tasks of every device are made of.

A unit is a list of *steps*, each with at most one product: what is cheap before it, the product, batch norm (folded)
and element-wise functions behind it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch.nn.functional as F
from torch import fx, nn

from edbc.stages.capture import Traced
from edbc.stages.fusion import CATS, NORMS, RELUS, kind_of
from edbc.stages.graph import Unit, UnitGraph
from edbc.stages.units.products import Product, Runner, product_of

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
        self.called = {node: _out_of_place(traced.called(node)) for node in traced.nodes}
        self.constants = self._constants()
        self.steps = [self._steps(unit) for unit in graph.units]
        self.products: dict[fx.Node, Product] = {}
        self._runners: WeakValueDictionary[Hashable, Runner] = WeakValueDictionary()
        self.layers = {i: layer for i in range(len(graph.units)) if (layer := self._only_layer(i)) is not None}
        self.cats = self._operands_of_cats()
        """Per concatenation of channels that is nothing else, the units that it reads and at which channels."""
        self.placed = placed_operands(graph, self.cats)

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

    def _only_layer(self, unit: int) -> nn.Module | None:
        """The layer of a unit that is a dense product with nothing before it and at most a relu behind it."""
        steps = self.steps[unit]
        product, norm = steps[0].product, steps[0].norm
        if len(steps) != 1 or product is None or getattr(self.called[product], "groups", 1) > 1:
            return None
        behind = [n for n in steps[0].nodes if n not in (product, norm)]
        is_direct = steps[0].nodes[0] is product and product.all_input_nodes[0] in self._sources
        return self.called[product] if is_direct and all(kind_of(self.called[n]) in RELUS for n in behind) else None

    def ends_in_relu(self, unit: int) -> bool:
        """Whether a unit's last operation is a relu."""
        return kind_of(self.called[self.graph.units[unit].value]) in RELUS

    @property
    def _sources(self) -> set[fx.Node]:
        return {*self.graph.inputs, *self.graph.of_node}

    def source(self, number: int) -> fx.Node:
        """The node whose value `Unit.reads` calls by this number."""
        return self.graph.inputs[-1 - number] if number < 0 else self.graph.units[number].value

    def _operands_of_cats(self) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for number, unit in enumerate(self.graph.units):
            if unit.kind == "cat" and len(unit.shape) == 4 and all(kind_of(self.called[n]) in CATS for n in unit.nodes):
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


def _out_of_place(called: Any) -> Any:
    """A call that changes none of its operands: others may be reading them. (`stages.fusion` refuses calls that
    change what others read.)"""
    if isinstance(called, nn.Module) and getattr(called, "inplace", False):
        called = copy.copy(called)
        called.inplace = False
    return OUT_OF_PLACE.get(called, called) if isinstance(called, Hashable) else called


def _is_plain(layer: Any) -> bool:
    """Layers whose product `stages.units.products` computes: no padding but zeros, dense or one kernel per channel."""
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
