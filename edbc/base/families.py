"""Families: types that differ in a size or an index only, told as one wherever people read.

(1) Types are of one *family* when their signatures are the same text but for numbers: `module layers.3(f32[16])` and
    `module layers.17(f32[16])`, an attention over four words and one over nine. Dtypes are no numbers.
(2) A family of FEWEST types or more is told as its first one, `layers_3 +16`: so many more are like it. Its counts are
    sums. Smaller ones are told type by type, and data for programs (JSON) always is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
FEWEST = 4
"""Types that are told as one."""
_REPEATED = re.compile(r"(\b\w+\[[#,]*\]|\b_)(?:, \1)+")
_NUMBER = re.compile(r"(?P<dtype>\b(?:bf|f|i|u|c)\d+\b)|\d+(?:\.\d+)?")


def family(text: str) -> str:
    """A signature, or any text with names of types, without its numbers.

    >>> family("module layers.17(f32[4,16]) -> f32[4]")
    'module layers.#(f32[#,#]) -> f32[#]'
    """
    return _REPEATED.sub(r"\1...", _NUMBER.sub(lambda match: match["dtype"] or "#", text))


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Items whose keys are equal, together where there are FEWEST of them; in the order of their first."""
    groups: dict[Hashable, list[T]] = {}
    keyed = [(key(item), item) for item in items]
    for known, item in keyed:
        groups.setdefault(known, []).append(item)
    told: dict[Hashable, list[T]] = {}
    for place, (known, item) in enumerate(keyed):
        if len(groups[known]) >= FEWEST:
            told.setdefault(("group", known), groups[known])
        else:
            told[place] = [item]
    return list(told.values())


def name_of(names: Sequence[str]) -> str:
    """Of a group: `layers_3 +16`."""
    return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1:,}"


def fold_names(names: Iterable[str]) -> list[str]:
    """Names of types, those that differ in numbers as one."""
    return [name_of(group) for group in grouped(names, family)]


def leads(signatures: Mapping[str, str]) -> dict[str, str]:
    """How every type is told, by its name; types with their signatures are given."""
    groups = grouped(signatures, lambda name: family(signatures[name]))
    return {name: name_of(group) for group in groups for name in group}
