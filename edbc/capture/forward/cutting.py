"""Cutting a recording where instances wait: what runs now, what waits for company, and what is carried on.

Definitions.

(1) What runs now is *needed*: the values that instances wait for, others of calls whose values have been read before,
    as they will be asked for next, and what all of these are computed from. Other nodes *stay* in the recording and run
    with a later segment, in larger batches, as somebody who batches by hand would have it. They do not where forward
    has switched gradients off on the way, or where more have gathered than MOST_WAITING, or PER_INSTANCE for each
    instance that is still under way: every cut looks at them again, and few bring little company.
    Nodes that nobody will ever read are dropped.
(2) A value is *carried* where it was computed now, and a stand-in for it is alive or a node that stays reads it. The
    carried values of a segment are its results, class by class; each class is a table, of which later segments read
    rows. No segment's memory outlives it, and no tensor is made per row.
(3) A *group* are nodes that compute with each other's values: what one instance has recorded, nearly always. Groups
    stand in the order of what they are and of the sources that they read, not of their instances, so three sentences of
    which the first shifts and two reduce are what three are of which the last does. Segments that differ in nothing
    but which rows they read are of one structure then (`forward.structures`): what runs them is built, scheduled and
    placed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edbc.capture.forward.carried import Carried, Table
from edbc.capture.forward.returned import Ints, Run, as_longs

if TYPE_CHECKING:
    from edbc.capture.forward.build import Capture
    from edbc.capture.forward.structures import Structure
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.record.table import Source
    from edbc.capture.standins.standin import Slot, Value

RunSegment = Callable[["Capture"], Sequence[Table]]
"""Executes a segment and returns its results, class by class. Where it has a method `again`, that is asked first, with
the Segment, and gives None where it cannot tell."""
_ref = attrgetter("ref")
HEAD = 13
"""Numbers before the arrays that `buildloops.cut` gives."""
MOST_WAITING, PER_INSTANCE = 128, 8
"""Nodes that wait for company, at most; see definition (1)."""


@lru_cache(maxsize=4096)
def _packer(count: int) -> Struct:
    """What packs so many integers."""
    return Struct(f"{count}q")


def _part(number: int) -> Any:
    """Of Parts, the array of a number."""
    return property(lambda parts: parts._found[parts._ends[number] : parts._ends[number + 1]])


class Parts:
    """What `buildloops.cut` makes of a recording. Refs of what runs now are local, those of what stays are not."""

    __slots__ = ("_ends", "_found", "foreign", "num_later")

    def __init__(self, found: Ints):
        self._found = found
        self.num_later: int
        """Values of those that stay."""
        self.foreign: int
        """The first operand that is no value of this mini-batch, or -1."""
        self.num_later, self.foreign, *ends = found[:HEAD].tolist()
        self._ends = ends[5:] + ends[:5]

    entries, refs = _part(0), _part(1)
    results, result_ptr = _part(2), _part(3)
    """Values that are carried, by class; and where each class begins."""
    sources, indices = _part(4), _part(5)
    """Of the externals that the refs name, in the order of their new numbers."""
    moved = _part(6)
    """New refs of the stand-ins that are alive."""
    later_entries, later_refs = _part(7), _part(8)
    nodes = _part(9)
    """The recorded nodes that run now, group by group."""

    @property
    def key(self) -> bytes:
        """What tells the first five arrays from others: they and where each ends."""
        return self._found[self._ends[0] - 6 : self._ends[5]].tobytes()


class Known(NamedTuple):
    """What segments of one structure have in common."""

    structure: Structure
    num_nodes: int
    slots: list[Slot]
    """Of the results."""
    runs: list[Run]
    """The results of each class."""
    carried: list[tuple[int, int]]
    """Classes by number, and how many results are of each."""


class Segment(NamedTuple):
    """A segment to run."""

    known: Known
    recorder: Recorder
    external_index: Ints
    pools: list[Carried]
    """What its tables are carried in, class by class."""
    moved: list[int]
    """New refs of the stand-ins that are alive."""

    @property
    def constants(self) -> dict[int, Any]:
        """As a Capture's."""
        return self.recorder.constants

    @property
    def sources(self) -> Sequence[Source]:
        """As a Capture's."""
        return self.recorder.table.sources

    def capture(self) -> Capture:
        """As passes take it."""
        from edbc.capture.forward.build import captured_of

        known = self.known
        return captured_of(known.structure, self.recorder, self.external_index, known.slots, known.runs)


