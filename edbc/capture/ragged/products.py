"""Products with ragged operands.

(1) Rows with a matrix, or a batch of them, that all share: a product of each row. Columns too, where the right operand
    is ragged along its last dimension.
(2) Ragged batches of matrices: the product of each.
(3) Over the ragged dimension, `weights.T @ rows`: the sum of each row's outer product.
(4) With a matrix of the instance's (an adjacency): each row of the result is the sum of the rows that the matrix has
    numbers for, times these; zeros are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from edbc.capture.ragged.across import reduce_rows
from edbc.capture.ragged.call import Call, Rule
from edbc.capture.ragged.rows import holds, is_tensor, rows_of, version_of
from edbc.capture.ragged.value import Ragged, each_row
from edbc.capture.standins.standin import Shared

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

MOST_TERMS = 8
"""Numbers of a matrix of the instance's per row, on average, from which the product is one of whole matrices."""


def product(call: Call) -> Any:
    """`matmul`, `mm`, `bmm`, `mv`, `dot`."""
    left, right = call.given(0, "input", None), call.given(1, "other" if call.name == "matmul" else "mat2", None)
    if not is_tensor(left) or not is_tensor(right) or len(call.args) + len(call.kwargs) != 2:
        return NotImplemented
    if type(left) is Ragged and type(right) is Ragged:
        return _of_two(call, left, right)
    if type(left) is Ragged:
        if left.behind == 2:
            return _of_rows(call, left, right)
        return _of_batches(call, left, right, left.behind) if left.behind > 2 else NotImplemented
    if right.behind > 2:
        return _of_batches(call, left, right, right.behind)
    return _of_columns(call, left, right) if right.at and right.behind == 1 else _by_instance(call, left, right)


def _of_two(call: Call, left: Ragged, right: Ragged) -> Any:
    if left.behind == right.behind > 2:
        return _of_batches(call, left, right, left.behind)
    over = 2 if right.ndim > 1 else 1
    if left.behind == 1 and right.behind == over and len(left.refs) == len(right.refs):
        return _over_rows(call, left, right)
    return NotImplemented


def _of_rows(call: Call, left: Ragged, right: Any) -> Any:
    """Definition (1)."""
    right = _of_one(right) if right.ndim <= left.ndim else right
    if right.ndim <= 2:
        return call.of_rows((left, right), {}, left.at, torch.matmul)
    at, rec = max(left.ndim, right.ndim) - 2, call.rec
    if left.ndim == 2 and type(right) is Shared:  # one matrix of all: (h, k, m) as (h * m, k)
        matrix = right.transpose(-2, -1).flatten(0, -2)
        shape = (*right.shape[:-2], right.shape[-1])
        return each_row(rec, [left], lambda row: rec.function(F.linear, (row, matrix), {}).unflatten(-1, shape), at)

    def one(row: Any) -> Any:
        return rec.function(torch.matmul, (row.unsqueeze(-2), right), {}).squeeze(-2)

    return each_row(rec, [left], one, at)


def _of_columns(call: Call, left: Any, right: Ragged) -> Any:
    """Definition (1)."""
    rec, at = call.rec, max(left.ndim, right.ndim) - 1 - (left.ndim == 1)
    left = _of_one(left) if left.ndim <= right.ndim else left
    if type(left) is Shared and (left.ndim == 2 or left.ndim > right.ndim == 2):  # one matrix of all, as of rows
        matrix, shape = left.flatten(0, -2), left.shape[:-1]
        return each_row(rec, [right], lambda row: rec.function(F.linear, (row, matrix), {}).unflatten(-1, shape), at)

    def one(column: Any) -> Any:
        return rec.function(torch.matmul, (left, column.unsqueeze(-1)), {}).squeeze(-1)

    return each_row(rec, [right], one, at)


def _of_one(matrices: Any) -> Any:
    """The matrix of a batch of one that belongs to the model; anything else as it is."""
    is_one = type(matrices) is Shared and matrices.ndim > 2 and matrices.shape[:-2].numel() == 1
    return matrices.reshape(matrices.shape[-2:]) if is_one else matrices


