"""A type's gradient by recomputing its batch under autograd: right for every operation that torch can differentiate.

The operation graph of the cell (not its lowered program: memory orders play no part here) is evaluated once more on
the batch's operands, which the arenas still hold, and torch.autograd.grad takes the derivative of what comes out. Only
values between nodes are kept from the forward pass. It is the fallback for types that have no native derivative, runs
on every device, and is what the native derivatives are tested by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from edbc.cells.graph import Block, CellGraph, CellOp, Source
from edbc.graph import NodeType
from edbc.runtime.reduction import ReductionKernel
from edbc.runtime.reference import MAPS
from edbc.runtime.rowfunction import RowFunction
from edbc.runtime.rowrules import BatchedForm
from edbc.trace.table import SharedRef
from edbc.trace.values import torch_dtype

Tensors = Sequence[torch.Tensor]
MaybeTensors = list[torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class Gradients:
    """What one batch passes on: a gradient per operand, `(items, size)`, and per parameter; None where there is
    none."""

    operands: MaybeTensors
    parameters: dict[SharedRef, torch.Tensor]


class CellGradient:
    """The gradient of a cell, leaf module or function."""

    def __init__(self, cell: CellGraph):
        self.cell = cell
        self._classes = cell.classes()
        self._forms: dict[str, BatchedForm | None] = {}

    def run(self, operands: Tensors, wanted: Sequence[bool], parameters: Mapping[SharedRef, torch.Tensor],
            outputs: MaybeTensors) -> Gradients:  # fmt: skip
        """Gradients of the operands that are wanted and of the parameters that require one.

        `operands` and `outputs` (gradients; None for outputs that nothing reads) are `(count, size)`.
        """
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(w) for x, w in zip(operands, wanted, strict=True)]
            results = self.evaluate(leaves, parameters)
            pairs = [(r, g) for r, g in zip(results, outputs, strict=True) if g is not None and r.requires_grad]
            trainable = {ref: p for ref, p in parameters.items() if p.requires_grad}
            sought = [leaf for leaf in leaves if leaf.requires_grad] + list(trainable.values())
            found = iter(_gradients(pairs, sought))
        of_operands = [next(found) if leaf.requires_grad else None for leaf in leaves]
        of_parameters = {ref: g for ref, g in zip(trainable, found, strict=True) if g is not None}
        return Gradients(of_operands, of_parameters)

    def evaluate(self, operands: Tensors, parameters: Mapping[SharedRef, torch.Tensor]) -> list[torch.Tensor]:
        """The cell's outputs, `(count, size)` each."""
        count = len(operands[0]) if operands else 1
        values = {name: x for (name, _), x in zip(self.cell.operands, operands, strict=True)}
        for op in self.cell.ops:
            values[op.name] = self._operation(op, values, parameters, count)
        return [values[name] for name in self.cell.outputs]

    def _operation(self, op: CellOp, values: Mapping[str, torch.Tensor], parameters: Mapping[SharedRef, torch.Tensor],
                   count: int) -> torch.Tensor:  # fmt: skip
        inputs = [values[name] for name in op.inputs]
        if op.op == "affine":
            return _affine(op, inputs, parameters, count)
        if op.op == "cat":
            return torch.cat(inputs, 1)
        if op.op == "slice":
            start, stop = map(int, op.attributes.split(":"))
            return inputs[0][:, start:stop]
        if op.op == "sum" or op.op in MAPS:
            return _map(op, values, parameters).expand(count, op.result.size)
        return self._generic(op, values, parameters, count)

    def _generic(self, op: CellOp, values: Mapping[str, torch.Tensor], parameters: Mapping[SharedRef, torch.Tensor],
                 count: int) -> torch.Tensor:  # fmt: skip
        assert op.call is not None
        sources = [source for source in op.sources if source.variable is not None]
        views, shared = [s.views for s in sources], parameters.__getitem__
        shapes = [self._classes[s.variable or ""].shape for s in sources]
        seen = [values[s.variable or ""].reshape(count, *shape) for s, shape in zip(sources, shapes, strict=True)]
        if op.name not in self._forms:
            self._forms[op.name] = BatchedForm.find(op.call, op.template, views, shapes, shared)
        form = self._forms[op.name]
        if form is None:
            found = RowFunction(op.call, op.template, views, shared)(seen, count)[op.output or 0]
        else:
            found = form.apply(seen, shared)
        return found.reshape(count, op.result.size)


def _affine(op: CellOp, inputs: Tensors, parameters: Mapping[SharedRef, torch.Tensor], count: int) -> torch.Tensor:
    total: torch.Tensor | None = None
    for x, block in zip(inputs, op.weights, strict=True):
        product = x @ _block(block, parameters)
        total = product if total is None else total + product
    for block in op.biases:
        bias = parameters[block.ref][slice(*block.rows)].expand(count, op.result.size)
        total = bias if total is None else total + bias
    assert total is not None
    return total


def _block(block: Block, parameters: Mapping[SharedRef, torch.Tensor]) -> torch.Tensor:
    """The block as (in, out)."""
    whole = parameters[block.ref]
    assert block.columns is not None
    return (whole if block.transposed else whole.t())[slice(*block.columns), slice(*block.rows)]


def _map(op: CellOp, values: Mapping[str, torch.Tensor], parameters: Mapping[SharedRef, torch.Tensor]) -> torch.Tensor:
    def tensor(source: Source) -> torch.Tensor:
        if source.variable is not None:
            return values[source.variable]
        if source.shared is not None:
            return parameters[source.shared].reshape(1, -1)
        return torch.tensor(source.number, dtype=torch_dtype(op.result.dtype))

    sources = [tensor(source) for source in op.sources]
    if op.op != "sum":
        return MAPS[op.op](*sources)
    total = sources[0]
    for source in sources[1:]:
        total = total + source
    return total


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
