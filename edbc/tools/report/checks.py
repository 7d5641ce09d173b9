"""Outcomes of checks for machines: JUnit's XML, and GitHub's workflow commands.

GitHub shows ten annotations of a step and drops the rest, so the summary comes first, as a notice, then the worst MOST
findings; a last plain line counts what is left out. Texts are escaped as the workflow-command syntax asks: `%`, CR and
LF everywhere, `:` and `,` in properties too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from edbc.tools.checking import CHANGED, IMPROVED, REGRESSED, Finding, Outcome

MOST = 10
"""Findings that are annotated."""
_ORDER = (REGRESSED, CHANGED, IMPROVED)


@dataclass(frozen=True)
class Annotation:
    """One finding of one plan."""

    level: str
    """`error`, `warning` or `notice`."""
    plan: Path
    title: str
    text: str
    rank: int
    """Worse is lower."""


def summary(outcomes: Sequence[Outcome]) -> str:
    """`2 of 3 plans passed`, with the statuses of the others.

    >>> summary([Outcome(Path("a.yaml"))])
    '1 of 1 plan passed'
    """
    failed = [outcome for outcome in outcomes if not outcome.passed]
    plans = "plan" if len(outcomes) == 1 else "plans"
    text = f"{len(outcomes) - len(failed)} of {len(outcomes)} {plans} passed"
    statuses = [outcome.status for outcome in failed]
    told = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    return f"{text}; {told}" if told else text


def github(outcomes: Sequence[Outcome]) -> str:
    """Workflow commands, one per line."""
    return "\n".join(_commands(outcomes)) + "\n"


def _commands(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield f"::notice title=edbc check::{escape_message(summary(outcomes))}"
    annotations = sorted((a for outcome in outcomes for a in _annotations(outcome)), key=lambda a: a.rank)
    for a in annotations[:MOST]:
        line = line_of(a.plan, a.title)
        place = f"file={escape_property(a.plan.as_posix())}" + (f",line={line}" if line else "")
        yield f"::{a.level} {place},title={escape_property(a.title)}::{escape_message(a.text)}"
    if len(annotations) > MOST:
        yield f"{len(annotations) - MOST} more findings are not annotated; run 'edbc check' for all"


def _annotations(outcome: Outcome) -> Iterator[Annotation]:
    if outcome.error is not None:
        yield Annotation("error", outcome.path, outcome.error.kind, str(outcome.error), 0)
    for finding in outcome.findings:
        level = "error" if finding.fails else "notice"
        rank = 1 + _ORDER.index(finding.status) + (0 if finding.fails else len(_ORDER))
        yield Annotation(level, outcome.path, finding.what, finding.text, rank)


def escape_message(text: str) -> str:
    """Text of a workflow command.

    >>> escape_message("50 %" + chr(10))
    '50 %25%0A'
    """
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """A property of a workflow command."""
    return escape_message(text).replace(":", "%3A").replace(",", "%2C")


def line_of(plan: Path, what: str) -> int | None:
    """The line of a plan that a finding is about, if it can be told: a guard's, a section's or a cell's."""
    key = what.split(".")[-1]
    try:
        lines = plan.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    numbered = list(enumerate(lines, 1))
    return next((number for number, line in reversed(numbered) if line.lstrip().startswith(f"{key}:")), None)


def junit(outcomes: Sequence[Outcome]) -> str:
    """JUnit's XML: a test case per plan; what fails it is its failure, a plan that could not be checked an error."""
    failures = sum(not o.passed and o.error is None for o in outcomes)
    errors = sum(o.error is not None for o in outcomes)
    counts = f'tests="{len(outcomes)}" failures="{failures}" errors="{errors}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites {counts}><testsuite name="edbc check" {counts}>']
    lines += [line for outcome in outcomes for line in _case(outcome)]
    return "\n".join([*lines, "</testsuite></testsuites>"]) + "\n"


def _case(outcome: Outcome) -> Iterator[str]:
    yield f'<testcase classname="edbc.tools.checking" name={quoteattr(_xml(outcome.path.as_posix()))}>'
    if outcome.error is not None:
        yield _problem("error", outcome.error.kind, str(outcome.error))
    for finding in outcome.findings:
        if finding.fails:
            yield _problem("failure", finding.status, finding.text)
    told = [*(_told(f) for f in outcome.findings if not f.fails), *outcome.notes]
    if told:
        yield f"<system-out>{escape(_xml(chr(10).join(told)))}</system-out>"
    yield "</testcase>"


def _told(finding: Finding) -> str:
    return f"{finding.status}: {finding.text}"


def _problem(tag: str, kind: str, text: str) -> str:
    return f"<{tag} type={quoteattr(kind)} message={quoteattr(_xml(text))}/>"


def _xml(text: str) -> str:
    """Text without the control characters that XML cannot hold."""
    return "".join(c if c in "\t\n\r" or c >= " " else "?" for c in text)
