"""Into and out of arenas: the externals of a mini-batch, and what its instances return."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from edbc.capture.code.shadow import ModelView
from edbc.capture.forward.build import Capture
from edbc.capture.forward.returned import Result, Run
from edbc.capture.standins.nests import rebuilt, remade
from edbc.capture.standins.standin import Slot, torch_dtype
from edbc.capture.vertex.vertexjoin import VertexCapture
from edbc.native.memory import require_memory
from edbc.run.passes.arenas import Arenas
from edbc.run.passes.placement import Longs, Placement
from edbc.run.passes.randomrows import draw_seeds, drawn
from edbc.run.weights.packed import require_storage

_EXCLUDE: Any = getattr(torch._C, "_ExcludeDispatchKeyGuard", None)
_VIEWS: Any = None if _EXCLUDE is None else torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def load_externals(capture: Capture, placement: Placement, arenas: Arenas, view: ModelView) -> None:
    """Bind every external that is read to its row of a table: rows of parameters as they are, constants stacked, random
    numbers drawn."""
    from edbc.run.passes import placeloops

    seeds = draw_seeds(capture.sources, capture.external_source, capture.external_index)
    order, indices, ptr = placeloops.externals_by_source(
        capture.external_source, capture.external_index, placement.external_class, placement.external_row,
        placement.class_externals, len(capture.sources),
    )  # fmt: skip
    for number, (begin, end) in enumerate(itertools.pairwise(ptr.tolist())):
        if begin == end:
            continue
        source = capture.sources[number]
        which = order[begin:end]
        index = indices[begin:end]
        if source.kind == "constant":
            pool = capture.constants[number]
            if isinstance(pool, torch.Tensor):
                arenas.bind(which, pool, index)
            else:
                arenas.bind_each(which, [pool[i] for i in index.tolist()])
        elif source.kind == "offset":
            arenas.bind(which, torch.from_numpy(index), np.arange(len(index)))
        elif source.kind == "draw":
            arenas.bind(which, drawn(source, index, seeds), np.arange(len(index)))
        else:
            assert source.ref is not None
            tensor = view.shared(source.ref).detach()
            if view.needs_data:
                require_storage(tensor, ", ".join(source.ref.names))
            whole = source.kind == "whole"
            arenas.bind(which, tensor.unsqueeze(0) if whole else tensor, np.zeros_like(index) if whole else index)


@dataclass(frozen=True, eq=False)
class Wanted:
    """Rows of one class that leave the arenas together: of results `which`, all in order without it, or of one output
    of vertex functions."""

    class_index: int
    which: Longs | None
    rows: Longs


def wanted(capture: Capture, placement: Placement) -> list[Wanted]:
    """What `collect` will read, known before anything executes."""
    rows = placement.value_rows(capture.result_node, capture.result_output)
    if isinstance(capture, VertexCapture):
        classes_of = [placement.class_index[output.slot.base] for output in capture.outputs]
        parts = [slice(output.start, output.stop) for output in capture.outputs]
        return [Wanted(c, None, rows[part]) for c, part in zip(classes_of, parts, strict=True)]
    slots = distinct(capture.result_slots)
    if len(slots) == 1:
        return [Wanted(placement.class_index[slots[0].base], None, rows)]
    classes = result_classes(capture, placement)
    groups = [(c, np.flatnonzero(classes == c)) for c in np.unique(classes).tolist()]
    return [Wanted(c, which, rows[which]) for c, which in groups]


def collect(capture: Capture, placement: Placement, arenas: Arenas, wants: Sequence[Wanted]) -> list[Any]:
    """What each instance's forward returned, with tensors that own their memory: no later mini-batch changes them."""
    if isinstance(capture, VertexCapture):
        return capture.split([_picked(want, placement, arenas) for want in wants])
    if len(wants) == 1 and wants[0].which is None:
        return arrange(capture, list(_one_by_one(_picked(wants[0], placement, arenas))))
    tensors: list[Any] = [None] * len(capture.result_node)
    for want in wants:
        assert want.which is not None
        picked = _one_by_one(_picked(want, placement, arenas))
        for i, tensor in zip(want.which.tolist(), picked, strict=True):
            tensors[i] = tensor
    return arrange(capture, tensors)