class Cutting:
    """Cuts the segments of one mini-batch."""

    def __init__(self, recorder: Recorder):
        from edbc.capture.forward import buildloops

        self.recorder = recorder
        self._native = buildloops.cut
        self._told = np.empty((2, 1024), np.int64)
        """Sources and indices of the externals that native code knows."""
        self._num_told = 0
        self._numbers: Any = np.empty(1024, np.int64)
        """What native code is given, which is packed in half of the time that `np.fromiter` takes."""

    def cut(self, live: Sequence[Value], wanted: Sequence[int], aborted: int = 0) -> Segment:
        """Take what is needed out of the recording, which goes on with the rest. `live` are the values that somebody
        has, among which are those of refs that are `wanted`; the first `aborted` nodes count only where somebody has
        them.

        Raises UnsupportedError for an operand of an earlier mini-batch, with the line.
        """
        recorder = self.recorder
        detached = recorder.detached()
        parts = self._parts(live, wanted, aborted, recorder.lets_wait and not len(detached))
        if parts.foreign >= 0:
            from edbc.capture.forward.build import refuse_foreign

            num_operands = recorder.table.arrays().num_operands[as_longs(recorder.entries)]
            refuse_foreign(recorder.finish([]), parts.foreign, np.append(0, np.cumsum(num_operands)))
        most = min(MOST_WAITING, PER_INSTANCE * len(wanted))
        if parts.num_later > most and len(parts.later_entries) > most:
            parts = self._parts(live, wanted, aborted, False)
        if len(detached):
            detached = np.flatnonzero(np.isin(parts.nodes, detached))
        known = _known(recorder, parts, detached)
        pools = [recorder.carry(*each) for each in known.carried]
        if parts.num_later:
            recorder.cut(parts.later_entries.tolist(), parts.later_refs.tolist(), parts.num_later)
        else:
            recorder.cut([], [], 0)
        return Segment(known, recorder, parts.indices, pools, parts.moved.tolist())

    def _parts(self, live: Sequence[Value], wanted: Sequence[int], aborted: int, may_wait: bool) -> Parts:
        recorder, table = self.recorder, self.recorder.table
        entries, refs, known = recorder.entries, recorder.refs, self._num_told
        sources, indices = recorder.external_source[known:], recorder.external_index[known:]
        sizes = len(entries), len(refs), len(live), len(wanted)
        count = sum(sizes) + 2 * len(sources)
        if count > len(self._numbers):
            self._numbers = np.empty(2 * count, np.int64)
        _packer(count).pack_into(self._numbers, 0, *entries, *refs, *map(_ref, live), *wanted, *sources, *indices)
        self._num_told = known + len(sources)
        while self._num_told > self._told.shape[1]:
            self._told = np.concatenate([self._told, self._told], axis=1)
        found = self._native(
            self._numbers[:count], *sizes, recorder.first_value, recorder.first_external, self._told, known, aborted,
            may_wait, recorder.next_value, table.arrays().record, table.num_classes, table.was_read(),
        )  # fmt: skip
        return Parts(found)


def _known(recorder: Recorder, parts: Parts, detached: Any) -> Known:
    """Definition (3)."""
    table = recorder.table
    key = parts.key, detached.tobytes() if len(detached) else b""
    known: Known | None = table.structures.get(key)
    if known is None or known.structure.graph.types is not table.graph_types():
        from edbc.capture.forward.build import structure_of

        recording = recorder.finish([]).changed(
            entries=parts.entries,
            refs=parts.refs,
            external_source=parts.sources,
            external_index=parts.sources,
            first_value=0,
            first_external=0,
            detached=detached,
        )
        bounds = parts.result_ptr.tolist()
        classes = [(c, a, b) for c, (a, b) in enumerate(pairwise(bounds)) if a < b]
        slots = [table.slot(table.classes()[c]) for c, a, b in classes for _ in range(a, b)]
        runs = [Run(a, b) for _, a, b in classes]
        structure = structure_of(recording, parts.results)
        carried = [(c, b - a) for c, a, b in classes]
        known = table.structures.add(key, Known(structure, structure.graph.num_nodes, slots, runs, carried))
    return known
