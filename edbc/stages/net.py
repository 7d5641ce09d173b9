"""A static model, and what every device's net of it does alike: instances are stacked, run as one batch, and unstacked.

Per batch size something is made ready (`Ready`): the inputs' own memory, and whatever computes the units' values from
it. The MOST_SIZES last used are kept. A batch is copied in, in the layout that kernels read (images channels last), and
results are copied out, so that they own their memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from edbc.base.kept import Kept
from edbc.errors import InputError
from edbc.stages.capture import Traced, stacked, trace, unstacked
from edbc.stages.fusion import fuse
from edbc.stages.graph import UnitGraph
from edbc.stages.timing import Clock
from edbc.stages.units.bound import Bound

MOST_SIZES = 4


class StaticModel:
    """A model with its static graph, and its weights where kernels find them."""

    def __init__(self, model: nn.Module, instance: Any, where: str):
        self.name, self.model, self.example = where, model, instance
        self.traced: Traced = trace(model, instance, where)
        self.graph: UnitGraph = fuse(self.traced)
        self.bound = Bound(self.traced, self.graph, model)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def stacked(self, count: int) -> Any:
        """A batch of so many times the example."""
        return pytree.tree_map(lambda leaf: leaf.expand(count, *leaf.shape[1:]), self.example)


class Ready:
    """What runs batches of one size."""

    def __init__(self, static: StaticModel, batch: Any, images: torch.memory_format = torch.channels_last):
        """`images` is how values of images stand."""
        self.graph, self.bound = static.graph, static.bound
        self.given = pytree.tree_map(lambda leaf: _own(leaf, images, static.device), batch)
        self.inputs = [leaf for leaf in pytree.tree_leaves(self.given) if isinstance(leaf, Tensor)]
        self.values: dict[int, Any] = {-1: self.given}
        """By the numbers of `Unit.reads`."""

    def take(self, batch: Any) -> None:
        """Copy a batch in."""
        for target, leaf in zip(self.inputs, pytree.tree_leaves(batch), strict=True):
            target.copy_(leaf, non_blocking=True)

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


def _own(leaf: Any, images: torch.memory_format, device: torch.device) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.empty_like(leaf, memory_format=images if leaf.dim() == 4 else torch.contiguous_format, device=device)


R = TypeVar("R", bound=Ready)
Net = TypeVar("Net", bound="BatchNet[Any]")


class BatchNet(ABC, Generic[R]):
    """A static model that runs by a schedule; `with` it, or `close` it, to end what it holds."""

    def __init__(self, static: StaticModel):
        self.static = static
        self._ready: Kept[Any, R] = Kept(MOST_SIZES)

    def __enter__(self: Net) -> Net:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End what it holds."""

    @abstractmethod
    def batch(self, batch: Any) -> Any:
        """What forward gives for a batch."""

    @abstractmethod
    def _new(self, batch: Any) -> R:
        """For batches of a new size."""

    @abstractmethod
    def clock(self, batch: Any) -> Clock:
        """What tells how long a batch like this takes."""

    @abstractmethod
    def memory(self, size: int) -> str:
        """What the values of a batch of a size take, for people."""

    def __call__(self, instances: Sequence[Any]) -> list[Any]:
        """The results of each instance. Raises InputError for instances of another shape than the model's."""
        return unstacked(self.batch(stacked(instances)), len(instances)) if instances else []

    def prepare(self, batch: Any) -> R:
        """What runs batches of this one's size. Raises InputError for one of other shapes than the model's."""
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
