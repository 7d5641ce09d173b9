"""A cell's operations on the rows of a batch, in torch: what rows share once, and so many rows at a time.

What the CPU runs a type by that native code does not know, and what its gradient is computed again by. Definitions.

(1) The *support* of a variable are the operands that it depends on. Rows whose operands in a support stand in the same
    rows of memory have the same values there: a variable is computed for the *distinct* rows of its support, and
    spread over more rows where it meets other operands. So a picture that many nodes look at is convolved once.
(2) Spreading copies values, and sums their gradients. It is done where at most SPREAD of the rows are distinct;
    otherwise every row counts as distinct. Then so it does in every larger support.
(3) A *block* of a batch are the rows that run together: as many as keep the cell's variables within BLOCK_BYTES, so
    that a batch takes no more memory than that beside its operands and outputs. Rows that share an operand stand
    together.
(4) Values have the shapes of their variables behind the dimension of rows, in whatever memory order torch's functions
    give them; they are flat where the cell's operation graph treats them as vectors.
(5) A *small* batch, of SMALL rows and a block's bytes at most, in which no operand has many equal rows, is one block in
    which every row counts as distinct, once every batched form has been right for rows that differ
    (`rows.rowfunction`): looking for equal rows takes longer there than torch's functions do.

The program's memory order plays no part here: each variable is a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.cells.opgraph import CellGraph, CellOp
from edbc.cells.rows.rowfunction import RowFunction
from edbc.cells.rows.written import Call, Parameters, RowsWriter, Support, Tensors, bytes_of, call_of
from edbc.native.kernelcache import njit

Longs = NDArray[np.int64]

BLOCK_BYTES = 2 << 20
"""Definition (3). Smaller blocks cost calls, larger ones memory: a training step of convolutions of 49 pixels and 128
channels took 83 ms and 14 MB with half of it, 67 ms and 19 MB with it, and 24 MB with twice of it."""
SPREAD = 0.75
"""Definition (2)."""
SMALL = 256
"""Definition (5). Beyond, questions are cheap, and memory is what counts."""


class _Distinct(NamedTuple):
    """The distinct rows of a support in a block: where each of them stands first, and for every row which it is."""

    first: Longs
    which: Longs


class BlockRows:
    """The rows of a block, definition (3), with the distinct ones of some supports.

    `positions` are those of its rows in the batch; `rows[k]` says where the batch's rows of operand k stand.
    """

    def __init__(self, rows: Sequence[Longs], positions: Longs, supports: Iterable[Support]):
        self.positions = positions
        self._of_operand = [_distinct(of_operand[positions]) for of_operand in rows]
        self._distinct = {support: self._of(sorted(support)) for support in supports if support}

    def taken(self, operand: int) -> Longs:
        """Positions in the batch of the rows of an operand that the block takes."""
        found = self._of_operand[operand]
        return self.positions if found is None else self.positions[found.first]

    def count(self, support: Support) -> int:
        """Rows of a variable of that support."""
        if not support:
            return 1
        found = self._distinct[support]
        return len(self.positions) if found is None else len(found.first)

    def spread(self, value: torch.Tensor, support: Support, wider: Support | None = None) -> torch.Tensor:
        """A variable of one support at the rows of a wider one, of all rows without."""
        if not support:
            return value.expand(len(self.positions) if wider is None else self.count(wider), *value.shape[1:])
        found = self._distinct[support]
        if found is None or support == wider:
            return value
        goal = self._distinct[wider] if wider is not None else None
        return _taken(value, torch.from_numpy(found.which if goal is None else found.which[goal.first]))

    def _of(self, operands: Sequence[int]) -> _Distinct | None:
        if len(operands) == 1:
            return self._of_operand[operands[0]]
        keys = np.zeros(len(self.positions), np.int64)
        for operand in operands:
            found = self._of_operand[operand]
            if found is None:
                return None
            keys = distinct_keys(keys * len(found.first) + found.which)[1]
        return _distinct(keys)


class EachRow(BlockRows):
    """A block of which every row counts as distinct: nothing is looked for or spread."""

    def __init__(self, size: int) -> None:
        self.positions = np.arange(size)

    def taken(self, operand: int) -> Longs:
        return self.positions

    def count(self, support: Support) -> int:
        return len(self.positions) if support else 1

    def spread(self, value: torch.Tensor, support: Support, wider: Support | None = None) -> torch.Tensor:
        return value if support else value.expand(len(self.positions), *value.shape[1:])


def _taken(value: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a value. Maps stay channels last (definition (4)), where `index_select` alone would turn them over and
    leave it to the next convolution to turn them back."""
    if value.ndim == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last):
        return value.movedim(1, -1).index_select(0, rows).movedim(-1, 1)
    return value.index_select(0, rows)


