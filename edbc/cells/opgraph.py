"""A cell's operation graph: what one node of a type computes, as data over a fixed operation table.

Definitions.

(1) A *variable* is an operand of the cell or the result of one of its operations; every variable has a class.
(2) `affine` is the one operation with weights: y = sum_k W_k x_k + sum_j b_j over vectors x_k, where the W_k and b_j
    are blocks of parameters. Products that are added are one affine, a product with a concatenation is an affine over
    its parts, and biases that are added belong to it (`cells.canonical` brings operations into this form). One more
    variable may be added to it, the *addend*: what another part of a split cell computed of y (`cells.split`).
(3) Element-wise operations (`edbc.base.operations`) take variables of one shape, and numbers or parameters of that
    shape.
(4) `generic` is any other torch function.

The text form of an operation (`i = sigmoid(v1)`) is what a plan shows and what binding compares with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from edbc.base.graph import ValueClass
from edbc.capture.record.table import SharedRef, View


@dataclass(frozen=True)
class Block:
    """A rectangle of a parameter: `ref`, seen as (out, in) when `transposed` is False, rows and columns of that."""

    ref: SharedRef
    rows: tuple[int, int]
    columns: tuple[int, int] | None
    """None for a bias, which has one dimension."""
    transposed: bool = False
    total_rows: int = 0
    """Rows of the whole parameter, so that a part can be told as a fraction of it."""


@dataclass(frozen=True)
class Source:
    """An operand of an operation: a variable with views taken of it, a parameter, or a number."""

    variable: str | None = None
    views: tuple[View, ...] = ()
    shared: SharedRef | None = None
    number: float | int | None = None


@dataclass(frozen=True, eq=False)
class CellOp:
    """One operation. `sources` are its operands in order; an affine's are plain variables, one per weight, then the
    addend if there is one."""

    name: str
    op: str
    sources: tuple[Source, ...]
    result: ValueClass
    weights: tuple[Block, ...] = ()
    biases: tuple[Block, ...] = ()
    attributes: str = ""
    """Generic operations: what they are, in words; slices: `start:stop`."""
    call: Callable[..., Any] | None = field(default=None, repr=False)
    """Generic operations: `call` filled with `template` and the sources; `output` picks one of several results."""
    template: Any = field(default=None, repr=False)
    output: int | None = None

    @property
    def is_cast(self) -> bool:
        """True for a variable in another dtype."""
        return self.call is torch.Tensor.to and len(self.sources) == 1 and not self.sources[0].views

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The variables that it reads, in order, repeats kept."""
        return tuple(s.variable for s in self.sources if s.variable is not None)

    @property
    def factors(self) -> tuple[str, ...]:
        """Of an affine, the variables that its weights multiply."""
        return self.inputs[: len(self.weights)]

    @cached_property
    def addend(self) -> str | None:
        """Of an affine, the variable that is added as it is."""
        return self.inputs[len(self.weights)] if self.op == "affine" and len(self.inputs) > len(self.weights) else None


NUMBERED = frozenset(("bool", "i64"))
"""Dtypes whose values native code has as numbers of the cell's own dtype (`edbc.cells.values.dispatched`)."""


@dataclass(frozen=True, eq=False)
class CellGraph:
    """Definition (1) to (4). `prefix` is the cell's own dotted name with a dot, stripped from parameters in text."""

    operands: tuple[tuple[str, ValueClass], ...]
    ops: tuple[CellOp, ...]
    outputs: tuple[str, ...]
    prefix: str = ""

    def classes(self) -> dict[str, ValueClass]:
        """The class of every variable, operands first, in order of definition."""
        return {**dict(self.operands), **{op.name: op.result for op in self.ops}}

    def sizes(self) -> dict[str, int]:
        """Elements of every variable."""
        return {name: value_class.size for name, value_class in self.classes().items()}

    def is_uniform(self) -> bool:
        """True when all variables have one floating dtype, so that they can share a row of memory. Truth values and
        numbers of elements (`argmax`) that do not leave the cell, and that calls of torch's make, are numbers in it."""
        made = {op.name for op in self.ops if op.op == "generic" and op.result.dtype in NUMBERED}
        dtypes = {value_class.dtype for name, value_class in self.classes().items() if name not in made}
        return len(dtypes) == 1 and dtypes <= {"f32", "f64", "bf16", "f16"} and made.isdisjoint(self.outputs)

    def lines(self) -> tuple[str, ...]:
        """Text of every operation in the grammar of `edbc.plan.oplines`: operands, parameters, then operations.

        Sizes are left out, so that the text is the same for every hidden size.
        """
        from edbc.cells.celltext import cell_lines

        return cell_lines(self)

    def users(self) -> dict[str, list[CellOp]]:
        """Operations that read each variable."""
        users: dict[str, list[CellOp]] = {name: [] for name in self.classes()}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                users[name].append(op)
        return users
