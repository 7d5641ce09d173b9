"""Explanations: figures that agree with each other, with and without the model."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import edbc as edbc_package
from edbc.plan.plan import Plan, PlanType
from edbc.plan.reader import read_plan
from edbc.tools.explain.explanation import Explanation, TypeFacts, explain_file, explain_plan


@pytest.fixture(scope="module")
def explanation(started: Path) -> Explanation:
    """The plan of `edbc new`, observed."""
    return explain_file(started / "plans" / "trees.yaml")


def test_counts_add_up(explanation: Explanation) -> None:
    """Nodes and batches of the types are those of the schedule, and of the plan's own record."""
    observed = explanation.observed
    assert observed is not None
    training = explanation.plan.policy.training

    assert sum(t.nodes or 0 for t in explanation.types) == observed.num_nodes == explanation.plan.trained_on.nodes
    assert sum(t.batches or 0 for t in explanation.types) == len(observed.steps) == training["batches"]
    assert sum(t.least or 0 for t in explanation.types) == observed.lower_bound == training["lower_bound"]


def test_no_type_runs_in_fewer_batches_than_its_longest_chain(explanation: Explanation) -> None:
    """The least number of batches of a type is a bound on what it got, and on every other policy."""
    observed = explanation.observed
    assert observed is not None
    names = [t.name for t in observed.types]

    for schedule in observed.schedules.values():
        batches = Counter(names[kind] for kind, _ in schedule)
        assert all((t.least or 0) <= batches[t.name] for t in explanation.types)
    assert all((t.least or 0) <= (t.batches or 0) for t in explanation.types)


def test_bytes_are_counted_from_shapes(explanation: Explanation) -> None:
    """`combine` reads two and writes one vector of 8 floats per node; the look-ups and states that it gathers are
    at most what it reads."""
    combine = next(t for t in explanation.types if t.name == "combine")

    assert combine.moved_bytes == (combine.nodes or 0) * 3 * 8 * 4
    assert 0 <= (combine.gathered_bytes or 0) <= (combine.nodes or 0) * 2 * 8 * 4


def test_visits_and_moves_follow_the_schedule(explanation: Explanation) -> None:
    """Every batch is a visit of a state, and there is one move less than there are batches."""
    observed = explanation.observed
    assert observed is not None

    assert sum(state.visits or 0 for state in explanation.states) == observed.table_steps
    assert sum(observed.transitions.values()) == len(observed.steps) - 1
    for step in observed.steps:
        action = explanation.plan.policy.table[step.state]
        assert action == observed.types[step.kind].name


def test_json_is_jsons_and_holds_the_schedule(explanation: Explanation) -> None:
    """The JSON form survives a round trip and has a version, types, states, layouts and every batch."""
    content = json.loads(json.dumps(explanation.as_json()))

    assert content["schema"] == 1
    assert len(content["observed"]["schedule"]) == content["observed"]["batches"]
    assert {layout["cell"] for layout in content["layouts"]} == {t["name"] for t in content["types"]}
    assert content["comparison"]["this plan"] == content["observed"]["batches"]


@pytest.mark.parametrize("width", [40, 60, 80, 132])
def test_text_fits_the_terminal(explanation: Explanation, width: int) -> None:
    """No line is longer than the terminal, down to 40 columns; remarks go under strips that leave them no room."""
    lines = explanation.text(width).splitlines()

    assert max(map(len, lines)) <= width


def test_a_model_that_changed_is_not_run(workspace: Path) -> None:
    """With an edited model file the plan is still explained; the file is not imported, and a note says why."""
    (workspace / "trees.py").write_text("raise SystemExit('executed')\n")
    explanation = explain_file(workspace / "plans" / "trees.yaml")

    assert explanation.observed is None
    assert "expected the model file that the plan was compiled from" in explanation.notes[0]
    assert "combine" in explanation.text()


def test_a_model_that_is_missing_leaves_what_the_plan_holds(workspace: Path) -> None:
    """Without the model file there are types, table and layouts, in every form, and no counts."""
    (workspace / "trees.py").unlink()
    explanation = explain_file(workspace / "plans" / "trees.yaml")

    assert explanation.types[0].nodes is None
    assert explanation.comparison["this plan"] == explanation.plan.policy.training["batches"]
    assert "STATE MACHINE" in explanation.text()
    assert "Memory of each cell" in explanation.html()
    assert explanation.as_json()["observed"] is None


@pytest.mark.parametrize(("lowering", "said"), [("native", "natively too"), ("torch", "by torch"), (None, "by torch")])
def test_generic_operations_are_said_to_run_as_they_do(lowering: str | None, said: str) -> None:
    """A generic operation that the back end compiles is not said to run by torch; each function is named once."""
    facts = TypeFacts("t", "cell t() -> f32[8]", "", ("matmul", "matmul"), lowering)

    assert said in facts.generic_text
    assert facts.generic_text.count("matmul") == 1


def test_cells_that_look_alike_are_shown_once(explanation: Explanation) -> None:
    """A second cell of equal operations and order joins the first one's picture."""
    first = explanation.layouts[0]
    twins = replace(explanation, layouts=(*explanation.layouts, replace(first, name="twin")))

    assert [names for names, _ in twins.distinct_layouts] == [f"{first.name}, twin", explanation.layouts[1].name]


def test_from_python_and_in_notebooks(started: Path) -> None:
    """`edbc.load(...).explain()` prints text and shows a fragment of HTML in a notebook."""
    explanation = edbc_package.load(started / "plans" / "trees.yaml").explain(run=False)

    assert str(explanation).startswith("trees.yaml: ")
    assert explanation._repr_html_().startswith("<style>")


class Page(HTMLParser):
    """Tags and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.depth = Counter[str]()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.depth[tag] += 1
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]

    def handle_endtag(self, tag: str) -> None:
        self.depth[tag] -= 1


def test_the_page_needs_nothing_from_outside(explanation: Explanation) -> None:
    """No script, no address, no import and no font: the page works without a network. Its tags are balanced."""
    text = explanation.html()
    page = Page(text)

    assert page.addresses == []
    assert not {"script", "link", "img", "iframe", "object"} & page.tags.keys()
    assert "http" not in text
    assert "@import" not in text
    assert {tag for tag, depth in page.depth.items() if depth} <= {"meta", "br", "rect", "circle", "path"}


def test_the_page_draws_every_batch(explanation: Explanation) -> None:
    """The pictures of the plan's and of two other schedules have one column per batch."""
    observed = explanation.observed
    assert observed is not None
    drawn = len(observed.steps) + len(observed.schedules["agenda"]) + len(observed.schedules["depth"])

    assert Page(explanation.html()).tags["rect"] == drawn


def test_texts_of_the_plan_are_escaped(started: Path) -> None:
    """A type whose name is a script stays text on the page."""
    plan = read_plan(started / "plans" / "trees.yaml")
    evil = "<script>alert(1)</script>"
    content = {field: getattr(plan, field) for field in plan.__dataclass_fields__}
    types = (PlanType(evil, plan.types[0].signature, evil), *plan.types[1:])
    cells = {evil: plan.cells[plan.types[0].name], **plan.cells}
    text = explain_plan(evil, Plan(**{**content, "types": types, "cells": cells})).html()

    assert "<script" not in text
    assert "&lt;script&gt;" in text
