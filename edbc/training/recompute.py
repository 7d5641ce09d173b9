"""A type's gradient by recomputing its batch under autograd: right for every operation that torch can differentiate.

The operation graph of the cell (not its lowered program: memory orders play no part here) is evaluated once more on
the batch's operands, which the arenas still hold, and torch.autograd.grad takes the derivative of what comes out. Only
values between nodes are kept from the forward pass. It is the fallback for types that have no native derivative, runs
on every device, and is what the native derivatives are tested by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from edbc.graph import NodeType
from edbc.runtime.evaluation import BlockRows, Evaluation, Parameters, Tensors
from edbc.runtime.reduction import ReductionKernel
from edbc.trace.table import SharedRef

MaybeTensors = list[torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class Gradients:
    """What a block passes on: a gradient per operand, `(items, size)`, and per parameter; None where there is none."""

    operands: MaybeTensors
    parameters: dict[SharedRef, torch.Tensor]


class CellGradient(Evaluation):
    """The gradient of a cell, leaf module or function, block by block."""

    def run(self, block: BlockRows, operands: Tensors, wanted: Sequence[bool], parameters: Parameters,
            outputs: MaybeTensors) -> Gradients:  # fmt: skip
        """Gradients of the operands that are wanted and of the parameters that require one.

        `operands` are what the block takes (`Evaluation.outputs`), tensors that are nobody else's; `outputs` gradients,
        `(rows of the block, size)`, None for outputs that nothing reads.
        """
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(w) for x, w in zip(operands, wanted, strict=True)]
            results = self.outputs(block, leaves, parameters)
            pairs = [(r, g) for r, g in zip(results, outputs, strict=True) if g is not None and r.requires_grad]
            trainable = {ref: p for ref, p in parameters.items() if p.requires_grad}
            sought = [leaf for leaf in leaves if leaf.requires_grad] + list(trainable.values())
            found = iter(_gradients(pairs, sought))
        of_operands = [next(found) if leaf.requires_grad else None for leaf in leaves]
        of_parameters = {ref: g for ref, g in zip(trainable, found, strict=True) if g is not None}
        return Gradients(of_operands, of_parameters)


def _gradients(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], sought: Tensors) -> MaybeTensors:
    if not pairs or not sought:
        return [None] * len(sought)
    results, gradients = zip(*pairs, strict=True)
    return list(torch.autograd.grad(results, sought, gradients, allow_unused=True))


class ReductionGradient:
    """The gradient of a sum, mean, maximum or minimum over a node's items. Equal extremes share evenly, as in
    torch.amax."""

    def __init__(self, kernel: ReductionKernel, node_type: NodeType):
        self.op = kernel.op
        self.fields = len(node_type.outputs)

    def run(self, field: int, items: Callable[[], torch.Tensor], segment: torch.Tensor, result: torch.Tensor,
            gradient: torch.Tensor) -> torch.Tensor:  # fmt: skip
        """The gradient of a field's items, given the field's results and their gradient, `(count, size)`."""
        if self.op == "sum":
            return gradient.index_select(0, segment)
        if self.op == "mean":
            share = torch.bincount(segment, minlength=len(gradient)).to(gradient.dtype)
            return (gradient / share[:, None]).index_select(0, segment)
        chosen = (items() == result.index_select(0, segment)).to(gradient.dtype)
        share = torch.zeros_like(gradient).index_add_(0, segment, chosen)
        return chosen * (gradient / share).index_select(0, segment)
