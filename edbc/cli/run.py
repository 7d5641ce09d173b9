"""`edbc run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edbc.cli.console import fold, print_json, warn, warn_unstable


def run_run(plan: str, output_format: str, quiet: bool, inputs: tuple[str, ...], settings: dict[str, str],
            **options: Any) -> None:  # fmt: skip
    """Load, bind, execute, report. Running shows no progress, so `quiet` has nothing to silence."""
    from edbc.running import Setting, run_plan

    report = run_plan(Path(plan), Setting(inputs, settings, **options), warn)
    if output_format == "json":
        print_json(report.as_json())
    else:
        for line in str(report).splitlines():
            click.echo(fold(line))
    if report.parity is not None:
        warn_unstable(report.parity)
        report.parity.require()
