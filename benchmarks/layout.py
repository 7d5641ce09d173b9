"""What the memory layout of cells saves: the form of ED-Batch's Table 2 (batch 8, model size 64).

    python benchmarks/layout.py [--batch 8] [--size 64]

Per cell, with variables in the order of definition and in the order of the PQ tree: kernels that only move memory and
kB that they move per execution of a batch. Everything that moves a row counts: gathers of operands, broadcasts, copies
into a product's input, scatters. Weights are packed once when a
plan is bound and count in neither column.

*Before fusion* is the Program as the reference back end runs it: a load per operand, a store per output, every copy.
*After fusion* is what the native back end runs: operands are read where they are, by products too, outputs are written
where they belong, a copy is another name for its source, and a product over stacked matrices is a sum of products.
*Left* names what it still moves. The static compile time (batching, layout, lowering) is the median of five, in
milliseconds. `tests/layout/test_table.py` holds the table against the paper's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn

from edbc.base.graph import ValueClass
from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import Hole, Operation, TypeTable
from edbc.cells.batching import batch_operations, plan_cell_layout
from edbc.cells.canonical import cell_graph
from edbc.cells.kernels.steps import steps_of
from edbc.cells.lower import lower
from edbc.cells.opgraph import CellGraph
from edbc.cells.program import Copy, Program
from edbc.cells.values.dispatched import ShapeOf
from edbc.cells.values.read import values_of

PAPER = {
    "GRUCell": (6, 666, 2, 14),
    "LSTMCell": (4, 1054, 1, 16),
    "MVCell": (2, 260, 2, 260),
    "TreeGRU-Internal": (8, 552, 2, 16),
    "TreeGRU-Leaf": (4, 268, 2, 8),
    "TreeLSTM-Internal": (7, 1064, 3, 22),
    "TreeLSTM-Leaf": (3, 396, 1, 6),
}
"""Table 2: kernels and kB, DyNet's allocation, then PQ tree."""


def linears(names: str, into: int, out: int) -> nn.ModuleDict:
    """One linear layer per name."""
    return nn.ModuleDict({name: nn.Linear(into, out) for name in names.split()})


class Cell(nn.Module):
    """A cell with named linear layers `w` (size to size) and `u` (two sizes to size)."""

    def __init__(self, size: int):
        super().__init__()
        self.w = linears("a b c d e f g h", size, size)
        self.u = linears("a b c d", 2 * size, size)
        self.bias = nn.Parameter(torch.zeros(size, size))


class GRUCell(Cell):
    def forward(self, x, h):
        r = torch.sigmoid(self.w["a"](x) + self.w["b"](h))
        z = torch.sigmoid(self.w["c"](x) + self.w["d"](h))
        n = torch.tanh(self.w["e"](x) + self.w["f"](r * h))
        return z * h + (1 - z) * n


class LSTMCell(Cell):
    def forward(self, x, h, c):
        i = torch.sigmoid(self.w["a"](x) + self.w["b"](h))
        f = torch.sigmoid(self.w["c"](x) + self.w["d"](h))
        o = torch.sigmoid(self.w["e"](x) + self.w["f"](h))
        g = torch.tanh(self.w["g"](x) + self.w["h"](h))
        c = i * g + f * c
        return o * torch.tanh(c), c


class MVCell(Cell):
    def forward(self, v1, m1, v2, m2):
        v = torch.tanh(self.u["a"](torch.cat([m1 @ v2, m2 @ v1])))
        return v, self.u["b"].weight @ torch.cat([m1, m2]) + self.bias


class TreeGRUInternal(Cell):
    def forward(self, h1, h2):
        r1, r2 = torch.sigmoid(self.w["a"](h1)), torch.sigmoid(self.w["b"](h2))
        z1, z2 = torch.sigmoid(self.w["c"](h1)), torch.sigmoid(self.w["d"](h2))
        c1, c2 = torch.tanh(self.w["e"](r1 * h1)), torch.tanh(self.w["f"](r2 * h2))
        return (z1 * h1 + z2 * h2 + (1 - z1) * c1 + (1 - z2) * c2) / 2


class TreeGRULeaf(Cell):
    def forward(self, x):
        r, z = torch.sigmoid(self.w["a"](x)), torch.sigmoid(self.w["b"](x))
        c = torch.tanh(self.w["c"](r * x))
        return z * x + (1 - z) * c


