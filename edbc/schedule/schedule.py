"""The schedule of one dataflow graph: its batches in order, as arrays.

A *batch* is a set of nodes of one type that run together; a *batching sequence* is the list of the batches' types
(ED-Batch, Chen et al., ICML 2023, Algorithm 1 and Appendix A.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.frozen import frozen
from edbc.base.graph import Graph, Ints


class ScheduleArrays(NamedTuple):
    """A Schedule's batches, as native loops take them."""

    batch_type: Any
    batch_ptr: Any
    nodes: Any


@frozen
class Schedule:
    """b batches over the n nodes of `graph`. `check_schedule` verifies it; the constructor does not."""

    graph: Graph
    batch_type: Ints  # (b,)
    batch_ptr: Ints  # (b + 1,) batch i holds nodes[batch_ptr[i]:batch_ptr[i + 1]]
    nodes: Ints  # (n,)
    table_steps: int = 0
    """Batches that the policy's table chose."""
    unseen_states: int = 0
    """Batches that its fallback chose, the table having no such state."""
    by_rule: bool = False
    """True when the policy's table runs beside a rule, and the rule's schedule, this one, is the cheaper."""
    staged: bool = False
    """Whether neighbouring batches that do not read each other are to run at once (`edbc.schedule.waves.stages`)."""
    step: NDArray[np.int64] | None = None  # (b,)
    """Where it was made for a device: the first of the steps that each batch takes there."""

    @property
    def arrays(self) -> ScheduleArrays:
        """For native loops."""
        return ScheduleArrays(self.batch_type, self.batch_ptr, self.nodes)

    @property
    def num_batches(self) -> int:
        """Number of batches b."""
        return len(self.batch_type)

    def batches(self) -> Iterator[tuple[int, Ints]]:
        """The batches in order, as `(type, nodes)`."""
        for i in range(self.num_batches):
            yield int(self.batch_type[i]), self.nodes[self.batch_ptr[i] : self.batch_ptr[i + 1]]
