"""Mini-batches whose instances have no type in common, kind by kind.

Where sizes are types, 32 instances of seven sizes are a mini-batch that never comes again: which of them stands where
is another one each time. But so many instances of one size do come again, and of a structure that came before graph,
schedule and placement are known. Kinds that share no type have no batch in common either, so they run one after the
other in the very batches that they would run in together, and every value has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from edbc.base.kept import Kept

if TYPE_CHECKING:
    from edbc.capture.captured.vocabulary import Lexicon
    from edbc.capture.forward.build import Capture

MOST_KINDS = 8
"""Of one mini-batch: more take longer one by one."""
TRIES = 256
"""Parts of mini-batches that are new, and not outweighed by those that came before, until no new one is tried."""


class Kinds(NamedTuple):
    """A mini-batch in parts, and the instances of each."""

    places: list[list[int]]
    captures: list[Capture]


class Apart:
    """Which mini-batches run so. Threads may share it."""

    def __init__(self, lexicon: Lexicon):
        self._lexicon = lexicon
        self._left = TRIES
        self._share_nothing: Kept[frozenset[int | None], bool] = Kept(64)

    def places(self, structures: Sequence[int | None]) -> list[list[int]] | None:
        """Where the instances of each kind stand, by what each instance is; None where all are to run together."""
        kinds = {*structures}
        if not 1 < len(kinds) <= MOST_KINDS or not self._are_apart(frozenset(kinds)):
            return None
        found: dict[int | None, list[int]] = {}
        for place, structure in enumerate(structures):
            found.setdefault(structure, []).append(place)
        joined = self._lexicon.joined
        new = sum([(structure,) * len(at) not in joined for structure, at in found.items()])
        if new and self._left <= 0:
            return None
        self._left = min(TRIES, self._left + len(found) - 2 * new)
        return [*found.values()]

    def _are_apart(self, kinds: frozenset[int | None]) -> bool:
        """Whether no two of them share a type, and each can come again."""
        known = self._share_nothing.get(kinds)
        if known is None:
            types = [None if kind is None else self._lexicon.types_of.get(kind) for kind in kinds]
            of_all = [of for of in types if of is not None]
            known = len(of_all) == len(types) and sum(map(len, of_all)) == len(frozenset().union(*of_all))
            self._share_nothing.add(kinds, known)
        return known
