"""The element of a vector that is largest or smallest: `argmax` and `argmin` natively, what decoders wait for.

As torch has it: not-a-number comes before all others, the first of several wins, and the two zeros are equal. Elements
are compared as integers of that order, in which loops are vectors; which element it was is looked for afterwards.
32 rows of 1,000 take 13 microseconds, in torch 20, and a segment more to call it than to run it.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type"

from __future__ import annotations

import numpy as np
import torch

from edbc.capture.record.table import Hole
from edbc.cells.opgraph import CellGraph
from edbc.native.kernelcache import INNER, UNCOUNTED, njit
from edbc.native.pointers import load

OPS = ("argmax", "argmin")
_OF_CALL = {function: op for op in OPS for function in (getattr(torch, op), getattr(torch.Tensor, op))}
_INT, _LONG = np.int32(0), np.int64(0)
_ALL_BUT_SIGN, _INFINITY = 0x7FFFFFFF, 0x7F800000
_ALL_BUT_SIGN_64, _INFINITY_64 = 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000


class ChoiceKernel:
    """What runs a type whose node is one such choice of all elements of its operand."""

    def __init__(self, op: str):
        self.op = op


def choice_of(cell: CellGraph) -> ChoiceKernel | None:
    """The kernel of a cell; None where it is anything else."""
    if len(cell.ops) != 1 or len(cell.operands) != 1 or cell.outputs != (cell.ops[0].name,):
        return None
    op, (_, operand) = cell.ops[0], cell.operands[0]
    name = _OF_CALL.get(op.call) if op.op == "generic" and not op.sources[0].views else None
    if name is None or operand.dtype not in ("f32", "f64") or not operand.size or op.result.shape:
        return None
    args, kwargs = op.template
    dims = [*args[1:], *kwargs.values()]
    chooses_of_all = not dims or (len(dims) == 1 and dims[0] in (None, 0, -1) and type(dims[0]) is not bool)
    is_plain = type(args[0]) is Hole and {*kwargs} <= {"dim"} and chooses_of_all if args else False
    return ChoiceKernel(name) if is_plain else None


@njit(**INNER, **UNCOUNTED)
def _rank(bits, sign, all_but_sign, infinity):
    """A float's place in the order, given its bits: larger is sooner."""
    size = bits & all_but_sign
    return all_but_sign if size > infinity else sign * (bits if bits >= 0 else -size)


@njit(**INNER, **UNCOUNTED)
def chosen(address, n, width, sign):
    """The number of the largest (`sign` 1) or smallest (-1) of `n` floats of `width` bytes, 4 or 8."""
    if width == 4:
        best = np.int64(-_ALL_BUT_SIGN)
        for i in range(n):
            best = max(best, _rank(np.int64(load(address, i, _INT)), sign, _ALL_BUT_SIGN, _INFINITY))
        for i in range(n):
            if _rank(np.int64(load(address, i, _INT)), sign, _ALL_BUT_SIGN, _INFINITY) == best:
                return i
        return 0
    best = np.int64(-_ALL_BUT_SIGN_64)
    for i in range(n):
        best = max(best, _rank(load(address, i, _LONG), sign, _ALL_BUT_SIGN_64, _INFINITY_64))
    for i in range(n):
        if _rank(load(address, i, _LONG), sign, _ALL_BUT_SIGN_64, _INFINITY_64) == best:
            return i
    return 0
