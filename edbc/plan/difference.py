"""What changed between two plans, as a reviewer wants it: limits first, then behaviour, then origin.

A difference is told once, where it matters: a metric by whether it got better, a state by its action, a cell by the
fields that changed. The difference is empty exactly when `plan_text` gives the same text (a guard's 19 is its 19.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edbc.base.families import family, grouped
from edbc.plan.plan import Guard, Plan, PlanCell, PlanType, PlanWaves, RunAs

BETTER = {"lower": -1, "higher": 1}
"""Sign of a change for the better."""
OF_TYPES = ("costs", "types", "cells")
"""Sections with a change per type."""


@dataclass(frozen=True)
class Change:
    """One named value in the old and in the new plan; None where a plan lacks it."""

    name: str
    old: Any
    new: Any

    @property
    def text(self) -> str:
        """`+ name: new`, `- name: old` or `~ name: old -> new`."""
        if self.old is None:
            return f"+ {self.name}: {_shown(self.new)}"
        if self.new is None:
            return f"- {self.name}: {_shown(self.old)}"
        return f"~ {self.name}: {_shown(self.old)} -> {_shown(self.new)}"


@dataclass(frozen=True)
class MetricChange:
    """A guarded metric."""

    name: str
    old: Guard | None
    new: Guard | None

    @property
    def verdict(self) -> str:
        """`added`, `removed` or `turned`; else `improved` or `regressed`; else `loosened` or `tightened`."""
        if self.old is None or self.new is None:
            return "added" if self.old is None else "removed"
        if self.old.direction != self.new.direction:
            return "turned"
        if self.old.value != self.new.value:
            is_better = (self.new.value - self.old.value) * BETTER[self.new.direction] > 0
            return "improved" if is_better else "regressed"
        return "loosened" if self.new.tolerance > self.old.tolerance else "tightened"

    @property
    def is_worse(self) -> bool:
        """True when the new plan allows what the old one did not."""
        return self.verdict in ("regressed", "removed", "loosened", "turned")

    @property
    def text(self) -> str:
        """`~ batches: 19 -> 21 regressed (lower is better)`; whole limits where more than the value differs."""
        if self.old and self.new and replace(self.old, value=self.new.value) == self.new:
            values = f"{self.old.value} -> {self.new.value}"
            return f"~ {self.name}: {values} {self.verdict} ({self.new.direction} is better)"
        change = Change(self.name, self.old and _limit(self.old), self.new and _limit(self.new))
        return f"{change.text} {self.verdict}"


@dataclass(frozen=True)
class CellChange:
    """A cell in both plans that differs; fields that are equal are left out."""

    name: str
    fields: tuple[Change, ...]

    @property
    def text(self) -> str:
        """`~ leaf: layout, copies 1 -> 0`: orders by name, numbers with both sides."""
        parts = [f"{c.name} {c.old} -> {c.new}" if isinstance(c.new, int) else c.name for c in self.fields]
        return f"~ {self.name}: {', '.join(parts)}"


@dataclass(frozen=True)
class PlanDiff:
    """Every difference between two plans."""

    metrics: tuple[MetricChange, ...]
    """Of the guards, worse ones first."""
    states: tuple[Change, ...]
    """Of the policy's table: actions, other actions first, then added, then removed states."""
    policy: tuple[Change, ...]
    """Kind, encoding, fallback and the rule beside a table."""
    costs: tuple[Change, ...]
    """Of batches, by type."""
    training: tuple[Change, ...]
    """Of the training record, nested names with dots."""
    types: tuple[Change, ...]
    """Signatures and sources of types added, removed or changed."""
    order: tuple[Change, ...]
    """Of the types: at most one change, when the types in both plans have changed places."""
    cells: tuple[CellChange, ...]
    config: tuple[Change, ...]
    origin: tuple[Change, ...]
    """edbc, model, what it was trained on, requirements."""

    @property
    def is_empty(self) -> bool:
        """True when the plans are equal."""
        return not any(getattr(self, name) for name in self.__dataclass_fields__)

    @property
    def is_worse(self) -> bool:
        """True when a guarded metric got worse, or lost its guard."""
        return any(change.is_worse for change in self.metrics)

    def text(self, most: int = 10) -> str:
        """Sections of at most `most` lines each, fit for a review comment; ends with a line break."""
        if self.is_empty:
            return "no difference\n"
        return "\n".join(self._lines(most)) + "\n"

    def _lines(self, most: int) -> Iterator[str]:
        for title in self.__dataclass_fields__:
            changes = getattr(self, title)
            groups = _alike(title, changes)
            if changes:
                yield f"{title}: {_summary(changes)}"
                yield from (f"  {group[0].text}{_more(group)}" for group in groups[:most])
            if len(groups) > most:
                yield f"  ... {sum(map(len, groups[most:])):,} more"


def _alike(title: str, changes: Sequence[Any]) -> list[list[Any]]:
    """Changes of types that differ in a size or an index only, together."""
    return (
        grouped(changes, lambda change: family(change.text)) if title in OF_TYPES else [[change] for change in changes]
    )


def _more(group: Sequence[Any]) -> str:
    return f" (+{len(group) - 1:,} alike)" if len(group) > 1 else ""


