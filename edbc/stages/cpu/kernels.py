"""Units as functions on the CPU: what a stage's tasks are made of.

A unit is a list of *steps*, each with at most one product: what is cheap before it, the product, batch norm (folded)
and element-wise functions behind it. A step can be *split* over threads by its output channels when it is a dense
product (weights are cut), or when all of it treats every channel alike (depthwise products, pooling, element-wise
functions, sums): then channels of its inputs are cut. Where there are as many images as threads, units are split by
images instead, whatever they do.

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

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from edbc.stages.capture import Traced
from edbc.stages.cpu.products import Product, Runner, merged, product_of
from edbc.stages.fusion import ADDITIONS, CATS, IDENTITIES, NORMS, POOLS, PRODUCTS, RELUS, UNARY
from edbc.stages.graph import Unit, UnitGraph

Value = int | fx.Node
Task = Callable[[], None]
DENSE, CHANNELWISE, WHOLE = "dense", "channelwise", "whole"
OUT_OF_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add, "add_": "add", "relu_": "relu", F.relu_: F.relu, "sub_": "sub", "mul_": "mul",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """Part of a unit with at most one product."""

    nodes: tuple[fx.Node, ...]
    product: fx.Node | None
    norm: fx.Node | None
    how: str
    """Whether it is split as a dense product, channel by channel, or not at all."""


class Bound:
    """The units of a graph with a model's weights, of which tasks are made."""

    def __init__(self, traced: Traced, graph: UnitGraph, model: nn.Module):
        self.traced, self.graph, self.model = traced, graph, model
        self.called = {node: self._called(node) for node in traced.nodes}
        self.constants = self._constants()
        self.steps = [self._steps(unit) for unit in graph.units]
        self.products: dict[fx.Node, Product] = {}
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

    def is_split(self, unit: int) -> bool:
        """Whether all threads can work on a unit at once, one image or many."""
        return all(step.how != WHOLE for step in self.steps[unit])

    def _steps(self, unit: Unit) -> list[Step]:
        parts: list[list[fx.Node]] = [[]]
        for node in unit.nodes:
            is_product = isinstance(self.called[node], nn.Conv2d | nn.Linear)
            if is_product and any(isinstance(self.called[n], nn.Conv2d | nn.Linear) for n in parts[-1]):
                parts.append([])
            parts[-1].append(node)
        return [self._step(part, unit) for part in parts]

    def _step(self, nodes: list[fx.Node], unit: Unit) -> Step:
        product = next((n for n in nodes if isinstance(self.called[n], nn.Conv2d | nn.Linear)), None)
        if product is not None and not _is_plain(self.called[product]):
            return Step(tuple(nodes), None, None, WHOLE)
        norm = None
        if product is not None:
            behind = nodes[nodes.index(product) + 1 :]
            norm = next((n for n in behind[:1] if isinstance(self.called[n], NORMS)), None)
        rest = [n for n in nodes if n not in (product, norm)]
        behind = nodes[nodes.index(product) + 1 :] if product is not None else []
        layer = None if product is None else self.called[product]
        if product is not None and isinstance(layer, nn.Linear) and self.traced.values[product].dim() != 2:
            how = WHOLE
        elif product is not None and getattr(layer, "groups", 1) == 1:
            how = DENSE if all(self._is_channelwise(n) for n in behind if n is not norm) else WHOLE
        else:
            how = CHANNELWISE if all(self._is_channelwise(n) for n in rest) else WHOLE
        if unit.kind == "cat" and len(nodes) == len(unit.nodes) and all(self._key(n) in CATS for n in nodes):
            how = CHANNELWISE
        return Step(tuple(nodes), product, norm, how)

    def _is_channelwise(self, node: fx.Node) -> bool:
        """Whether a node gives the same for some channels of its operands as for all of them, of images of equal
        numbers of channels."""
        key = self._key(node)
        value, channels = self.traced.values[node], set()
        for operand in node.all_input_nodes:
            shape = getattr(self.traced.values[operand], "shape", None)
            if operand in self.constants:
                if shape is None or len(shape):
                    return False
            else:
                channels.add(shape[1] if shape is not None and len(shape) in (2, 4) else None)
        has_channels = isinstance(value, Tensor) and value.dim() in (2, 4) and channels == {value.shape[1]}
        known = key in UNARY or key in ADDITIONS or key in PRODUCTS or key in POOLS
        return has_channels and (known or isinstance(self.called[node], IDENTITIES))

    def _key(self, node: fx.Node) -> Any:
        called = self.called[node]
        return type(called) if isinstance(called, nn.Module) else called

    def _only_layer(self, unit: int) -> nn.Module | None:
        """The layer of a unit that is a dense product with nothing before it and at most a relu behind it."""
        steps = self.steps[unit]
        if len(steps) != 1 or steps[0].how != DENSE:
            return None
        product, norm = steps[0].product, steps[0].norm
        assert product is not None
        behind = [n for n in steps[0].nodes if n not in (product, norm)]
        is_direct = steps[0].nodes[0] is product and product.all_input_nodes[0] in self._sources
        return self.called[product] if is_direct and all(self._key(n) in RELUS for n in behind) else None

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


