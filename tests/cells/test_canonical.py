"""Cells in canonical form: what the rewrites give, and that they keep the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import seeded
from random_cells import interpret
from torch import nn
from torch.nn import functional as F

from edbc.base.graph import ValueClass
from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import Hole, Operation, TypeTable
from edbc.cells.canonical import cell_graph
from edbc.cells.lower import lower
from edbc.cells.opgraph import CellGraph

SIZE = 4


class Holder(nn.Module):
    """A model with one cell and parameters for it."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.cell = Cell(body)


class Cell(nn.Module):
    """Parameters; `body(self, *operands)` is the cell."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.w = nn.Linear(SIZE, SIZE)
        self.u = nn.Linear(SIZE, SIZE, bias=False)
        self.wide = nn.Linear(2 * SIZE, SIZE)
        self.gates = nn.Linear(SIZE, 3 * SIZE)
        self.bias = nn.Parameter(torch.randn(SIZE))
        self._body = body

    def forward(self, *operands: Any) -> Any:
        return self._body(self, *operands)


def canonical(body: Any, arity: int = 2, shape: tuple[int, ...] = (SIZE,)) -> tuple[CellGraph, nn.Module]:
    model = seeded(lambda: Holder(body).double())
    table = TypeTable()
    slots = (table.slot(ValueClass(shape, "f64")),) * arity
    operation = Operation("cell", "cell", None, (tuple(Hole(i) for i in range(arity)), {}), slots)
    view = ModelView(model)
    return cell_graph(view.trace(operation), view, "cell."), model


def ops_of(cell: CellGraph) -> list[str]:
    return [op.op for op in cell.ops]


CASES = {
    "linear": (lambda m, x, y: m.w(x), ["affine"]),
    "matrix on the left": (lambda m, x, y: m.u.weight @ x, ["affine"]),
    "matrix on the right": (lambda m, x, y: x @ m.u.weight + m.bias, ["affine"]),
    "two products": (lambda m, x, y: m.w(x) + m.u(y), ["affine"]),
    "peephole": (lambda m, x, y: m.w(x) + m.bias * y, ["affine", "mul", "sum"]),
    "cat": (lambda m, x, y: m.wide(torch.cat([x, y], -1)), ["affine"]),
    "chunks": (
        lambda m, x, y: [torch.tanh(p) for p in m.gates(x).chunk(3)],
        ["affine", "affine", "affine", "tanh", "tanh", "tanh"],
    ),
    "chunks of sums": (
        lambda m, x, y: torch.prod(torch.stack((m.gates(x) + m.gates(y)).chunk(3)), 0),
        ["affine", "affine", "affine", "cat", "generic"],
    ),
    "sums of chunks": (
        lambda m, x, y: torch.tanh(m.gates(x).chunk(3)[0] + m.gates(y).chunk(3)[1]),
        ["affine", "tanh"],
    ),
    "operand chunks": (lambda m, x, y: m.w(torch.cat([x.chunk(2)[0], y[2:]])), ["slice", "slice", "affine"]),
    "read whole and in parts": (
        lambda m, x, y: (lambda g: (torch.tanh(g), g[:SIZE] * y))(m.gates(x)),
        ["affine", "tanh", "slice", "mul"],
    ),
    "row matrices": (
        lambda m, x, y: torch.sigmoid(m.w(x.unsqueeze(0)) + m.u(y.view(1, -1))).squeeze(0) * x,
        ["affine", "sigmoid", "mul"],
    ),
    "stack reductions": (
        lambda m, x, y: torch.stack([x, y, m.bias]).mean(0) + torch.stack([x, y]).amax(0),
        ["generic", "sum", "div", "generic", "sum"],
    ),
    "dead": (lambda m, x, y: (m.w(x), x * y)[1], ["mul"]),
    "used twice": (lambda m, x, y: (lambda h: h + torch.tanh(h))(m.w(x)), ["affine", "tanh", "sum"]),
    "broadcast": (lambda m, x, y: x * y.sum(), ["generic", "generic"]),
    "relu": (lambda m, x, y: F.relu(x) - abs(y) / 2, ["relu", "abs", "div", "sub"]),
    "operands returned": (lambda m, x, y: (y, x, y), []),
}


@pytest.mark.parametrize("name", CASES)
def test_form_and_numbers(name: str) -> None:
    """Each rewrite gives the operations it promises, and what the cell computed before."""
    body, expected = CASES[name]
    cell, model = canonical(body)
    operands = [torch.randn(SIZE, dtype=torch.float64) for _ in range(2)]

    assert sorted(ops_of(cell)) == sorted(expected)
    if "generic" not in expected:
        program = lower(cell, [[op.name] for op in cell.ops], list(cell.classes()))
        ours = interpret(program, ModelView(model), [x[None] for x in operands])
        theirs = model.cell(*operands)
        theirs = theirs if isinstance(theirs, tuple | list) else [theirs]
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.reshape(b.shape), b)


def test_text_does_not_depend_on_size() -> None:
    """Parts of parameters are told as fractions, so a plan binds to a model of another hidden size."""
    cell, _ = canonical(CASES["chunks"][0])

    assert [line.split(" = ")[1] for line in cell.lines() if "affine" in line] == [
        f'affine(x0, weight="gates.weight[{k}/3]", bias="gates.bias[{k}/3]")' for k in range(3)
    ]


def test_a_constant_is_told_by_its_elements() -> None:
    """Wherever they stand: one element may have any stride and count as contiguous."""
    told = [
        [line for line in canonical(lambda m, x, y, c=constant: x + c, shape=(1,))[0].lines() if "constant" in line]
        for constant in (
            torch.full((1,), 3.0),
            torch.arange(6.0).view(1, 6)[:, 3],
            torch.arange(6.0).view(3, 2).T[1, 1:2],
            torch.full((1,), 4.0),
        )
    ]

    assert told[0] == told[1] == told[2] != told[3]
