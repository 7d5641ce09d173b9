"""A checker of waves that shares nothing with what makes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph
from edbc.errors import ScheduleError
from edbc.schedule.checker import check_schedule
from edbc.schedule.schedule import Schedule


def check_waves(graph: Graph, schedule: Schedule, step: NDArray[np.integer]) -> None:
    """Verify that a schedule is one, that its batches are in the order of their steps, that no step holds two batches
    of a type or a batch that another of it reads, and that there are no more steps than the bound. O(n + m). Raises
    ScheduleError that names batch and step."""
    check_schedule(graph, schedule)
    if len(step) != schedule.num_batches or (np.diff(step) < 0).any():
        raise ScheduleError("waves: expected a step for every batch, in order")
    of_node = np.empty(graph.num_nodes, np.int64)
    of_node[schedule.nodes] = np.repeat(step, np.diff(schedule.batch_ptr))
    seen: set[tuple[int, int]] = set()
    for batch, key in enumerate(zip(schedule.batch_type.tolist(), step.tolist(), strict=True)):
        if key in seen:
            raise ScheduleError(f"batch {batch}: step {key[1]} has a batch of that type already")
        seen.add(key)
    depth = np.zeros(graph.num_nodes, np.int64)
    for v in range(graph.num_nodes):
        for u in graph.operands[graph.operand_ptr[v] : graph.operand_ptr[v + 1]].tolist():
            if u >= 0:
                depth[v] = max(depth[v], depth[u] + 1)
                if of_node[u] >= of_node[v]:
                    raise ScheduleError(f"node {v} in step {of_node[v]} reads node {u} of step {of_node[u]}")
    most, bound = int(step.max(initial=-1)) + 1, int(depth.max(initial=-1)) + 1
    if most > bound:
        raise ScheduleError(f"waves: expected {bound} steps, the longest path's, got {most}")
