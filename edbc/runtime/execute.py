"""Executing a segment: externals into arenas, then every batch of the schedule, then results out.

A mini-batch is a sequence of segments over one set of arenas (today one segment): `execute` may be called again for a
later part of the graph once the host has looked at values of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from edbc.errors import DeviceError
from edbc.graph import Graph
from edbc.runtime.placement import Placement
from edbc.runtime.reference import Operand, SumKernel
from edbc.schedule.schedule import Schedule
from edbc.trace.build import Capture, Result
from edbc.trace.shadow import ModelView
from edbc.trace.values import torch_dtype


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of a mini-batch that runs without the host looking at values."""

    graph: Graph
    schedule: Schedule
    placement: Placement


class Arenas:
    """One matrix per value class, `(rows, size)`. Not initialised: every row is written before it is read."""

    def __init__(self, placement: Placement, device: torch.device):
        self.device = device
        self.tensors: list[torch.Tensor] = []
        try:
            for value_class, rows in zip(placement.classes, placement.class_rows.tolist(), strict=True):
                self.tensors.append(torch.empty(rows, value_class.size, dtype=torch_dtype(value_class.dtype),
                                                device=device))  # fmt: skip
        except (MemoryError, RuntimeError) as error:
            raise DeviceError(
                f"out of memory on {device}: the arenas of this mini-batch need {arena_bytes(placement):,} bytes; use a "
                "smaller --batch-size"
            ) from error


def arena_bytes(placement: Placement) -> int:
    """Bytes that the arenas of a mini-batch take."""
    return sum(
        int(rows) * value_class.size * torch_dtype(value_class.dtype).itemsize
        for value_class, rows in zip(placement.classes, placement.class_rows.tolist(), strict=True)
    )


def load_externals(capture: Capture, placement: Placement, arenas: Arenas, view: ModelView) -> None:
    """Write every external that is read into its row: one gather per table, one stack per class of constants."""
    rows = placement.external_row
    order = np.lexsort((rows, capture.external_source))
    order = order[rows[order] >= 0]
    sources = capture.external_source[order]
    starts = np.flatnonzero(np.diff(sources, prepend=-1))
    for begin, end in zip(starts, [*starts[1:], len(order)], strict=True):
        source = capture.sources[int(sources[begin])]
        which = order[begin:end]
        arena = arenas.tensors[placement.class_index[source.value_class]]
        index = capture.external_index[which]
        if source.kind == "constant":
            pool = capture.constants[int(sources[begin])]
            picked = torch.stack([pool[i] for i in index.tolist()])
        else:
            assert source.ref is not None
            tensor = view.shared(source.ref).detach()
            picked = tensor[None] if source.kind == "whole" else tensor.index_select(
                0, torch.from_numpy(index).to(tensor.device))  # fmt: skip
        _write(arena, rows[which], picked.reshape(len(which), -1))


def _write(arena: torch.Tensor, rows: Any, values: torch.Tensor) -> None:
    first, count = int(rows[0]), len(rows)
    values = values.to(device=arena.device, dtype=arena.dtype)
    if int(rows[-1]) - first + 1 == count:
        arena[first : first + count] = values
    else:
        arena.index_copy_(0, torch.from_numpy(np.ascontiguousarray(rows)).to(arena.device), values)


def execute(segment: Segment, arenas: Arenas, kernel_of_type: Callable[[int], Any],
            on_batch: Callable[[int], None] | None = None) -> None:  # fmt: skip
    """Run every batch. Operands are read from arenas, outputs written into the batch's own contiguous rows."""
    graph, schedule, placement = segment.graph, segment.schedule, segment.placement
    rows = torch.from_numpy(placement.rows).to(arenas.device)
    segments = torch.from_numpy(placement.segment).to(arenas.device)
    slots = [
        ([placement.class_index[c] for c in t.operands], [placement.class_index[c] for c in t.outputs])
        for t in graph.types
    ]
    batch_type, batch_ptr = schedule.batch_type.tolist(), schedule.batch_ptr.tolist()
    start, items, run = placement.start.tolist(), placement.items.tolist(), placement.run.tolist()
    output_row = placement.output_row.tolist()
    for batch, kind in enumerate(batch_type):
        operand_classes, output_classes = slots[kind]
        count = batch_ptr[batch + 1] - batch_ptr[batch]
        operands: list[Operand] = []
        at, num = start[batch], items[batch]
        for k, c in enumerate(operand_classes):
            first = run[batch][k]
            operands.append((arenas.tensors[c], first if first >= 0 else rows[at + k * num : at + (k + 1) * num]))
        outputs = [
            arenas.tensors[c][output_row[batch][j] : output_row[batch][j] + count] for j, c in enumerate(output_classes)
        ]
        kernel = kernel_of_type(kind)
        if isinstance(kernel, SumKernel):
            kernel.run(operands, segments[at : at + num], outputs)
        else:
            kernel.run(operands, count, outputs)
        if on_batch is not None:
            on_batch(batch)


def collect(capture: Capture, placement: Placement, arenas: Arenas) -> list[Any]:
    """What each instance's forward returned, with tensors that own their memory: no later mini-batch changes them."""
    tensors: list[Any] = [None] * len(capture.result_node)
    if len(capture.result_node):
        rows = placement.value_rows(capture.result_node, capture.result_output)
        classes = np.array([placement.class_index[slot.base] for slot in capture.result_slots], np.int64)
        for c in np.unique(classes):
            which = np.flatnonzero(classes == c)
            arena = arenas.tensors[int(c)]
            value_class = placement.classes[int(c)]
            picked = arena.index_select(0, torch.from_numpy(rows[which]).to(arena.device))
            for i, tensor in zip(which.tolist(), picked.view(len(which), *value_class.shape).unbind(0), strict=True):
                tensors[i] = tensor
        for i, slot in enumerate(capture.result_slots):
            for step in slot.views:
                tensors[i] = step.apply(tensors[i])
    return [_fill_results(result, tensors) for result in capture.results]


def _fill_results(item: Any, tensors: Sequence[torch.Tensor]) -> Any:
    kind = type(item)
    if kind is Result:
        return tensors[item.index]
    if kind is list:
        return [_fill_results(x, tensors) for x in item]
    if kind is tuple:
        return tuple([_fill_results(x, tensors) for x in item])
    if kind is dict:
        return {key: _fill_results(value, tensors) for key, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return kind(*(_fill_results(x, tensors) for x in item))
    if hasattr(item, "__dataclass_fields__"):
        for name in item.__dataclass_fields__:
            object.__setattr__(item, name, _fill_results(getattr(item, name), tensors))
    return item
