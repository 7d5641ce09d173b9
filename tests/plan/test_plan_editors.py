"""Claims about the JSON Schema for editors."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hostile_plans import SMALL
from hypothesis import given, settings
from plan_strategies import plans

from edbc.plan import Plan, plan_text
from edbc.tools.schema import json_schema_text

SCHEMA = json.loads(json_schema_text())
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """The part of JSON Schema that the plan's schema uses, by its specification; unknown keywords are a failure."""
    checks = {
        "type": lambda wanted: any(is_type(value, t) for t in ([wanted] if isinstance(wanted, str) else wanted)),
        "enum": lambda words: value in words,
        "anyOf": lambda options: any(conforms(value, option) for option in options),
        "minimum": lambda low: value >= low,
        "maximum": lambda high: value <= high,
        "minLength": lambda least: len(value) >= least,
        "maxLength": lambda most: len(value) <= most,
        "pattern": lambda pattern: re.search(pattern, value) is not None,
        "minItems": lambda least: len(value) >= least,
        "maxItems": lambda most: len(value) <= most,
        "items": lambda item: all(conforms(v, item) for v in value),
        "minProperties": lambda least: len(value) >= least,
        "maxProperties": lambda most: len(value) <= most,
        "propertyNames": lambda key: all(conforms(k, key) for k in value),
        "required": lambda names: all(name in value for name in names),
        "properties": lambda known: all(conforms(v, known[k]) for k, v in value.items() if k in known),
        "additionalProperties": lambda other: all(
            other is not False and conforms(v, other) for k, v in value.items() if k not in schema.get("properties", {})
        ),
    }
    notes = ("$schema", "title", "description")
    return all(checks[key](rule) for key, rule in schema.items() if key not in notes)


def is_type(value: Any, name: str) -> bool:
    """JSON's types: a boolean is no number."""
    if name in TYPES:
        return isinstance(value, TYPES[name])
    return type(value) is int or (name == "number" and type(value) is float)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(plans())
def test_schema_accepts_every_plan(plan: Plan) -> None:
    """No valid plan is underlined in an editor."""
    assert conforms(yaml.safe_load(plan_text(plan)), SCHEMA)


@pytest.mark.parametrize(
    "name",
    ["unknown key", "missing key", "text for an integer", "negative seed", "short sha256", "unknown source",
     "no guards", "guard null", "guard without value", "version 0", "empty batch",
     "integer for a text"],
)  # fmt: skip
def test_schema_refuses_what_a_table_can_refuse(name: str) -> None:
    """Faults of single fields are seen in the editor, before any reader runs."""
    assert not conforms(yaml.safe_load(SMALL[name][0]), SCHEMA)
