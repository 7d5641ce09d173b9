"""`edbc.cell`: the mark that makes a module one node of the dataflow graph.

It changes nothing about the module: a marked model runs in plain PyTorch as before. Importing it imports no torch.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

MARK = "__edbc_cell__"


def cell(module: T) -> T:
    """Mark a module class (as a decorator) or one module instance as a cell, and return it.

    A cell is a function of tensors that is the same for every node of its type: it takes tensors without a batch
    dimension (also None, numbers and tuples of tensors) and returns one tensor or a tuple of them. What it computes
    must not depend on tensor values through Python (`if x.sum() > 0`).

    >>> @cell
    ... class Leaf: ...
    >>> is_cell(Leaf())
    True
    """
    setattr(module, MARK, True)
    return module


def is_cell(module: object) -> bool:
    """True when the module, or its class, was marked with `cell`."""
    return getattr(module, MARK, False) is True
