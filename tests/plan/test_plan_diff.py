"""Claims about the difference between plans."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from plan_examples import LEAF, small_plan
from plan_strategies import plans

from edbc.plan import BatchCost, Guard, Plan, PlanPolicy, PlanType, RunAs, plan_text
from edbc.plan.difference import Change, MetricChange, diff_plans


@settings(derandomize=True, max_examples=40, deadline=None)
@given(plans(), plans())
def test_difference_is_empty_exactly_for_equal_plans(old: Plan, new: Plan) -> None:
    """A plan differs from another whenever their texts differ, and never from itself."""
    assert diff_plans(old, old).is_empty
    assert diff_plans(old, old).text() == "no difference\n"
    assert diff_plans(old, new).is_empty == (plan_text(old) == plan_text(new))


def single_changes() -> dict[str, Plan]:
    """The small plan with one field changed, for every field of every part."""
    plan = small_plan()
    changed: dict[str, Plan] = {}
    values: dict[str, Any] = {
        "edbc": "9.9", "requirements": (), "types": (*plan.types, PlanType("new", "s", "x")),
        "costs": {}, "run": RunAs("why"), "guards": {"batches": Guard(1)}, "cells": {"leaf": LEAF, "out": LEAF},
        "format_version": 2,
    }  # fmt: skip
    for name, value in values.items():
        changed[name] = replace(plan, **{name: value})
    for part, other in {
        "model": {"path": "x.py", "sha256": "0" * 64, "config": {"hidden_size": True}, "seed": 1, "weights": None},
        "trained_on": {"source": "sample", "files": (), "instances": 1, "seed": 1, "nodes": 1},
        "policy": {
            "kind": "agenda",
            "encoding": None,
            "fallback": "agenda",
            "beside": None,
            "table": {},
            "training": {},
        },
    }.items():
        assert set(other) == {field.name for field in fields(getattr(plan, part))}
        for name, value in other.items():
            changed[f"{part}.{name}"] = replace(plan, **{part: replace(getattr(plan, part), **{name: value})})
    for name, value in {"operations": (), "batches": (), "layout": (), "weights": (), "copies": 9, "eager": ()}.items():
        changed[f"cells.{name}"] = replace(plan, cells={**plan.cells, "leaf": replace(LEAF, **{name: value})})
    for name, value in {"name": "other", "signature": "s", "source": "x"}.items():
        first = replace(plan.types[0], **{name: value})
        changed[f"types.{name}"] = replace(plan, types=(first, *plan.types[1:]))
    changed["order"] = replace(plan, types=plan.types[::-1])
    return changed


@pytest.mark.parametrize("name", single_changes())
def test_a_change_of_any_field_is_told(name: str) -> None:
    """No field can change without a line that says so, in either direction."""
    old, new = small_plan(), single_changes()[name]
    for diff in (diff_plans(old, new), diff_plans(new, old)):
        assert not diff.is_empty
        assert len(diff.text().splitlines()) >= 2


@pytest.mark.parametrize(
    ("old", "new", "verdict", "is_worse"),
    [
        (Guard(19), Guard(21), "regressed", True),
        (Guard(21), Guard(19), "improved", False),
        (Guard(19, 0, "higher"), Guard(21, 0, "higher"), "improved", False),
        (Guard(21, 0, "higher"), Guard(19, 0, "higher"), "regressed", True),
        (Guard(19), Guard(19, 0.5), "loosened", True),
        (Guard(19, 0.5), Guard(19), "tightened", False),
        (Guard(19), Guard(19, 0, "higher"), "turned", True),
        (Guard(19), None, "removed", True),
        (None, Guard(19), "added", False),
    ],
)
def test_verdict_on_metrics(old: Guard | None, new: Guard | None, verdict: str, is_worse: bool) -> None:
    """Better and worse follow the metric's direction; weakening a guard in any way counts as worse."""
    change = MetricChange("batches", old, new)
    assert (change.verdict, change.is_worse) == (verdict, is_worse)


def test_values_that_python_takes_for_equal_are_told_apart() -> None:
    """A config of 1 that becomes true, or 1.0, is another plan to read, and a change."""
    plans = [
        replace(small_plan(), model=replace(small_plan().model, config={"depth": value})) for value in (1, 1.0, True)
    ]
    assert plans[0] == plans[1] == plans[2]
    for old in plans:
        for new in plans:
            assert diff_plans(old, new).is_empty == (old is new)


def test_states_are_told_by_action() -> None:
    """States that act otherwise come first, then new ones, then those that are gone."""
    old = replace(small_plan(), policy=replace(small_plan().policy, table={"a": "leaf", "b": "leaf", "c": "out"}))
    new = replace(old, policy=replace(old.policy, table={"a": "leaf", "b": "out", "d": "out"}))
    assert diff_plans(old, new).states == (
        Change("b", "leaf", "out"),
        Change("d", None, "out"),
        Change("c", "out", None),
    )


def test_text_for_a_review() -> None:
    """The whole text of a difference, section by section."""
    old = small_plan()
    cell = replace(LEAF, layout=LEAF.layout[::-1], copies=0)
    new = replace(
        old,
        model=replace(old.model, config={**old.model.config, "hidden_size": 128}),
        policy=PlanPolicy("fsm", "sort", "critical", {"out<leaf": "out", "out": "out"}, old.policy.training),
        costs={**old.costs, "out": BatchCost(3, 0.5)},
        cells={**old.cells, "leaf": cell},
        guards={"batches": Guard(21), "lower_bound_ratio": Guard(1.05, 0.01), "copies": Guard(3)},
    )
    assert diff_plans(old, new).text().splitlines() == [
        "metrics: 1 regressed, 1 removed, 1 added",
        "  ~ batches: 19 -> 21 regressed (lower is better)",
        "  - unseen_states: 0 (lower is better) removed",
        "  + copies: 3 (lower is better) added",
        "states: 1 changed, 1 removed",
        "  ~ out<leaf: leaf -> out",
        "  - leaf: leaf",
        "policy: 1 changed",
        "  ~ beside: critical -> none",
        "costs: 1 changed",
        "  ~ out: 3 us a batch, 0 us a row -> 3 us a batch, 0.5 us a row",
        "cells: 1 changed",
        "  ~ leaf: copies 1 -> 0, layout",
        "config: 1 changed",
        "  ~ hidden_size: 64 -> 128",
    ]


def test_text_is_bounded() -> None:
    """Ten thousand new states are one count and ten lines."""
    old = small_plan()
    table = {f"s{i}": "leaf" for i in range(10_000)}
    lines = diff_plans(old, replace(old, policy=replace(old.policy, table=table))).text().splitlines()
    assert lines[0] == "states: 10,000 added, 3 removed"
    assert lines[-1] == "  ... 9,993 more"
    assert len(lines) == 12
