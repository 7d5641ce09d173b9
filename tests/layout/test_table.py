"""The layout table (benchmarks/layout.py): no more is moved than in the paper, and no layout changes a number."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import imported, require_eager
from torch import nn

from edbc.capture.code.mark import cell as as_cell
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable
from edbc.cells.batching import batch_operations, plan_cell_layout
from edbc.plan.plan import ModelRef, Plan, PlanCell, PlanPolicy, PlanType, TrainedOn
from edbc.run.session import Net, cell_of

BATCH, SIZE = 8, 64


# By its path: its folder on the module search path would hide helper modules of tests.
table = imported(Path(__file__).resolve().parents[2] / "benchmarks" / "layout.py", "benchmark_layout")
CELLS, PAPER, traced, programs = table.CELLS, table.PAPER, table.traced, table.programs
native_moved, steps_moved = table.native_moved, table.steps_moved


@pytest.mark.parametrize("name", CELLS)
def test_no_more_is_moved_than_in_the_paper(name: str) -> None:
    """With the PQ layout, at most the kernels and kB of the paper's Table 2, and never more than in variable order."""
    cell, shape_of = traced(name, SIZE)
    in_variable_order, planned = programs(cell)
    kernels, kilobytes = native_moved(planned, BATCH, shape_of)
    assert kernels <= PAPER[name][2]
    assert kilobytes <= PAPER[name][3]
    for count in (partial(native_moved, shape_of=shape_of), steps_moved):
        assert all(
            ours <= theirs for ours, theirs in zip(count(planned, BATCH), count(in_variable_order, BATCH), strict=True)
        )


class OneCell(nn.Module):
    """A cell over rows of tables, one table per operand."""

    def __init__(self, name: str, size: int):
        super().__init__()
        torch.manual_seed(1)
        make, kinds = CELLS[name]
        shapes = [(5, size) if kind == "v" else (5, size, size) for kind in kinds]
        self.tables = nn.ParameterList([nn.Parameter(torch.randn(shape) / size**0.5) for shape in shapes])
        self.cell = as_cell(make(size))

    def forward(self, words: tuple[int, ...]):
        result = self.cell(*(table[word] for table, word in zip(self.tables, words, strict=True)))
        return list(result) if isinstance(result, tuple) else [result]


def plan_of(model: nn.Module, instances: list, order: str) -> Plan:
    """A plan of one type, its layout as planned, in the order of definition, or backwards."""
    view, table = ModelView(model), TypeTable()
    graph = capture(*recording_shadow(view, table), instances).graph
    own = cell_of(table.operation_of_type[0], view)
    batches = batch_operations(own)
    planned = plan_cell_layout(own, batches).order
    layout = {"plan": planned, "variable-order": tuple(own.classes()), "backwards": planned[::-1]}[order]
    return Plan(
        edbc="0", model=ModelRef("model.py", "0" * 64, {}, 0), trained_on=TrainedOn("sample", (), 1, 0, 1),
        requirements=(), types=tuple(PlanType(t.name, t.signature, t.source) for t in graph.types),
        policy=PlanPolicy("critical", None, "critical", {}, {}),
        cells={graph.types[0].name: PlanCell(own.lines(), batches, layout, (), 0)}, guards={},
    )  # fmt: skip


@pytest.mark.parametrize("order", ["plan", "variable-order", "backwards"])
@pytest.mark.parametrize("name", CELLS)
def test_every_layout_gives_eager_numbers(name: str, order: str) -> None:
    """On both back ends, at the table's batch and at an odd size too."""
    arity = len(CELLS[name][1])
    instances = [tuple((3 * i + k) % 5 for k in range(arity)) for i in range(BATCH)]
    for size in (SIZE, 7):
        model = OneCell(name, size).eval()
        plan = plan_of(model, instances, order)
        for backend in ("cpu", "reference"):
            require_eager(Net(plan, model, backend=backend), instances)
