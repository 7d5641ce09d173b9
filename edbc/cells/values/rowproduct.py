"""Products of a row's own matrices: a `Call` of torch's matrix product on whole variables, seen as sizes and spans.

Back ends that have a kernel of their own for it ask `row_product`; to all others it stays a call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edbc.capture.record.table import Hole, SharedRef
from edbc.cells.program import Call, Span


@dataclass(frozen=True)
class RowProduct:
    """`result = a @ b` for every row on its own: matrices (m, k) and (k, n), of the row or shared by all."""

    a: Span | SharedRef
    b: Span | SharedRef
    result: Span
    m: int
    k: int
    n: int


_MATMUL = (torch.matmul, torch.mm, torch.mv, torch.dot, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.mv,
           torch.Tensor.dot)  # fmt: skip


def row_product(step: Call) -> RowProduct | None:
    """A call of torch's matrix product on whole variables or parameters as a step of its own."""
    (args, kwargs), op = step.op.template, step.op
    if op.call not in _MATMUL or kwargs or len(args) != 2 or any(source.views for source in op.sources):
        return None
    places: list[Span | SharedRef] = []
    shapes: list[tuple[int, ...] | None] = []
    for arg in args:
        if type(arg) is not Hole and type(arg) is not SharedRef:
            return None
        places.append(step.sources[arg.index][0] if isinstance(arg, Hole) else arg)
        shapes.append(step.sources[arg.index][1].shape if isinstance(arg, Hole) else None)
    sizes = _product_sizes(shapes[0], shapes[1], op.result.shape)
    return None if sizes is None else RowProduct(places[0], places[1], step.result, *sizes)


def _product_sizes(a: tuple[int, ...] | None, b: tuple[int, ...] | None,
                   result: tuple[int, ...]) -> tuple[int, int, int] | None:  # fmt: skip
    """(m, k, n) of a product of matrices or vectors; None stands for a parameter's shape, which the result's tells: of
    more than two dimensions it is a batch of matrices, and no product of one."""
    if a is None:
        if b is None or len(b) not in (1, 2) or len(result) != len(b):
            return None
        return result[0], b[0], b[1] if len(b) == 2 else 1
    columns = len(result) - len(a) + 1
    if len(a) not in (1, 2) or columns not in (0, 1) or (b is not None and len(b) != columns + 1):
        return None
    return a[0] if len(a) == 2 else 1, a[-1], result[-1] if columns else 1
