"""Cutting a recording where instances wait: what runs now, what waits for company, and what is carried on.

Definitions.

(1) What runs now is *needed*: the values that instances wait for, others of calls whose values have been read before,
    as they will be asked for next, and what all of these are computed from. Other nodes *stay* in the recording and run
    with a later segment, in larger batches, as somebody who batches by hand would have it. They do not where forward
    has switched gradients off on the way, or where more than MOST_WAITING have gathered: each cut looks at them again.
    Nodes that nobody will ever read are dropped.
(2) A value is *carried* where it was computed now, and a stand-in for it is alive or a node that stays reads it. The
    carried values of a segment are its results, class by class; each class is a table, of which later segments read
    rows. No segment's memory outlives it, and no tensor is made per row.
(3) A *group* are nodes that compute with each other's values: what one instance has recorded, nearly always. Groups
    stand in the order of what they are, not of their instances, so three sentences of which the first shifts and two
    reduce are what three are of which the last does. Segments that differ in nothing but which rows they read are of
    one structure then (`forward.structures`): what runs them is built, scheduled and placed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edbc.capture.forward.carried import Carried, Table
from edbc.capture.forward.returned import Ints, Run, as_longs

if TYPE_CHECKING:
    from edbc.capture.forward.build import Capture
    from edbc.capture.forward.structures import Structure
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.standins.standin import Slot, Value

RunSegment = Callable[["Capture"], Sequence[Table]]
"""Executes a segment and returns its results, class by class."""
_ref = attrgetter("ref")
MOST_WAITING = 1024
"""Nodes that wait for company, at most; see definition (1)."""


class Parts(NamedTuple):
    """What `buildloops.cut` makes of a recording. Refs of what runs now are local, those of what stays are not."""

    key: tuple[int, int, int, bytes]
    """What tells the first four from others."""
    entries: Ints
    refs: Ints
    results: Ints
    """Values that are carried, by class."""
    result_ptr: Ints
    """Where each class begins."""
    used: Ints
    """Externals that they name, in the order of their new numbers."""
    moved: Ints
    """New refs of the stand-ins that are alive."""
    later_entries: Ints
    later_refs: Ints
    nodes: Ints
    """The recorded nodes that run now, group by group."""
    num_later: int
    """Values of those that stay."""
    foreign: int
    """The first operand that is no value of this mini-batch, or -1."""


class Segment(NamedTuple):
    """A segment to run."""

    capture: Capture
    pools: list[Carried]
    """What its tables are carried in, class by class."""
    moved: list[int]
    """New refs of the stand-ins that are alive."""


class Known(NamedTuple):
    """What segments of one structure have in common."""

    structure: Structure
    slots: list[Slot]
    """Of the results."""
    runs: list[Run]
    """The results of each class."""
    carried: list[tuple[int, int]]
    """Classes by number, and how many results are of each."""


def cut(recorder: Recorder, live: Sequence[Value], wanted: Sequence[int], aborted: int = 0) -> Segment:
    """Take what is needed out of the recording, which goes on with the rest. `live` are the values that somebody has,
    among which are those of refs that are `wanted`; the first `aborted` nodes count only where somebody has them.

    Raises UnsupportedError for an operand of an earlier mini-batch, with the line.
    """
    from edbc.capture.forward.build import captured_of, refuse_foreign

    table, detached = recorder.table, recorder.detached()
    parts = _parts(recorder, live, wanted, aborted, not len(detached))
    if parts.foreign >= 0:
        num_operands = table.arrays().num_operands[as_longs(recorder.entries)]
        refuse_foreign(recorder.finish([]), parts.foreign, np.append(0, np.cumsum(num_operands)))
    if len(parts.later_entries) > MOST_WAITING:
        parts = _parts(recorder, live, wanted, aborted, False)
    if len(detached):
        detached = np.flatnonzero(np.isin(parts.nodes, detached))
    sources, indices = _picked(recorder.external_source, parts.used), _picked(recorder.external_index, parts.used)
    known = _known(recorder, parts, sources, detached)
    pools = [recorder.carry(*each) for each in known.carried]
    recorder.cut(parts.later_entries.tolist(), parts.later_refs.tolist(), parts.num_later)
    capture = captured_of(known.structure, recorder, as_longs(indices), known.slots, known.runs)
    return Segment(capture, pools, parts.moved.tolist())


def _known(recorder: Recorder, parts: Parts, sources: tuple[int, ...], detached: Any) -> Known:
    """Definition (3)."""
    table = recorder.table
    key = (*parts.key, sources, detached.tobytes() if len(detached) else b"")
    known: Known | None = table.structures.get(key)
    if known is None or known.structure.graph.types is not table.graph_types():
        from edbc.capture.forward.build import structure_of

        recording = replace(
            recorder.finish([]),
            entries=parts.entries,
            refs=parts.refs,
            external_source=sources,
            external_index=sources,
            first_value=0,
            first_external=0,
            detached=detached,
        )
        bounds = parts.result_ptr.tolist()
        classes = [(c, a, b) for c, (a, b) in enumerate(pairwise(bounds)) if a < b]
        slots = [table.slot(table.classes()[c]) for c, a, b in classes for _ in range(a, b)]
        runs = [Run(a, b) for _, a, b in classes]
        structure = structure_of(recording, parts.results)
        known = table.structures.add(key, Known(structure, slots, runs, [(c, b - a) for c, a, b in classes]))
    return known


def _parts(recorder: Recorder, live: Sequence[Value], wanted: Sequence[int], aborted: int, may_wait: bool) -> Parts:
    table, entries, refs = recorder.table, recorder.entries, recorder.refs
    sizes = len(entries), len(refs), len(live)
    numbers = np.fromiter(chain(entries, refs, map(_ref, live), wanted), np.int64, sum(sizes) + len(wanted))
    arrays = table.arrays()
    return parts_of(
        numbers, *sizes, recorder.first_value, recorder.first_external, len(recorder.external_source), aborted,
        may_wait, recorder.next_value, recorder.last_external - 1, arrays.record, table.num_classes, table.was_read(),
    )  # fmt: skip


def parts_of(*recorded: Any) -> Parts:
    """What `buildloops.cut` finds, taken apart."""
    from edbc.capture.forward import buildloops

    found, *sizes, num_later, foreign = buildloops.cut(*recorded)
    entries, refs, results, result_ptr, used, moved, later, later_refs = accumulate(sizes)
    return Parts(
        (sizes[0], sizes[1], sizes[2], found[:result_ptr].tobytes()), found[:entries], found[entries:refs],
        found[refs:results], found[results:result_ptr], found[result_ptr:used], found[used:moved], found[moved:later],
        found[later:later_refs], found[later_refs:], num_later, foreign,
    )  # fmt: skip


def _picked(items: Any, which: Ints) -> tuple[int, ...]:
    """Some items of a list."""
    if len(which) < 2:
        return tuple(items[i] for i in which.tolist())
    picked: tuple[int, ...] = itemgetter(*which.tolist())(items)
    return picked
