"""Units as functions on the CPU.

A task is a unit in one thread; or, where all threads work on one unit (`split`) or on a merged product, in torch's own
threads, for which weights are packed apart.

Values of images stand channels last: oneDNN then reads and writes them without reordering. A unit's result is written
where the layout says (`stages.cpu.lifetimes`); operands of a concatenation that nothing else reads are written in their
place in it.

Packing is for the number of threads that runs the product: oneDNN chooses layouts by it. Preparing a call takes oneDNN
some 60 microseconds whatever its size, more than packed weights save a product of less than PLAIN operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from edbc.native.threads import torch_threads
from edbc.stages.units.bound import Bound
from edbc.stages.units.products import Product, Runner
from edbc.stages.units.tasks import Task, Tasks

PLAIN = 4_000_000
"""Floating-point operations, two per multiplication."""


class HostTasks(Tasks):
    """Makes the tasks of units; `threads` are torch's own in a task for all threads."""

    def __init__(self, bound: Bound, values: Mapping[int, Any], threads: int):
        super().__init__(bound, values)
        self.threads = threads

    def _runner(self, nodes: tuple[fx.Node, ...], product: Callable[[], Product], shape: Sequence[int],
                positions: Sequence[int]) -> Runner:  # fmt: skip
        """In as many threads as torch has now; packed for as long as these tasks live."""
        key = (nodes, *shape, torch.get_num_threads())
        self.packed.append(self.bound.runner(key, lambda: PackedRunner(product(), shape, positions)))
        return self.packed[-1]

    def _result(self, unit: int, nodes: Sequence[fx.Node | None]) -> Callable[[Tensor], None]:
        out, relu = self.values[unit], self.bound.ends_in_relu(unit)
        return lambda value: _write(value, out, relu)

    def whole(self, unit: int) -> Task:
        """A unit in one thread."""
        return self._cat(unit) if unit in self.bound.cats else super().whole(unit)

    def split(self, unit: int) -> Task:
        """A unit in all threads."""
        return self._in_all_threads(self.whole(unit))

    def merge(self, units: Sequence[int]) -> Task:
        """Units as one product, in all threads."""
        return self._in_all_threads(super().merge(units))

    def _in_all_threads(self, task: Task) -> Task:
        return torch_threads(self.threads)(task)

    def _cat(self, unit: int) -> Task:
        """Copies of the operands that are not in place."""
        out, copies = self.values[unit], []
        for operand, at in self.bound.cats[unit]:
            if operand not in self.bound.placed:
                value = self.values[operand]
                copies.append((out.narrow(1, at, value.shape[1]), value))

        def run() -> None:
            for target, value in copies:
                target.copy_(value)

        return run


class PackedRunner(Runner):
    """A product as it runs in as many threads as torch has now: packed by oneDNN for a shape, or a plain call."""

    def __init__(self, product: Product, shape: Sequence[int], positions: Sequence[int]):
        super().__init__(product, shape, positions)
        self.packed = self._pack(shape)

    def _pack(self, shape: Sequence[int]) -> Tensor | None:
        p = self.product
        is_small = 2 * p.weight.numel() * shape[0] * math.prod(self.positions) < PLAIN
        if p.is_linear or is_small or p.weight.dtype != torch.float32 or not can_pack():
            return None
        size = list(shape)
        if self.pad:
            size = [*shape[:2], shape[2] + sum(self.pad[2:]), shape[3] + sum(self.pad[:2])]
        return torch.ops.mkldnn._reorder_convolution_weight(
            self.weight, self.padding, list(p.stride), list(p.dilation), p.groups, size
        )

    def _convolved(self, x: Tensor) -> Tensor:
        p = self.product
        if self.packed is None:
            return super()._convolved(x)
        return torch.ops.mkldnn._convolution_pointwise(
            x, self.packed, p.bias, self.padding, list(p.stride), list(p.dilation), p.groups, "none", [], ""
        )


def _write(value: Tensor, out: Tensor, relu: bool) -> None:
    if relu:
        torch.clamp_min(value, 0, out=out)
    else:
        out.copy_(value)


def can_pack() -> bool:
    """Whether torch has oneDNN's convolutions with packed weights here."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
