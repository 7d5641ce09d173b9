"""`edbc schema`: the plan's schema beside plans, for editors."""

from __future__ import annotations

from pathlib import Path

import click

from edbc.base.files import found_at, replace_file
from edbc.errors import InputError
from edbc.plan import writer
from edbc.plan.reader import read_plan
from edbc.plan.writer import SCHEMA_FILE, write_plan


def run_schema(folder: str) -> None:
    """Write the schema, and the plans of the folder again with the line that names it."""
    target = Path(folder)
    if found_at(target) != "a folder":
        raise InputError(f"{folder}: expected a folder of plans, got {found_at(target)}; name the folder they stand in")
    plans = {path: read_plan(path) for path in sorted(target.glob("*.yaml"))}
    text = Path(writer.__file__).with_name("schema.json").read_bytes()
    replace_file(target / SCHEMA_FILE, lambda temporary: temporary.write_bytes(text))
    for path, plan in plans.items():
        write_plan(plan, path)
    click.echo(
        f"{target / SCHEMA_FILE}: written; {len(plans)} plans name it to editors, and those compiled beside it will"
    )
