"""Equal nodes of a mini-batch run once.

Words repeat, and with them the leaves of trees, the first letters of words, whole phrases: nodes that compute the same
numbers. Capture keeps them apart, as eager does; what executes is a graph in which each is one node that all readers of
its equals read. (Value numbering: Cocke and Schwartz, "Programming Languages and Their Compilers", 1970; for graphs,
hash consing: Ershov, "On programming of arithmetic operations", CACM 1958.)

Definitions.

(1) Two externals are equal when they are the same row of the same source, or constants of one source that hold the same
    bytes on the host and want no gradient: whoever made them, forward for all instances, or an instance that was
    captured alone. What two draws hold is never the same.
(2) Two nodes are equal when they have one type, are both recorded with gradients or both without, and read the same
    outputs of equal nodes, or equal externals, in the same order. The first of them runs for all (the *leader*).
(3) Making a smaller graph pays from some nodes on: FEWEST, and WORTHWHILE of all. Looking for them pays where so many
    are among the *first* nodes, those that read no other node, or where MOST of these have an equal, as in copies of an
    instance. A node that reads a first node which equals no other, or a node that reads one, is taken to
    equal none itself: it is of one instance, and that is as its author wrote it.

Of graphs of steps (`capture.ragged.together`) equal nodes are one as soon as they are recorded, those that follow from
look-ups alone.

Depths and paths stay as they were, so the lower bound is that of the graph as captured. Schedule, order and placement
see the smaller graph. In training a leader's gradient is the sum over the readers of all its equals, like that of any
node with several readers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from edbc.base.graph import Graph, GraphArrays, ints
from edbc.capture.forward.build import Capture
from edbc.capture.forward.structures import Structure
from edbc.run.passes import shareloops
from edbc.run.passes.placement import Longs

FEWEST = 16
WORTHWHILE = 1 / 32
MOST = 7 / 8
SURE, SELDOM = 8, 16
_NONE = np.zeros(0, np.bool_)


def may_share(structure: Structure) -> bool:
    """Whether equal nodes are looked for in segments of a structure (`capture.forward.cutting`)."""
    return not structure.reads_carried and structure.graph.num_nodes >= FEWEST


class Luck:
    """Whether to look for equal nodes of a mini-batch without gradients: of one in `SELDOM` where the last `SURE` and
    more had none and ran natively throughout, as there no bit tells. Threads may share it."""

    def __init__(self) -> None:
        self._unlucky = 0

    def looks(self) -> bool:
        """Whether to look now."""
        return self._unlucky < SURE or not self._unlucky % SELDOM

    def tell(self, is_shared: bool, is_native: bool) -> None:
        """What a mini-batch was."""
        self._unlucky = 0 if is_shared or not is_native else self._unlucky + 1


def share(capture: Capture) -> Capture:
    """The mini-batch with its equal nodes as one; the very same where that pays for nothing, or has been looked for.
    O(nodes + operands)."""
    graph = capture.graph
    if capture.has_shared or graph.num_nodes < FEWEST:
        return capture
    constants = _tables_of(capture)
    detached = _NONE if capture.detached is None else capture.detached
    at_least = max(FEWEST, int(WORTHWHILE * graph.num_nodes))
    *nodes, external_index, result_node, led_detached, shared = (
        shareloops.share_nodes(
            graph.node_type, graph.operand_ptr, graph.operands, graph.operand_output, capture.external_source,
            capture.external_index, _told_of(constants), detached, capture.result_node, at_least, MOST,
        )
    )  # fmt: skip
    if constants:
        capture = capture.changed(constants={**capture.constants, **constants}, external_index=external_index)
    if shared < at_least:
        return capture
    smaller = Graph(graph.types, *GraphArrays(*map(ints, nodes)), graph.external_class, graph.classes)
    return capture.changed(
        graph=smaller,
        result_node=result_node,
        detached=None if capture.detached is None else led_detached,
        num_shared=capture.num_shared + shared,
        has_shared=True,
        is_known=False,
        of_steps=None,
    )


def _tables_of(capture: Capture) -> dict[int, torch.Tensor]:
    """Of sources whose constants may be equal a table of them."""
    return {
        source: table
        for source, pool in capture.constants.items()
        if capture.sources[source].kind == "constant" and (table := _table_of(pool)) is not None
    }


def _told_of(tables: dict[int, torch.Tensor]) -> Longs:
    """Source, address, rows and bytes of a row of each table, (tables, 4)."""
    told = []
    for source, table in tables.items():
        count = table.shape[0]  # `len` asks whether others answer for the tensor
        told.append((source, table.data_ptr(), count, table.numel() // count * table.itemsize))
    return np.array(told, np.int64).reshape(len(told), 4)


def _table_of(pool: Any) -> torch.Tensor | None:
    """The constants of one source as a table; None where some want a gradient or are on a device, or there are none to
    compare."""
    if isinstance(pool, torch.Tensor):
        if pool.shape[0] < 2 or not pool.is_cpu or pool.requires_grad:
            return None
        table = pool.contiguous()
    elif len(pool) < 2 or not all(t.is_cpu and not t.requires_grad for t in pool):
        return None
    else:
        table = torch.stack(list(pool))
    return table if table.numel() else None
