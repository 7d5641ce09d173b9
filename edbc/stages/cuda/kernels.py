"""Units as torch's calls on a device: the same steps as on the CPU, with values in memory of their own.

A task is made when its turn comes while a program is issued, as its operands are there then. A dense convolution
with a relu behind it is one kernel of cuDNN's (`torch.cudnn_convolution_relu`), a bias included; a merged one too, when
a relu stands behind all its parts. A part of a merged product is copied out when a convolution reads it, as cuDNN's
calls each copy what does not stand alone; a concatenation copies it anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from edbc.plan.static import KERNELS
from edbc.stages.cuda.pools import can_pool, pooled, pooling_of
from edbc.stages.units.bound import Bound
from edbc.stages.units.products import Product, Runner
from edbc.stages.units.tasks import Tasks


class How(NamedTuple):
    """Choices between calls that give the same."""

    images: torch.memory_format
    """How values of images stand."""
    fused: bool
    """Whether relu joins a convolution's kernel."""
    pools: bool
    """Whether pools are edbc's own (`stages.cuda.pools`), which need Triton."""


HOWS = {
    kernels: How(
        torch.channels_last if "channels last" in kernels else torch.contiguous_format,
        "relu fused" in kernels,
        "own pools" in kernels,
    )
    for kernels in KERNELS
}
"""By the names that plans have of them."""
HOW = HOWS[KERNELS[0]]


class DeviceTasks(Tasks):
    """Makes the tasks of units; `values` are those that are alive."""

    def __init__(self, bound: Bound, values: dict[int, Any], how: How):
        super().__init__(bound, values)
        self.alive, self.how = values, how
        last = {steps[-1].product: unit for unit, steps in enumerate(bound.steps)}
        self._unit_of = {node: unit for node, unit in last.items() if node is not None}

    def _call(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> Any:
        if self.how.pools:
            given: Any = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            args, kwargs = given
            pooling = pooling_of(self.bound.called[node], args, kwargs)
            if pooling is not None and can_pool(args[0]):
                return pooled(args[0], pooling)
        return super()._call(node, env)

    def _runner(self, nodes: tuple[fx.Node, ...], product: Callable[[], Product], shape: Sequence[int],
                positions: Sequence[int]) -> Runner:  # fmt: skip
        how = self.how._replace(fused=self._fuses(nodes))
        key = (nodes, *shape, how)
        self.packed.append(self.bound.runner(key, lambda: DeviceRunner(product(), shape, positions, how)))
        return self.packed[-1]

    def _fuses(self, nodes: Sequence[fx.Node | None]) -> bool:
        """Whether a relu joins the product of some nodes."""
        return self.how.fused and all(node is not None and self._is_followed(node) for node in nodes)

    def _is_followed(self, node: fx.Node) -> bool:
        """Whether a product is a dense convolution and the last step of its unit, with nothing but a relu behind."""
        layer = self.bound.called[node]
        unit = self._unit_of.get(node)
        if type(layer) is not nn.Conv2d or layer.groups > 1 or not can_fuse(layer.weight) or unit is None:
            return False
        step = self.bound.steps[unit][-1]
        behind = step.nodes[step.nodes.index(node) + 1 + (step.norm is not None) :]
        return len(behind) == 1 and self.bound.ends_in_relu(unit)

    def _result(self, unit: int, nodes: Sequence[fx.Node | None]) -> Callable[[Tensor], None]:
        graph = self.bound.graph
        relu = self.bound.ends_in_relu(unit) and not self._fuses(nodes)
        is_part = len(nodes) > 1 and not self._is_joined(unit)
        operands = [self.alive[other] for other in graph.units[unit].reads if isinstance(self.alive[other], Tensor)]
        shared = {_memory(operand) for operand in operands}

        def result(value: Tensor) -> None:
            value = F.relu(value) if relu else value
            if is_part:
                value = value.contiguous(memory_format=self.how.images if value.dim() == 4 else torch.contiguous_format)
            # a value whose memory is its operand's would live on another stream than its home
            self.alive[unit] = value.clone() if _memory(value) in shared else value

        return result

    def _is_joined(self, unit: int) -> bool:
        """Whether only concatenations read a unit."""
        graph = self.bound.graph
        return all(r < len(graph.units) and graph.units[r].kind == "cat" for r in graph.readers()[unit])


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


class DeviceRunner(Runner):
    """A product as it runs on a device, with a relu where it is fused."""

    def __init__(self, product: Product, shape: Sequence[int], positions: Sequence[int], how: How):
        super().__init__(product, shape, positions)
        self.how, self.bias = how, product.bias
        if not product.is_linear:
            self.weight = product.weight.contiguous(memory_format=how.images)
        if self.bias is None and how.fused:
            self.bias = product.weight.new_zeros(product.outputs)

    def _convolved(self, x: Tensor) -> Tensor:
        p = self.product
        call: Any = convolution_relu if self.how.fused else F.conv2d
        return call(x, self.weight, self.bias, p.stride, self.padding, p.dilation, p.groups)


def can_fuse(weight: Tensor) -> bool:
    """Whether there is one kernel for a convolution and a relu."""
    return weight.is_cuda and torch.backends.cudnn.is_acceptable(weight)


def convolution_relu(*arguments: Any) -> Tensor:
    """cuDNN's convolution, bias and relu in one."""
    return torch.cudnn_convolution_relu(*arguments)
