"""What a backward pass runs for a batch of one type, as values: phases of instructions over slots of memory.

Slots and phases are those of `training.adjoint`, definitions (1) and (4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

WORKSPACE, SCRATCH, SHARED, VECTORS, SAVED, KEPT, DELTA, FIRST_OPERAND = range(8)
"""Slots. `SHARED` holds parameters and numbers that instructions read, `VECTORS` the gradients of those parameters."""

MATRIX_GRADIENTS = ("left", "right")
"""Of C = A B with matrices (m, k) and (k, n) of a row, and d the gradient of C: `left` is d B transposed, `right` is A
transposed d. Their shape is (m, k, n, stride), the stride that of rows of A, of which B meets k columns."""

Place = tuple[int, int]


@dataclass(frozen=True)
class Instruction:
    """`target = op(sources)`, or `target += ...` when it `adds`, for `size` elements. `is_gradient` tells an operation
    of `derivatives.GRADIENTS` from one of `rowops.OPERATIONS`."""

    op: str
    size: int
    target: Place
    sources: tuple[Place, ...]
    adds: bool = False
    is_gradient: bool = True
    shape: tuple[int, ...] = ()
    """Of the two operations of `MATRIX_GRADIENTS`."""


@dataclass(frozen=True)
class BackProduct:
    """`workspace[target:] = workspace[delta:] @ weight transposed`."""

    weight: int
    delta: int
    target: int


Phase = BackProduct | tuple[Instruction, ...]


def joined(phases: Sequence[Phase]) -> Iterator[Phase]:
    """Neighbouring passes as one, and neighbouring instructions as one where all their places adjoin."""
    pending: list[Instruction] = []
    for phase in phases:
        if isinstance(phase, BackProduct):
            if pending:
                yield tuple(_merged(pending))
            pending = []
            yield phase
        else:
            pending += phase
    if pending:
        yield tuple(_merged(pending))


def _merged(instructions: Sequence[Instruction]) -> list[Instruction]:
    merged: list[Instruction] = []
    for item in instructions:
        last = merged[-1] if merged else None
        if last is not None and _continues(last, item):
            item = replace(last, size=last.size + item.size)
            merged.pop()
        merged.append(item)
    return merged


def _continues(left: Instruction, right: Instruction) -> bool:
    same = (left.op, left.adds, left.is_gradient) == (right.op, right.adds, right.is_gradient)
    pairs = zip((left.target, *left.sources), (right.target, *right.sources), strict=False)
    return same and not left.shape and all((a[0], a[1] + left.size) == b for a, b in pairs)
