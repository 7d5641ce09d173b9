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

The program's memory order plays no part here: each variable is a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.opgraph import Block, CellGraph, CellOp, Source
from edbc.cells.rows.rowfunction import RowFunction
from edbc.cells.values.evaluate import MAPS
from edbc.native.kernelcache import njit

Longs = NDArray[np.int64]
Tensors = Sequence[torch.Tensor]
Parameters = Mapping[SharedRef, torch.Tensor]

BLOCK_BYTES = 2 << 20
"""Definition (3). Smaller blocks cost calls, larger ones memory: a training step of convolutions of 49 pixels and 128
channels took 83 ms and 14 MB with half of it, 67 ms and 19 MB with it, and 24 MB with twice of it."""
SPREAD = 0.75
"""Definition (2)."""


Support = frozenset[int]


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


class OneRow(BlockRows):
    """The block of a batch of one row: nothing is distinct or spread. Types that depend on a size have many of them."""

    def __init__(self) -> None:
        self.positions = _FIRST

    def taken(self, operand: int) -> Longs:
        """See BlockRows."""
        return self.positions

    def count(self, support: Support) -> int:
        """See BlockRows."""
        return 1

    def spread(self, value: torch.Tensor, support: Support, wider: Support | None = None) -> torch.Tensor:
        """See BlockRows."""
        return value


_FIRST: Longs = np.zeros(1, np.int64)


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
        self._classes = cell.classes()
        self._functions: dict[str, RowFunction] = {}
        self._support: dict[str, Support] = {name: frozenset([k]) for k, (name, _) in enumerate(cell.operands)}
        for op in cell.ops:
            self._support[op.name] = frozenset[int]().union(*(self._support[name] for name in op.inputs))
        self._supports = frozenset(self._support.values())
        self.row_bytes = sum(c.size * torch_dtype(c.dtype).itemsize for c in self._classes.values())

    def blocks(self, rows: Sequence[Longs], count: int) -> Iterator[BlockRows]:
        """The blocks of a batch of `count` rows; `rows[k]` says where those of operand k stand."""
        if count == 1:
            yield OneRow()
            return
        positions = np.arange(count)
        size = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        if size < len(positions) and rows:
            shared = min(rows, key=lambda of_operand: len(distinct_keys(of_operand)[0]))
            positions = np.argsort(shared, kind="stable")
        for begin in range(0, len(positions), size):
            yield BlockRows(rows, positions[begin : begin + size], self._supports)

    def outputs(self, block: BlockRows, operands: Sequence[torch.Tensor], parameters: Parameters) -> list[torch.Tensor]:
        """The cell's outputs for the rows of a block, `(count, size)` each. `operands[k]` are its rows
        `block.taken(k)`, `(rows, size)`."""
        named = zip(self.cell.operands, operands, strict=True)
        values = {name: x.view(x.shape[0], *value_class.shape) for (name, value_class), x in named}
        results: dict[tuple[int, tuple[str, ...]], list[torch.Tensor]] = {}
        for op in self.cell.ops:
            support = self._support[op.name]
            inputs = [block.spread(values[name], self._support[name], support) for name in op.inputs]
            if op.op == "generic":
                found = self._generic(op, inputs, parameters, block.count(support), results)
            else:
                found = operation_of(op, inputs, parameters, block.count(support))
            values[op.name] = found.to(torch_dtype(op.result.dtype))
        return [block.spread(values[name], self._support[name]).reshape(len(block.positions), -1)
                for name in self.cell.outputs]  # fmt: skip

    def _generic(self, op: CellOp, inputs: Tensors, parameters: Parameters, count: int,
                 results: dict[tuple[int, tuple[str, ...]], list[torch.Tensor]]) -> torch.Tensor:  # fmt: skip
        """One of the results of a call, which is made once for all of them."""
        key = id(op.template), op.inputs
        if key not in results:
            results[key] = self.function(op)(inputs, count, parameters.__getitem__)
        return results[key][op.output or 0]

    def function(self, op: CellOp) -> RowFunction:
        """What runs a generic operation."""
        known = self._functions.get(op.name)
        if known is None:
            assert op.call is not None
            views = [source.views for source in op.sources if source.variable is not None]
            known = self._functions[op.name] = RowFunction(op.call, op.template, views)
        return known


def operation_of(op: CellOp, inputs: Tensors, parameters: Parameters, count: int) -> torch.Tensor:
    """Any operation that the cell's operation graph knows, definition (4)."""
    if op.op in MAPS or op.op == "sum":
        return _map(op, inputs, parameters).expand(count, *op.result.shape)
    flat = [x.reshape(count, -1) for x in inputs]
    if op.op == "affine":
        found = _affine(op, flat, parameters, count)
    elif op.op == "cat":
        found = torch.cat(flat, 1)
    else:
        start, stop = map(int, op.attributes.split(":"))
        found = flat[0][:, start:stop]
    return found.reshape(count, *op.result.shape)


def _affine(op: CellOp, inputs: Tensors, parameters: Parameters, count: int) -> torch.Tensor:
    total: torch.Tensor | None = None if op.addend is None else inputs[-1]
    for block in op.biases:
        bias = _part(parameters[block.ref], 0, block.rows)
        total = bias if total is None else total + bias
    for x, block in zip(inputs, op.weights, strict=False):
        matrix = _block(block, parameters)
        total = x @ matrix if total is None else torch.addmm(total, x, matrix)
    assert total is not None
    return total.expand(count, op.result.size)


def _block(block: Block, parameters: Parameters) -> torch.Tensor:
    """The block as (in, out)."""
    whole = parameters[block.ref]
    assert block.columns is not None
    return _part(_part(whole if block.transposed else whole.t(), 0, block.columns), 1, block.rows)


def _part(tensor: torch.Tensor, dim: int, between: tuple[int, int]) -> torch.Tensor:
    size = between[1] - between[0]
    return tensor if size == tensor.shape[dim] else tensor.narrow(dim, between[0], size)


def _map(op: CellOp, inputs: Tensors, parameters: Parameters) -> torch.Tensor:
    variables = iter(inputs)

    def tensor(source: Source) -> torch.Tensor:
        if source.variable is not None:
            x = next(variables)
            return x.reshape(x.shape[0], *op.result.shape)
        if source.shared is not None:
            return parameters[source.shared].reshape(1, *op.result.shape)
        return torch.tensor(source.number, dtype=torch_dtype(op.result.dtype))

    sources = [tensor(source) for source in op.sources]
    if op.op != "sum":
        return MAPS[op.op](*sources)
    total = sources[0]
    for source in sources[1:]:
        total = total + source
    return total
