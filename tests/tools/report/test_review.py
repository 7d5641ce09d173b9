"""Differences as reviewers read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edbc.plan.difference import diff_plans
from edbc.plan.plan import Guard, Plan
from edbc.plan.reader import read_plan
from edbc.tools.report.review import as_json, markdown, verdict


@pytest.fixture
def plan(started: Path) -> Plan:
    """A plan of two cells."""
    return read_plan(started / "plans" / "trees.yaml")


def worse(plan: Plan) -> Plan:
    """The plan with three batches more, another action and another layout."""
    batches = plan.guards["batches"]
    state = next(iter(plan.policy.table))
    name, cell = next(iter(plan.cells.items()))
    return replace(
        plan,
        guards={**plan.guards, "batches": Guard(batches.value + 3)},
        policy=replace(plan.policy, table={key: v for key, v in plan.policy.table.items() if key != state}),
        cells={**plan.cells, name: replace(cell, layout=cell.layout[::-1])},
    )


def test_a_worse_plan_is_called_worse_and_the_other_way_round_better(plan: Plan) -> None:
    """The verdict follows the direction of the guards, and says when nothing differs."""
    assert verdict(diff_plans(plan, plan)) == "no difference"
    assert verdict(diff_plans(plan, worse(plan))) == "worse, metrics: 1 regressed"
    assert verdict(diff_plans(worse(plan), plan)) == "not worse, metrics: 1 improved"


def test_a_comment_shows_metrics_and_folds_the_rest(plan: Plan) -> None:
    """Markdown has the metric in a table, the removed state and the layout in folded `diff` blocks."""
    text = markdown("old.yaml", "new.yaml", diff_plans(plan, worse(plan)))
    value = plan.guards["batches"].value

    assert text.startswith("### `old.yaml` → `new.yaml`: worse")
    assert f"| batches | {value} | {value + 3} | lower | **regressed** |" in text
    assert text.count("<details>") == text.count("</details>") == 2
    assert f"- {next(iter(plan.policy.table))}: " in text
    assert ".layout: " in text


def test_json_is_jsons(plan: Plan) -> None:
    """The JSON form survives a round trip and says what is worse."""
    content = json.loads(json.dumps(as_json("old", "new", diff_plans(plan, worse(plan)))))

    assert content["worse"] is True
    assert [(m["name"], m["verdict"]) for m in content["metrics"]] == [("batches", "regressed")]
    assert content["states"][0]["new"] is None
    assert content["cells"][0]["fields"][0]["name"] == "layout"
