"""`edbc explain`."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edbc.base.files import found_at, require_target, write_text
from edbc.errors import EdbcError
from edbc.refusals import find_refusal, table
from edbc.tools.console import print_json

CODE = re.compile(r"[Ee]\d{4}")
"""Of an error."""


def run_explain(plan: str, inputs: tuple[str, ...], settings: dict[str, str], model: str | None, static: bool,
                html: str | None, dot: str | None, output_format: str) -> None:  # fmt: skip
    """Explain; write the files that are asked for, or print."""
    if CODE.fullmatch(plan) and found_at(plan) == "nothing":
        _explain_code(plan, output_format)
        return
    from edbc.plan.static import StaticPlan, read_any_plan
    from edbc.tools.checking import model_path

    found = None if plan.endswith(".py") else read_any_plan(plan)
    if isinstance(found, StaticPlan) and dot is not None:
        raise click.UsageError("a plan of stages is explained as text, JSON or HTML; leave --dot away")
    if html is not None:
        read: list[str | Path] = [plan, *inputs]
        read += [] if found is None else [model_path(Path(plan), found, model)]
        require_target(html, "the page", "name another --html", read)
    explanation: Any
    if isinstance(found, StaticPlan):
        from edbc.tools.staged.explanation import StagesExplanation

        explanation = StagesExplanation(found)
    else:
        from edbc.tools.explain.explanation import explain_file

        explanation = explain_file(plan, model=model, inputs=inputs, config=settings, run=not static)
    if html is not None:
        write_text(html, explanation.html(), "the page", "name another file")
        click.echo(f"{html}: written", err=True)
    if dot is not None:
        from edbc.tools.explain.dots import write_dots

        for path in write_dots(explanation, dot):
            click.echo(f"{path}: written", err=True)
    if output_format == "json":
        content = explanation.as_json()
        content.pop("schema", None)
        print_json(content)
    elif html is None and dot is None:
        click.echo(explanation.text(shutil.get_terminal_size().columns), nl=False)


def _explain_code(code: str, output_format: str) -> None:
    """What an error's code means."""
    entry = find_refusal(code)
    if entry is None:
        raise EdbcError(f"explain: expected one of {', '.join(e.code for e in table())}, got {code}")
    if output_format == "json":
        print_json(asdict(entry))
    else:
        click.echo(entry.text(), nl=False)
