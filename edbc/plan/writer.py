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
from collections.abc import Iterable, Iterator
from typing import Any

from edbc.base.files import found_at, one_line, replace_file
from edbc.errors import PlanError
from edbc.plan.plan import FORMAT_VERSION, Guard, ModelRef, Plan, PlanCell, PlanPolicy, PlanType, TrainedOn
from edbc.plan.reader import parse_plan
from edbc.plan.scalars import scalar_text

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
        return "\n".join([*_plan_lines(plan), "...", ""])
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
    text = schema_line(path) + plan_text(plan)
    where = one_line(path)
    if parse_plan(text, f"{where} (not written)") != plan:
        raise PlanError(f"{where}: expected a plan that reads back as itself, got one that does not")
    try:
        replace_file(path, lambda temporary: temporary.write_bytes(text.encode("ascii")))
    except OSError as error:
        raise PlanError(f"{where}: expected to write the plan, got: {error.strerror}; check the folder") from None
    except ValueError:
        raise PlanError(f"{where}: expected a path, got one with a null character; check the path") from None


def _plan_lines(plan: Plan) -> Iterator[str]:
    yield f"format_version: {scalar_text(plan.format_version)}"
    yield f"edbc: {scalar_text(plan.edbc)}"
    yield from model_lines(plan.model)
    yield from _trained_on_lines(plan.trained_on)
    yield from list_lines("", "requirements", plan.requirements)
    yield from _type_lines(plan.types)
    yield from _policy_lines(plan.policy)
    if plan.waves is not None:
        yield "waves:"
        yield from _value_lines("  ", "table", plan.waves.table)
        yield from _value_lines("  ", "training", plan.waves.training)
    if plan.run is not None:
        yield "run:"
        yield f"  eager: {scalar_text(plan.run.eager)}"
        if plan.run.captured is not None:
            yield f"  captured: {plan.run.captured}"
    if plan.automatic:
        yield "automatic:"
        yield from (f"  {scalar_text(name)}: {scalar_text(line)}" for name, line in sorted(plan.automatic.items()))
    if plan.fused:
        yield "fused:"
    for name in _in_order(plan, plan.fused):
        yield f"  {scalar_text(name)}:"
        yield from (f"  - {scalar_text(line)}" for line in plan.fused[name])
    if plan.ragged:
        yield from list_lines("", "ragged", plan.ragged)
    if plan.reads:
        yield from list_lines("", "reads", plan.reads)
    yield from _cost_lines(plan)
    yield from _cell_lines(plan)
    yield from guard_lines(plan.guards)


def model_lines(model: ModelRef) -> Iterator[str]:
    """The section `model`."""
    yield "model:"
    yield f"  path: {scalar_text(model.path)}"
    yield f"  sha256: {scalar_text(model.sha256)}"
    yield from _value_lines("  ", "config", model.config)
    yield f"  seed: {scalar_text(model.seed)}"
    if model.weights is not None:
        yield "  weights:"
        yield f"    name: {scalar_text(model.weights.name)}"
        yield f"    sha256: {scalar_text(model.weights.sha256)}"


def _trained_on_lines(trained_on: TrainedOn) -> Iterator[str]:
    yield "trained_on:"
    yield f"  source: {scalar_text(trained_on.source)}"
    yield "  files:" if trained_on.files else "  files: []"
    for file in trained_on.files:
        yield f"  - name: {scalar_text(file.name)}"
        yield f"    sha256: {scalar_text(file.sha256)}"
    yield f"  instances: {scalar_text(trained_on.instances)}"
    yield f"  seed: {scalar_text(trained_on.seed)}"
    yield f"  nodes: {scalar_text(trained_on.nodes)}"


def _type_lines(types: Iterable[PlanType]) -> Iterator[str]:
    yield "types:"
    for kind in types:
        yield f"- name: {scalar_text(kind.name)}"
        yield f"  signature: {scalar_text(kind.signature)}"
        yield f"  source: {scalar_text(kind.source)}"


