"""A cell's own batching: legal, and never more steps than one operation at a time or the heuristic alone."""

from __future__ import annotations

import pytest
from random_cells import RandomCell, traced

from edbc.cells.batching import batch_operations, plan_cell_layout, typed_dag
from edbc.cells.lower import check_batches, lower
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import lower_bound, run


@pytest.mark.parametrize("seed", range(40))
def test_batches_are_legal_and_beat_the_heuristic(seed: int) -> None:
    """Batches cover the cell in order and lower to no more steps than the heuristic's batches do."""
    graph, _ = traced(RandomCell(seed, arity=3, length=14))
    batches = batch_operations(graph)
    check_batches(graph, batches)
    heuristic = [
        [graph.ops[v].name for v in nodes.tolist()]
        for _, nodes in run(typed_dag(graph), Policy("critical")).batches()
    ]  # fmt: skip

    def steps(candidate) -> int:
        return lower(graph, candidate, plan_cell_layout(graph, candidate).order).num_kernels

    assert len(batches) >= lower_bound(typed_dag(graph))
    assert steps(batches) <= steps(heuristic)
    assert steps(batches) <= steps([[op.name] for op in graph.ops])
