"""The order of nodes inside batches, chosen so that operands are contiguous runs of rows.

ED-Batch lays out memory inside cells only; between cells it gathers, because its PQ tree is too slow for the graph of a
mini-batch (ED-Batch, Chen et al., ICML 2023, section 3.2, last paragraphs). Here every output of a batch is a
contiguous slice of an arena, in the order of the batch's nodes, and that order is free: any permutation is a valid
schedule. Two linear passes choose it.

(1) Backward, last batch first. A node's *reader* is the first of its readers that has readers itself (a state read by
    the next cell and by an output projection belongs to the next cell), or else its first reader. Nodes are ordered by
    their reader's batch, then by operand position, then by the reader's place in its batch, which is already final. So
    the operand that a batch reads is in order wherever one batch made it.
(2) Forward. Nodes without readers are ordered by the rows of their first operand that is a node.

Plans guard how many rows are no run in this order (`gathered_rows`). No back end asks for it: products read rows by
address, and where batches run call by call it takes longer than it spares; nodes run in the order in which they became
ready.

Nothing is compared: each pass deals nodes out to their batches in the order in which those fill. O(nodes + operands) in
all, deterministic.
"""

from __future__ import annotations

from dataclasses import replace

from edbc.base.graph import Graph
from edbc.schedule.schedule import Schedule


def order_nodes(graph: Graph, schedule: Schedule) -> Schedule:
    """The same schedule with the nodes inside each batch reordered."""
    from edbc.schedule.orderloops import ordered

    nodes = ordered(graph.operand_ptr, graph.operands, schedule.batch_ptr, schedule.nodes)
    return replace(schedule, nodes=nodes)
