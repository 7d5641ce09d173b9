"""Random cells of products, gates, sums, concatenations and slices, and an interpreter of programs in plain torch."""

from __future__ import annotations

import random

import torch
from torch import nn

from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import Hole, Operation, SharedRef, TypeTable
from edbc.cells.canonical import cell_graph
from edbc.cells.opgraph import CellGraph
from edbc.cells.program import Call, Copy, Map, Packed, Product, Program, Span

UNARY = (torch.sigmoid, torch.tanh, torch.relu, torch.neg, torch.exp)
BINARY = (torch.add, torch.mul, torch.sub, torch.maximum)


class RandomCell(nn.Module):
    """A cell of `length` random operations over `arity` vectors of `size` elements; float64."""

    def __init__(self, seed: int, arity: int, length: int, size: int = 4):
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.arity, self.size = arity, size
        self.linears = nn.ModuleList([nn.Linear(size * (1 + i % 2), size, bias=i % 3 > 0) for i in range(6)]).double()
        self.peephole = nn.Parameter(torch.randn(size, dtype=torch.float64))
        self.recipe = [(rng.randrange(8), rng.random(), rng.random(), rng.randrange(6)) for _ in range(length)]
        self.returned = [rng.random() for _ in range(rng.randrange(1, 4))]

    def forward(self, *operands):
        values = list(operands)
        for kind, a, b, which in self.recipe:
            x, y = values[int(a * len(values))], values[int(b * len(values))]
            values.append(self.step(kind, x, y, which))
        return tuple(values[int(r * len(values))] for r in self.returned)

    def step(self, kind: int, x, y, which: int):
        linear = self.linears[which]
        if kind <= 1:
            return linear(torch.cat([x, y]) if linear.in_features > self.size else x)
        if kind == 2:
            return UNARY[which % len(UNARY)](x / 4)
        if kind == 3:
            return BINARY[which % len(BINARY)](x, y)
        if kind == 4:
            return self.linears[0](x) + self.linears[2](y)
        if kind == 5:
            return x * self.peephole + y
        if kind == 6:
            first, second = torch.cat([x, y]).chunk(2)
            return first.sigmoid() * second
        return x + y + x


class Holder(nn.Module):
    """A model with one cell, so that its parameters have dotted names."""

    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell = cell


def traced(cell: RandomCell) -> tuple[CellGraph, ModelView]:
    """The canonical operation graph of a cell."""
    view = ModelView(Holder(cell))
    from edbc.base.graph import ValueClass

    slot = TypeTable().slot(ValueClass((cell.size,), "f64"))
    operation = Operation("cell", "cell", None, (tuple(Hole(i) for i in range(cell.arity)), {}), (slot,) * cell.arity)
    return cell_graph(view.trace(operation), view, "cell."), view


def interpret(program: Program, view: ModelView, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program in float64 on a workspace that holds not-a-number wherever nothing was written."""
    workspace = torch.full((len(operands[0]), program.width), torch.nan, dtype=torch.float64)

    def columns(span: Span) -> torch.Tensor:
        return workspace[:, span.offset : span.stop]

    def constant(source):
        return (
            columns(source).clone()
            if isinstance(source, Span)
            else (view.shared(source).detach() if isinstance(source, SharedRef) else source)
        )

    for load in program.loads:
        columns(load.span)[:] = operands[load.operand]
    for step in program.steps:
        if isinstance(step, Product):
            matrix, bias = packed(program.weights[step.weight], view)
            addend = 0 if step.addend is None else columns(step.addend).clone()
            columns(step.result)[:] = columns(step.source) @ matrix + bias + addend
        elif isinstance(step, Copy):
            columns(step.result)[:] = columns(step.source).clone()
        elif isinstance(step, Map):
            columns(step.result)[:] = mapped(step.op, [constant(s) for s in step.sources])
        else:
            assert isinstance(step, Call)
            raise AssertionError(f"no generic operation is expected in these cells, got {step.op.attributes}")
    return [columns(store.span).clone() for store in program.stores]


def mapped(op: str, sources: list) -> torch.Tensor:
    """One element-wise operation."""
    if op == "sum":
        return torch.stack([s.expand_as(sources[0]) if s.ndim < 2 else s for s in sources]).sum(0)
    return getattr(torch, op)(*sources)


def packed(weight: Packed, view: ModelView) -> tuple[torch.Tensor, torch.Tensor]:
    """A packed weight (in, out) and its bias, block by block."""
    matrix = torch.zeros(weight.rows, weight.columns, dtype=torch.float64)
    bias = torch.zeros(weight.columns, dtype=torch.float64)
    for placed in weight.blocks:
        block = placed.block
        whole = view.shared(block.ref).detach()
        part = (whole if block.transposed else whole.t())[slice(*block.columns), slice(*block.rows)]
        matrix[placed.row : placed.row + part.shape[0], placed.column : placed.column + part.shape[1]] += part
    for placed in weight.biases:
        part = view.shared(placed.block.ref).detach()[slice(*placed.block.rows)]
        bias[placed.column : placed.column + len(part)] += part
    return matrix, bias