class Views:
    """Where the values of one batch stand: `value[number]` by the numbers of `Unit.reads`."""

    def __init__(self, values: dict[int, Any]):
        self.value = values

    def batch(self) -> int:
        """Images."""
        return next(int(leaf.shape[0]) for leaf in pytree.tree_leaves(self.value) if isinstance(leaf, Tensor))


class Tasks:
    """Makes the tasks of units over given views."""

    def __init__(self, bound: Bound, views: Views, threads: int):
        self.bound, self.views, self.threads = bound, views, threads

    def whole(self, unit: int) -> Task:
        """A unit in one thread."""
        scratch = self._scratch(unit)
        steps = enumerate(self.bound.steps[unit])
        return self._sequence([self._part(unit, step, i, None, scratch) for i, step in steps])

    def split(self, unit: int) -> list[list[Task]]:
        """A unit in all threads: phases of tasks, each phase after the one before it."""
        if self.views.batch() >= self.threads:
            return [self._by_images(unit)]
        steps = self.bound.steps[unit]
        scratch = self._scratch(unit)
        phases = []
        for i, step in enumerate(steps):
            channels = self._channels(step)
            bounds = [channels * t // self.threads for t in range(self.threads + 1)]
            ranges = [(low, high) for low, high in zip(bounds, bounds[1:], strict=False) if low < high]
            phases.append([self._part(unit, step, i, part, scratch) for part in ranges])
        return [phase for phase in phases if phase]

    def merge(self, units: Sequence[int]) -> list[list[Task]]:
        """Units as one product, in all threads."""
        steps = [self.bound.steps[unit][0] for unit in units]
        product = merged([self.bound.product(step) for step in steps])
        x = self.views.value[self.bound.graph.units[units[0]].reads[0]]
        bounds = [product.outputs * t // self.threads for t in range(self.threads + 1)]
        return [[self._merged_part(units, product, x, *part) for part in zip(bounds, bounds[1:], strict=False)]]

    def _merged_part(self, units: Sequence[int], product: Product, x: Tensor, low: int, high: int) -> Task:
        outs = [self.views.value[unit] for unit in units]
        runner = Runner(product.part(low, high), x.shape, outs[0].shape[2:])
        writes, at = [], 0
        for unit, out in zip(units, outs, strict=True):
            first, last = max(at, low), min(at + out.shape[1], high)
            if first < last:
                relu = len(self.bound.steps[unit][0].nodes) > 1 and self._ends_in_relu(unit)
                writes.append((first - low, last - first, out.narrow(1, first - at, last - first), relu))
            at += out.shape[1]

        def run() -> None:
            y = runner(x)
            for start, count, out, relu in writes:
                _write(y.narrow(1, start, count), out, relu)

        return run

    def _ends_in_relu(self, unit: int) -> bool:
        return self.bound._key(self.bound.graph.units[unit].value) in RELUS

    def _by_images(self, unit: int) -> list[Task]:
        count = self.views.batch()
        tasks = []
        for t in range(self.threads):
            low, high = count * t // self.threads, count * (t + 1) // self.threads
            views = pytree.tree_map_only(Tensor, operator.itemgetter(slice(low, high)), self.views.value)
            tasks.append(Tasks(self.bound, Views(views), 1).whole(unit))
        return tasks

    def _channels(self, step: Step) -> int:
        return int(self.bound.traced.values[step.nodes[-1]].shape[1])

    @staticmethod
    def _sequence(tasks: list[Task]) -> Task:
        if len(tasks) == 1:
            return tasks[0]

        def run() -> None:
            for task in tasks:
                task()

        return run

    def _part(self, unit: int, step: Step, at: int, part: tuple[int, int] | None,
              scratch: list[Tensor]) -> Task:  # fmt: skip
        """A step, or some channels of it, as a task."""
        out = self._out(unit, at, scratch)
        if self.bound.graph.units[unit].kind == "cat" and unit not in self._general_cats():
            return self._cat(unit, part)
        sources = self._inputs(unit, step, at, scratch)
        target = out if part is None else out.narrow(1, part[0], part[1] - part[0])
        cut = part if step.how == CHANNELWISE else None
        run = self._computed(step, sources, target.shape, part, cut)
        relu = self.bound._key(step.nodes[-1]) in RELUS
        return lambda: _write(run(), target, relu)

    def _scratch(self, unit: int) -> list[Tensor]:
        """Values between the steps of a unit, which all threads share when it is split."""
        scratch = []
        for step in self.bound.steps[unit][:-1]:
            value, like = self.bound.traced.values[step.nodes[-1]], self.views.value[unit]
            empty = torch.empty((self.views.batch(), *value.shape[1:]), dtype=like.dtype, device=like.device)
            scratch.append(empty.to(memory_format=torch.channels_last) if value.dim() == 4 else empty)
        return scratch

    def _out(self, unit: int, at: int, scratch: list[Tensor]) -> Tensor:
        return self.views.value[unit] if at == len(self.bound.steps[unit]) - 1 else scratch[at]

    def _inputs(self, unit: int, step: Step, at: int, scratch: list[Tensor]) -> dict[fx.Node, Any]:
        """The values that a step reads from outside."""
        known = {self.bound.source(n): self.views.value[n] for n in self.bound.graph.units[unit].reads}
        if at:
            known[self.bound.steps[unit][at - 1].nodes[-1]] = scratch[at - 1]
        wanted = {operand for node in step.nodes for operand in node.all_input_nodes if operand not in step.nodes}
        return {node: known[node] for node in wanted if node in known}

    def _computed(self, step: Step, sources: dict[fx.Node, Any], shape: Sequence[int], part: tuple[int, int] | None,
                  cut: tuple[int, int] | None) -> Callable[[], Tensor]:  # fmt: skip
        """What gives a step's value but for a last relu."""
        call, constants = self.bound.call, self.bound.constants
        if cut is not None:
            sources = {n: v.narrow(1, cut[0], cut[1] - cut[0]) for n, v in sources.items() if isinstance(v, Tensor)}
        nodes = [n for n in step.nodes if n is not step.norm]
        if self.bound._key(step.nodes[-1]) in RELUS:
            nodes.pop()
        if step.product is None:
            return lambda: _evaluate(nodes, {**constants, **sources}, call)
        split_at = nodes.index(step.product)
        before, behind = nodes[:split_at], nodes[split_at + 1 :]
        operand = step.product.all_input_nodes[0]
        product = self.bound.product(step)
        product = product if part is None else product.part(*part)
        node = step.product
        end = step.norm or node
        runner: Runner | None = None

        def run() -> Tensor:
            nonlocal runner
            env = {**constants, **sources} if before or behind else sources
            x = _evaluate(before, env, call) if before else env[operand]
            if runner is None:
                positions = self.bound.traced.values[node].shape[2:]
                runner = Runner(product, x.shape, positions)
            y = runner(x)
            return _evaluate(behind, {**env, end: y, node: y}, call) if behind else y

        return run

    def _general_cats(self) -> set[int]:
        """Concatenations that are computed as they are written."""
        cats = {cat for cat, _ in self.bound.placed.values()}
        return {i for i, unit in enumerate(self.bound.graph.units) if unit.kind == "cat" and i not in cats}

    def _cat(self, unit: int, part: tuple[int, int] | None) -> Task:
        """Copies of the operands that are not in place; in several threads the first one makes them."""
        out, copies = self.views.value[unit], []
        for operand, at in self.bound._operands_of_cats()[unit]:
            if operand not in self.bound.placed:
                value = self.views.value[operand]
                copies.append((out.narrow(1, at, value.shape[1]), value))
        if part is not None and part[0]:
            copies = []

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


__all__ = ["Bound", "Task", "Tasks", "Views"]
