"""From torch calls to units: what always runs together.

Nodes of a traced graph are one of

(1) *constant*: computed from parameters alone (`torch.sigmoid(self.weight)[0]`), once per binding;
(2) *cheap*: views, sizes and items of values; identities (dropout, which is off); and a relu, a padding or a product
    with a constant that could not join the operator before it, because others read that one too. Cheap nodes are no
    units: they run inside every unit that reads them;
(3) operators. Each is a unit, joined with what follows or precedes it where nothing else reads what is between:
    - batch norm, and element-wise functions of one operand, join the operator before them (a batch norm after a
      convolution is folded into its weights when bound, `stages.units.bound`);
    - a depthwise convolution and the 1x1 convolution after it are one *separable* convolution, which takes in the sum
      and the element-wise functions before it, and the separable convolution before it in the same module (NASNet
      applies every one twice);
    - sums of sums, and concatenations along one dimension of concatenations, are one.

A node that fits none of this is an operator of one call, whatever torch function it is.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from edbc.errors import UnsupportedError
from edbc.stages.capture import Traced
from edbc.stages.graph import Unit, UnitGraph

ADDITIONS = frozenset({operator.add, operator.iadd, torch.add, "add", "add_"})
PRODUCTS = frozenset({operator.mul, torch.mul, "mul", operator.truediv, torch.div, "div"})
CATS = frozenset({torch.cat, torch.concat, torch.concatenate})
VIEWS = frozenset({
    torch.flatten, torch.reshape, torch.transpose, torch.permute, torch.squeeze, torch.unsqueeze, torch.narrow,
    torch.chunk, torch.split, torch.unbind, "flatten", "reshape", "view", "transpose", "permute", "squeeze",
    "unsqueeze", "narrow", "chunk", "split", "unbind", "size", "dim", "expand", "contiguous", operator.getitem, getattr,
})  # fmt: skip
"""And whatever gives no tensor."""
RELUS = frozenset({nn.ReLU, F.relu, torch.relu, "relu", "relu_", F.relu_})
UNARY = RELUS | frozenset({
    nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.SiLU, nn.GELU, nn.LeakyReLU, nn.ELU, nn.Sigmoid, nn.Tanh, F.relu6,
    F.hardswish, F.silu, F.gelu, F.leaky_relu, F.elu, torch.sigmoid, torch.tanh, "sigmoid", "tanh",
})  # fmt: skip
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
IDENTITIES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Identity)
PADS = frozenset({F.pad, nn.ZeroPad2d})
POOLS = frozenset({
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, F.max_pool2d, F.avg_pool2d,
    F.adaptive_avg_pool2d, torch.max_pool2d, torch.nn.functional.adaptive_max_pool2d,
})  # fmt: skip
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass
class _Draft:
    """A unit that may still grow."""

    kind: str
    nodes: list[fx.Node] = field(default_factory=list)


class Fusion:
    """The units of a traced graph."""

    def __init__(self, traced: Traced):
        self.traced = traced
        self.called = {node: traced.called(node) for node in traced.nodes}
        self.constants = _constants(traced)
        self.cheap: set[fx.Node] = set()
        self.draft_of: dict[fx.Node, _Draft] = {}
        """Of the node that gives its value."""

    def graph(self) -> UnitGraph:
        """All units, in the order of their last nodes."""
        for node in self.traced.nodes:
            if node.op in ("call_module", "call_function", "call_method") and node not in self.constants:
                self._place(node)
        return self._finish()

    def _place(self, node: fx.Node) -> None:
        called, data = self.called[node], self._data(node)
        self._require_unshared(node, called)
        if not isinstance(self.traced.values[node], Tensor) or called in VIEWS or isinstance(called, IDENTITIES):
            self.cheap.add(node)
        elif (isinstance(called, NORMS) or self._is_unary(node)) and (draft := self._alone(data)):
            self._grow(draft, node)
        elif self._is_unary(node) or kind_of(self.called[node]) in PADS:
            self.cheap.add(node)
        elif kind_of(self.called[node]) in ADDITIONS:
            self._join(node, "sum")
        elif kind_of(self.called[node]) in CATS:
            self._join(node, "cat")
        elif isinstance(called, CONVS):
            self._place_conv(node, called, data)
        else:
            self.draft_of[node] = _Draft(self._name(node), [node])

    def _require_unshared(self, node: fx.Node, called: Any) -> None:
        """Raise UnsupportedError for a call that changes a value that others read: units run in other orders."""
        name = called if isinstance(called, str) else getattr(called, "__name__", "")
        changes = getattr(called, "inplace", False) or node.kwargs.get("inplace", False)
        changes = changes or (name.endswith("_") and not name.endswith("__")) or called is operator.iadd
        if changes and node.all_input_nodes and len(node.all_input_nodes[0].users) > 1:
            raise UnsupportedError(
                f"{self.traced.parents[node] or 'forward'}: expected calls that change no value that others read, got "
                f"{node.name} in place; write it out of place, or compile without --profile, as a dynamic model"
            )

    def _place_conv(self, node: fx.Node, conv: Any, data: list[fx.Node]) -> None:
        draft = self._alone(data)
        is_pointwise = conv.groups == 1 and max(conv.kernel_size) == 1 and max(conv.stride) == 1
        if is_pointwise and draft is not None and draft.kind == "depthwise":
            draft.kind = "separable"
            self._grow(draft, node)
            return
        if conv.groups == conv.in_channels > 1:
            grows = draft is not None and (draft.kind == "sum" or self._is_twice(draft, node))
            made = draft if grows and draft is not None else _Draft("", [])
            made.kind = "depthwise"
            self._grow(made, node)
            return
        self.draft_of[node] = _Draft("conv", [node])

    def _is_twice(self, draft: _Draft, node: fx.Node) -> bool:
        """Whether a separable convolution stands before a node in the same module."""
        parents = self.traced.parents
        return draft.kind == "separable" and parents[draft.nodes[0]] == parents[node] != ""

    def _join(self, node: fx.Node, kind: str) -> None:
        """A sum or a concatenation, with those of its operands that are alike and read by nothing else."""
        nodes: list[fx.Node] = []
        for operand in dict.fromkeys(self._data(node)):
            draft = self.draft_of.get(operand)
            joins = draft is not None and draft.kind == kind and len(operand.users) == 1
            if draft is not None and joins and self._dimension(operand) == self._dimension(node):
                nodes += draft.nodes
                del self.draft_of[operand]
        self.draft_of[node] = _Draft(kind, [*nodes, node])

    def _dimension(self, node: fx.Node) -> int:
        """Of a concatenation; 0 for others."""
        if kind_of(self.called[node]) not in CATS:
            return 0
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        return int(dim) % self.traced.values[node].dim()  # type: ignore[arg-type]

    def _grow(self, draft: _Draft, node: fx.Node) -> None:
        if draft.nodes:
            del self.draft_of[draft.nodes[-1]]
        draft.nodes.append(node)
        self.draft_of[node] = draft

    def _alone(self, data: list[fx.Node]) -> _Draft | None:
        """The draft that gives the only operand, if nothing else reads it."""
        if len(data) != 1 or len(data[0].users) != 1:
            return None
        return self.draft_of.get(data[0])

    def _is_unary(self, node: fx.Node) -> bool:
        key = kind_of(self.called[node])
        return len(self._data(node)) == 1 and (key in UNARY or key in PRODUCTS)

    def _data(self, node: fx.Node) -> list[fx.Node]:
        """Operands that are no constants, as often as they are read."""
        found: list[fx.Node] = []
        fx.node.map_arg((node.args, node.kwargs), lambda n: found.append(n) if n not in self.constants else None)
        return found

    def _name(self, node: fx.Node) -> str:
        key = kind_of(self.called[node])
        if key in POOLS:
            return "pool"
        return "linear" if key is nn.Linear else str(getattr(key, "__name__", key)).lower()

    def _finish(self) -> UnitGraph:
        drafts = sorted(self.draft_of.values(), key=lambda draft: self._order[draft.nodes[-1]])
        inputs = tuple(node for node in self.traced.nodes if node.op == "placeholder")
        sources = {node: -1 - i for i, node in enumerate(inputs)}
        of_node = {draft.nodes[-1]: i for i, draft in enumerate(drafts)}
        names = _Names()
        units = tuple(self._unit(draft, {**sources, **of_node}, names) for draft in drafts)
        output = next(node for node in self.traced.nodes if node.op == "output")
        tail, results = self._cone([output], {**sources, **of_node})
        return UnitGraph(units, inputs, output, tuple(n for n in tail if n is not output), tuple(results), of_node)

    @property
    def _order(self) -> dict[fx.Node, int]:
        return {node: i for i, node in enumerate(self.traced.nodes)}

    def _unit(self, draft: _Draft, number: dict[fx.Node, int], names: _Names) -> Unit:
        value = draft.nodes[-1]
        nodes, reads = self._cone(draft.nodes, {node: i for node, i in number.items() if node is not value})
        shape = tuple(self.traced.values[value].shape)
        first = draft.nodes[0]
        parent = self.traced.parents[first] or (str(first.target) if first.op == "call_module" else "")
        name = names.unique(parent, draft.kind)
        text = _Text(self, number, nodes).text()
        flops = sum(_flops(self.called[node], self.traced.values[node]) for node in draft.nodes)
        return Unit(name, draft.kind, tuple(nodes), tuple(reads), shape, text, flops)

    def _cone(self, wanted: list[fx.Node], number: dict[fx.Node, int]) -> tuple[list[fx.Node], list[int]]:
        """What must run to have some nodes, given the values that have numbers; and the numbers that are read."""
        nodes: dict[fx.Node, None] = {}
        reads: dict[int, None] = {}

        def need(node: fx.Node) -> None:
            for operand in node.all_input_nodes:
                if operand in number:
                    reads[number[operand]] = None
                elif operand not in nodes and operand not in self.constants:
                    if operand not in self.cheap and operand not in inside:
                        raise UnsupportedError(
                            f"node {operand.name}: expected torch operations, got {operand.op}; compile without "
                            "--profile, as a dynamic model"
                        )
                    need(operand)
            nodes[node] = None

        inside = set(wanted)
        for node in wanted:
            if node not in nodes:
                need(node)
        return list(nodes), list(reads)


class _Names:
    """Names of units: the module in which they stand, with a number where that is not enough."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def unique(self, parent: str, kind: str) -> str:
        """The next free name."""
        base = parent if parent and kind in ("conv", "separable", "linear") else f"{parent}.{kind}".strip(".")
        self._taken[base] = count = self._taken.get(base, 0) + 1
        return base if count == 1 else f"{base}~{count}"