def diff_plans(old: Plan, new: Plan) -> PlanDiff:
    """The difference from `old` to `new`. O(size of the plans, times a logarithm for sorting)."""
    guards = _changes(old.guards, new.guards)
    metrics = [MetricChange(c.name, c.old, c.new) for c in guards if c.old != c.new]
    states = _changes(old.policy.table, new.policy.table)
    return PlanDiff(
        metrics=tuple(sorted(metrics, key=lambda change: not change.is_worse)),
        states=tuple(sorted(states, key=lambda change: (change.old is None) + 2 * (change.new is None))),
        policy=_changes(_choices(old), _choices(new)),
        costs=_changes(_costs(old), _costs(new)),
        training=_changes(_flat(old.policy.training), _flat(new.policy.training)),
        types=tuple(_type_changes(old, new)),
        order=_order_change(old, new),
        cells=tuple(_cell_changes(old, new)),
        config=_changes(old.model.config, new.model.config),
        origin=_changes(_origin(old), _origin(new)),
    )


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """By name, those that differ; 1, 1.0 and true, which are equal in Python, are told apart."""
    names = sorted(old.keys() | new.keys())
    changes = (Change(name, old.get(name), new.get(name)) for name in names)
    return tuple(change for change in changes if repr(change.old) != repr(change.new))


def _states_of_waves(waves: PlanWaves) -> str:
    return ", ".join(f"{state}: {action}" for state, action in waves.table.items()) or "the rule due"


def _eagerly(run: RunAs) -> str:
    return f"eager{'' if run.captured is None else f', captured instances {run.captured}'}: {run.eager}"


def _choices(plan: Plan) -> dict[str, Any]:
    policy = plan.policy
    return {
        "run": "batched" if plan.run is None else _eagerly(plan.run),
        "one instance alone": plan.alone or "as all",
        "kind": policy.kind,
        "encoding": policy.encoding or "none",
        "fallback": policy.fallback,
        "beside": policy.beside or "none",
        "waves": "none" if plan.waves is None else _states_of_waves(plan.waves),
        "automatic cells": ", ".join(sorted(plan.automatic)) or "none",
        "fused": "; ".join(f"{name}: {', '.join(lines)}" for name, lines in plan.fused.items()) or "none",
        "ragged": ", ".join(plan.ragged) or "none",
        "reads": ", ".join(plan.reads) or "none",
    }


def _costs(plan: Plan) -> dict[str, str]:
    return {name: f"{cost.fixed_us} us a batch, {cost.row_us} us a row" for name, cost in plan.costs.items()}


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(record, dict) or not record:
        return {prefix: record} if prefix else {}
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat.update(_flat(value, f"{prefix}.{name}" if prefix else name))
    return flat


def _type_changes(old: Plan, new: Plan) -> Iterator[Change]:
    """A type that came or went by its signature, one in both plans field by field."""
    before = {kind.name: kind for kind in old.types}
    after = {kind.name: kind for kind in new.types}
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            yield Change(name, *(types[name].signature if name in types else None for types in (before, after)))
        else:
            yield from _changes(_type_fields(before[name]), _type_fields(after[name]))


def _type_fields(kind: PlanType) -> dict[str, str]:
    return {f"{kind.name}.signature": kind.signature, f"{kind.name}.source": kind.source}


def _order_change(old: Plan, new: Plan) -> tuple[Change, ...]:
    """Indices of types are positions, so a change of places is a change of the plan."""
    both = {kind.name for kind in old.types} & {kind.name for kind in new.types}
    orders = [tuple(kind.name for kind in plan.types if kind.name in both) for plan in (old, new)]
    return () if orders[0] == orders[1] else (Change("types", *orders),)


def _cell_changes(old: Plan, new: Plan) -> Iterator[CellChange]:
    """Of types in both plans; a cell comes and goes with its type."""
    for name, cell in new.cells.items():
        before = old.cells.get(name)
        fields = () if before is None else _changes(_fields(before), _fields(cell))
        if fields:
            yield CellChange(name, fields)


def _fields(cell: PlanCell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in cell.__dataclass_fields__}


def _origin(plan: Plan) -> dict[str, Any]:
    model, trained_on = plan.model, plan.trained_on
    return {
        "edbc": plan.edbc,
        "format_version": plan.format_version,
        "model.path": model.path,
        "model.seed": model.seed,
        "model.sha256": model.sha256,
        "model.weights": None if model.weights is None else f"{model.weights.name} {model.weights.sha256}",
        "requirements": plan.requirements,
        "trained_on.files": tuple(f"{file.name} {file.sha256}" for file in trained_on.files),
        "trained_on.instances": trained_on.instances,
        "trained_on.nodes": trained_on.nodes,
        "trained_on.seed": trained_on.seed,
        "trained_on.source": trained_on.source,
    }


def _limit(guard: Guard) -> str:
    tolerance = f", tolerance {guard.tolerance}" if guard.tolerance else ""
    return f"{guard.value} ({guard.direction} is better{tolerance})"


def _shown(value: Any) -> str:
    text = f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
    return (text if len(text) <= 100 else text[:97] + "...") or "''"


def _summary(changes: tuple[Any, ...]) -> str:
    """`1 added, 2 changed`; metrics by their verdicts."""
    words = [_word(change) for change in changes]
    return ", ".join(f"{words.count(word):,} {word}" for word in dict.fromkeys(words))


def _word(change: Any) -> str:
    if isinstance(change, MetricChange):
        return change.verdict
    if isinstance(change, CellChange):
        return "changed"
    return "added" if change.old is None else "removed" if change.new is None else "changed"
