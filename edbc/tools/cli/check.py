"""`edbc check`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from edbc.errors import EdbcError
from edbc.tools.checking import Outcome, check_plan, find_plans
from edbc.tools.console import ProgressLine, emit, is_live_terminal, paint, print_json


def run_check(plans: tuple[str, ...], strict: bool, update: bool, accept_regression: bool, output_format: str,
              quiet: bool, against: str | None = None) -> None:  # fmt: skip
    """Check every plan; exit with the worst plan's code."""
    found = find_plans(plans)
    progress = ProgressLine(quiet or not is_live_terminal())  # elsewhere the line of each plan tells how far it is
    outcomes, codes = [], {0}
    for number, path in enumerate(found):
        progress("check", number, len(found), {"name": path.name})
        outcome = check_plan(path, strict=strict, against=against, accept_regression=accept_regression)
        outcomes.append(outcome)
        if output_format == "text":
            progress.finish()
            _print(outcome)
        if not (update and _update(outcome, accept_regression)):
            codes.add(outcome.exit_code)
    progress.finish()
    _print_all(outcomes, output_format)
    sys.exit(max(codes))


def _print_all(outcomes: Sequence[Outcome], output_format: str) -> None:
    """What comes after the last plan."""
    from edbc.tools.report import checks

    if output_format == "json":
        passed = all(outcome.passed for outcome in outcomes)
        print_json({"plans": [_as_json(outcome) for outcome in outcomes], "passed": passed})
    elif output_format == "junit":
        emit(checks.junit(outcomes), nl=False)
    elif output_format == "github":
        emit(checks.github(outcomes), nl=False)
    else:
        click.echo(checks.summary(outcomes))


def _print(outcome: Outcome) -> None:
    mark = paint("ok  ", "green") if outcome.passed else paint("FAIL", "red")
    metrics = ", ".join(f"{k} {v:g}" for k, v in outcome.metrics.items() if k in ("nodes", "batches", "lower_bound"))
    click.echo(f"{mark} {outcome.path}  {outcome.status}{f'  ({metrics})' if metrics else ''}")
    if outcome.error is not None:
        click.echo(f"     {outcome.error} [{outcome.error.code}]")
    for finding in outcome.findings:
        click.echo(f"     {finding.status.upper()}: {finding.text}{'' if finding.fails else ' (does not fail)'}")
    for note in outcome.notes:
        click.echo(f"     note: {note}")
    failing = [finding for finding in outcome.findings if finding.fails]
    if any(not finding.against for finding in failing):
        click.echo(f"     to renew the plan: edbc check --update --accept-regression {outcome.path}")
    elif failing:
        click.echo(f"     to accept it: edbc check --against {failing[0].against} --accept-regression {outcome.path}")


def _update(outcome: Outcome, accept_regression: bool) -> bool:
    """Write what compiling again gave; False when there is nothing to write or it would worsen a guard."""
    if outcome.renewed is None or outcome.error is not None:
        return False
    worse = [f for f in outcome.findings if f.status == "regressed"]
    if worse and not accept_regression:
        click.echo(f"     not updated: it would worsen {worse[0].what}; say --accept-regression to do so", err=True)
        return False
    outcome.renewed.save(outcome.path)
    click.echo(f"     updated {outcome.path}", err=True)
    return True


def _error_json(error: EdbcError) -> dict[str, object]:
    return {"kind": error.kind, "code": error.code, "message": str(error)}


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "plan": str(outcome.path),
        "status": outcome.status,
        "passed": outcome.passed,
        "exit_code": outcome.exit_code,
        "metrics": outcome.metrics,
        "findings": [asdict(finding) for finding in outcome.findings],
        "notes": outcome.notes,
        "error": None if outcome.error is None else _error_json(outcome.error),
    }
