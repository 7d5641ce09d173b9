"""What the outputs of a type depend on: which operands and which parameters can pass a gradient to each.

Definitions.

(1) An output *depends* on an operand or a parameter when a path of operations of its cell leads from one to the other
    along variables of floating or complex dtype. Eager PyTorch gives a gradient (zeros perhaps) exactly along such
    paths.
(2) Field f of a reduction depends on operand f of its items, an excerpt on what it is taken of, the outputs of a
    function of runs on all its items.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import NodeType, ValueClass
from edbc.capture.record.table import SharedRef, shared_refs
from edbc.cells.opgraph import CellGraph, CellOp

_WITH_GRADIENT = frozenset(("f64", "f32", "f16", "bf16", "c64", "c128"))
"""Dtypes that gradients flow through."""


@dataclass(frozen=True, eq=False)
class Dependence:
    """Definition (1) for one type."""

    operands: NDArray[np.bool_]  # (outputs, operands)
    parameters: tuple[frozenset[SharedRef], ...]
    """Of each output."""

    @cached_property
    def refs(self) -> tuple[SharedRef, ...]:
        """Parameters that some output depends on, in a fixed order."""
        return tuple(sorted(frozenset().union(*self.parameters), key=repr))


def dependence_of_cell(cell: CellGraph) -> Dependence:
    """Definition (1). One pass over the operations."""
    known: dict[str, tuple[frozenset[int], frozenset[SharedRef]]] = {}
    for number, (name, value_class) in enumerate(cell.operands):
        known[name] = (frozenset([number]) if has_gradient(value_class) else frozenset(), frozenset())
    for op in cell.ops:
        read = [known[name] for name in _connected(op)] if has_gradient(op.result) else []
        own = refs_of(op) if has_gradient(op.result) else ()
        known[op.name] = (
            frozenset().union(*(operands for operands, _ in read)),
            frozenset(own).union(*(refs for _, refs in read)),
        )
    table = np.zeros((len(cell.outputs), len(cell.operands)), np.bool_)
    for output, name in enumerate(cell.outputs):
        table[output, list(known[name][0])] = True
    return Dependence(table, tuple(known[name][1] for name in cell.outputs))


def _connected(op: CellOp) -> list[str]:
    """The variables that an operation reads and does not detach."""
    return [s.variable for s in op.sources if s.variable is not None and not any(v.detaches for v in s.views)]


def dependence_of_reduction(node_type: NodeType) -> Dependence:
    """Definition (2)."""
    fields = len(node_type.outputs)
    floats = np.array([has_gradient(c) for c in node_type.outputs], np.bool_)
    return Dependence(np.eye(fields, dtype=np.bool_) & floats, (frozenset(),) * fields)


def dependence_of_run(node_type: NodeType) -> Dependence:
    """Definition (2); of a segmented type what is said of the one output holds for all."""
    passes = has_gradient(node_type.outputs[0])
    return Dependence(np.array([[passes and has_gradient(c) for c in node_type.operands]]), (frozenset(),))


def dependence_of_excerpt(node_type: NodeType) -> Dependence:
    """Definition (2)."""
    return Dependence(np.array([[has_gradient(node_type.outputs[0]), False]]), (frozenset(),))


def refs_of(op: CellOp) -> tuple[SharedRef, ...]:
    """The parameters that an operation reads, each once."""
    refs = [block.ref for block in (*op.weights, *op.biases)]
    refs += [source.shared for source in op.sources if source.shared is not None]
    refs += [ref for source in op.sources for view in source.views for ref in shared_refs(view.template)]
    return tuple(dict.fromkeys((*refs, *shared_refs(op.template))))


def has_gradient(value_class: ValueClass) -> bool:
    """True when gradients flow through values of the class."""
    return value_class.dtype in _WITH_GRADIENT
