"""Chunks: how much of what eager parts hand over to cores is in memory at once.

A hand-over (`edbc.cells.parts`, definition (4)) is larger than what its cell returns: the halves of an LSTM's four
gates, beside the two vectors of its state. For all nodes at once it would be most of a mini-batch's memory.

(1) A hand-over is read once, by the node's own core. So the eager part of a type runs in *chunks*: the nodes of
    consecutive batches of the type, as many as there is room for, right before the first of these batches; and every
    chunk overwrites the one before it (the part's type is transient, see `edbc.base.graph.NodeType`).
(2) The *room* of a type is a number of rows. All hand-overs of a mini-batch together take at most SHARE of the bytes of
    all its nodes' outputs. A type has room for its largest batch, and for a part of its other rows that is the same for
    every type.
(3) Where the largest batches alone take more, the type whose batch takes most runs whole.
(4) Where eager operations compute outputs of the cell itself, they are needed to the end: the type then has room for
    all its nodes or runs whole.

Chunks cost the time that eager parts gain: each of them reads the weights again. That is weighed by `SplitCell.pays`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SHARE = 0.15
"""Of the bytes of all outputs. The runtime's target for values and workspace is 1.2 times the outputs and the workspace
of one batch; what this leaves of the 0.2 is for the alignment of arenas and for chunks wider than the widest batch."""


class Need(NamedTuple):
    """What a type would hand over."""

    kind: int
    nodes: int
    row_bytes: int
    """Of one node."""
    least: int
    """Rows without which the type cannot run in parts: those of its largest batch, or all, definition (4)."""


def find_room(needs: Sequence[Need], output_bytes: int) -> dict[int, int]:
    """Rows of the types that have room, definitions (2) to (4). O(types^2).

    >>> find_room([Need(0, 100, 8, 10), Need(1, 100, 8, 60)], 4000)
    {0: 13, 1: 61}
    >>> find_room([Need(0, 100, 8, 10), Need(1, 100, 8, 70)], 4000)
    {0: 75}
    """
    left, most = list(needs), int(SHARE * output_bytes)
    free = most - sum([need.least * need.row_bytes for need in left])
    while free < 0:
        widest = max(left, key=lambda need: need.least * need.row_bytes)
        left.remove(widest)
        free += widest.least * widest.row_bytes
    rest = sum([(need.nodes - need.least) * need.row_bytes for need in left])
    part = min(1.0, free / rest) if rest else 1.0
    return {need.kind: need.least + int(part * (need.nodes - need.least)) for need in left}
