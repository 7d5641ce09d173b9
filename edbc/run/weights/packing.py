"""Weights that share an input, packed side by side: gates of a cell (`weights.packed`), merged layers of a static graph
(`stages.units.products`). All blocks are placed in one native call; in torch where native code cannot.

Definitions.

(1) A *move* is a row of MOVE_FIELDS integers: source number, first element, rows, columns and row stride there; first
    element and row stride in the packed memory; and whether the target is (columns, rows), and whether it is added to.
(2) Blocks of parameters are (out, in), packed matrices (in, out). torch copies a transposed matrix element by element
    where rows of the target are a multiple of a page apart (hidden sizes that are powers of two); here a tile of ROWS x
    COLUMNS elements fills whole cache lines of the target before they are evicted.

Every step of an optimiser makes all weights be packed again: with torch's copies that was 5 % of a training step.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type"

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import config
from numpy.typing import NDArray

from edbc.capture.record.table import SharedRef
from edbc.cells.opgraph import Block
from edbc.cells.program import Packed
from edbc.native.kernelcache import njit
from edbc.native.pointers import load, store
from edbc.native.pool import aligned

if TYPE_CHECKING:
    from edbc.cells.kernels.microkernel import Shape

MOVE_FIELDS = 9
ROWS, COLUMNS = 8, 16
"""Of a tile of the source."""
_LIKE = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


@dataclass(frozen=True, eq=False)
class Moves:
    """How parameters of given shapes are packed. All matrices and biases stand in one buffer, of `size` elements, at
    `matrices` and `biases` (-1: no bias)."""

    table: NDArray[np.int64]
    size: int
    is_full: bool
    """True when the moves write every element that is read."""
    matrices: tuple[tuple[int, ...], ...]
    """First element and sizes of each."""
    biases: tuple[tuple[int, int], ...]
    """The same."""

    @classmethod
    def of(cls, moves: Sequence[Sequence[int]], size: int, matrices: Sequence[tuple[int, ...]],
           biases: Sequence[tuple[int, int]]) -> Moves:  # fmt: skip
        """The moves to matrices and biases at these places."""
        table = np.array(moves, np.int64).reshape(-1, MOVE_FIELDS)
        written = sum(move[2] * move[3] for move in moves if not move[8])
        read = sum(math.prod(sizes) for _, *sizes in matrices) + sum(n for first, n in biases if first >= 0)
        return cls(table, size, written == read, tuple(matrices), tuple(biases))

    def pack(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype,
             device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor | None]]:  # fmt: skip
        """A matrix and a bias per packed weight."""
        buffer = (torch.empty if self.is_full else torch.zeros)(self.size, dtype=dtype, device=device)
        if can_move(tensors, dtype, device):
            addresses = np.array([t.data_ptr() for t in tensors], np.int64)
            move_blocks(self.table, addresses, buffer.data_ptr(), dtype.itemsize, _LIKE[dtype])
        else:
            self._move([tensor.detach().reshape(-1) for tensor in tensors], buffer)
        return [
            (
                buffer[first : first + math.prod(sizes)].view(sizes),
                buffer[bias : bias + columns] if bias >= 0 else None,
            )
            for (first, *sizes), (bias, columns) in zip(self.matrices, self.biases, strict=True)
        ]

    def _move(self, sources: Sequence[torch.Tensor], buffer: torch.Tensor) -> None:
        """Definition (1) in torch, which casts; of flat tensors."""
        for number, first, rows, columns, stride, at, target_stride, transposes, adds in self.table.tolist():
            strides = (1, target_stride) if transposes else (target_stride, 1)
            target = buffer[at:].as_strided((rows, columns), strides)
            source = sources[number][first:].as_strided((rows, columns), (stride, 1))
            (target.add_ if adds else target.copy_)(source)


def can_move(tensors: Sequence[torch.Tensor], dtype: torch.dtype, device: torch.device) -> bool:
    """True when native code moves these tensors. Without the compiler memory cannot be read by address."""
    if config.DISABLE_JIT or dtype not in _LIKE or device.type != "cpu":  # type: ignore[attr-defined]
        return False
    return all(t.dtype == dtype and t.device == device and t.is_contiguous() for t in tensors)


def moves_of(weights: Sequence[Packed], shapes: Mapping[SharedRef, tuple[int, ...]],
             shape: Shape | None = None) -> Moves:  # fmt: skip
    """The moves that pack some weights, as matrices or in panels of a shape, given the shapes of the parameters."""
    number = {ref: i for i, ref in enumerate(shapes)}
    moves: list[list[int]] = []
    matrices: list[tuple[int, ...]] = []
    biases, size = [], 0
    for packed in weights:
        columns = packed.columns if shape is None else shape.padded(packed.columns)
        matrices.append((size, packed.rows, columns) if shape is None else (size, packed.rows * columns))
        for move in _of_blocks(packed, size, number, shapes):
            moves += [move] if shape is None else _in_panels(move, packed, size, shape)
        size += aligned(packed.rows * columns)
        biases.append((size if packed.biases else -1, columns))
        moves += _of_biases(packed, size, number)
        size += aligned(columns) if packed.biases else 0
    return Moves.of(moves, size, matrices, biases)


def _of_blocks(packed: Packed, first: int, number: Mapping[SharedRef, int],
               shapes: Mapping[SharedRef, tuple[int, ...]]) -> Iterator[list[int]]:  # fmt: skip
    met: set[tuple[int, int]] = set()
    for placed in packed.blocks:
        (top, bottom), (left, right) = _in_parameter(placed.block)
        stride = shapes[placed.block.ref][1]
        target = first + placed.row * packed.columns + placed.column
        adds = (placed.row, placed.column) in met
        met.add((placed.row, placed.column))
        source = number[placed.block.ref], top * stride + left, bottom - top, right - left, stride
        yield [*source, target, packed.columns, not placed.block.transposed, adds]


def _in_panels(move: list[int], packed: Packed, first: int, shape: Shape) -> Iterator[list[int]]:
    """A move to a matrix as moves to its panels."""
    number, at, rows, columns, stride, target, _, transposes, adds = move
    row, column = divmod(target - first, max(packed.columns, 1))
    stop = column + (rows if transposes else columns)
    for begin, count in shape.panels(packed.columns):
        left, right = max(begin, column), min(begin + count, stop)
        if left < right:
            padded, skipped = shape.padded(count), left - column
            source = at + skipped * (stride if transposes else 1)
            sizes = (right - left, columns) if transposes else (rows, right - left)
            place = first + packed.rows * begin + row * padded + left - begin
            yield [number, source, *sizes, stride, place, padded, transposes, adds]


def _in_parameter(block: Block) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of the parameter as it is."""
    assert block.columns is not None
    return (block.columns, block.rows) if block.transposed else (block.rows, block.columns)


