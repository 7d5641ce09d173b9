"""The difference between two plans as a reviewer reads it: Markdown for a comment, JSON for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from edbc.plan.difference import CellChange, Change, MetricChange, PlanDiff
from edbc.tools.report.figures import count

MOST = 20
"""Lines of one section of a comment."""
TITLES = {
    "states": "state machine",
    "policy": "policy",
    "costs": "costs of batches",
    "training": "training record",
    "types": "types",
    "order": "order of types",
    "cells": "cells: operations, batches, layouts",
    "config": "config",
    "origin": "origin",
}


def verdict(diff: PlanDiff) -> str:
    """One line: what a reviewer must know.

    >>> from edbc.plan.difference import PlanDiff
    >>> verdict(PlanDiff(*[()] * 10))
    'no difference'
    """
    if diff.is_empty:
        return "no difference"
    words = [change.verdict for change in diff.metrics]
    told = [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
    metrics = f"metrics: {', '.join(told)}" if told else "no guarded metric changed"
    return f"worse, {metrics}" if diff.is_worse else f"not worse, {metrics}"


def markdown(old: str, new: str, diff: PlanDiff) -> str:
    """A comment: the verdict and metrics in sight, the rest folded."""
    return "\n".join(_markdown_lines(old, new, diff)) + "\n"


def _markdown_lines(old: str, new: str, diff: PlanDiff) -> Iterator[str]:
    yield f"### {_code(old)} → {_code(new)}: {verdict(diff)}"
    if diff.metrics:
        yield ""
        yield "| metric | before | after | better is | verdict |"
        yield "|---|--:|--:|---|---|"
        yield from (_metric_row(change) for change in diff.metrics)
    for name, title in TITLES.items():
        changes: Sequence[Change | CellChange] = getattr(diff, name)
        if changes:
            yield ""
            yield f"<details><summary>{title}: {count(len(changes), 'change')}</summary>"
            yield ""
            yield "```diff"
            for change in changes[:MOST]:
                yield from _diff_lines(change)
            if len(changes) > MOST:
                yield f"  ... {len(changes) - MOST:,} more"
            yield "```"
            yield "</details>"


def _metric_row(change: MetricChange) -> str:
    values = [str(guard.value) if guard is not None else "-" for guard in (change.old, change.new)]
    guard = change.new or change.old
    direction = guard.direction if guard is not None else ""
    word = f"**{change.verdict}**" if change.is_worse else change.verdict
    return f"| {change.name} | {values[0]} | {values[1]} | {direction} | {word} |"


def _diff_lines(change: Change | CellChange) -> Iterator[str]:
    """A change as lines that a `diff` block colours: what was, what is."""
    for field in change.fields if isinstance(change, CellChange) else (change,):
        name = f"{change.name}.{field.name}" if isinstance(change, CellChange) else field.name
        if field.old is not None:
            yield f"- {name}: {_line(field.old)}"
        if field.new is not None:
            yield f"+ {name}: {_line(field.new)}"


def _line(value: Any) -> str:
    """One line without a fence of backticks."""
    text = " ".join(map(_line, value)) if isinstance(value, tuple) else str(value)
    text = " ".join(text.split()).replace("```", "'''")
    return text if len(text) <= 200 else text[:197] + "..."


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def as_json(old: str, new: str, diff: PlanDiff) -> dict[str, Any]:
    """Everything as JSON's types."""
    return {
        "old": old,
        "new": new,
        "equal": diff.is_empty,
        "worse": diff.is_worse,
        "metrics": [
            {
                "name": change.name,
                "old": change.old and change.old.value,
                "new": change.new and change.new.value,
                "verdict": change.verdict,
                "worse": change.is_worse,
            }
            for change in diff.metrics
        ],
        **{name: [_change_json(change) for change in getattr(diff, name)] for name in TITLES},
    }


def _change_json(change: Change | CellChange) -> dict[str, Any]:
    if isinstance(change, CellChange):
        return {"name": change.name, "fields": [_change_json(field) for field in change.fields]}
    return {"name": change.name, "old": _plain(change.old), "new": _plain(change.new)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | dict) or value is None else str(value)
