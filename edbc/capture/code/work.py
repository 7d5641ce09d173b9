"""How much a call multiplies: what tells whether a larger cell costs more than it saves (`trace.automatic`)."""

from __future__ import annotations

import math

from edbc.capture.code.automatic import Work
from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import Entry, shared_refs

_PRODUCTS = frozenset("linear matmul mm addmm __matmul__ bmm einsum".split())


def work_of_call(entry: Entry, view: ModelView) -> Work:
    """The work of one call of a cell, a module or a torch function, in its matrices of parameters; of what multiplies
    by none, of reductions and of excerpts it is nothing. O(operations of its trace)."""
    operation = entry.operation
    if operation.call is not None and not shared_refs(operation.template):
        return Work(0, 0)
    recording = view.trace(operation).recording
    weights = products = 0
    for index in recording.entries:
        inner = recording.table.entries[index].operation
        for ref in shared_refs(inner.template):
            tensor = view.shared(ref)
            if tensor.ndim < 2 or not inner.slots:
                continue
            rows = math.prod(inner.slots[0].meta().shape[:-1]) if inner.name in _PRODUCTS else 1
            weights += tensor.numel()
            products += tensor.numel() * rows
    return Work(weights, products)