def _one_by_one(rows: torch.Tensor) -> Sequence[torch.Tensor]:
    """Tensors `(...)` of `(rows, ...)`. Vectors are taken by their sizes, in 0.8 of `unbind`'s time (by
    hand)."""
    with _no_views():
        if rows.ndim != 2:
            return rows.unbind(0)
        count, size = rows.shape
        parts: Sequence[torch.Tensor] = rows.view(-1).split_with_sizes([size] * count)
        return parts


def _no_views() -> AbstractContextManager[Any]:
    """In it, torch's views are tensors that know of no base: rows that nobody has as a whole are no views, and making
    them takes 0.8 of the time. A plain context where torch has no such switch."""
    return _EXCLUDE(_VIEWS) if _EXCLUDE is not None else nullcontext()


def _picked(want: Wanted, placement: Placement, arenas: Arenas) -> torch.Tensor:
    value_class, count = placement.classes[want.class_index], len(want.rows)
    size = count * value_class.size * torch_dtype(value_class.dtype).itemsize
    require_memory(size, "the results of this mini-batch")
    rows = arenas.rows(want.class_index, want.rows)
    return rows if len(value_class.shape) == 1 else rows.view(count, *value_class.shape)


def result_classes(capture: Capture, placement: Placement) -> Longs:
    """The class number of every result."""
    if isinstance(capture, VertexCapture):
        of_output = [placement.class_index[output.slot.base] for output in capture.outputs]
        return np.repeat(of_output, [output.stop - output.start for output in capture.outputs]).astype(np.int64)
    class_of_slot = {slot: placement.class_index[slot.base] for slot in distinct(capture.result_slots)}
    if len(class_of_slot) == 1:
        (only,) = class_of_slot.values()
        return np.full(len(capture.result_slots), only, np.int64)
    return np.array([class_of_slot[slot] for slot in capture.result_slots], np.int64)


def distinct(slots: Sequence[Slot]) -> list[Slot]:
    """Each slot once; nearly always there is one, which is told without hashing all."""
    if slots and slots.count(slots[0]) == len(slots):
        return [slots[0]]
    return list(dict.fromkeys(slots))


def arrange(capture: Capture, tensors: list[Any]) -> list[Any]:
    """What each instance's forward returned, given its tensors before views are taken of them. What it left on the
    caller's objects is written there."""
    if any(slot.views for slot in distinct(capture.result_slots)):
        tensors = list(tensors)
        for i, slot in enumerate(capture.result_slots):
            for step in slot.views:
                tensors[i] = step.apply(tensors[i])
    if capture.left is not None:
        capture.left.write(tensors)
    starts = capture.result_ptr or itertools.repeat(0)
    return [_fill_results(nest, tensors, start) for nest, start in zip(capture.results, starts, strict=False)]


def _fill_results(item: Any, tensors: list[torch.Tensor], start: int) -> Any:
    """A nest with tensors in its places, which count from `start`. The nest stays as it is."""
    kind = type(item)
    if kind is Result:
        return tensors[start + item.index]
    if kind is Run:
        return tensors[start + item.start : start + item.stop]
    if kind is list:
        return [_fill_results(x, tensors, start) for x in item]
    if kind is tuple:
        return tuple([_fill_results(x, tensors, start) for x in item])
    if kind is dict:
        return {key: _fill_results(value, tensors, start) for key, value in item.items()}
    if isinstance(item, tuple | list | deque):
        return rebuilt(item, [_fill_results(x, tensors, start) for x in item])
    if isinstance(item, dict):
        return remade(item, [_fill_results(x, tensors, start) for x in item.values()])
    if hasattr(item, "__dataclass_fields__") and not isinstance(item, type):
        item = copy.copy(item)
        for name in item.__dataclass_fields__:
            object.__setattr__(item, name, _fill_results(getattr(item, name), tensors, start))
    return item
