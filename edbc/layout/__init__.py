"""Memory layout of cells: PQ trees, alignment of batches, orders, offsets, and the verifier of all of them.

In the order of use: `pqtree` holds the orders in which sets are adjacent; `constraints` makes the operands of a batch
isomorphic in it; `orders` arranges its nodes; `planner` chooses what to drop when not everything fits and returns the
order; `groups` says what offsets must keep together; `verify` checks orders and offsets and counts copies.
`problem` has the words in which all of them speak.
"""

from edbc.layout.planner import plan_layout
from edbc.layout.pqtree import Change, PQTree
from edbc.layout.problem import DroppedOperand, LayoutBatch, LayoutPlan
from edbc.layout.verify import Copies, Copy, count_copies, verify_layout, verify_offsets

__all__ = [
    "Change",
    "Copies",
    "Copy",
    "DroppedOperand",
    "LayoutBatch",
    "LayoutPlan",
    "PQTree",
    "count_copies",
    "plan_layout",
    "verify_layout",
    "verify_offsets",
]
