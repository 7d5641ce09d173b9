"""`edbc schema`: the plan's schema beside plans, for editors, made from `edbc.plan.schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from edbc.base.files import found_at, replace_file
from edbc.errors import InputError
from edbc.plan.reader import read_plan
from edbc.plan.schema import (
    PLAN,
    AnyScalar,
    AnyValue,
    Choice,
    Integer,
    Kind,
    ListOf,
    MapOf,
    Nullable,
    Number,
    Record,
    Text,
)
from edbc.plan.writer import SCHEMA_FILE, write_plan


def run_schema(folder: str) -> None:
    """Write the schema, and the plans of the folder again with the line that names it."""
    target = Path(folder)
    if found_at(target) != "a folder":
        raise InputError(f"{folder}: expected a folder of plans, got {found_at(target)}; name the folder they stand in")
    plans = {path: read_plan(path) for path in sorted(target.glob("*.yaml"))}
    replace_file(target / SCHEMA_FILE, lambda temporary: temporary.write_text(json_schema_text(), newline="\n"))
    for path, plan in plans.items():
        write_plan(plan, path)
    click.echo(
        f"{target / SCHEMA_FILE}: written; {len(plans)} plans name it to editors, and those compiled beside it will"
    )


def json_schema(kind: Kind = PLAN) -> dict[str, Any]:
    """The kind as a JSON Schema (draft 2020-12)."""
    match kind:
        case Text():
            pattern = {"pattern": f"^(?:{kind.pattern})$"} if kind.pattern else {}
            return {"type": "string", "minLength": kind.shortest, "maxLength": kind.longest, **pattern}
        case Choice():
            return {"enum": list(kind.words)}
        case Integer():
            return {"type": "integer", "minimum": kind.low, "maximum": kind.high}
        case Number():
            return {"type": "number", "minimum": kind.low, "maximum": kind.high}
        case AnyScalar():
            return {"type": ["number", "boolean", "string"]}
        case AnyValue():
            return {"type": ["number", "boolean", "string", "array", "object"]}
        case Nullable():
            return {"anyOf": [{"type": "null"}, json_schema(kind.kind)]}
        case ListOf():
            return {"type": "array", "items": json_schema(kind.item), "minItems": kind.least, "maxItems": kind.most}
        case MapOf():
            return {
                "type": "object",
                "propertyNames": json_schema(kind.key),
                "additionalProperties": json_schema(kind.value),
                "minProperties": kind.least,
                "maxProperties": kind.most,
            }
    return _record_schema(kind)


def _record_schema(kind: Record) -> dict[str, Any]:
    return {
        "type": "object",
        "description": (kind.build.__doc__ or "").partition("\n")[0],
        "properties": {name: json_schema(value) for name, value in kind.fields.items()},
        "required": [name for name in kind.fields if name not in kind.optional],
        "additionalProperties": False,
    }


def json_schema_text() -> str:
    """The contents of the file that `edbc schema` writes."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "edbc plan"}
    return json.dumps({**head, **json_schema()}, indent=1) + "\n"
