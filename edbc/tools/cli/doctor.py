"""`edbc doctor`."""

from __future__ import annotations

from typing import Any

import click

from edbc.tools.console import fold, print_json
from edbc.tools.health import examine


def run_doctor(output_format: str) -> None:
    """Measure, print, advise."""
    found = examine()
    if output_format == "json":
        print_json(found)
        return
    for section in ("versions", "processor", "products", "caches", "gpu"):
        click.echo(section)
        for name, value in found[section].items():
            click.echo(fold(f"  {name.replace('_', ' '):15}{_text(value)}"))
    click.echo("advice" if found["advice"] else "nothing to do: all is as good as it can be")
    for item in found["advice"]:
        click.echo(fold(f"  {item['what']}"))
        click.echo(fold(f"    -> {item['do']}"))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{v} at {k} rows" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:,}" if type(value) is int else str(value)