class _Text:
    """A unit's operations without names: operands are x0, x1 for values that it reads, v0, v1 for its own."""

    def __init__(self, fusion: Fusion, number: dict[fx.Node, int], nodes: list[fx.Node]):
        self.fusion, self.number, self.nodes = fusion, number, nodes
        self.names: dict[fx.Node, str] = {}
        self.read: dict[int, str] = {}

    def text(self) -> str:
        """The operations, separated by semicolons, and the shape of the result."""
        parts = []
        for node in self.nodes:
            arguments = ", ".join(self._argument(value) for value in (*node.args, *node.kwargs.values()))
            called = self.fusion.called[node]
            parts.append(f"{_name(called)}({arguments})")
            self.names[node] = f"v{len(self.names)}"
        return f"{'; '.join(parts)} -> {_shape(self.fusion.traced.values[self.nodes[-1]])}"

    def _argument(self, value: Any) -> str:
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._argument, value))}]"
        if not isinstance(value, fx.Node):
            return repr(value)
        if value in self.names:
            return self.names[value]
        if value in self.fusion.constants:
            return f"w{_shape(self.fusion.traced.values[value])}"
        number = self.number[value]
        return f"{self.read.setdefault(number, f'x{len(self.read)}')}{_shape(self.fusion.traced.values[value])}"


