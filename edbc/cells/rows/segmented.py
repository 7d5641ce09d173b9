"""Functions of whole runs of rows: attention over a sentence, a cumulative sum, a sort.

Definitions.

(1) A *run function* (`capture.ragged.whole.function`) takes tensors whose leading size n differs from node to node, one
    for each field of a node's items, and gives one tensor: of n rows (a *segmented* type, `base.graph` definition (4)),
    or one value (a reduction).
(2) Items of a batch stand node by node, so a field of a node is a slice of the batch's matrix, and the results of a
    segmented type stand as its items do.

By torch a batch is one call for each node: right for every function, and the reference. Functions that have a kernel of
their own (`edbc.cells.rows.attentionloop`) run all nodes of a batch in one native call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.capture.ragged.whole.fuse import ATTENTION
from edbc.capture.record.table import Operation
from edbc.capture.standins.standin import Slot
from edbc.cells.rows.attentionloop import attend, attend_back

Longs = NDArray[np.int64]


def run_kernel_of(operation: Operation, segmented: bool) -> RunKernel:
    """What runs a type of an operation whose function is a RunFunction."""
    layout = attention_of(operation)
    return RunKernel(operation, segmented) if layout is None else AttentionKernel(operation, layout)


class RunKernel:
    """A RunFunction in torch, node by node."""

    def __init__(self, operation: Operation, segmented: bool):
        function: Any = operation.call
        self.function, self.segmented = function, segmented
        self.slots = operation.slots[: len(function.places) + function.has_marks]

    def run(self, items: Sequence[torch.Tensor], ptr: Sequence[int], output: torch.Tensor) -> None:
        """`items[f][ptr[v]:ptr[v + 1]]` is field f of node v, `(items, size)`."""
        fields = self._seen(items)
        for v in range(len(ptr) - 1):
            result = self.function(*[x[ptr[v] : ptr[v + 1]] for x in fields])
            if self.segmented:
                output[ptr[v] : ptr[v] + len(result)] = result.reshape(len(result), -1)
            else:
                output[v] = result.reshape(-1)

    def gradient(self, items: Sequence[torch.Tensor], ptr: Sequence[int], given: torch.Tensor,
                 wanted: Sequence[bool]) -> list[torch.Tensor | None]:  # fmt: skip
        """Gradients of the fields that are `wanted`, given that of the outputs."""
        found = [torch.zeros_like(x) if w else None for x, w in zip(items, wanted, strict=True)]
        for v in range(len(ptr) - 1):
            begin, end = ptr[v], ptr[v + 1]
            with torch.enable_grad():
                fields = [x[begin:end].detach().requires_grad_(w) for x, w in zip(items, wanted, strict=True)]
                result = self.function(*self._seen(fields))
            if not result.requires_grad:
                continue
            sought = [x for x in fields if x.requires_grad]
            of_node = given[begin : begin + len(result)] if self.segmented else given[v]
            gradients = torch.autograd.grad(result, sought, of_node.reshape(result.shape), allow_unused=True)
            for gradient, field in zip(gradients, (f for f in found if f is not None), strict=True):
                if gradient is not None:
                    field[begin:end] = gradient
        return found

    def _seen(self, fields: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Fields as the slots show them; of a whole batch at once, as `vmap` takes longer than most functions."""
        seen = []
        for field, slot in zip(fields, self.slots, strict=True):
            value = field.view(len(field), *slot.base.shape)
            for step in slot.views:
                value = torch.vmap(step.apply)(value)
            seen.append(value)
        return seen


class Attention(NamedTuple):
    """Where rows have what attention reads: heads, elements of each of queries and of values, the first columns of
    queries, keys and values; and the number of a query's length and a key's among the marks."""

    heads: int
    width: int
    depth: int
    columns: Longs
    symbols: tuple[int, int]


def attention_of(operation: Operation) -> Attention | None:
    """The layout of attention that native code knows; None for anything else."""
    function: Any = operation.call
    if getattr(function.root, "function", None) is not ATTENTION or function.root.kwargs.keys() != {
        "is_causal",
        "scale",
    }:
        return None
    slots, symbols = [operation.slots[x.index] for x in function.root.args], function.symbols
    pieces = [_piece(slot) for slot in slots]
    heads = {slot.shape[:-1] for slot in slots}
    is_known = len({slot.base.dtype for slot in slots}) == 1 and slots[0].base.dtype in ("f32", "f64")
    if None in pieces or len(heads) > 1 or not is_known or slots[0].shape[-1] != slots[1].shape[-1]:
        return None
    q, k, v = (symbols[x.index] for x in function.root.args)
    if k != v or function.at < 0:
        return None
    return Attention(heads.pop().numel(), slots[0].shape[-1], slots[2].shape[-1], np.array(pieces, np.int64), (q, k))


def _piece(slot: Slot) -> int | None:
    """The first element of a value that a view shows one after the other in order; None for other views, and where no
    gradient passes."""
    if any(step.detaches for step in slot.views):
        return None
    seen = torch.arange(slot.base.size).view(slot.base.shape)
    for step in slot.views:
        seen = step.apply(seen)
    flat = seen.reshape(-1)
    first = int(flat[0])
    return first if flat.tolist() == list(range(first, first + len(flat))) else None


class AttentionKernel(RunKernel):
    """softmax(Q K^T * scale) V of all nodes of a batch in one native call."""

    def __init__(self, operation: Operation, layout: Attention):
        super().__init__(operation, True)
        self.layout = layout
        self.leaves = [x.index for x in self.function.root.args]
        options = self.function.root.kwargs
        self.causal = bool(options["is_causal"])
        self.scale = options["scale"] if options["scale"] is not None else layout.width**-0.5

    def run(self, items: Sequence[torch.Tensor], ptr: Sequence[int], output: torch.Tensor) -> None:
        """See RunKernel, which runs it on a device."""
        if not output.is_cpu:
            super().run(items, ptr, output)
            return
        arrays = [items[leaf].numpy() for leaf in self.leaves]
        attend(*arrays, *self._shape(items, ptr, arrays[0].dtype), output.numpy())

    def gradient(self, items: Sequence[torch.Tensor], ptr: Sequence[int], given: torch.Tensor,
                 wanted: Sequence[bool]) -> list[torch.Tensor | None]:  # fmt: skip
        if not given.is_cpu:
            return super().gradient(items, ptr, given, wanted)
        found: list[torch.Tensor | None] = [
            torch.zeros_like(x) if i in self.leaves else None for i, x in enumerate(items)
        ]
        arrays = [items[leaf].numpy() for leaf in self.leaves]
        gradients = [found[leaf].numpy() for leaf in self.leaves]
        attend_back(*arrays, *self._shape(items, ptr, arrays[0].dtype), given.numpy(), *gradients)
        return found

    def _shape(self, items: Sequence[torch.Tensor], ptr: Sequence[int], dtype: Any) -> tuple[Any, ...]:
        begin = np.array(ptr, np.int64)
        queries = keys = np.diff(begin)
        if self.function.has_marks:
            marks = items[-1].numpy().reshape(-1)
            queries, keys = (np.add.reduceat(marks >> s & 1, begin[:-1]) for s in self.layout.symbols)
        layout = self.layout
        return (begin, queries, keys, layout.columns, layout.heads, layout.width, layout.depth, dtype.type(self.scale),
                self.causal)  # fmt: skip


def borders_of(segment: Longs, count: int) -> list[int]:
    """Where the items of each of `count` nodes begin, and where the last ones end."""
    return np.searchsorted(segment, np.arange(count + 1)).tolist()