def _of_biases(packed: Packed, first: int, number: Mapping[SharedRef, int]) -> Iterator[list[int]]:
    met: set[int] = set()
    for placed in packed.biases:
        (begin, end), adds = placed.block.rows, placed.column in met
        met.add(placed.column)
        yield [number[placed.block.ref], begin, 1, end - begin, 0, first + placed.column, 0, False, adds]


@njit(cache=True, nogil=True)
def move_blocks(moves, sources, target, width, like):
    """Definition (1), move by move; `sources` and `target` are addresses of elements of `width` bytes."""
    for m in range(len(moves)):
        rows, columns, stride, target_stride = moves[m, 2], moves[m, 3], moves[m, 4], moves[m, 6]
        a, b = sources[moves[m, 0]] + moves[m, 1] * width, target + moves[m, 5] * width
        if moves[m, 8] or not moves[m, 7]:
            across, down = (target_stride, 1) if moves[m, 7] else (1, target_stride)
            for i in range(rows):
                for j in range(columns):
                    at = j * across + i * down
                    old = load(b, at, like) if moves[m, 8] else like
                    store(b, at, old + load(a, i * stride + j, like))
        else:
            _transpose(b, a, rows, columns, target_stride, stride, like)


@njit(cache=True, nogil=True)
def _transpose(target, source, rows, columns, target_stride, source_stride, like):
    """`target[j, i] = source[i, j]`, definition (2)."""
    whole_rows, whole_columns = rows - rows % ROWS, columns - columns % COLUMNS
    for j in range(0, whole_columns, COLUMNS):
        for i in range(0, whole_rows, ROWS):
            for c in range(COLUMNS):
                for r in range(ROWS):
                    store(target, (j + c) * target_stride + i + r, load(source, (i + r) * source_stride + j + c, like))
    for i in range(rows):
        for j in range(whole_columns if i < whole_rows else 0, columns):
            store(target, j * target_stride + i, load(source, i * source_stride + j, like))
