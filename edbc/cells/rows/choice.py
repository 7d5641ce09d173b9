"""Cells that are `argmax` or `argmin` of a vector, or a comparison, natively (`rows.choiceloop`): what decoders wait
for, and what leaves early."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from edbc.capture.record.table import Hole
from edbc.cells.opgraph import CellGraph

OPS = ("argmax", "argmin")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_FLOATS: dict[str, Any] = {"f32": np.float32, "f64": np.float64}


def _calls(names: tuple[str, ...]) -> dict[Any, str]:
    return {function: name for name in names for function in (getattr(torch, name), getattr(torch.Tensor, name))}


_CHOICES, _COMPARISONS = _calls(OPS), _calls(COMPARISONS)


class ChoiceKernel:
    """What runs a type whose node is one such choice of all elements of its operand."""

    def __init__(self, op: str):
        self.op = op


def choice_of(cell: CellGraph) -> ChoiceKernel | None:
    """The kernel of a cell; None where it is anything else."""
    if len(cell.ops) != 1 or len(cell.operands) != 1 or cell.outputs != (cell.ops[0].name,):
        return None
    op, (_, operand) = cell.ops[0], cell.operands[0]
    name = _CHOICES.get(op.call) if op.op == "generic" and op.sources and not op.sources[0].views else None
    if name is None or operand.dtype not in ("f32", "f64") or not operand.size or op.result.shape:
        return None
    args, kwargs = op.template
    dims = [*args[1:], *kwargs.values()]
    chooses_of_all = not dims or (len(dims) == 1 and dims[0] in (None, 0, -1) and type(dims[0]) is not bool)
    is_plain = type(args[0]) is Hole and {*kwargs} <= {"dim"} and chooses_of_all if args else False
    return ChoiceKernel(name) if is_plain else None


class ComparisonKernel:
    """What runs a type whose node compares two operands of one class, or one with a number, element by element."""

    def __init__(self, op: str, number: float | None):
        self.op = op
        self.number = number
        """As the operand's dtype has it; None for two operands."""


def comparison_of(cell: CellGraph) -> ComparisonKernel | None:
    """The kernel of a cell; None where it is anything else."""
    if len(cell.ops) != 1 or cell.outputs != (cell.ops[0].name,):
        return None
    op, classes = cell.ops[0], {value_class for _, value_class in cell.operands}
    name = _COMPARISONS.get(op.call) if op.op == "generic" else None
    if name is None or len(classes) != 1 or any(source.views for source in op.sources):
        return None
    (operand,), (args, kwargs) = classes, op.template
    if operand.dtype not in _FLOATS or not operand.size or op.result.shape != operand.shape or kwargs:
        return None
    if args == (Hole(0), Hole(1)):
        return ComparisonKernel(name, None) if len(cell.operands) == 2 else None
    if len(args) != 2 or args[0] != Hole(0) or type(args[1]) not in (int, float):
        return None
    with np.errstate(over="ignore"):
        return ComparisonKernel(name, float(_FLOATS[operand.dtype](args[1])))
