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

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.capture.record.table import Operation, fill

Longs = NDArray[np.int64]


class RunKernel:
    """Runs a type of an operation whose function is a RunFunction."""

    def __init__(self, operation: Operation, segmented: bool):
        self.operation, self.segmented = operation, segmented
        self.slots = operation.slots[: len(operation.call.places)]  # type: ignore[union-attr]

    def run(self, items: Sequence[torch.Tensor], ptr: Sequence[int], output: torch.Tensor) -> None:
        """`items[f][ptr[v]:ptr[v + 1]]` is field f of node v, `(items, size)`."""
        for v in range(len(ptr) - 1):
            result = self._of_node([x[ptr[v] : ptr[v + 1]] for x in items])
            where = output[ptr[v] : ptr[v + 1]] if self.segmented else output[v : v + 1]
            where.copy_(result.reshape(where.shape))

    def gradient(self, items: Sequence[torch.Tensor], ptr: Sequence[int], given: torch.Tensor,
                 wanted: Sequence[bool]) -> list[torch.Tensor | None]:  # fmt: skip
        """Gradients of the fields that are `wanted`, given that of the outputs."""
        found = [torch.zeros_like(x) if w else None for x, w in zip(items, wanted, strict=True)]
        for v in range(len(ptr) - 1):
            begin, end = ptr[v], ptr[v + 1]
            with torch.enable_grad():
                fields = [x[begin:end].detach().requires_grad_(w) for x, w in zip(items, wanted, strict=True)]
                result = self._of_node(fields)
            if not result.requires_grad:
                continue
            sought = [x for x in fields if x.requires_grad]
            of_node = given[begin:end] if self.segmented else given[v : v + 1]
            gradients = torch.autograd.grad(result, sought, of_node.reshape(result.shape), allow_unused=True)
            for gradient, field in zip(gradients, (f for f in found if f is not None), strict=True):
                if gradient is not None:
                    field[begin:end] = gradient
        return found

    def _of_node(self, fields: Sequence[torch.Tensor]) -> torch.Tensor:
        seen = []
        for field, slot in zip(fields, self.slots, strict=True):
            value = field.view(len(field), *slot.base.shape)
            for step in slot.views:
                value = torch.vmap(step.apply)(value)
            seen.append(value)
        args, kwargs = fill(self.operation.template, seen)
        result: torch.Tensor = self.operation.call(*args, **kwargs)  # type: ignore[misc]
        return result


def borders_of(segment: Longs, count: int) -> list[int]:
    """Where the items of each of `count` nodes begin, and where the last ones end."""
    return np.searchsorted(segment, np.arange(count + 1)).tolist()
