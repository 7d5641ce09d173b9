"""`edbc diff`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from edbc.base.files import found_at
from edbc.errors import PlanError
from edbc.plan.plan import Plan
from edbc.tools.console import emit, print_json


def run_diff(old: str, new: str, exit_code: bool, output_format: str) -> None:
    """Read both plans and print how they differ."""
    from edbc.plan.difference import diff_plans
    from edbc.tools.report import review

    diff = diff_plans(read_either(old), read_either(new))
    if output_format == "json":
        print_json(review.as_json(old, new, diff))
    elif output_format == "markdown":
        emit(review.markdown(old, new, diff), nl=False)
    else:
        click.echo(f"{old} -> {new}: {review.verdict(diff)}")
        if not diff.is_empty:
            click.echo(diff.text(), nl=False)
    if exit_code and diff.is_worse:
        sys.exit(1)


def read_either(name: str) -> Plan:
    """A plan file, or `REV:path`, the file at another git commit. A file of that very name comes first."""
    from edbc.plan.reader import read_plan
    from edbc.tools.report.history import plan_at

    revision, colon, path = name.partition(":")
    if not colon or not revision or not path or found_at(name) != "nothing":
        return read_plan(Path(name))
    plan = plan_at(revision, Path(path))
    if plan is None:
        raise PlanError(f"{name}: expected a plan, got no such file at {revision}")
    return plan
