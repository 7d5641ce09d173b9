"""How much a call multiplies: what tells whether a larger cell costs more than it saves (`code.automatic`)."""

from __future__ import annotations

import math

from edbc.capture.code.automatic import Work
from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import Entry, shared_refs

_PRODUCTS = frozenset(
    "linear matmul mm addmm __matmul__ bmm einsum gru_cell lstm_cell rnn_tanh_cell rnn_relu_cell "
    "multi_head_attention_forward".split()
)
_RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())
_LOOK_UPS = frozenset("embedding embedding_bag getitem index_select gather take_along_dim".split())
"""They read some rows of a table, and multiply by none."""


COMPOSED = {"multi_head_attention_forward": 20}
"""How many operations some functions of torch take the time of: 100 to 250 us of a batch of two or three rows."""


def num_operations(entry: Entry, view: ModelView) -> int:
    """Of a call: those that its trace shows; 1 of a torch function but for COMPOSED."""
    operation = entry.operation
    if operation.call is not None:
        return COMPOSED.get(operation.name, 1)
    recording = view.trace(operation).recording
    return sum(COMPOSED.get(recording.table.entries[i].operation.name, 1) for i in recording.entries)


def work_of_call(entry: Entry, view: ModelView) -> Work:
    """The work of one call of a cell, a module or a torch function, in its matrices of parameters; of what multiplies
    by none, of reductions and of excerpts it is nothing. O(operations of its trace)."""
    operation = entry.operation
    if operation.call is not None and not shared_refs(operation.template):
        return Work(0, 0)
    recording = view.trace(operation).recording
    weights = products = steps = 0
    for index in recording.entries:
        inner, made = recording.table.entries[index].operation, recording.table.entries[index].output_slots[0]
        for ref in shared_refs(inner.template) if inner.name not in _LOOK_UPS else ():
            tensor = view.shared(ref)
            if tensor.ndim < 2 or not inner.slots:
                continue
            shape = inner.slots[0].meta().shape
            rows = math.prod(shape[:-1]) if inner.name in _PRODUCTS or inner.name in _RECURRENT else 1
            if inner.name.startswith("conv"):  # once for each place
                rows = (shape if "transpose" in inner.name else made.meta().shape).numel() // tensor.shape[0]
            steps += max(shape[:-1]) if inner.name in _RECURRENT else 0
            weights += tensor.numel()
            products += tensor.numel() * rows
    return Work(weights, products, steps // 2)  # a layer has weights of its input and of its state
