"""Reductions over a variable number of operands: sums, means, maxima and minima of a node's items, in torch.

The items of a batch stand one after the other, node by node, in the order of the user's code; `segment` says for each
to which node of the batch it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

OPS = ("sum", "mean", "amax", "max", "amin", "min")
"""Names of variadic operations. `max` and `min` are `amax` and `amin` but for gradients: the first of equal ones has it
alone."""
EXTREMES = OPS[2:]


class ReductionKernel:
    """Runs a variadic type. Output f of a node is the reduction of field f over its items."""

    def __init__(self, op: str, num_fields: int):
        self.op = op
        self.num_fields = num_fields

    def run(self, items: Sequence[torch.Tensor], segment: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
        """`outputs[f][segment[i]]` reduces the rows `items[f][i]`, `(items, size)`. Sums are bit-equal between runs."""
        for rows, output in zip(items, outputs, strict=True):
            if self.op == "sum":
                output.zero_()
                output.index_add_(0, segment, rows)
            else:
                index = segment[:, None].expand_as(rows)
                op = "a" + self.op if self.op in ("max", "min") else self.op
                output.scatter_reduce_(0, index, rows, op, include_self=False)
