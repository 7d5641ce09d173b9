"""Claims about the checks between fields, made on plans in memory and against an independent oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_examples import LEAF, small_plan
from plan_strategies import cells, plans

from edbc.errors import PlanError
from edbc.plan import BatchCost, Plan, PlanCell, PlanPolicy, verify_cell, verify_plan
from edbc.plan.oplines import OPERATIONS, parse_line
from edbc.plan.verify import MAX_OPERATION_TEXT


@settings(derandomize=True, max_examples=40, deadline=None)
@given(plans())
def test_valid_plans_pass(plan: Plan) -> None:
    """No plan that was made valid is refused, and the plan itself comes back."""
    assert verify_plan(plan) is plan


def is_legal(cell: PlanCell) -> bool:
    """The definition, executed: run the batches and see whether every value is there when it is read."""
    lines = [parse_line(text) for text in cell.operations]
    sources = {line.name for line in lines if OPERATIONS[line.operation].is_source}
    shared = {line.name for line in lines if OPERATIONS[line.operation].is_shared}
    operands = {line.name: line.variables for line in lines}
    kind = {line.name: line.operation for line in lines}
    done = set(sources)
    for batch in cell.batches:
        if not set(batch) <= kind.keys() or len({kind[name] for name in batch}) != 1:
            return False
        if any(name in done or not done.issuperset(operands[name]) for name in batch) or len(set(batch)) < len(batch):
            return False
        done |= set(batch)
    return done == kind.keys() and sorted(cell.layout) == sorted(kind.keys() - shared)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(cells(), st.data())
def test_cells_are_accepted_exactly_when_their_batches_can_run(cell: PlanCell, data: st.DataObject) -> None:
    """On cells with a batch or layout entry moved, dropped, doubled or merged, the checks agree with execution."""
    batches = [list(batch) for batch in cell.batches]
    layout = list(cell.layout)
    edit = data.draw(st.sampled_from(("none", "move", "drop", "double", "merge", "layout")))
    if edit == "layout":
        layout[data.draw(st.integers(0, len(layout) - 1))] = data.draw(st.sampled_from([*layout, "unknown"]))
    elif batches and edit != "none":
        position = data.draw(st.integers(0, len(batches) - 1))
        batch = batches.pop(position)
        to = data.draw(st.integers(0, len(batches)))
        if edit in ("move", "double"):
            batches.insert(to, batch)
        if edit == "double":
            batches.insert(position, batch)
        if edit == "merge" and batches:
            batches[to % len(batches)] += batch
    edited = replace(cell, batches=tuple(map(tuple, batches)), layout=tuple(layout))
    if is_legal(edited):
        verify_cell(edited)
    else:
        with pytest.raises(PlanError):
            verify_cell(edited)


def test_place_is_named_in_memory() -> None:
    """A plan that is in no file is told by path: `plan: cells.leaf.batches.1`."""
    cell = replace(LEAF, batches=(*LEAF.batches[:1], ("h",), *LEAF.batches[1:]))
    plan = replace(small_plan(), cells={**small_plan().cells, "leaf": cell})
    with pytest.raises(PlanError, match=r"^plan: cells\.leaf\.batches\.1: expected 'n' before 'h', got it later"):
        verify_plan(plan)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (PlanPolicy("fsm", "sort", "critical", {}, {}), "at least one state"),
        (PlanPolicy("fsm", None, "critical", {"leaf": "leaf"}, {}), "an encoding"),
        (PlanPolicy("agenda", "sort", "critical", {}, {}), "null"),
        (PlanPolicy("agenda", None, "critical", {"leaf": "leaf"}, {}), "no state"),
        (PlanPolicy("agenda", None, "luck", {}, {}), "fallback"),
        (PlanPolicy("fsm", "luck", "critical", {"leaf": "leaf"}, {}), "encoding"),
        (PlanPolicy("fsm", "sort", "critical", {"leaf": "out"}, {}), "ready"),
        (PlanPolicy("fsm", "sort", "critical", {"leaf<leaf": "leaf"}, {}), "each ready type once"),
        (PlanPolicy("fsm", "sort", "critical", {"leaf<oot": "leaf"}, {}), "unknown type 'oot'"),
        (PlanPolicy("fsm", "sort", "critical", {"leaf": "leaf"}, {}, beside="luck"), "got 'luck'"),
        (PlanPolicy("agenda", None, "critical", {}, {}, beside="critical"), "no rule beside 'agenda'"),
    ],
    ids=["empty", "no encoding", "encoding", "table", "fallback", "unknown encoding", "not ready", "twice", "unknown",
         "rival", "two rules"],
)  # fmt: skip
def test_policies_that_mean_nothing_are_refused(policy: PlanPolicy, words: str) -> None:
    """Kind, encoding, fallback and table must fit each other, and every state must mean something."""
    with pytest.raises(PlanError, match=words):
        verify_plan(replace(small_plan(), policy=policy))


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({"leaf": BatchCost(1, 0)}, "costs: expected an entry for the type 'out', got none"),
        ({"leaf": BatchCost(1, 0), "out": BatchCost(1, 0), "in": BatchCost(1, 0)}, "for a type of the plan, got 'in'"),
        ({"leaf": BatchCost(0, 1), "out": BatchCost(0, 1)}, "a fixed cost above 0 for some type"),
    ],
    ids=["missing", "unknown", "free"],
)
def test_cost_tables_are_whole(costs: dict[str, BatchCost], words: str) -> None:
    """A cost table has every type of the plan and no other, and says that something costs anything."""
    with pytest.raises(PlanError, match=words):
        verify_plan(replace(small_plan(), costs=costs))


@pytest.mark.parametrize("path", ["tree.py", "../../a/b_c/tree.py", "models/été.py", "a b/tree.py", "...py", "~/x.py"])
def test_plain_model_paths_pass(path: str) -> None:
    """Whatever names a Python file from the plan's folder is accepted; `~` is a folder like any other."""
    verify_plan(replace(small_plan(), model=replace(small_plan().model, path=path)))


def test_operation_text_is_bounded() -> None:
    """All operations together are bounded, before any is parsed."""
    cell = replace(LEAF, operations=("?" * 1000,) * (MAX_OPERATION_TEXT // 1000 + 1))
    with pytest.raises(PlanError, match="operations of at most"):
        verify_plan(replace(small_plan(), cells={**small_plan().cells, "leaf": cell}))
