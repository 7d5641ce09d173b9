"""A mini-batch's schedule by waves, and how many steps schedules take: what runs for every mini-batch of a device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph
from edbc.schedule.schedule import Schedule
from edbc.schedule.waves.wavetable import Waves

Longs = NDArray[np.int64]


def run_waves(graph: Graph, waves: Waves) -> tuple[Schedule, NDArray[np.int32]]:
    """The schedule of a mini-batch, and the step of each of its batches. O(n + m), and O(T) per step and decision."""
    from edbc.schedule.scheduler import arrays_of
    from edbc.schedule.waves.wavewalk import wave_walk

    kinds, ptr, nodes, step, rows = wave_walk(*arrays_of(graph), graph.num_types, *waves.compiled)
    return Schedule(graph, kinds, ptr, nodes, int((rows >= 0).sum()), int((rows < 0).sum())), step


def run_due(graph: Graph, stages: Longs) -> Schedule | None:
    """The schedule of the rule `due` where batches of a type take so many steps (`edbc.schedule.waves.duewaves`), with
    the first step of each; None where a type that has nodes is said to take none. O(n + m)."""
    from edbc.schedule.scheduler import arrays_of
    from edbc.schedule.waves.duewaves import due_waves

    kinds, ptr, nodes, step = due_waves(*arrays_of(graph), stages)
    return Schedule(graph, kinds, ptr, nodes, step=step) if len(kinds) or not len(nodes) else None


def least_steps(graph: Graph) -> int:
    """The bound: nodes on the longest path. O(n + m)."""
    from edbc.schedule.scheduler import arrays_of
    from edbc.schedule.waves.wavewalk import heights

    return int(heights(*arrays_of(graph)).max(initial=0))


def steps_of(schedule: Schedule) -> int:
    """Steps that any schedule takes when each batch runs as early as what it reads allows. O(n + m)."""
    from edbc.schedule.waves.wavewalk import earliest_steps

    graph = schedule.graph
    return int(earliest_steps(schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands))
