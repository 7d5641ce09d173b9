"""Writes plans: the same bytes for equal plans, fit for people and for `git diff`.

(1) Keys of records are in the dataclasses' order, free keys (config, states, training, guards) sorted, cells and costs
    in the order of their types, operations one per line, states one per line.
(2) A list of scalars is on one line when it fits into WIDTH columns, else has one line per item; nothing is wrapped.
    YAML limits what stands before a colon to 1,024 characters, so a longer state takes two lines, `? state` and
    `: action`.
(3) ASCII only; quotes where `edbc.plan.scalars` asks for them; the last line is `...`. Where SCHEMA_FILE stands beside
    the plan, the first line is a comment that names it to editors.

A plan that the reader would refuse is never written: `write_plan` reads its own text first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edbc.base.files import found_at, one_line, replace_file
from edbc.errors import PlanError
from edbc.plan.plan import FORMAT_VERSION, Plan
from edbc.plan.reader import parse_plan
from edbc.plan.scalars import scalar_text
from edbc.plan.schema import PLAN, TYPE_NAME, Choice, Kind, ListOf, MapOf, Record

WIDTH = 100
"""Columns that a list on one line may take."""

SCHEMA_FILE = "plan.schema.json"
"""Beside plans whose editors shall know them."""

LONGEST_KEY = 1_000
"""Characters of a key that has its value on the same line."""


def plan_text(plan: Plan) -> str:
    """The text of a plan; `parse_plan` gives an equal plan back. Deterministic, O(size of the plan).

    Raises PlanError for a value that YAML's plain data cannot hold. It does not verify the plan; `write_plan` does.
    """
    if plan.format_version != FORMAT_VERSION:
        raise PlanError(f"plan: expected format version {FORMAT_VERSION}, got {plan.format_version!r}; leave it out")
    try:
        return document_text(PLAN, plan)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PlanError(f"plan: expected values that a plan can hold, got {' '.join(str(error).split())}") from None


def schema_line(path: str | os.PathLike[str]) -> str:
    """The comment by which editors find the schema, where that stands beside the plan (`edbc schema`); else nothing."""
    beside = os.path.join(os.path.dirname(os.fspath(path)), SCHEMA_FILE)
    return f"# yaml-language-server: $schema=./{SCHEMA_FILE}\n" if found_at(beside) == "a file" else ""


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan so that `path` holds all of it or what it held before.

    Raises PlanError when the plan is not valid, or naming path and reason when the file cannot be written; then no
    temporary file remains.
    """
    write_document(path, schema_line(path) + plan_text(plan), lambda text, where: parse_plan(text, where) == plan)


def write_document(path: str | os.PathLike[str], text: str, reads_back: Callable[[str, str], bool]) -> None:
    """Write a document that reads back as itself whole or not at all. Raises PlanError as `write_plan` does."""
    where = one_line(path)
    if not reads_back(text, f"{where} (not written)"):
        raise PlanError(f"{where}: expected a plan that reads back as itself, got one that does not")
    try:
        replace_file(path, lambda temporary: temporary.write_bytes(text.encode("ascii")))
    except OSError as error:
        raise PlanError(f"{where}: expected to write the plan, got: {error.strerror}; check the folder") from None
    except ValueError:
        raise PlanError(f"{where}: expected a path, got one with a null character; check the path") from None


def document_text(kind: Record, value: Any) -> str:
    """The text of a document of a kind."""
    types = [*getattr(value, "types", ())]
    writer = _Writer({item.name: number for number, item in enumerate(types)})
    return "\n".join([*writer.fields("", kind, value), "...", ""])


class _Writer:
    """Lines by the kind of what they state. `order` has the number of every type by its name."""

    def __init__(self, order: Mapping[str, int]) -> None:
        self._order = order

    def fields(self, indent: str, kind: Record, value: Any) -> Iterator[str]:
        """A record's, without those that a document may leave out and this one does."""
        for name, of_field in kind.fields.items():
            held = getattr(value, name)
            if name not in kind.optional or held not in (None, (), {}):
                yield from self._field(indent, name, of_field, held)

    def _field(self, indent: str, name: str, kind: Kind, value: Any) -> Iterator[str]:
        head = f"{indent}{scalar_text(name)}:"
        if isinstance(kind, MapOf):
            yield head if value else f"{head} {{}}"
            for key in sorted(value, key=self._place if kind.key is TYPE_NAME else None):
                yield from self._field(indent + "  ", key, kind.value, value[key])
        elif isinstance(kind, Record):
            yield f"{head} {_flow_record(kind, value)}" if kind.flow else head
            yield from () if kind.flow else self.fields(indent + "  ", kind, value)
        elif isinstance(kind, ListOf) and (kind.block or isinstance(kind.item, Record)):
            yield head if value else f"{head} []"
            for item in value:
                yield from self._item(indent, kind.item, item)
        else:
            yield from _value_lines(indent, name, value)

    def _item(self, indent: str, kind: Kind, item: Any) -> Iterator[str]:
        if not isinstance(kind, Record):
            yield _item_line(indent, item)
        elif kind.flow:
            yield f"{indent}- {_flow_record(kind, item)}"
        else:
            first, *others = self.fields(indent + "  ", kind, item)
            yield f"{indent}- {first.lstrip()}"
            yield from others

    def _place(self, name: str) -> tuple[int, str]:
        return self._order.get(name, len(self._order)), name


def _flow_record(kind: Record, value: Any) -> str:
    """Words of a choice stand without quotes, spaces in them or not."""
    texts = []
    for name, of_field in kind.fields.items():
        held = getattr(value, name)
        texts.append(f"{name}: {held if isinstance(of_field, Choice) else _flow(held)}")
    return f"{{{', '.join(texts)}}}"


def _value_lines(indent: str, key: str, value: Any) -> Iterator[str]:
    """`key: value`, where a mapping has one line per key, sorted, and a list follows (2)."""
    head = f"{indent}{scalar_text(key)}:"
    if isinstance(value, dict):
        yield head if value else f"{head} {{}}"
        for name in sorted(value):
            yield from _value_lines(indent + "  ", name, value[name])
    elif isinstance(value, tuple):
        yield from _list_lines(indent, key, value)
    elif len(head) > LONGEST_KEY:
        yield f"{indent}? {scalar_text(key)}"
        yield f"{indent}: {scalar_text(value)}"
    else:
        yield f"{head} {scalar_text(value)}"


def _list_lines(indent: str, key: str, items: tuple[Any, ...]) -> Iterator[str]:
    """A list, on one line where it is short."""
    head = f"{indent}{scalar_text(key)}:"
    flow = _flow(items)
    if not items or len(head) + 1 + len(flow) <= WIDTH:
        yield f"{head} {flow}"
        return
    yield head
    yield from (_item_line(indent, item) for item in items)


def _item_line(indent: str, item: Any) -> str:
    return f"{indent}- {_flow(item) if isinstance(item, tuple | dict) else scalar_text(item)}"


def _flow(value: Any) -> str:
    """A value on one line, between brackets where it is a list or a mapping."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(value[key])}" for key in sorted(value)) + "}"
    return scalar_text(value, in_flow=True)
