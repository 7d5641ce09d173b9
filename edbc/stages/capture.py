"""From a model and one instance to its static graph, if it has one.

A model is *static* when forward does the same operations whatever the instance: Python's control flow reads no value,
and instances are nests of tensors of the same shapes, each with a leading batch dimension of 1. Then instances *stack*:
forward of the concatenation along that dimension gives the concatenation of the results. `torch.fx` traces such a
forward once, symbolically; sizes stay symbols of the trace (`x.size(0)`), so one graph serves every batch size. That
stacking gives the same numbers is not believed but compared, by the rule of `edbc.tools.parity`.

edbc's own recorder (`edbc.capture`) is not used here: it runs forward on one instance's own sizes, and makes types of
what can run in one batch. Here nothing is batched but by the user's own batch dimension.

Shapes are found by running the traced graph on meta tensors, which hold no data (`edbc.capture.semantics.modes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from edbc.capture.semantics.modes import WithoutData
from edbc.errors import InputError, UnsupportedError, described


@dataclass(frozen=True, eq=False)
class Traced:
    """A forward as a graph of torch calls."""

    module: fx.GraphModule
    values: dict[fx.Node, Any]
    """What each node gives for an instance: meta tensors, or the sizes that it reads."""
    parents: dict[fx.Node, str]
    """The name of the innermost module in whose forward a node stands, not counting leaf modules of torch."""

    @property
    def nodes(self) -> list[fx.Node]:
        """In the order of execution."""
        return list(self.module.graph.nodes)

    def called(self, node: fx.Node) -> Any:
        """The module, function or method name that a node calls; None for others."""
        if node.op == "call_module":
            return self.module.get_submodule(str(node.target))
        return node.target if node.op in ("call_function", "call_method") else None


class _Tracer(fx.Tracer):
    """Notes in whose forward every node stands."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[fx.Node, str] = {}
        self._inside = [""]

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        is_leaf = self.is_leaf_module(m, self.path_of_module(m))
        self._inside.append(self._inside[-1] if is_leaf else self.path_of_module(m))
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._inside.pop()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.parents[node] = self._inside[-1]
        return node


def is_stackable(instances: Sequence[Any]) -> bool:
    """Whether the instances are nests of tensors of equal shapes that begin with 1."""
    described_all = [_description(instance) for instance in instances]
    return bool(described_all) and described_all[0] is not None and all(d == described_all[0] for d in described_all)


def _description(instance: Any) -> Any:
    leaves, spec = pytree.tree_flatten(instance)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == 1 for leaf in leaves):
        return None
    return spec, tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)


def stacked(instances: Sequence[Any]) -> Any:
    """The instances as one. Raises InputError unless they are stackable and of the same shapes."""
    if not is_stackable(instances):
        raise InputError(
            "instances: expected nests of tensors of equal shapes that begin with 1, which a static model's instances "
            "are, got others; compile them without --profile, as a dynamic model"
        )
    flat = [pytree.tree_leaves(instance) for instance in instances]
    spec = pytree.tree_structure(instances[0])
    return pytree.tree_unflatten([torch.cat(leaves) for leaves in zip(*flat, strict=True)], spec)


def unstacked(results: Any, count: int) -> list[Any]:
    """The results of each instance. Raises UnsupportedError where a result has no batch dimension of that size."""
    leaves, spec = pytree.tree_flatten(results)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or leaf.shape[0] != count):
            raise UnsupportedError(
                f"result: expected {count} rows of {count} instances, got shape {tuple(leaf.shape)}; a static model's "
                "results have the batch dimension first"
            )
    rows = [[leaf[i : i + 1].clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves] for i in range(count)]
    return [pytree.tree_unflatten(row, spec) for row in rows]


@torch.no_grad()
def require_stacking(model: nn.Module, instances: Sequence[Any], where: str) -> None:
    """Run instances as one and each by itself. Raises UnsupportedError where that is not the same, as where their
    leading 1 is a channel, or forward a mean over it."""
    each = list(itertools.islice(itertools.cycle(instances), 2))
    try:
        whole = unstacked(model(stacked(each)), len(each))
    except Exception as error:
        got = described(error)
    else:
        pairs = [pytree.tree_leaves(results) for results in zip(whole, map(model, each), strict=True)]
        if all(len(of) % 2 == 0 and all(map(_alike, of[: len(of) // 2], of[len(of) // 2 :])) for of in pairs):
            return
        got = "other results"
    raise UnsupportedError(
        f"{where}: expected the first dimension of instances to be a batch's, so that forward of two as one gives what "
        f"it gives for each, got {got}; compile without --profile, as a dynamic model"
    )


def _alike(one: Any, other: Any) -> bool:
    """Roughly: numbers are compared in earnest when all is compiled."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other)
    if one.shape != other.shape or one.dtype != other.dtype or not other.is_floating_point() or not other.numel():
        return one.shape == other.shape and torch.equal(one, other)
    error = torch.finfo(other.dtype).eps ** 0.5 * float(other.abs().max().nan_to_num())
    return torch.allclose(one, other, 0.0, error, equal_nan=True)


def trace(model: nn.Module, instance: Any, where: str) -> Traced:
    """The graph of forward, with the shapes that an instance of this shape gives. `where` names the model in errors.

    Raises UnsupportedError, with torch's reason, for a forward whose control flow reads values.
    """
    tracer = _Tracer()
    try:
        graph = tracer.trace(model)
        module = fx.GraphModule(model, graph)
        values = _Shapes(module).of(instance)
    except Exception as error:
        raise UnsupportedError(
            f"{where}: expected a forward that does the same operations for every instance, got {described(error)}; "
            "compile without --profile, as a dynamic model"
        ) from error
    return Traced(module, values, tracer.parents)


class _Shapes(fx.Interpreter):
    """Runs a graph on meta tensors; parameters are replaced by meta tensors of their shape."""

    def __init__(self, module: fx.GraphModule):
        super().__init__(module, garbage_collect_values=False)
        self._found: dict[fx.Node, Any] = {}

    def of(self, instance: Any) -> dict[fx.Node, Any]:
        """The value of every node."""
        with torch.no_grad(), WithoutData():
            self.run(pytree.tree_map(_meta, instance))
        return self._found

    def run_node(self, n: fx.Node) -> Any:
        result = self._found[n] = super().run_node(n)
        return result

    def fetch_attr(self, target: str) -> Any:
        return _meta(super().fetch_attr(target))

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        state = {name: _meta(value) for name, value in (*module.named_parameters(), *module.named_buffers())}
        return torch.func.functional_call(module, state, args, kwargs)


def _meta(value: Any) -> Any:
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def cast(instance: Any, dtype: torch.dtype, device: torch.device | str | None = None) -> Any:
    """An instance with its floating-point tensors in an element type; on a device, if one is named."""
    return pytree.tree_map_only(Tensor, lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype), instance)
