"""An explanation for people: a family of types (`edbc.base.families`) is one type of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edbc.base.families import family, leads

if TYPE_CHECKING:
    from edbc.tools.explain.explanation import Explanation, TypeFacts
    from edbc.tools.explain.observe import Observation
    from edbc.tools.explain.signatures import Difference

NOTE = "+N after a type: N more differ from it in a size or an index only, and are counted with it"
SUMMED = ("nodes", "batches", "least", "seconds", "moved_bytes", "gathered_bytes")


def folded(e: Explanation) -> Explanation:
    """The explanation with one type for every family that is told as one; itself where there is none."""
    of_run = () if e.observed is None else e.observed.types
    signatures = {t.name: t.signature for t in of_run}  # none of types that did not occur
    told = leads({**signatures, **{t.name: t.signature for t in e.types}})
    names = list(dict.fromkeys(told.values()))
    if len(names) == len(told):
        return e
    grouped: dict[str, list[TypeFacts]] = {}
    for facts in e.types:
        grouped.setdefault(told[facts.name], []).append(facts)
    apart: dict[tuple[tuple[str, ...], str], Difference] = {}
    for difference in e.apart:
        types = tuple(dict.fromkeys(told[name] for name in difference.types))
        apart.setdefault((types, family(difference.reason)), replace(difference, types=types))
    layouts = dict.fromkeys(replace(layout, name=told[layout.name]) for layout in e.layouts)
    return replace(
        e,
        notes=(*e.notes, NOTE),
        types=tuple(_together(name, grouped[name]) for name in names if name in grouped),
        apart=tuple(apart.values()),
        states=tuple(replace(state, action=told.get(state.action, state.action)) for state in e.states),
        layouts=tuple(layouts),
        observed=None if e.observed is None else _observed(e.observed, told, names),
    )


def _together(name: str, facts: Sequence[TypeFacts]) -> TypeFacts:
    """One type for several: counts in sum."""
    largest = [one.largest for one in facts if one.largest is not None]
    lowering = next((one.lowering for one in facts if one.lowering), None)
    sums: dict[str, Any] = {field: _total([getattr(one, field) for one in facts]) for field in SUMMED}
    return replace(facts[0], name=name, lowering=lowering, largest=max(largest, default=None), **sums)


def _total(counts: Sequence[float | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _observed(observed: Observation, told: Mapping[str, str], names: Sequence[str]) -> Observation:
    number = [names.index(told[t.name]) for t in observed.types]
    first = {told[t.name]: t for t in reversed(observed.types)}
    least = [0] * len(names)
    for kind, batches in enumerate(observed.least):
        least[number[kind]] += batches
    schedules = {
        kind: tuple((number[type_], size) for type_, size in batches) for kind, batches in observed.schedules.items()
    }
    return replace(
        observed,
        types=tuple(replace(first[name], name=name) for name in names if name in first),
        steps=tuple(replace(step, kind=number[step.kind]) for step in observed.steps),
        least=tuple(least),
        schedules=schedules,
    )