def _policy_lines(policy: PlanPolicy) -> Iterator[str]:
    yield "policy:"
    yield f"  kind: {scalar_text(policy.kind)}"
    yield f"  encoding: {scalar_text(policy.encoding)}"
    yield f"  fallback: {scalar_text(policy.fallback)}"
    if policy.beside is not None:
        yield f"  beside: {scalar_text(policy.beside)}"
    yield from _value_lines("  ", "table", policy.table)
    yield from _value_lines("  ", "training", policy.training)


def _in_order(plan: Plan, names: Iterable[str]) -> list[str]:
    """Names of types in the order of the types."""
    index_of_type = {kind.name: index for index, kind in enumerate(plan.types)}
    return sorted(names, key=lambda name: (index_of_type.get(name, len(index_of_type)), name))


def _cost_lines(plan: Plan) -> Iterator[str]:
    if plan.costs:
        yield "costs:"
    for name in _in_order(plan, plan.costs):
        cost = plan.costs[name]
        figures = f"fixed_us: {scalar_text(cost.fixed_us)}, row_us: {scalar_text(cost.row_us)}"
        yield f"  {scalar_text(name)}: {{{figures}}}"


def _cell_lines(plan: Plan) -> Iterator[str]:
    yield "cells:"
    for name in _in_order(plan, plan.cells):
        cell = plan.cells[name]
        yield f"  {scalar_text(name)}:"
        yield "    operations:"
        yield from (f"    - {scalar_text(line)}" for line in cell.operations)
        yield from _batch_lines(cell)
        yield from list_lines("    ", "layout", cell.layout)
        yield from list_lines("    ", "weights", cell.weights)
        yield f"    copies: {scalar_text(cell.copies)}"
        if cell.eager:
            yield from list_lines("    ", "eager", cell.eager)


def _batch_lines(cell: PlanCell) -> Iterator[str]:
    yield "    batches:" if cell.batches else "    batches: []"
    for batch in cell.batches:
        yield f"    - {_flow(batch)}"


def guard_lines(guards: dict[str, Guard]) -> Iterator[str]:
    """The section `guards`."""
    yield "guards:" if guards else "guards: {}"
    for metric in sorted(guards):
        guard = guards[metric]
        limit = f"value: {scalar_text(guard.value)}, tolerance: {scalar_text(guard.tolerance)}"
        yield f"  {scalar_text(metric)}: {{{limit}, direction: {scalar_text(guard.direction)}}}"


def _value_lines(indent: str, key: str, value: Any) -> Iterator[str]:
    """`key: value`, where a mapping has one line per key, sorted, and a list follows (2)."""
    head = f"{indent}{scalar_text(key)}:"
    if isinstance(value, dict):
        yield head if value else f"{head} {{}}"
        for name in sorted(value):
            yield from _value_lines(indent + "  ", name, value[name])
    elif isinstance(value, tuple):
        yield from list_lines(indent, key, value)
    elif len(head) > LONGEST_KEY:
        yield f"{indent}? {scalar_text(key)}"
        yield f"{indent}: {scalar_text(value)}"
    else:
        yield f"{head} {scalar_text(value)}"


def list_lines(indent: str, key: str, items: tuple[Any, ...]) -> Iterator[str]:
    """A list, on one line where it is short."""
    head = f"{indent}{scalar_text(key)}:"
    flow = _flow(items)
    if not items or len(head) + 1 + len(flow) <= WIDTH:
        yield f"{head} {flow}"
        return
    yield head
    for item in items:
        yield f"{indent}- {_flow(item) if isinstance(item, tuple | dict) else scalar_text(item)}"


def _flow(value: Any) -> str:
    """A value on one line, between brackets where it is a list or a mapping."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(value[key])}" for key in sorted(value)) + "}"
    return scalar_text(value, in_flow=True)
