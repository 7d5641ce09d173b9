"""Cutting a schedule into segments, of which one at a time has all of its values in memory.

Definitions.

(1) A *cut* divides the batches of a schedule into segments of consecutive batches, `borders[s]` to `borders[s + 1]`.
(2) A value *crosses* when a batch of a later segment reads it, or when it is a result. A batch writes each of its
    outputs to one slice of rows, so when a value crosses, that output of its whole batch does.
(3) What crosses has rows of its own. All other rows belong to one segment after the other (`Placement`, definition
    (4)). So a segment's values can be computed again at any time, from externals and from what crosses.

Training with `recompute` keeps what crosses, and computes the rest of each segment again just before its batches are
differentiated (Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016: with about as many
segments as a segment has batches, a chain of n batches needs memory for about 2 sqrt(n) of them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph
from edbc.errors import EdbcError
from edbc.run.passes.placement import Longs, row_bytes
from edbc.schedule.schedule import Schedule

AUTO = "auto"
Recompute = int | str | None
"""How many segments; `AUTO`: the square root of the number of batches, or one where that takes no less memory; None:
one, so that nothing is computed again."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Definitions (1) and (2)."""

    borders: Longs  # (segments + 1,)
    crosses: NDArray[np.bool_]  # (batches, outputs)


def require_recompute(recompute: object) -> Recompute:
    """`recompute` itself. Raises EdbcError when it is no number of segments, "auto" or None."""
    is_number = isinstance(recompute, int) and not isinstance(recompute, bool) and recompute >= 1
    if recompute is None or recompute == AUTO or is_number:
        return recompute  # type: ignore[return-value]
    raise EdbcError(f"recompute: expected a number of segments from 1 on, or {AUTO!r}, got {recompute!r}; see bind")


def cut_of(graph: Graph, schedule: Schedule, result_nodes: Longs, result_outputs: Longs,
           recompute: Recompute) -> Cut | None:  # fmt: skip
    """The cut into at most so many segments, None where that is one. O(nodes + operands), O(1) for one segment."""
    from edbc.run.passes import placeloops

    wanted = math.isqrt(schedule.num_batches) if recompute == AUTO else int(recompute or 1)
    if wanted == 1 or len(borders := _borders(graph, schedule, wanted)) <= 2:
        return None
    width = max(len(node_type.outputs) for node_type in graph.types)
    crosses = placeloops.crossing_outputs(
        schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands,
        graph.operand_output, np.array([t.segmented for t in graph.types], np.bool_), result_nodes, result_outputs,
        borders, width,
    )  # fmt: skip
    return Cut(borders, crosses)


def _borders(graph: Graph, schedule: Schedule, wanted: int) -> Longs:
    """Borders that give segments about equal numbers of bytes; a batch with more than that is one alone."""
    node_bytes = np.array([int(row_bytes(t.outputs).sum()) for t in graph.types], np.int64)
    is_segmented = np.array([t.segmented for t in graph.types], np.bool_)[graph.node_type]
    rows = np.where(is_segmented, graph.num_outputs(), 1)[schedule.nodes]
    of_batch = np.add.reduceat(rows, schedule.batch_ptr[:-1]) if len(rows) else rows
    ends = np.cumsum(node_bytes[schedule.batch_type] * of_batch)
    total = int(ends[-1]) if len(ends) else 0
    inner = 1 + np.searchsorted(ends, total * np.arange(1, wanted) // wanted)
    return np.unique(np.concatenate([[0], inner, [schedule.num_batches]])).astype(np.int64)
