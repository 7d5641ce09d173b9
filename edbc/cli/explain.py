"""`edbc explain`."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from edbc.cli.console import print_json
from edbc.errors import EdbcError


def run_explain(
    plan: str, inputs: tuple[str, ...], model: str | None, static: bool, html: str | None, output_format: str
) -> None:
    """Explain; write the page, print the rest."""
    from edbc.report.explain import explain_file

    explanation = explain_file(plan, model=model, inputs=inputs, run=not static)
    if html is not None:
        write_page(html, explanation.html())
    if output_format == "json":
        content = explanation.as_json()
        content.pop("schema")
        print_json(content)
    elif html is None:
        click.echo(explanation.text(shutil.get_terminal_size().columns), nl=False)
    else:
        click.echo(f"{html}: written", err=True)


def write_page(path: str, page: str) -> None:
    """A page, or an error that names the file."""
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise EdbcError(f"{path}: expected to write the page there, got: {error.strerror}; name another file") from None
