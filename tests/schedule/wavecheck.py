"""A checker of waves that shares nothing with what makes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph
from edbc.errors import ScheduleError
from edbc.schedule.checker import check_schedule
from edbc.schedule.schedule import Schedule


def check_waves(
    graph: Graph, schedule: Schedule, step: NDArray[np.integer], stages: NDArray[np.integer] | None = None
) -> None:
    """Verify that a schedule is one, that its batches are in the order of their first steps, that no step begins two
    batches of a type, that what a batch reads is done before, and that there are no more steps than the bound. A batch
    takes one step, or so many as `stages` says of its type. O(n + m). Raises ScheduleError that names batch and
    step."""
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
    takes = np.ones(graph.num_nodes, np.int64) if stages is None else stages[graph.node_type]
    depth = takes.copy()
    for v in range(graph.num_nodes):
        for u in graph.operands[graph.operand_ptr[v] : graph.operand_ptr[v + 1]].tolist():
            if u >= 0:
                depth[v] = max(depth[v], depth[u] + takes[v])
                if of_node[u] + takes[u] > of_node[v]:
                    raise ScheduleError(f"node {v} in step {of_node[v]} reads node {u} of step {of_node[u]}")
    most, bound = int((of_node + takes).max(initial=0)), int(depth.max(initial=0))
    if most > bound:
        raise ScheduleError(f"waves: expected {bound} steps, the longest path's, got {most}")
