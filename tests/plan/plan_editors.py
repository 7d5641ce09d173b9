"""The plan's schema for editors, `edbc/plan/schema.json`, made from `edbc.plan.schema`."""

from __future__ import annotations

import json
from typing import Any

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
        "description": (kind.build.__doc__ or "").splitlines()[0],
        "properties": {name: json_schema(value) for name, value in kind.fields.items()},
        "required": [name for name in kind.fields if name not in kind.optional],
        "additionalProperties": False,
    }


def json_schema_text() -> str:
    """The contents of `edbc/plan/schema.json`."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "edbc plan"}
    return json.dumps({**head, **json_schema()}, indent=1) + "\n"
