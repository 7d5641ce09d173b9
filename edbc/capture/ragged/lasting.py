"""What is known of ragged calls for good: equal calls of later instances do the same with other rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edbc.capture.ragged.pattern import Given, Made, OfRow, Pattern, Place, Reduced, Repeated
from edbc.capture.ragged.value import Ragged
from edbc.capture.standins.standin import PLAIN, Shared, Value


def lasting_of(patterns: Sequence[tuple[Pattern | Reduced, tuple[Ragged, ...], Any]], rows: Sequence[Ragged],
               given: Sequence[int], result: Any) -> Repeated | Reduced | None:  # fmt: skip
    """What is known from now on of a call that has applied these patterns, where that is all that it has done."""
    if len(set(given)) != len(given):
        return None
    if not patterns and type(result) is Ragged and len(rows) == 1 and result.refs is rows[0].refs:
        place = Place(OfRow(0), result.row, result.at)
        return Repeated(Pattern((), place, True), ())
    if len(patterns) != 1:
        return None
    pattern, taken, found = patterns[0]
    if isinstance(pattern, Reduced):
        is_all = type(result) is Value and type(found) is Value and result.ref == found.ref
        return pattern if is_all and result.slot is pattern.slot and len(rows) == 1 and taken[0] is rows[0] else None
    if found is not result or len(taken) != len(rows) or any(a is not b for a, b in zip(taken, rows, strict=True)):
        return None
    used = [s for node in pattern.nodes for s in node.sources if type(s) is Given]
    if not pattern.is_lasting or any(s.ref not in given for s in used):
        return None
    return Repeated(pattern, tuple(given)) if _has_no_given(pattern.result) else None


def _has_no_given(item: Any) -> bool:
    """Whether all results are rows' or made, not values of the call's own."""
    if isinstance(item, tuple | list) and type(item) is not Place:
        return all(map(_has_no_given, item))
    return type(item) is not Place or type(item.source) in (OfRow, Made)


def is_keyed(items: Iterable[Any], parts: list[Any], rows: list[Ragged], given: list[int]) -> bool:
    """Append what tells a call from others; False for calls that have no key, or none whose result lasts."""
    for item in items:
        kind = type(item)
        if kind is Ragged:
            rows.append(item)
            parts += Ragged, item.row, item.at
        elif kind is Value:
            given.append(item.ref)
            parts.append(item.slot)
        elif kind is Shared:
            parts.append(item.key)
        elif kind in PLAIN or (kind is float and item and item == item):
            parts += kind, item
        elif kind is tuple or kind is list:
            parts += kind, len(item)
            if not is_keyed(item, parts, rows, given):
                return False
        elif kind is slice:
            parts += kind, item.start, item.stop, item.step
        elif item is Ellipsis:
            parts.append(Ellipsis)
        else:
            return False
    return True
