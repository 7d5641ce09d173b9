"""Outcomes of checks as GitHub annotations and JUnit's XML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from edbc.errors import StaleError
from edbc.tools.checking import CHANGED, IMPROVED, REGRESSED, Finding, Outcome
from edbc.tools.report.checks import MOST, github, junit

EVIL = 'a "b" <c> & 100 %\r\n::error::injected'


def outcomes() -> list[Outcome]:
    """One that passed, one improved, one regressed in many ways, one stale."""
    many = [Finding(f"metric{i}", CHANGED, f"metric {i}", True) for i in range(20)]
    return [
        Outcome(Path("plans/good.yaml")),
        Outcome(Path("plans/better.yaml"), [Finding("batches", IMPROVED, "batches: 9", False)]),
        Outcome(Path("plans/worse,odd:name.yaml"), [*many, Finding("batches", REGRESSED, EVIL, True)]),
        Outcome(Path("plans/stale.yaml"), error=StaleError("model.py: expected another hash")),
    ]


def test_github_has_the_summary_first_and_ten_findings_worst_first() -> None:
    """The summary is a notice, then come at most ten annotations: the plan that cannot be checked, the regression,
    other changes; what is left out is counted."""
    lines = github(outcomes()).splitlines()

    assert lines[0].startswith("::notice title=edbc check::2 of 4 plans passed; 1 regressed, 1 stale")
    assert len(lines) == 1 + MOST + 1
    assert lines[1].startswith("::error file=plans/stale.yaml,title=stale::")
    assert "title=batches::" in lines[2]
    assert all("title=metric" in line for line in lines[3:-1])
    assert lines[-1].startswith("13 more findings")


def test_github_commands_cannot_be_injected() -> None:
    """Per cent signs and line ends of texts are escaped, and commas and colons of file names too."""
    text = github(outcomes())

    assert "\n::error::injected" not in text
    assert "100 %25%0D%0A::error" in text
    assert "file=plans/worse%2Codd%3Aname.yaml" in text


def test_github_names_the_line_of_a_guard(tmp_path: Path) -> None:
    """A finding about a guard points at the guard, not at a key of the same name above it."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("cells:\n  out:\n    batches:\nguards:\n  batches: {value: 3}\n")
    text = github([Outcome(plan, [Finding("batches", REGRESSED, "worse", True)])])

    assert ",line=5,title=batches::worse" in text


def test_junit_is_xml_with_a_case_per_plan() -> None:
    """Failures are findings that fail, errors plans that could not be checked; every text survives."""
    suite = ElementTree.fromstring(junit(outcomes())).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")

    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "1")
    assert [len(case.findall("failure")) for case in cases] == [0, 0, 21, 0]
    assert [len(case.findall("error")) for case in cases] == [0, 0, 0, 1]
    assert cases[1].findtext("system-out") == "improved: batches: 9"
    assert any("injected" in (failure.get("message") or "") for failure in cases[2].findall("failure"))


def test_junit_drops_what_xml_cannot_hold() -> None:
    """Control characters of a message do not break the file."""
    broken = Outcome(Path("p.yaml"), [Finding("x", REGRESSED, "a\x00b\x1b[31m", True)])

    failure = ElementTree.fromstring(junit([broken])).find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message") == "a?b?[31m"
