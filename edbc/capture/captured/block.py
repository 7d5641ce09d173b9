"""From the parts of a joined mini-batch (`captured.joinloops`, definition (7)) to its Capture: views, no copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from edbc.base.graph import Graph
from edbc.capture.captured.joinloops import Parts
from edbc.capture.forward.build import Capture
from edbc.capture.record.table import TypeTable
from edbc.capture.standins.standin import Slot


def capture_of(table: TypeTable, parts: Parts, slots: list[Slot], nests: list[Any], constants: dict[int, Any],
               stacks: list[tuple[int, int]], result_ptr: list[int]) -> Capture:  # fmt: skip
    """The Capture of what has been joined. `slots` are those of results, one by one."""
    detached = parts.detached.view(np.bool_) if len(parts.detached) else None
    graph = Graph(table.graph_types(), parts.node_type, parts.operand_ptr, parts.operands, parts.operand_output,
                  parts.external_class, table.classes())  # fmt: skip
    return Capture(
        graph, table.sources, parts.external_source, parts.external_index, constants, parts.result_node,
        parts.result_output, slots, nests, detached=detached, result_ptr=result_ptr, stacks=stacks,
    )  # fmt: skip
