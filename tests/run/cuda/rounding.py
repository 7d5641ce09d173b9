"""Triton's interpreter with a device's roundings: what tests of the kernels run in where there is no GPU.

The interpreter is numpy, and differs from machine code in three places that a tolerance would have to hide:

(1) float32 becomes bfloat16 by cutting bits off; a device rounds to the nearest, ties to even.
(2) `tl.dot` multiplies the bit patterns of bfloat16 as integers; a device multiplies numbers and adds in float32.
(3) float32's `exp` is exact to half a unit; a device rounds x log2(e) before it raises 2 to that power (`ex2.approx`),
    so its relative error grows with |x|.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even, definition (1)."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers that bits of bfloat16 stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def device_exp(x: NDArray[Any]) -> NDArray[Any]:
    """Definition (3)."""
    return np.exp2(x * np.float32(1.4426950408889634)) if x.dtype == np.float32 else np.exp(x)


def round_as_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Triton's interpreter differ from a device in none of (1) to (3)."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert, builder = interpreter._convert_float, interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def converted(data: NDArray[Any], given: Any, wanted: Any, rounding: Any) -> NDArray[Any]:
        if given == tl.float32 and wanted == tl.bfloat16:
            return to_bfloat16(np.ascontiguousarray(data))
        return convert(data, given, wanted, rounding)

    def factor(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle(to_float32(handle.data), tl.float32)

    monkeypatch.setattr(interpreter, "_convert_float", converted)
    monkeypatch.setattr(
        builder, "create_dot", lambda self, a, b, *others: multiply(self, factor(a), factor(b), *others)
    )
    monkeypatch.setattr(builder, "create_exp", lambda self, x: self.unary_op(x, device_exp))
