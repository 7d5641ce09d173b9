"""Memory layout of cells: PQ trees, alignment of batches, orders, and what orders cost.

In the order of use: `pqtree` holds the orders in which sets are adjacent; `constraints` makes the operands of a batch
isomorphic in it; `orders` arranges its nodes; `planner` chooses what to drop when not everything fits and returns the
order; `copies` counts what an order makes batches copy. `problem` has the words in which all of them speak.
"""

from edbc.layout.copies import Copy, count_copies
from edbc.layout.planner import plan_layout
from edbc.layout.pqtree import Change, PQTree
from edbc.layout.problem import DroppedOperand, LayoutBatch, LayoutPlan

__all__ = [
    "Change",
    "Copy",
    "DroppedOperand",
    "LayoutBatch",
    "LayoutPlan",
    "PQTree",
    "count_copies",
    "plan_layout",
]
