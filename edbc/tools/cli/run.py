"""`edbc run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edbc.tools.console import fold, print_json, warn, warn_unstable


def run_run(plan: str, output_format: str, quiet: bool, inputs: tuple[str, ...], settings: dict[str, str],
            **options: Any) -> None:  # fmt: skip
    """Load, bind, execute, report; unless `quiet`, what a mini-batch takes in memory is told first."""
    from edbc.tools.running import Setting, run_plan

    def tell(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    report = run_plan(Path(plan), Setting(inputs, settings, **options), warn, tell)
    if output_format == "json":
        print_json(report.as_json())
    else:
        for line in str(report).splitlines():
            click.echo(fold(line))
    if report.parity is not None:
        warn_unstable(report.parity)
        report.parity.require()
