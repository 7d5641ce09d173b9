"""What this processor can do, measured: multiply-adds in registers, and products of a size.

One core. The best of some runs counts: other programs only ever make a run slower.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from edbc.cells.kernels.microkernel import Shape, address_of_product, shape_of, text_of_peak
from edbc.cells.kernels.steps import FIRST_OPERAND, PIECE_FIELDS
from edbc.native.machinecode import address_of
from edbc.native.threads import torch_threads

RUNS, SECONDS = 15, 2e-3
"""How often something is run, and for how long at least each time."""
_DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


def best_seconds(call: Callable[[], object]) -> float:
    """The least time of one call."""
    call()
    started = time.perf_counter()
    call()
    repeats = max(1, round(SECONDS / max(time.perf_counter() - started, 1e-7)))
    best = float("inf")
    for _ in range(RUNS):
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - started) / repeats)
    return best


@cache
def peak_gflops(width: int = 4) -> float:
    """Billions of operations per second of multiply-adds that wait for no memory, on elements of `width` bytes, which
    this processor multiplies."""
    shape = _shape_of(width)
    text, chains = text_of_peak(shape)
    call, turns = _function(address_of(f"edbc_peak_f{8 * width}", text), 2), 20_000
    out = np.zeros(shape.lanes + 1)
    return 2e-9 * shape.group * shape.lanes * chains * turns / best_seconds(lambda: call(turns, out.ctypes.data))


def product_gflops(rows: int, inputs: int, columns: int, width: int = 4) -> float:
    """Billions of operations per second of one product."""
    return 2e-9 * rows * inputs * columns / best_seconds(_product(rows, inputs, columns, width))


@torch_threads(1)
def library_gflops(rows: int, inputs: int, columns: int, width: int = 4) -> float:
    """The same of `torch.mm`."""
    a, b = (torch.rand(*shape, dtype=_DTYPES[width]) for shape in ((rows, inputs), (inputs, columns)))
    out = torch.empty(rows, columns, dtype=_DTYPES[width])
    return 2e-9 * rows * inputs * columns / best_seconds(lambda: torch.mm(a, b, out=out))


def _shape_of(width: int) -> Shape:
    shape = shape_of(width)
    assert shape is not None
    return shape


def _product(rows: int, inputs: int, columns: int, width: int) -> Callable[[], object]:
    """A product of made-up numbers, as the walk calls it."""
    dtype = _DTYPES[width]
    source, target = torch.rand(rows, inputs, dtype=dtype), torch.empty(rows, columns, dtype=dtype)
    weight = _shape_of(width).pack(torch.rand(inputs, columns, dtype=dtype))
    at = np.zeros((rows, FIRST_OPERAND + 2), np.int64)
    for slot, tensor in enumerate((source, target), FIRST_OPERAND):
        at[:, slot] = tensor.data_ptr() + np.arange(rows) * tensor.stride(0) * width
    step = np.array([0, FIRST_OPERAND + 1, 0, inputs, columns, weight.data_ptr(), 0, -1, 0, 0, 1], np.int64)
    pieces = np.zeros((1, PIECE_FIELDS), np.int64)
    pieces[0] = FIRST_OPERAND, 0, inputs
    call, kept = _function(address_of_product(width), 7), (source, target, weight)
    addresses = (at.ctypes.data, at.shape[1], rows, step.ctypes.data, pieces.ctypes.data, 0, 0)
    return lambda: (call(*addresses), at, step, pieces, kept)


def _function(address: int, arguments: int) -> Callable[..., object]:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)(address)


def describe(width: int = 4) -> str:
    """The tiles of products in words."""
    shape = _shape_of(width)
    return f"{shape.rows} rows x {shape.columns} columns, vectors of {8 * shape.group * shape.width * shape.lanes} bits"
