"""What vertices pull: inputs of the instances, as columns of the mini-batch.

Definition. A *column* has one row number per vertex. An input that is pulled through a table gives its integers; one
that is pulled as it is gives the numbers of its own rows, which stand in the pool of its source (`record.table`) behind
the constants of the vertex functions' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.graph import ValueClass
from edbc.capture.standins.standin import class_of
from edbc.capture.vertex.vertexfunction import missing_input
from edbc.capture.vertex.vertexinstance import VertexInstance
from edbc.errors import InputError

Longs = NDArray[np.int64]
Pools = dict[int, Any]
"""Constants by source: a list of tensors, or one tensor of rows."""


@dataclass
class Columns:
    """The columns that fragments use, numbered in the order of first use."""

    float_dtype: torch.dtype
    """Inputs of floating numbers are taken in this dtype, the model's."""
    names: list[str] = field(default_factory=list)
    source_of_column: list[int | None] = field(default_factory=list)
    """The source in whose pool an input's own rows stand; None for integers that are looked up in a table."""

    _positions: dict[tuple[str, ...], Longs] = field(default_factory=dict)

    def of(self, name: str, source: int | None) -> int:
        """The column of an input."""
        for column, known in enumerate(zip(self.names, self.source_of_column, strict=True)):
            if known == (name, source):
                return column
        self.names.append(name)
        self.source_of_column.append(source)
        return len(self.names) - 1

    def copy(self) -> Columns:
        """The columns as they are now."""
        return Columns(self.float_dtype, list(self.names), list(self.source_of_column))

    def class_of_input(self, name: str, instance: VertexInstance) -> ValueClass:
        """The class of an input's rows. Raises InputError when the instance lacks it."""
        if name not in instance.inputs:
            raise missing_input(name, instance)
        return class_of(self._tensor(instance.inputs[name][:0]).new_empty(instance.inputs[name].shape[1:]))

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.to(self.float_dtype) if tensor.is_floating_point() else tensor

    def positions(self, instances: Sequence[VertexInstance]) -> Longs:
        """Per column the number of the packed input that holds it, in all instances the same; -1 where none does."""
        names = instances[0].packed_inputs if instances else ()
        known = self._positions.get(names)
        if known is None:
            numbers = {name: number for number, name in enumerate(names)}
            found = [
                numbers.get(name, -1) if source is None else -1
                for name, source in zip(self.names, self.source_of_column, strict=True)
            ]
            known = self._positions[names] = np.array(found, np.int64)
        is_same = [x.packed_inputs for x in instances].count(names) == len(instances)
        return known if is_same else np.full_like(known, -1)

    def fill(
        self,
        columns: Longs,
        positions: Longs,
        pulls: Sequence[int],
        instances: Sequence[VertexInstance],
        pools: Pools,
    ) -> None:
        """Fill the columns `(columns, vertices)` of a mini-batch that no packed input holds, and put the rows of inputs
        behind its constants in `pools`.

        Columns that `pulls` counts no pull of are left as they are. Raises InputError for an input that an instance
        lacks or that has other rows there.
        """
        num_vertices = columns.shape[1]
        behind: dict[int, list[torch.Tensor]] = {}
        for column, (count, position) in enumerate(zip(pulls, positions.tolist(), strict=True)):
            if count == 0 or position >= 0:
                continue
            name, source = self.names[column], self.source_of_column[column]
            if source is None:
                _joined(name, instances, columns[column])
                continue
            rows = behind.setdefault(source, [])
            first = len(pools.get(source, ())) + len(rows) * num_vertices
            columns[column] = np.arange(first, first + num_vertices)
            rows.append(self._tensor(_joined(name, instances)))
        for source, rows in behind.items():
            known = pools.get(source)
            pools[source] = torch.cat([torch.stack(known), *rows] if known else rows)


def _joined(name: str, instances: Sequence[VertexInstance], out: Longs | None = None) -> NDArray[Any]:
    """An input of all instances, written to `out` where that is given."""
    try:
        arrays = [x.inputs[name] for x in instances]
        return np.concatenate(arrays, out=out, casting="no", dtype=None if out is not None else arrays[0].dtype)
    except (KeyError, ValueError, TypeError) as error:
        inhabited = [x for x in instances if x.num_vertices]  # an empty list has no dtype to speak of
        if 0 < len(inhabited) < len(instances):
            return _joined(name, inhabited, out)
        fault = next((fault for i, x in enumerate(instances) if (fault := _fault(name, i, x, instances[0]))), None)
        raise fault or error from None


def _fault(name: str, number: int, instance: VertexInstance, first: VertexInstance) -> InputError | None:
    """What is wrong with an input of one instance, or nothing."""
    if name not in instance.inputs:
        return InputError(f"instance {number}: {missing_input(name, instance)}")
    here, there = instance.inputs[name], first.inputs[name]
    if (here.shape[1:], here.dtype) == (there.shape[1:], there.dtype):
        return None
    return InputError(
        f"instance {number}: input {name!r}: expected rows {there.dtype}{list(there.shape[1:])} as in instance 0, got "
        f"{here.dtype}{list(here.shape[1:])}"
    )
