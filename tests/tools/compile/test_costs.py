"""What batches cost: schedules that are cut to measure it, and tables made of what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from bound import RandomTreeModel, net_for, random_trees
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, random_lattice_graph

from edbc.base.graph import Graph
from edbc.errors import ModelError
from edbc.plan.plan import BatchCost
from edbc.schedule.checker import check_schedule
from edbc.schedule.policy import LEAST_COST, Policy, relative_costs
from edbc.schedule.scheduler import run
from edbc.tools.compile import costs
from edbc.tools.compile.costs import cut_batches, measure_costs, require_costs


@settings(max_examples=40, deadline=None, derandomize=True)
@given(graph=graphs(), kind=st.integers(0, 4))
def test_cut_schedules_are_legal_and_run_the_same_rows(graph: Graph, kind: int) -> None:
    """Cutting touches one type only, leaves every node where it was in the order, and gives equal parts."""
    schedule = run(graph, Policy("critical"))
    kind = int(schedule.batch_type[kind % schedule.num_batches])
    cut = cut_batches(schedule, kind)
    others, others_cut = (s.batch_type[s.batch_type != kind].tolist() for s in (schedule, cut))

    check_schedule(graph, cut)
    assert cut.nodes.tolist() == schedule.nodes.tolist()
    assert others_cut == others
    sizes = np.diff(schedule.batch_ptr)[schedule.batch_type == kind]
    assert (cut.num_batches > schedule.num_batches) == (sizes.max() > 1)


def test_as_many_cuts_as_are_wanted_and_no_finer() -> None:
    """Parts are made just small enough for CUTS more batches, and differ by one node at most."""
    graph = random_lattice_graph(0, 40, 30)
    schedule = run(graph, Policy("critical"))
    for kind in range(graph.num_types):
        cut = cut_batches(schedule, kind)
        sizes = np.diff(cut.batch_ptr)[cut.batch_type == kind]
        per_batch = np.bincount(np.searchsorted(schedule.batch_ptr, cut.batch_ptr[:-1], side="right") - 1)
        most = int(per_batch[schedule.batch_type == kind].max())

        assert cut.num_batches - schedule.num_batches >= costs.CUTS
        assert (
            np.minimum(np.diff(schedule.batch_ptr), most - 1)[schedule.batch_type == kind].sum()
            - (schedule.batch_type == kind).sum()
            < costs.CUTS
        )
        assert sizes.min() >= 1


def test_a_table_has_every_type_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured through the native back end and through the reference: figures not below zero, some above, and the
    net gives the same results afterwards."""
    monkeypatch.setattr(costs, "ROUNDS", 3)
    model, trees = RandomTreeModel(1, 8), random_trees(3, 12)
    for backend in (None, "reference"):
        net = net_for(model, trees, backend)
        before = [result["root"] for result in net(trees)]
        table = measure_costs(net, trees)

        assert list(table) == [t.name for t in net.plan.types]
        assert all(cost.fixed_us >= 0 and cost.row_us >= 0 for cost in table.values())
        assert any(cost.fixed_us > 0 for cost in table.values())
        assert all((a == b["root"]).all() for a, b in zip(before, net(trees), strict=True))


def test_types_that_the_mini_batch_lacks_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of the plan without a node costs as much as the dearest that was measured."""
    monkeypatch.setattr(costs, "ROUNDS", 2)
    model = RandomTreeModel(1, 8)
    table = measure_costs(net_for(model, random_trees(3, 12)), [1, 2, 3])
    dearest = max(cost.fixed_us for cost in table.values())

    assert "inner" in " ".join(table)
    assert all(cost.fixed_us == dearest for name, cost in table.items() if "inner" in name or "sum" in name)


def test_relative_costs_need_no_unit() -> None:
    """The dearest type costs 1, none less than LEAST_COST; tables in other units are the same table."""
    assert relative_costs([10.0, 5.0, 0.0]) == (1.0, 0.5, LEAST_COST)
    assert relative_costs([10_000.0, 5_000.0, 0.0]) == relative_costs([10.0, 5.0, 0.0])
    assert relative_costs([]) == ()


def test_tables_are_of_the_models_types() -> None:
    """A table lists its types in the model's order and no other; a type without a cost is an error that says what to
    do, and no table stays none."""
    table = {"b": BatchCost(1.0, 0.1), "a": BatchCost(2.0, 0.2), "gone": BatchCost(3.0, 0.3)}

    assert list(require_costs(table, ["a", "b"], "x.py")) == ["a", "b"]
    assert require_costs({}, ["a"], "x.py") == {}
    with pytest.raises(ModelError, match=r"x\.py: expected a cost for every type .* got none for c, d; measure again"):
        require_costs(table, ["c", "a", "d"], "x.py")