class TreeLSTMInternal(Cell):
    def forward(self, h1, c1, h2, c2):
        e = torch.cat([h1, h2])
        i, o = torch.sigmoid(self.u["a"](e)), torch.sigmoid(self.u["b"](e))
        u = torch.tanh(self.u["c"](e))
        f1, f2 = torch.sigmoid(self.w["a"](h1)), torch.sigmoid(self.w["b"](h2))
        c = i * u + f1 * c1 + f2 * c2
        return o * torch.tanh(c), c


class TreeLSTMLeaf(Cell):
    def forward(self, x):
        i, o = torch.sigmoid(self.w["a"](x)), torch.sigmoid(self.w["b"](x))
        c = i * torch.tanh(self.w["c"](x))
        return o * torch.tanh(c), c


CELLS: dict[str, tuple[type[Cell], str]] = {
    "GRUCell": (GRUCell, "vv"),
    "LSTMCell": (LSTMCell, "vvv"),
    "MVCell": (MVCell, "vmvm"),
    "TreeGRU-Internal": (TreeGRUInternal, "vv"),
    "TreeGRU-Leaf": (TreeGRULeaf, "v"),
    "TreeLSTM-Internal": (TreeLSTMInternal, "vvvv"),
    "TreeLSTM-Leaf": (TreeLSTMLeaf, "v"),
}
"""Class and operands: vectors and matrices."""


class Holder(nn.Module):
    """A model with one cell."""

    def __init__(self, cell: nn.Module):
        super().__init__()
        self.cell = cell


def traced(name: str, size: int) -> tuple[CellGraph, ShapeOf]:
    """The cell's operation graph, and the shapes of its parameters."""
    make, kinds = CELLS[name]
    view = ModelView(Holder(make(size)))
    table = TypeTable()
    slots = tuple(table.slot(ValueClass((size,) if kind == "v" else (size, size))) for kind in kinds)
    template = (tuple(Hole(i) for i in range(len(slots))), {})
    cell = cell_graph(view.trace(Operation("cell", "cell", None, template, slots)), view, "cell.")
    return cell, lambda ref: view.shared(ref).shape


def steps_moved(program: Program, batch: int) -> tuple[int, float]:
    """Kernels and kB of the program's loads, copies and stores."""
    copies = [step.result.size for step in program.steps if isinstance(step, Copy)]
    sizes = [load.span.size for load in program.loads] + copies + [store.span.size for store in program.stores]
    return len(sizes), sum(sizes) * 4 * batch / 1024


def native_moved(program: Program, batch: int, shape_of: ShapeOf) -> tuple[int, float]:
    """Kernels and kB of what the native back end gathers and copies."""
    sizes = [size for _, size in moves(program, shape_of)]
    return len(sizes), sum(sizes) * 4 * batch / 1024


def moves(program: Program, shape_of: ShapeOf) -> list[tuple[str, int]]:
    """What the native back end moves per row: words for it, and elements."""
    values = values_of(program, shape_of)
    assert values is not None, "every cell of this table runs natively"
    loops = steps_of(values, len(program.loads)).loops()
    return [("copy inside the cell", v.size) for loop in loops for _, v, _ in loop.stores if v in loop.places]


def compile_ms(cell: CellGraph) -> float:
    """Median static compile time."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        batches = batch_operations(cell)
        lower(cell, batches, plan_cell_layout(cell, batches).order)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def text(moved: Sequence[float]) -> str:
    """`3, 6 kB`."""
    return f"{moved[0]}, {moved[1]:.0f} kB"


def programs(cell: CellGraph) -> tuple[Program, Program]:
    """The cell in variable order and in the order of the PQ tree."""
    batches = batch_operations(cell)
    orders = (list(cell.classes()), plan_cell_layout(cell, batches).order)
    first, second = (lower(cell, batches, order) for order in orders)
    return first, second


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=64)
    options = parser.parse_args()
    print("| cell | before fusion, variable order | PQ layout | after fusion, variable order | PQ layout "
          "| paper, DyNet's order | paper, PQ layout | compile ms | left |\n" + 9 * "|---" + "|")  # fmt: skip
    for name in CELLS:
        cell, shape_of = traced(name, options.size)
        columns = programs(cell)
        row = [text(steps_moved(p, options.batch)) for p in columns]
        row += [text(native_moved(p, options.batch, shape_of)) for p in columns]
        row += [text(PAPER[name][:2]), text(PAPER[name][2:]), f"{compile_ms(cell):.1f}"]
        row.append("; ".join(what for what, _ in moves(columns[1], shape_of)) or "nothing")
        print(f"| {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
