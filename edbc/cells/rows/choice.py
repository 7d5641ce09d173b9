"""Cells that are `argmax` or `argmin` of a vector, natively (`rows.choiceloop`): what decoders wait for."""

from __future__ import annotations

import torch

from edbc.capture.record.table import Hole
from edbc.cells.opgraph import CellGraph

OPS = ("argmax", "argmin")
_OF_CALL = {function: op for op in OPS for function in (getattr(torch, op), getattr(torch.Tensor, op))}


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
