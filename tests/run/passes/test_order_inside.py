"""When the runtime puts the nodes inside batches in order: a choice between the host's time and gathers."""

from __future__ import annotations

import pytest
from bound import RandomTreeModel, net_for, random_trees

from edbc.base.graph import NodeType, ValueClass
from edbc.run.session import Net
from edbc.schedule.order import order_nodes
from edbc.schedule.scheduler import run

SIZE = 6
ROW = 8 * SIZE
"""Bytes of the widest value of the model below: its states are of SIZE numbers in float64."""


def bound(backend: str, ordered_from: int) -> Net:
    """A model of trees on a back end that wants an order from so many bytes on."""
    net = net_for(RandomTreeModel(3, SIZE), random_trees(5, 8), backend)
    net.backend.ordered_from = ordered_from
    return net


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("ordered_from", "is_ordered"), [(0, True), (ROW, True), (ROW + 1, False)])
@pytest.mark.long
def test_nodes_are_in_order_where_values_are_wide(backend: str, ordered_from: int, is_ordered: bool) -> None:
    """The same batches either way, in order as `order_nodes` leaves them."""
    net, trees = bound(backend, ordered_from), random_trees(6, 12)
    captured = net.shared(net.mini_batch(trees))
    plain = run(captured.graph, net.policy)
    expected = order_nodes(captured.graph, plain) if is_ordered else plain
    schedule = net.schedule(captured)

    assert schedule.batch_type.tolist() == plain.batch_type.tolist()
    assert schedule.nodes.tolist() == expected.nodes.tolist()
    assert order_nodes(captured.graph, plain).nodes.tolist() != plain.nodes.tolist()


def test_what_parts_of_cells_hand_over_does_not_count_as_wide() -> None:
    """It is several values in one, and read where it is."""
    net = bound("cpu", ROW + 1)
    net.mini_batch(random_trees(6, 12))
    wide = NodeType("part", "eager part", outputs=(ValueClass((9 * SIZE,), "f64"),))
    kind = net.table.add_type(wide, "model.py:1")

    assert net._orders(net.table.graph_types())
    net._ordered = ((), False)
    net._splitter.programs[kind] = net.program(0)
    assert not net._orders(net.table.graph_types())
