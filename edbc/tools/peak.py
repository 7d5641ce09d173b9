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

from edbc.cells.kernels.microkernel import Shape, shape_of, text_of_peak
from edbc.cells.kernels.products import Products
from edbc.cells.kernels.steps import FIRST_OPERAND, PIECE_FIELDS
from edbc.native.machinecode import address_of
from edbc.native.pool import ALIGNMENT
from edbc.native.threads import threads_of_products

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
def peak_gflops(width: int = 4) -> float | None:
    """Billions of operations per second of multiply-adds that wait for no memory, on elements of `width` bytes; None
    where there is no kernel for this processor."""
    shape = shape_of(width)
    if shape is None:
        return None
    text, chains = text_of_peak(shape)
    call, turns = _function(address_of(f"edbc_peak_f{8 * width}", text), 2), 20_000
    out = np.zeros(shape.lanes + 1)
    return 2e-9 * shape.group * shape.lanes * chains * turns / best_seconds(lambda: call(turns, out.ctypes.data))


def product_gflops(products: Products, rows: int, inputs: int, columns: int, width: int = 4) -> float:
    """Billions of operations per second of one product."""
    with threads_of_products(lambda: (1.0, 1.0)):  # small ones take one thread
        return 2e-9 * rows * inputs * columns / best_seconds(_product(products, rows, inputs, columns, width))


def _product(products: Products, rows: int, inputs: int, columns: int, width: int) -> Callable[[], object]:
    """A product of made-up numbers, as the walk calls it."""
    shape, dtype = products.shape(width), _DTYPES[width]
    source, target = torch.rand(rows, inputs, dtype=dtype), torch.empty(rows, columns, dtype=dtype)
    weight = torch.rand(inputs, columns, dtype=dtype)
    weight = weight if shape is None else shape.pack(weight)
    at = np.zeros((rows, FIRST_OPERAND + 2), np.int64)
    for slot, tensor in enumerate((source, target), FIRST_OPERAND):
        at[:, slot] = tensor.data_ptr() + np.arange(rows) * tensor.stride(0) * width
    step = np.array([0, FIRST_OPERAND + 1, 0, inputs, columns, weight.data_ptr(), 0, -1, 0, 0, 1], np.int64)
    pieces = np.zeros((1, PIECE_FIELDS), np.int64)
    pieces[0] = FIRST_OPERAND, 0, inputs
    scratch = np.zeros(products.scratch(rows, inputs * width) + ALIGNMENT, np.uint8)
    call, kept = _function(products.address(width), 7), (source, target, weight)
    addresses = (at.ctypes.data, at.shape[1], rows, step.ctypes.data, pieces.ctypes.data, scratch.ctypes.data, 0)
    return lambda: (call(*addresses), at, step, pieces, scratch, kept)


def _function(address: int, arguments: int) -> Callable[..., object]:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)(address)


def describe(shape: Shape | None) -> str:
    """The tiles of a kernel in words."""
    if shape is None:
        return "none"
    return f"{shape.rows} rows x {shape.columns} columns, vectors of {8 * shape.group * shape.width * shape.lanes} bits"
