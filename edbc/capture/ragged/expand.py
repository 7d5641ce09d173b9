"""Expansion: from a recording with runs to one with nodes alone.

Runs (`ragged.program`) take a few numbers each while forward runs, and name the values of their results by *virtual*
refs, as many as there are rows. Which nodes there are, and which values results are (a row that nothing is sent to is
no new value), is found here, in one native call for a mini-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import RUN, NodeType
from edbc.capture.forward.returned import Collected, as_longs
from edbc.capture.ragged.program import Reduction, RunOf
from edbc.capture.ragged.rows import Pool
from edbc.capture.record.signature import function_type
from edbc.capture.record.table import Entry, Hole, Operation, TypeTable
from edbc.capture.standins.lazy import REDUCTIONS

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.record.recording import Recording
    from edbc.capture.standins.standin import Slot

Ints = NDArray[np.int64]


def reduction_entry(table: TypeTable, op: str, slot: Slot, count: int, home: Any, sites: Iterable[str] = ()) -> Entry:
    """A new entry of a variadic type: one for each number of values that is met."""
    index = table.add_type(NodeType(op, op, (slot.base,), (slot.base,), variadic=True), sites)
    template: Any = (tuple(Hole(i) for i in range(count)), {})
    operation = Operation("function", op, REDUCTIONS[op], template, (slot,) * count, autocast=home)
    return table.add_entry(index, operation, (slot,), Hole(0), is_sum=op == "sum")


def run_type(run: RunOf) -> NodeType:
    """The type of a function of runs."""
    operation = run.operation
    draft = function_type(operation.name, operation.template, operation.slots, [run.result.meta()])
    function: Any = operation.call
    constants = "; ".join(filter(None, [function.text, draft.constants]))
    return replace(draft, op=RUN + operation.name, constants=constants, variadic=True, segmented=run.segmented)


def run_entry(table: TypeTable, run: RunOf, count: int) -> Entry:
    """A new entry of a function of runs, of so many items."""
    index = table.add_type(run_type(run))
    operation = replace(run.operation, slots=run.operation.slots * count)
    outputs = (run.result,) * (count if run.segmented else 1)
    return table.add_entry(index, operation, outputs, tuple(map(Hole, range(len(outputs)))))


def add_missing(table: TypeTable, pairs: Sequence[int]) -> None:
    """Make the entries of what is variadic, by number, of so many items."""
    for number, count in sorted(set(zip(pairs[::2], pairs[1::2], strict=True))):
        what = table.programs.variadic_of(number)
        if isinstance(what, Reduction):
            entry = reduction_entry(table, what.op, what.slot, count, what.autocast)
        else:
            entry = run_entry(table, what, count)
        table.programs.add_entry(number, count, entry.index)


def expanded(recorder: Recorder, recording: Recording, collected: Collected) -> tuple[Recording, Collected]:
    """The recording with nodes in the place of runs and tables in that of pools, and what was collected in terms of
    their values."""
    from edbc.capture.ragged import expandloops

    if any(type(pool) is Pool for pool in recording.constants.values()):
        constants = {k: pool.settled() if type(pool) is Pool else pool for k, pool in recording.constants.items()}
        recording = recording.changed(constants=constants)
    if not recorder.num_runs:
        return recording, collected

    table, programs = recording.table, recording.table.programs
    entries, calls = as_longs(recording.entries), as_longs(recorder.calls)
    refs = np.concatenate(recording.refs) if recorder.calls else as_longs(recording.refs)
    indices = np.concatenate(recorder.indices) if recorder.indices else np.zeros(0, np.int64)
    first, shares = recording.first_value, recorder.shares_equal and bool(recorder.calls)
    while True:
        arrays = table.arrays()
        nodes, out, real, node_ptr, step_ptr, num_equal, missing = expandloops.expanded(
            entries, refs, calls, shares, first, recorder.next_value - first, indices, recorder.room,
            arrays.num_operands, arrays.num_outputs, *programs.arrays(),
        )  # fmt: skip
        if not len(missing):
            break
        add_missing(table, missing.tolist())
    recorder.nodes_of_runs = len(nodes) - len(entries) + recorder.num_runs
    collected = collected._replace(refs=expandloops.real_refs(collected.refs, first, real))
    if recorder.calls:
        formed = np.ones(len(nodes), np.bool_)
        told = {"step_ptr": step_ptr, "shares": shares, "num_shared": num_equal, "formed": formed}
        return recording.changed(entries=nodes, refs=out, **told), collected
    ends = node_ptr[np.array(recording.instance_ends, np.int64)].tolist() if recording.instance_ends else []
    begin, end = node_ptr[list(recording.aborted)].tolist()
    detached, formed = _detached(recording.detached, node_ptr), np.zeros(len(nodes), np.bool_)
    for place in recorder.formed:
        formed[node_ptr[place] : node_ptr[place + 1]] = True
    told = {
        "instance_ends": ends,
        "detached": detached,
        "aborted": (begin, end),
        "formed": formed if recorder.formed else None,
    }
    made = recording.changed(entries=nodes, refs=out, **told)
    return made, collected


def _detached(entries: Any, node_ptr: Ints) -> Any:
    """The nodes of recorded entries."""
    if not len(entries):
        return entries
    which = np.asarray(entries, np.int64)
    return np.concatenate([np.arange(node_ptr[i], node_ptr[i + 1]) for i in which.tolist()])