def kind_of(called: Any) -> Any:
    """What these tables know it by: of a module its class."""
    return type(called) if isinstance(called, nn.Module) else called


def _name(called: Any) -> str:
    """What is called, with its constants; of a norm those that count, as torch's versions list others."""
    if isinstance(called, NORMS):
        return f"{type(called).__name__}({called.num_features}, eps={called.eps})"
    name = str(called) if isinstance(called, nn.Module) else getattr(called, "__name__", called)
    return " ".join(str(name).split())


def _shape(value: Any) -> str:
    """Sizes after the batch dimension. `[96,35,35]`."""
    if not isinstance(value, Tensor):
        return "[]"
    dtype = "" if value.dtype == torch.float32 else f":{str(value.dtype).removeprefix('torch.')}"
    return f"[{','.join(map(str, value.shape[1:]))}{dtype}]"


def _constants(traced: Traced) -> set[fx.Node]:
    """Definition (1)."""
    found: set[fx.Node] = set()
    for node in traced.nodes:
        is_call = node.op in ("call_module", "call_function", "call_method")
        if node.op == "get_attr" or (is_call and all(operand in found for operand in node.all_input_nodes)):
            found.add(node)
    return found


def _flops(module: Any, value: Tensor) -> int:
    """Two per multiplication of a product, for one instance."""
    if isinstance(module, CONVS):
        kernel = math.prod(module.kernel_size) * module.in_channels // module.groups
        return 2 * kernel * math.prod(value.shape[1:])
    return 2 * module.in_features * math.prod(value.shape[1:]) if isinstance(module, nn.Linear) else 0


def fuse(traced: Traced) -> UnitGraph:
    """The units of a traced graph. Raises UnsupportedError where there is none."""
    graph = Fusion(traced).graph()
    if not graph.units:
        raise UnsupportedError("forward: expected torch operations, got none; there is nothing to schedule")
    return graph
