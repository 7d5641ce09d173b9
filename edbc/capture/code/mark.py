"""What a user tells of modules: `edbc.cell`, the mark that makes one a node of the dataflow graph, and `edbc.closed`,
the promise that one is a function whose code need not be read.

They change nothing about the module: a marked model runs in plain PyTorch as before. Importing this imports no torch.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

MARK = "__edbc_cell__"
PROMISE = "__edbc_closed__"


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


def closed(module: T) -> T:
    """Promise that calls of a module class (as a decorator), or of one module instance, are closed, and return it.

    What a closed call returns is told by its arguments and by what stays: parameters, buffers, plain attributes; and it
    leaves nothing behind. edbc reads most code to see that (`edbc.capture.code.closed`); a library's, with decorators,
    hooks and caches of its own, cannot be read. Then its Python runs for each instance, as long as nobody promises.
    Compiling compares what comes of it with eager execution, on the sample. A promise that does not hold for others (a
    counter that scales the result, an attribute that somebody else assigns) is not seen.

    >>> class Encoder: ...
    >>> is_closed(closed(Encoder()))
    True
    """
    setattr(module, PROMISE, True)
    return module


def is_closed(module: object) -> bool:
    """True when the module, or its class, was marked with `closed`."""
    return getattr(module, PROMISE, False) is True