def _of_batches(call: Call, left: Any, right: Any, place: int) -> Any:
    """Definition (2): the ragged dimension is one of the batch's."""
    counts = [x.shape[-place] for x in (left, right) if x.ndim >= place and type(x) is Ragged]
    count = max(counts)
    parts = []
    for x in (left, right):
        if type(x) is not Ragged and x.ndim >= place:
            x = x.squeeze(-place) if x.shape[-place] == 1 else rows_of(call.rec, x, x.ndim - place)
        parts.append(x.repeated(count) if type(x) is Ragged else x)
    return call.of_rows(parts, {}, max(left.ndim, right.ndim) - place, torch.matmul)


def _over_rows(call: Call, left: Ragged, right: Ragged) -> Any:
    """Definition (3)."""

    def outer(a: Any, b: Any) -> Any:
        if right.ndim == 1:
            return a * b
        return a.unsqueeze(-1) * (b if b.ndim == 1 else b.unsqueeze(-2)) if left.ndim > 1 else a * b

    return reduce_rows(each_row(call.rec, [left, right], outer, 0), "sum")


def _by_instance(call: Call, left: Any, right: Ragged) -> Any:
    """Definition (4)."""
    if type(left) is not torch.Tensor or left.ndim != 2 or right.at or left.requires_grad or right.ndim > 2:
        return NotImplemented
    of = _nonzeros(call.rec, left)
    if left.shape[1] != len(right.refs) or left.dtype is not right.dtype:
        return NotImplemented
    if not 0 < len(of.rows) <= MOST_TERMS * sum(left.shape):
        return NotImplemented
    terms = right.take(of.columns)
    if of.factors is not None:
        scalars = rows_of(call.rec, of.factors, 0)
        terms = each_row(call.rec, [terms, scalars], lambda row, factor: row * factor, 0)
    zeros = torch.zeros((left.shape[0], *right.row.shape), dtype=right.dtype)
    return call.rec.function(torch.index_add, (zeros, 0, of.rows, terms), {})


class _Nonzeros(NamedTuple):
    """Where a matrix has numbers, row by row, and these where they are not all 1."""

    matrix: torch.Tensor
    copied: torch.Tensor
    rows: torch.Tensor
    columns: np.ndarray
    factors: torch.Tensor | None


def _nonzeros(rec: Recorder, matrix: torch.Tensor) -> _Nonzeros:
    """Read once for all products of a mini-batch."""
    key = id(matrix), version_of(matrix)
    known: _Nonzeros | None = rec.nonzeros.get(key)
    if known is None or not holds(matrix, known.copied):
        dense = matrix.to_dense() if matrix.layout is not torch.strided else matrix
        rows, columns = dense.nonzero(as_tuple=True)
        factors = dense[rows, columns]
        is_all_one = bool((factors == 1).all())
        known = rec.nonzeros[key] = _Nonzeros(
            matrix, dense.clone(), rows, columns.numpy(), None if is_all_one else factors
        )
    return known


def added(call: Call) -> Any:
    """`addmm(bias, rows, matrix)` of rows and a matrix that all share."""
    if len(call.args) != 3 or call.kwargs or call.num_ragged != 1 or type(call.args[1]) is not Ragged:
        return NotImplemented
    bias, rows, matrix = call.args
    if bias.ndim != 1 or rows.at:
        return NotImplemented
    return call.rec.function(torch.add, (call.rec.function(torch.matmul, (rows, matrix), {}), bias), {})


def combined(call: Call) -> Any:
    """`F.bilinear(x1, x2, weight, bias)`."""
    tensors = [a for a in call.args[:2] if type(a) is Ragged]
    if len(tensors) != 2 or tensors[0].behind < 2 or tensors[0].behind != tensors[1].behind:
        return NotImplemented
    return call.of_rows(call.args, call.kwargs, tensors[0].at)


RULES: dict[str, Rule] = {
    **dict.fromkeys("matmul mm bmm mv dot".split(), product),
    "addmm": added,
    "bilinear": combined,
}