def _distinct(keys: Longs) -> _Distinct | None:
    """Definition (2)."""
    first, which = distinct_keys(keys)
    return _Distinct(first, which) if len(first) <= SPREAD * len(keys) else None


@njit(cache=True)
def distinct_keys(keys):  # type: ignore[no-untyped-def]
    """Where each of the distinct keys stands first, in ascending order of keys, and for every key which it is."""
    order = np.argsort(keys, kind="mergesort")
    first, which = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    num = 0
    for i in range(len(order)):
        if i == 0 or keys[order[i]] != keys[order[i - 1]]:
            first[num] = order[i]
            num += 1
        which[order[i]] = num - 1
    return first[:num].copy(), which


class Evaluation:
    """See the module's docstring."""

    def __init__(self, cell: CellGraph):
        self.cell = cell
        self._functions: dict[Call, RowFunction] = {}
        self._calls = [op for op in cell.ops if op.op == "generic"]
        self._is_sure = False
        self._support: dict[str, Support] = {name: frozenset([k]) for k, (name, _) in enumerate(cell.operands)}
        for op in cell.ops:
            self._support[op.name] = frozenset[int]().union(*(self._support[name] for name in op.inputs))
        self._supports = frozenset(self._support.values())
        self.row_bytes = sum(map(bytes_of, cell.classes().values()))

    def blocks(self, rows: Sequence[Longs], count: int) -> Iterator[BlockRows]:
        """The blocks of a batch of `count` rows; `rows[k]` says where those of operand k stand."""
        if count == 1:
            yield EachRow(1)
            return
        positions = np.arange(count)
        size = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        if size < len(positions) and rows:
            shared = min(rows, key=lambda of_operand: len(distinct_keys(of_operand)[0]))
            positions = np.argsort(shared, kind="stable")
        for begin in range(0, len(positions), size):
            yield BlockRows(rows, positions[begin : begin + size], self._supports)

    def outputs(self, block: BlockRows, operands: Tensors, parameters: Parameters) -> list[torch.Tensor]:
        """The cell's outputs for the rows of a block, `(count, size)` each. `operands[k]` are its rows
        `block.taken(k)`, `(rows, size)`."""
        return [x.reshape(len(block.positions), -1) for x in self.values(block, operands, parameters)]

    def values(self, block: BlockRows, operands: Tensors, parameters: Parameters) -> list[torch.Tensor]:
        """The same as `(count, *shape)`."""
        found = zip(self.cell.outputs, self._written(parameters, block, *operands), strict=True)
        return [block.spread(x, self._support[name]) for name, x in found]

    def is_small(self, rows: Sequence[Longs], count: int) -> bool:
        """Whether a batch is small, and its operands stand in different rows: definition (5)."""
        if not rows or count > SMALL or count * self.row_bytes > BLOCK_BYTES:
            return False
        return all(len(set(of_operand.tolist())) > SPREAD * count for of_operand in rows)

    @property
    def is_sure(self) -> bool:
        """Whether all batched forms were right for rows that differ."""
        if not self._is_sure:
            calls = map(self.function, self._calls)
            self._is_sure = all(not call.is_slow and (call.is_believed or not call.views) for call in calls)
        return self._is_sure

    @property
    def waits(self) -> bool:
        """Whether batches that run in blocks may show that batched forms are right."""
        return not self.is_sure and not any(self.function(op).is_slow for op in self._calls)

    @cached_property
    def _written(self) -> Callable[..., list[torch.Tensor]]:
        return RowsWriter(self.cell, self.function, self._support).written()

    def function(self, op: CellOp) -> RowFunction:
        """What runs a generic operation: one for all results of a call."""
        known = self._functions.get(call_of(op))
        if known is None:
            assert op.call is not None
            views = [source.views for source in op.sources if source.variable is not None]
            known = self._functions[call_of(op)] = RowFunction(op.call, op.template, views)
        return known
