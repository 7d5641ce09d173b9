"""Run functions as loops: told by tapes, compiled once, run for all nodes of a batch.

The gradient is a program of its own: the tape of the forward pass and of what autograd does behind it. So a node's
inside is computed again, and nothing is kept.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel

from edbc.cells.arrays.program import Program, program_of
from edbc.cells.arrays.render import text_of
from edbc.cells.arrays.sizes import Lengths, const
from edbc.cells.arrays.tape import NotInLoops, Tape
from edbc.cells.kernels.microkernel import lanes_of
from edbc.native.machinecode import addresses_of

Longs = NDArray[np.int64]
Products = Sequence[tuple[int, int, int]]
Function = Callable[[Sequence[int], Sequence[torch.Tensor]], torch.Tensor]
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Field(NamedTuple):
    """An operand of a function of runs: elements of a row, which length it has, and its dtype."""

    size: int
    symbol: int
    dtype: torch.dtype


class Loops:
    """A program, compiled for this processor."""

    def __init__(self, program: Program, dtype: torch.dtype):
        self.program, self.dtype, self.width = program, dtype, dtype.itemsize
        self._room = sum(program.room, const(0))
        name, text = text_of(program, self.width, lanes_of(self.width))
        self._call = _CALL(addresses_of({name: text})[name])

    def run(self, lengths: Longs, given: Sequence[Longs], most: int) -> None:
        """Run nodes of these lengths, `(nodes, symbols)`, each of the least length at least, on the addresses of what
        is given, an array of `(nodes,)` each; `most` is the largest of their `bytes_of`."""
        table = np.empty((len(lengths), self.program.symbols + self.program.given), np.int64)
        table[:, : self.program.symbols] = lengths
        for k, addresses in enumerate(given):
            table[:, self.program.symbols + k] = addresses
        memory = np.empty(most + 64, np.uint8)
        self._call(len(lengths), table.ctypes.data, memory.ctypes.data)

    def bytes_of(self, lengths: Longs) -> Any:
        """What nodes of these lengths take inside, `(nodes,)`."""
        return self._room.at([*lengths.T]) * self.width + np.zeros(len(lengths), np.int64)


def forward_loops(function: Function, fields: Sequence[Field], symbols: int, dtype: torch.dtype,
                  products: Products = ()) -> Loops | None:  # fmt: skip
    """`function(lengths, fields)` as loops: what is given are its fields, (length, size) each, then its result. None
    where loops do not know what it does."""

    def taped(lengths: Lengths) -> Tape:
        rows = _rows(fields, lengths, dtype)
        result = torch.empty_like(function(lengths, rows), memory_format=torch.contiguous_format)
        if result.dtype is not dtype:
            raise NotInLoops(f"a result of {result.dtype}")
        tape = Tape(dtype, [*rows, result])
        with torch.no_grad(), tape:
            result.copy_(function(lengths, rows))
        return tape

    return _loops(len(fields) + 1, symbols, dtype, taped, products)


def gradient_loops(function: Function, fields: Sequence[Field], wanted: Sequence[bool], symbols: int,
                   dtype: torch.dtype, products: Products = ()) -> Loops | None:  # fmt: skip
    """The same of the gradients of the fields that are `wanted`: what is given are the fields, the gradient of the
    result, and those of the fields."""

    def taped(lengths: Lengths) -> Tape:
        rows = _rows(fields, lengths, dtype)
        given = torch.ones_like(function(lengths, rows), memory_format=torch.contiguous_format)
        results = [torch.empty_like(x) for x, w in zip(rows, wanted, strict=True) if w]
        tape = Tape(dtype, [*rows, given, *results])
        with torch.enable_grad(), tape:
            leaves = [x.detach().requires_grad_(w) for x, w in zip(rows, wanted, strict=True)]
            sought = [x for x in leaves if x.requires_grad]
            found = torch.autograd.grad(function(lengths, leaves), sought, given, allow_unused=True)
            with torch.no_grad():
                for result, gradient in zip(results, found, strict=True):
                    result.copy_(gradient) if gradient is not None else result.zero_()
        return tape

    return _loops(len(fields) + 1 + sum(wanted), symbols, dtype, taped, products)


def _rows(fields: Sequence[Field], lengths: Lengths, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(lengths[of.symbol], of.size, generator=generator) for of in fields]
    return [x > 0 if of.dtype is torch.bool else x.to(dtype) for x, of in zip(rows, fields, strict=True)]


def _loops(given: int, symbols: int, dtype: torch.dtype, taped: Callable[[Lengths], Tape],
           products: Products) -> Loops | None:  # fmt: skip
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
            warnings.simplefilter("ignore")  # of a length that the function is not for
            with sdpa_kernel(SDPBackend.MATH):  # attention as products and a softmax
                return Loops(program_of(given, symbols, dtype, taped, products), dtype)
    except (NotInLoops, RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return None
