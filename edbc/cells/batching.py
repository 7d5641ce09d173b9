"""A cell's own batching: which of its operations run together (compile time).

Operations of one key (`cells.lower.batch_key`) can be one batch. The cell's graph is a typed DAG like any other, so the
compiler's own search finds the fewest batches: exactly, for graphs as small as cells are, where ED-Batch (ICML 2023,
section 4) searches a grid of policies. Fewest batches need not be fewest kernels, since batches may not fit one memory
order; so the exact schedule competes with a heuristic one, and what lowers to fewer steps and fewer copied elements
wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from edbc.base.graph import Graph
from edbc.base.operations import ELEMENTWISE
from edbc.cells.lower import batch_key, lower
from edbc.cells.opgraph import CellGraph
from edbc.errors import ScheduleError
from edbc.layout import LayoutBatch, LayoutPlan, plan_layout
from edbc.schedule.learn.search import beam, exact
from edbc.schedule.policy import Policy
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import run

Batches = tuple[tuple[str, ...], ...]


def typed_dag(cell: CellGraph) -> Graph:
    """The cell's operations as a dataflow graph; a type is a batch key."""
    keys = list(dict.fromkeys(batch_key(op) for op in cell.ops))
    number = {op.name: i for i, op in enumerate(cell.ops)}
    nodes = [(keys.index(batch_key(op)), [number[name] for name in op.inputs if name in number]) for op in cell.ops]
    return Graph.build([f"k{i}" for i in range(len(keys))], nodes)


def batch_operations(cell: CellGraph) -> Batches:
    """The cell's operations in as few steps as the candidates give, in execution order."""
    if not cell.ops:
        return ()
    graph = typed_dag(cell)
    schedules = [_exact(graph), run(graph, Policy("critical"))]
    candidates = [
        tuple(tuple(cell.ops[v].name for v in sorted(nodes.tolist())) for _, nodes in schedule.batches())
        for schedule in schedules
    ]
    if not cell.is_uniform() or candidates[0] == candidates[1]:
        return candidates[0]
    return min(candidates, key=lambda batches: _cost(cell, batches))


def _exact(graph: Graph) -> Schedule:
    """A shortest schedule; of a beam search for cells that are too large for an exact one."""
    try:
        return exact(graph, budget=20_000)
    except ScheduleError:
        return beam(graph)


def _cost(cell: CellGraph, batches: Batches) -> tuple[int, int]:
    program = lower(cell, batches, plan_cell_layout(cell, batches).order)
    return program.num_kernels, program.copied_elements


def layout_batches(cell: CellGraph, batches: Sequence[Sequence[str]]) -> list[LayoutBatch]:
    """What the batches ask of the layout: adjacency, and alignment between the operands of element-wise batches."""
    ops = {op.name: op for op in cell.ops}
    asked = []
    for number, names in enumerate(batches):
        batch = [ops[name] for name in names]
        name = f"{number}:{batch[0].op}"
        if batch[0].op == "affine":
            inputs = tuple(dict.fromkeys(batch[0].factors))
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
    return _planned(tuple(cell.sizes().items()), tuple(layout_batches(cell, batches)))


@lru_cache(maxsize=256)  # cells of one content are planned again in every compilation
def _planned(sizes: tuple[tuple[str, int], ...], batches: tuple[LayoutBatch, ...]) -> LayoutPlan:
    return plan_layout([name for name, _ in sizes], batches, dict(sizes))
