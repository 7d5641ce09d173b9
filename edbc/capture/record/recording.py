"""What recording leaves: the instances of one mini-batch as flat sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.base.frozen import Changing, frozen
from edbc.capture.record.table import TypeTable

if TYPE_CHECKING:
    from edbc.capture.forward.returned import Collected
    from edbc.capture.ragged.program import Program


@frozen
class Recording(Changing):
    """See the module's docstring; `forward.build` makes a Graph of it."""

    table: TypeTable
    entries: Sequence[int] | np.ndarray
    """Entry of each node."""
    refs: Sequence[int] | np.ndarray
    """Operands of all nodes, node after node: `ref` of values (see `standins.standin`)."""
    external_source: Sequence[int] | np.ndarray
    external_index: Sequence[int] | np.ndarray
    constants: dict[int, list[torch.Tensor]]
    """Constants by source."""
    results: list[Any]
    """What each instance's forward returned, with Values in it."""
    names: dict[int, str]
    """Local variable that each node's first output was assigned to, where recorded (inside cells only)."""
    first_value: int
    """Refs of this mini-batch start here, and those of its externals at `-1 - first_external`."""
    first_external: int
    instance_ends: list[int]
    """Number of nodes when each instance had run."""
    detached: Sequence[int] | np.ndarray = ()
    """Nodes recorded where gradients were switched off (`semantics.gradmode`)."""
    aborted: tuple[int, int] = (0, 0)
    """Range of nodes that a first attempt at an instance recorded; those that nothing reads are no nodes."""
    formed: np.ndarray | None = None
    """Whether each node is one whose sums and patterns are steps of a run; None where none is."""
    programs: Sequence[Program] = ()
    """Of a mini-batch of runs of many calls each, theirs in order."""
    step_ptr: np.ndarray | None = None
    """Where the nodes of each step of these begin, once they are nodes."""
    shares: bool = False
    """Whether equal nodes have been looked for."""
    num_shared: int = 0
    """Nodes that these lack because they equal one that they have."""
    collected: Collected | None = None
    """The values that instances return, where that is known without `results`."""

    def local(self, ref: int) -> int:
        """A ref counted from the start of this mini-batch."""
        return ref - self.first_value if ref >= 0 else ref + self.first_external
