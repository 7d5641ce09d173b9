"""A cell's own batching: which of its operations run together (compile time).

Operations of one key (`cells.lower.batch_key`) can be one batch. The cell's graph is a typed DAG like any other, so the
search for the fewest batches is the compiler's own: exact for graphs as small as cells are, instead of the paper's grid
search.
"""

from __future__ import annotations

from collections.abc import Sequence

from edbc.cells.graph import ELEMENTWISE, CellGraph
from edbc.cells.lower import batch_key
from edbc.graph import Graph
from edbc.layout.planner import LayoutBatch, LayoutPlan, plan_layout
from edbc.schedule.policy import Policy
from edbc.schedule.run import run


def typed_dag(cell: CellGraph) -> Graph:
    """The cell's operations as a dataflow graph; a type is a batch key."""
    keys = list(dict.fromkeys(batch_key(op) for op in cell.ops))
    number = {op.name: i for i, op in enumerate(cell.ops)}
    nodes = [(keys.index(batch_key(op)), [number[name] for name in op.inputs if name in number]) for op in cell.ops]
    return Graph.build([f"k{i}" for i in range(len(keys))], nodes)


def batch_operations(cell: CellGraph) -> tuple[tuple[str, ...], ...]:
    """The cell's operations in as few batches as the search finds, in execution order."""
    if not cell.ops:
        return ()
    schedule = run(typed_dag(cell), Policy("critical"))
    return tuple(tuple(cell.ops[v].name for v in sorted(nodes.tolist())) for _, nodes in schedule.batches())


def layout_batches(cell: CellGraph, batches: Sequence[Sequence[str]]) -> list[LayoutBatch]:
    """What the batches ask of the layout: adjacency, and alignment between the operands of element-wise batches."""
    ops = {op.name: op for op in cell.ops}
    asked = []
    for number, names in enumerate(batches):
        batch = [ops[name] for name in names]
        name = f"{number}:{batch[0].op}"
        if batch[0].op == "affine":
            inputs = tuple(dict.fromkeys(batch[0].inputs))
            asked.append(LayoutBatch(name, (tuple(names),), (inputs,) if len(inputs) > 1 else ()))
        elif batch[0].op in ELEMENTWISE:
            operands = [tuple(names)]
            for position, source in enumerate(batch[0].sources):
                if source.variable is not None:
                    operands.append(tuple(op.sources[position].variable or "" for op in batch))
            asked.append(LayoutBatch(name, tuple(operands)))
    return asked


def plan_cell_layout(cell: CellGraph, batches: Sequence[Sequence[str]]) -> LayoutPlan:
    """The memory order of the cell's variables."""
    return plan_layout(tuple(cell.classes()), layout_batches(cell, batches), sizes=cell.sizes())
