"""Gradients of externals: rows of tables, parameters that are operands whole, data of the instances.

Externals of one source are added up in the order of the mini-batch: for a table, row by row of the table; sparse, and
without padding rows, where eager's look-up says so (`record.lookup`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from edbc.capture.forward.build import Capture
from edbc.capture.record.lookup import look_up_of
from edbc.capture.record.table import SharedRef
from edbc.run.passes.placement import Longs, Placement
from edbc.train.backward.recompute import add_rows
from edbc.train.backward.reverse import Reversal, sum_dtype
from edbc.train.inputs import Inputs, sources_of
from edbc.train.reach import Bools


def parameter_gradients(
    capture: Capture, placement: Placement, inputs: Inputs, reversal: Reversal, given: Bools
) -> Iterator[tuple[SharedRef, torch.Tensor]]:
    """A gradient per source that is a parameter and has reached externals."""
    given = given & (placement.external_row >= 0)
    for number in sources_of(capture, given):
        source = capture.sources[number]
        if source.ref is None:
            continue
        which = np.flatnonzero(given & (capture.external_source == number))
        parameter = inputs.parameters[source.ref]
        if source.kind == "whole":
            yield source.ref, _rows(placement, reversal, which).sum(0).view(parameter.shape)
        else:
            index = capture.external_index[which]
            yield source.ref, _table_gradient(source.ref, parameter, index, _rows(placement, reversal, which))


def constant_gradients(
    capture: Capture, placement: Placement, inputs: Inputs, reversal: Reversal, given: Bools
) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
    """The gradient of each constant that requires one and that the loss uses."""
    given = given & (placement.external_row >= 0)
    for key, externals in inputs.constant_externals(capture).items():
        which = externals[given[externals]]
        if len(which):
            yield key, _rows(placement, reversal, which).sum(0).view(inputs.constants[key].shape)


def _rows(placement: Placement, reversal: Reversal, externals: Longs) -> torch.Tensor:
    return reversal.take(int(placement.external_class[externals[0]]), placement.external_row[externals])


def _table_gradient(ref: SharedRef, table: torch.Tensor, index: Longs, rows: torch.Tensor) -> torch.Tensor:
    look_up = look_up_of(ref)
    where = torch.from_numpy(index).to(rows.device)
    if look_up is not None and look_up.padding_index is not None:
        kept = where != look_up.padding_index
        where, rows = where[kept], rows[kept]
    rows = rows.view(len(where), *table.shape[1:])
    if look_up is not None and look_up.sparse:
        return torch.sparse_coo_tensor(where[None], rows, table.shape, check_invariants=False)
    total = torch.zeros_like(table, dtype=sum_dtype(table.dtype), requires_grad=False)
    return add_rows(total, where, rows.to(total.dtype))
