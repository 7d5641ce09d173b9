"""`edbc check`."""

from __future__ import annotations

import sys

import click

from edbc.check import Outcome, check_plan, find_plans
from edbc.cli.console import ProgressLine, print_json


def run_check(
    plans: tuple[str, ...], strict: bool, update: bool, accept_regression: bool, output_format: str, quiet: bool
) -> None:
    """Check every plan; exit with the worst plan's code."""
    found = find_plans(plans)
    progress = ProgressLine(quiet or output_format == "json")
    outcomes = []
    for number, path in enumerate(found):
        progress("check", number, len(found), {})
        outcome = check_plan(path, strict=strict)
        outcomes.append(outcome)
        if output_format == "text":
            progress.finish()
            _print(outcome)
        if update and outcome.renewed is not None:
            _update(outcome, accept_regression)
    progress.finish()
    failed = [o for o in outcomes if not o.passed]
    if output_format == "json":
        print_json({"plans": [_as_json(o) for o in outcomes], "passed": not failed})
    else:
        click.echo(f"{len(outcomes) - len(failed)} of {len(outcomes)} plans passed")
    codes = {o.exit_code for o in failed}
    if codes and not (update and codes == {1}):
        sys.exit(max(codes))


def _print(outcome: Outcome) -> None:
    mark = "ok  " if outcome.passed else "FAIL"
    metrics = ", ".join(f"{k} {v:g}" for k, v in outcome.metrics.items() if k in ("nodes", "batches", "lower_bound"))
    click.echo(f"{mark} {outcome.path}  {outcome.status}{f'  ({metrics})' if metrics else ''}")
    if outcome.error is not None:
        click.echo(f"     {outcome.error}")
    for finding in outcome.findings:
        click.echo(f"     {finding.status.upper()}: {finding.text}")
    for note in outcome.notes:
        click.echo(f"     note: {note}")
    if not outcome.passed and outcome.error is None:
        click.echo(f"     to renew the plan: edbc check --update --accept-regression {outcome.path}")


def _update(outcome: Outcome, accept_regression: bool) -> None:
    from edbc.plan.writer import write_plan

    worse = [f for f in outcome.findings if f.status == "regressed"]
    if worse and not accept_regression:
        click.echo(f"     not updated: it would worsen {worse[0].what}; say --accept-regression to do so", err=True)
        return
    assert outcome.renewed is not None
    write_plan(outcome.renewed, outcome.path)
    click.echo(f"     updated {outcome.path}", err=True)


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "plan": str(outcome.path),
        "status": outcome.status,
        "passed": outcome.passed,
        "exit_code": outcome.exit_code,
        "metrics": outcome.metrics,
        "findings": [{"what": f.what, "status": f.status, "text": f.text, "fails": f.fails} for f in outcome.findings],
        "notes": outcome.notes,
        "error": None if outcome.error is None else {"kind": outcome.error.kind, "message": str(outcome.error)},
    }
