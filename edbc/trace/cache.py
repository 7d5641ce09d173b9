"""Capturing a repeated structure once: the cache that a model file's `structure_key` switches on.

Definitions.

(1) The *part* of an instance is what it adds to a mini-batch: nodes, operands and externals numbered from 0, and the
    nest of its results. Parts are put side by side by adding offsets; a part refers to nothing outside itself.
(2) `structure_key(instance)` promises: equal keys, equal parts, look-up indices, constants and plain values in results
    included. With
    `externals(instance)` in the model file the key need not cover indices and constants: it returns, in the order in
    which forward makes them, the row index of every look-up and the tensor of every constant.

The promise is checked: one hit in `CHECK_EVERY` (every hit, when verifying) is captured again and compared. Without
`structure_key` nothing is cached. On a hit forward does not run, so what it would store on the instance is not stored;
parts of which it stores tensors are therefore never used again (`trace.left`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from edbc.errors import ModelError
from edbc.trace.build import Capture, build_collected, local_refs
from edbc.trace.draws import INSTANCE_BITS
from edbc.trace.forward import NoGarbageCollection
from edbc.trace.left import Left, joined_left, recorded
from edbc.trace.recorder import Recorder
from edbc.trace.recording import Recording
from edbc.trace.returned import Collected, Ints, shifted_results
from edbc.trace.values import Slot

CHECK_EVERY = 100
MAX_NODES = 1 << 22
"""Nodes of all parts together; the oldest parts make room."""


@dataclass(frozen=True, eq=False)
class Part:
    """Definition (1)."""

    entries: Ints
    refs: Ints
    num_values: int
    external_source: Ints
    external_index: Ints
    constants: dict[int, list[torch.Tensor]]
    given: Ints
    """Externals that `externals` gives: all but whole parameters and random numbers."""
    drawn: Ints
    """Externals that are random numbers."""
    detached: Ints
    """Nodes recorded where gradients were switched off."""
    result_refs: Ints
    result_slots: list[Slot]
    nest: Any
    left: Left | None = None
    """What forward left on the instance; a part that leaves something is not used again."""

    def same_as(self, other: Part) -> bool:
        """True when both add the same to a mini-batch."""
        arrays = ("entries", "refs", "external_source", "external_index", "detached", "result_refs")
        return (
            all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)
            and self.result_slots == other.result_slots
            and self.nest == other.nest
            and self.constants.keys() == other.constants.keys()
            and all(_equal(pool, other.constants[source]) for source, pool in self.constants.items())
        )


def _equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


class StructureCache:
    """Parts by key, those of each type table apart, and how often one was found. `verify` checks every hit."""

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
        self._nodes = 0

    @property
    def hit_rate(self) -> float:
        """Hits among all instances so far."""
        return self.hits / max(self.hits + self.misses, 1)

    def anew(self) -> StructureCache:
        """A cache for the same model file, with no parts yet."""
        return StructureCache(self.structure_key, self.externals, self.verify)

    def forget(self) -> None:
        """Start again with no parts and no counts (after a warm-up)."""
        self.hits = self.misses = self.checked = self._nodes = 0
        self._parts.clear()

    def as_json(self) -> dict[str, int | float]:
        """The counts and the rate as a JSON object."""
        return {"hits": self.hits, "misses": self.misses, "checked": self.checked, "hit_rate": self.hit_rate}

    def capture(self, shadow: nn.Module, recorder: Recorder, instances: Sequence[Any]) -> Capture:
        """Like `trace.build.capture`, forward running only where it must. Raises ModelError for a broken promise."""
        with NoGarbageCollection():
            first = recorder.first_instance
            parts = [self._part(shadow, recorder, i, item) for i, item in enumerate(instances, first)]
            recorder.tracer.require_unchanged()
            return _joined(recorder, parts)

    def _part(self, shadow: nn.Module, recorder: Recorder, number: int, instance: Any) -> Part:
        recorder.first_instance = number
        key = recorder.table, self.structure_key(instance)
        known = self._parts.get(key)
        if known is None:
            self.misses += 1
            part = record_part(shadow, recorder, instance)
            if part.left is None:
                self._store(key, part)
            return part
        self.hits += 1
        part = known if self.externals is None else self._with_externals(known, instance, number)
        if self.verify or self.hits % CHECK_EVERY == 0:
            self.checked += 1
            if not part.same_as(record_part(shadow, recorder, instance)):
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
        self._nodes += len(part.entries)
        while self._nodes > MAX_NODES and len(self._parts) > 1:
            self._nodes -= len(self._parts.pop(next(iter(self._parts))).entries)

    def _with_externals(self, part: Part, instance: Any, number: int) -> Part:
        """The part with the look-ups and constants of another instance."""
        assert self.externals is not None
        given = list(self.externals(instance))
        if len(given) != len(part.given):
            raise ModelError(
                f"instance {number}: expected {len(part.given)} externals, got {len(given)} from externals()"
            )
        index = part.external_index.copy()
        pools: dict[int, list[torch.Tensor]] = {source: list(pool) for source, pool in part.constants.items()}
        for external, value in zip(part.given.tolist(), given, strict=True):
            source = int(part.external_source[external])
            if source in pools:
                pools[source][int(index[external])] = torch.as_tensor(value)
            else:
                index[external] = int(value)
        return replace(part, external_index=index, constants=pools)


def structure_cache(module: ModuleType | None, verify: bool = False) -> StructureCache | None:
    """The cache that a model file asks for, if any."""
    key = getattr(module, "structure_key", None)
    return None if key is None else StructureCache(key, getattr(module, "externals", None), verify)


def record_part(shadow: nn.Module, recorder: Recorder, instance: Any) -> Part:
    """What an instance adds to a mini-batch, definition (1): forward runs on it alone."""
    recording, (result_refs, slots, nests, left) = recorded(shadow, recorder, [instance])
    arrays = recording.table.arrays()
    entries = np.asarray(recording.entries, np.int64)
    num_values = int(arrays.num_outputs[entries].sum())
    source = np.asarray(recording.external_source, np.int64)
    kinds = np.array([s.kind for s in recording.table.sources], object)[source]
    return Part(
        entries,
        local_refs(recording, recording.refs, num_values),
        num_values,
        source,
        np.asarray(recording.external_index, np.int64),
        recording.constants,
        np.flatnonzero((kinds == "row") | (kinds == "constant")),
        np.flatnonzero(kinds == "draw"),
        np.asarray(recording.detached, np.int64),
        local_refs(recording, result_refs, num_values),
        slots,
        nests[0],
        left,
    )


def _joined(recorder: Recorder, parts: Sequence[Part]) -> Capture:
    """Parts side by side, as one recording."""
    first_value = _starts([part.num_values for part in parts])
    first_external = _starts([len(part.external_source) for part in parts])
    first_result = _starts([len(part.result_refs) for part in parts])
    constants: dict[int, list[torch.Tensor]] = {}
    index = [_placed(part, number, constants) for number, part in enumerate(parts)]

    def moved(name: str) -> Ints:
        arrays = [
            np.where(refs >= 0, refs + value, refs - external)
            for refs, value, external in zip(
                [getattr(p, name) for p in parts], first_value, first_external, strict=True
            )
        ]
        return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)

    def together(arrays: list[Ints]) -> Ints:
        return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)

    ends = np.cumsum([len(part.entries) for part in parts]).tolist()
    recording = Recording(
        recorder.table,
        together([p.entries for p in parts]),
        moved("refs"),
        together([p.external_source for p in parts]),
        together(index),
        constants,
        [],
        {},
        0,
        0,
        ends,
        together([part.detached + start for part, start in zip(parts, [0, *ends], strict=False)]),
    )
    nests = [shifted_results(part.nest, start) for part, start in zip(parts, first_result, strict=True)]
    slots = [slot for part in parts for slot in part.result_slots]
    left = [p.left.moved(start) for p, start in zip(parts, first_result, strict=True) if p.left is not None]
    return build_collected(recording, Collected(moved("result_refs"), slots, nests, joined_left(left)))


def _starts(counts: Sequence[int]) -> list[int]:
    return np.cumsum([0, *counts])[:-1].tolist()


def _placed(part: Part, number: int, constants: dict[int, list[torch.Tensor]]) -> Ints:
    """A part's external indices once its constants have joined the mini-batch's, of which it is instance `number`."""
    index = part.external_index
    if len(part.drawn):
        index = index.copy()
        index[part.drawn] += number << INSTANCE_BITS
    for source, pool in part.constants.items():
        together = constants.setdefault(source, [])
        if together:
            index = np.where(part.external_source == source, index + len(together), index)
        together.extend(pool)
    return index
