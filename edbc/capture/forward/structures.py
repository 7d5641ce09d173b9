"""Structures met before: the graph of a small mini-batch, found by what was recorded.

A mini-batch of one instance, or of a few small ones, takes less time to run than to build, schedule and place. Its
recording without data, some dozens of numbers, tells its graph; so graphs of small mini-batches are kept, and what
follows from a graph alone may be kept with it. Large mini-batches are hardly ever alike, and nobody looks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from edbc.base.graph import Graph

if TYPE_CHECKING:
    from edbc.capture.forward.returned import Collected, Ints
    from edbc.capture.ragged.together.templates import OfSteps
    from edbc.capture.record.recording import Recording

LARGEST = 128
"""Operands of a small mini-batch. Beyond it, telling takes as long as building."""
MOST = 1024
"""Structures that are kept, and what is kept with them: some ten kilobytes each."""


class Structure(NamedTuple):
    """What is the same in all mini-batches of one structure."""

    graph: Graph
    external_source: Ints
    result_node: Ints
    result_output: Ints
    detached: Any
    recorded_as: Any
    reads_carried: bool
    """Whether it reads what earlier segments computed."""
    of_steps: OfSteps | None = None
    """As a Capture's."""


def structure_key(recording: Recording, collected: Collected) -> Any:
    """What tells the graph of a recording; None for one that is large, or has nodes that may be none."""
    if len(recording.refs) > LARGEST or recording.aborted != (0, 0):
        return None
    return (
        tuple(recording.entries),
        _told(recording, recording.refs),
        _told(recording, collected.refs.tolist()),
        tuple(collected.stacks),
        tuple(recording.external_source),
        tuple(recording.detached),
        None if recording.formed is None else recording.formed.tobytes(),
        len(recording.table.classes()),
    )


def _told(recording: Recording, refs: Sequence[int] | Ints) -> tuple[int, ...]:
    """Refs as numbers that count from the start of a mini-batch: even ones of values, odd ones of externals, also where
    they are of another mini-batch, which no known structure has."""
    value, external = recording.first_value, recording.first_external
    return tuple([(ref - value) << 1 if ref >= 0 else (ref + external) << 1 | 1 for ref in refs])
