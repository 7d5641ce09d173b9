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

from edbc.base.graph import NodeType
from edbc.base.kept import Once
from edbc.capture.record.table import SharedRef
from edbc.cells.rows.evaluation import BlockRows, Evaluation
from edbc.cells.rows.reduction import ReductionKernel
from edbc.cells.rows.written import Parameters, Tensors

MaybeTensors = list[torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class Gradients:
    """What a block passes on: a gradient per operand, `(items, size)`, and per parameter; None where there is none."""

    operands: MaybeTensors
    parameters: dict[SharedRef, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A block that ran under autograd: operands that a gradient may be asked of, outputs, and the trainable parameters
    among those that it read."""

    leaves: MaybeTensors
    results: Tensors
    trainable: dict[SharedRef, torch.Tensor]

    def gradients(self, wanted: Sequence[bool], outputs: MaybeTensors, keeps_graph: bool) -> Gradients:
        """Gradients of the operands that are wanted and of the parameters; `outputs` gradients, `(rows of the block,
        size)`, None for outputs that nothing reads. Once only, unless it `keeps_graph`."""
        pairs = [(r, g) for r, g in zip(self.results, outputs, strict=True) if g is not None and r.requires_grad]
        leaves = [leaf if w else None for leaf, w in zip(self.leaves, wanted, strict=True)]
        sought = [leaf for leaf in leaves if leaf is not None] + list(self.trainable.values())
        found = iter(_gradients(pairs, sought, keeps_graph))
        of_operands = [None if leaf is None else next(found) for leaf in leaves]
        of_parameters = {ref: g for ref, g in zip(self.trainable, found, strict=True) if g is not None}
        return Gradients(of_operands, of_parameters)


class CellGradient(Evaluation):
    """The gradient of a cell, leaf module or function, block by block."""

    def record(self, block: BlockRows, operands: Tensors, wanted: Sequence[bool], parameters: Parameters) -> Recorded:
        """Run a block under autograd. `operands` are what the block takes (`Evaluation.outputs`), tensors that are
        nobody else's; `wanted` says which of them a gradient may be asked of."""
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(w) for x, w in zip(operands, wanted, strict=True)]
            read = Once(parameters.__getitem__)  # those that are asked for
            results = self.outputs(block, leaves, read)
        kept = [leaf if w else None for leaf, w in zip(leaves, wanted, strict=True)]
        return Recorded(kept, results, {ref: p for ref, p in read.items() if p.requires_grad})


def _gradients(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], sought: Tensors, keeps_graph: bool) -> MaybeTensors:
    if not pairs or not sought:
        return [None] * len(sought)
    results, gradients = zip(*pairs, strict=True)
    return list(torch.autograd.grad(results, sought, gradients, retain_graph=keeps_graph, allow_unused=True))


class ReductionGradient:
    """The gradient of a sum, mean, maximum or minimum over a node's items. Equal extremes share evenly, as in
    torch.amax, or the first one has it, as in torch.max along a dimension."""

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
        is_it = items() == result.index_select(0, segment)
        if self.op in ("max", "min"):
            order = torch.arange(len(segment), device=segment.device)[:, None]
            places = torch.where(is_it, order, len(segment))
            first = torch.full(gradient.shape, len(segment), device=segment.device)
            first.scatter_reduce_(0, segment[:, None].expand_as(places), places, "amin")
            return (places == first.index_select(0, segment)) * gradient.index_select(0, segment)
        chosen = is_it.to(gradient.dtype)
        share = add_rows(torch.zeros_like(gradient), segment, chosen)
        return chosen * (gradient / share).index_select(0, segment)


def add_rows(target: torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`target` with rows added to it, those of one place in a fixed order, so that sums are the same bits in every run:
    on a GPU `index_add_` adds in any order, and `index_put_` sorts."""
    if target.is_cuda:
        return target.index_put_((where,), rows, accumulate=True)
    return target.index_add_(0, where, rows)
