"""Capturing a repeated structure once: the cache that a model file's `structure_key` switches on.

`structure_key(instance)` promises: equal keys, equal parts (`captured.joining.Part`), look-up indices, constants and
plain values in results included. With `externals(instance)` in the model file the key need not cover indices and
constants: it returns, in the order in which forward makes them, the row index of every look-up and the tensor of every
constant.

The promise is checked: one hit in `CHECK_EVERY` (every hit, when verifying) is captured again and compared (`Sample`).
Without `structure_key` nothing is cached. On a hit forward does not run, so what it would store on the instance is not
stored; parts of which it stores tensors are therefore never used again (`forward.left`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import torch

from edbc.capture.captured import joinloops
from edbc.capture.captured.instance import WORD, sections
from edbc.capture.captured.joining import Part, same_parts
from edbc.capture.captured.vocabulary import Lexicon
from edbc.errors import ModelError

CHECK_EVERY = 100
MAX_WORDS = 1 << 26
"""Of all parts together, in bytes; the oldest parts make room."""


class Sample:
    """Which uses of something kept are checked: the first, and of every CHECK_EVERY after the first so many one that is
    drawn. At a fixed distance, epochs of 100 items in one order would have the same item checked for ever."""

    def __init__(self) -> None:
        self._random = Random(0)
        self._uses = self._next = 0

    def takes_next(self) -> bool:
        """Count a use; whether it is checked."""
        place = self._uses % CHECK_EVERY
        if self._uses and not place:
            self._next = self._random.randrange(CHECK_EVERY)
        self._uses += 1
        return place == self._next


class StructureCache:
    """Parts by key, those of each lexicon apart, and how often one was found. `verify` checks every hit."""

    def __init__(
        self,
        structure_key: Callable[[Any], Hashable],
        externals: Callable[[Any], Sequence[Any]] | None = None,
        verify: bool = False,
    ):
        self.structure_key = structure_key
        self.externals = externals
        self.verify = verify
        self.hits = 0
        self.misses = 0
        self.checked = 0
        self._parts: dict[Hashable, Part] = {}
        self._bytes = 0
        self._sample = Sample()

    @property
    def hit_rate(self) -> float:
        """Hits among all instances so far."""
        return self.hits / max(self.hits + self.misses, 1)

    def anew(self) -> StructureCache:
        """A cache for the same model file, with no parts yet."""
        return StructureCache(self.structure_key, self.externals, self.verify)

    def forget(self) -> None:
        """Start again with no parts and no counts (after a warm-up)."""
        self.hits = self.misses = self.checked = self._bytes = 0
        self._parts.clear()

    def as_json(self) -> dict[str, int | float]:
        """The counts and the rate as a JSON object."""
        return {"hits": self.hits, "misses": self.misses, "checked": self.checked, "hit_rate": self.hit_rate}

    def part(self, lexicon: Lexicon, instance: Any, number: int, record: Callable[[], Part]) -> Part:
        """The part of an instance, recorded only where it must be. Raises ModelError for a broken promise."""
        key = lexicon, self.structure_key(instance)
        known = self._parts.get(key)
        if known is None:
            self.misses += 1
            part = record()
            if part.left is None:
                self._store(key, part)
            return part
        self.hits += 1
        part = known if self.externals is None else self._with_externals(lexicon, known, instance, number)
        if self._sample.takes_next() or self.verify:
            self.checked += 1
            if not same_parts(part, record()):
                remedy = "look-up indices and constants too, or define externals(instance)"
                if self.externals is not None:
                    remedy = "all of the structure and of what is returned, and externals all look-ups in their order"
                raise ModelError(
                    f"instance {number}: expected the graph of an earlier instance with the same structure_key, got "
                    f"another one; let the key cover {remedy}"
                )
        return part

    def _store(self, key: Hashable, part: Part) -> None:
        self._parts[key] = part
        self._bytes += len(part.words)
        while self._bytes > MAX_WORDS and len(self._parts) > 1:
            self._bytes -= len(self._parts.pop(next(iter(self._parts))).words)

    def _with_externals(self, lexicon: Lexicon, part: Part, instance: Any, number: int) -> Part:
        """The part with the look-ups and constants of another instance."""
        assert self.externals is not None
        given = list(self.externals(instance))
        if len(given) != len(part.order):
            raise ModelError(
                f"instance {number}: expected {len(part.order)} externals, got {len(given)} from externals()"
            )
        words = np.frombuffer(part.words, WORD).copy()
        sources = sections(words)[1]
        indices = words[len(words) - len(sources) :]
        pools = {source: list(pool) for source, pool in part.constants}
        for external, value in zip(part.order, given, strict=True):
            if external < 0:  # nothing reads it
                continue
            source = int(sources[external])
            if lexicon.facts().kind_of_source[source] == joinloops.CONSTANT:
                pools[source][int(indices[external])] = torch.as_tensor(value)
            else:
                indices[external] = int(value)
        return part._replace(words=words.tobytes(), constants=list(pools.items()))


def structure_cache(module: ModuleType | None, verify: bool = False) -> StructureCache | None:
    """The cache that a model file asks for, if any."""
    key = getattr(module, "structure_key", None)
    return None if key is None else StructureCache(key, getattr(module, "externals", None), verify)
