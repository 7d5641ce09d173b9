"""A cell's operations on all rows of a batch, written out as Python: what small batches run by.

`runtime.evaluation`, and the interpreter of values where they have several dtypes, ask of every operation which of its
operands' rows are equal, how its template is filled and by which form it runs on many rows. For batches of some dozens
of rows that takes longer than torch's functions do: 180 microseconds for six of them, 60 written out. So once a cell
has run there, and every batched form has been right for rows that differ (`runtime.rowfunction`), its small batches run
by a function without a question: operands are gathered whole, each operation is one line, and parameters are looked up
once for a mini-batch.

Time and memory are those of the functions; a function is written once per cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.capture.standins.standin import torch_dtype
from edbc.cells.opgraph import CellGraph, CellOp, Source
from edbc.cells.rows.evaluation import SPREAD, operation_of
from edbc.cells.rows.rowcode import Writer, bytes_of
from edbc.cells.rows.rowfunction import RowFunction
from edbc.cells.values.evaluate import MAPS

FunctionOf = Callable[[CellOp], RowFunction]
"""What runs a generic operation where batches are not small, which shows whether its batched form is right."""
MOST, MOST_BYTES = 256, 2 << 20
"""Rows of a small batch, and bytes of its variables: beyond, questions are cheap, and memory is what counts."""


class BatchKernel:
    """Small batches of a cell, as soon as they can run without a question."""

    def __init__(self, cell: CellGraph, function_of: FunctionOf):
        self._cell, self._function_of = cell, function_of
        self._bytes = sum(map(bytes_of, cell.classes().values()))
        self._run: Callable[..., None] | None = None

    def fits(self, rows: Sequence[NDArray[np.int64]], count: int) -> bool:
        """Whether a batch is small, and its operands stand in different rows; `rows[k]` are those of operand k."""
        if not rows or count > MOST or count * self._bytes > MOST_BYTES:
            return False
        return all(len(set(of_operand.tolist())) > SPREAD * count for of_operand in rows)

    def run(self) -> Callable[..., None] | None:
        """`run(parameters, count, *operands, *outputs)`: parameters as a mapping by SharedRef, operands and outputs as
        `(count, size)`. None as long as a batched form is not believed, or where one is wrong."""
        if self._run is None and all(map(_is_sure, self._functions())):
            self._run = _BatchWriter(self._cell, self._of_calls()).function()
        return self._run

    @property
    def waits(self) -> bool:
        """Whether batches that `runtime.evaluation` runs may show that batched forms are right."""
        return self._run is None and not any(function.is_slow for function in self._functions())

    def _functions(self) -> list[RowFunction]:
        return list(self._of_calls().values())

    def _of_calls(self) -> dict[tuple[int, tuple[str, ...]], RowFunction]:
        """By template and operands: what has run, of the functions of a call's several results."""
        found: dict[tuple[int, tuple[str, ...]], RowFunction] = {}
        for op in self._cell.ops:
            function = self._function_of(op) if op.op == "generic" else None
            if function is not None and not (_has_run(found.get(_call_of(op))) and not function.is_slow):
                found[_call_of(op)] = function
        return found


def _call_of(op: CellOp) -> tuple[int, tuple[str, ...]]:
    return id(op.template), op.inputs


def _has_run(function: RowFunction | None) -> bool:
    return function is not None and (function.is_believed or function.is_slow)


def _is_sure(function: RowFunction) -> bool:
    return not function.is_slow and (function.is_believed or not function.views)


class _BatchWriter(Writer):
    """The lines of a batch."""

    def __init__(self, cell: CellGraph, functions: dict[tuple[int, tuple[str, ...]], RowFunction]):
        super().__init__(cell)
        self._functions = functions
        self._classes = cell.classes()
        self.scope["operation_of"] = operation_of

    def function(self) -> Callable[..., None]:
        """The function that all lines make."""
        for i, (_, value_class) in enumerate(self.cell.operands):
            self.lines.append(f"x{i} = in{i}.view(count, *{value_class.shape})")
        for op in self.cell.ops:
            name = f"v{len(self.local)}"
            made = self._generic(op) if op.op == "generic" else self._known(op)
            dtype = self.constant(torch_dtype(op.result.dtype))
            self.lines += [f"{name} = {made}", f"if {name}.dtype is not {dtype}: {name} = {name}.to({dtype})"]
            self.local[op.name] = name
        for i, name in enumerate(self.cell.outputs):
            self.lines.append(f"out{i}.view(count, *{self._classes[name].shape}).copy_({self.local[name]})")
        operands = [f"in{i}" for i in range(len(self.cell.operands))]
        outputs = [f"out{i}" for i in range(len(self.cell.outputs))]
        text = f"def run({', '.join(['parameters', 'count', *operands, *outputs])}):\n    "
        exec(compile(text + "\n    ".join(self.lines) + "\n", "<batch code>", "exec"), self.scope)
        run: Callable[..., None] = self.scope["run"]
        return run

    def _generic(self, op: CellOp) -> str:
        """One of the results of a call, which is made once for all of them."""
        key = _call_of(op)
        call = self.calls.get(key)
        if call is None:
            call = self.calls[key] = f"r{len(self.calls)}"
            function, inputs = self._functions[key], "".join(f"{self.local[name]}, " for name in op.inputs)
            form = self.constant(function.form or function)
            self.lines.append(f"{call} = {form}(({inputs}), count, parameters.__getitem__)")
        return f"{call}[{op.output or 0}]"

    def _known(self, op: CellOp) -> str:
        if op.op not in MAPS and op.op != "sum":
            inputs = "".join(f"{self.local[name]}, " for name in op.inputs)
            return f"operation_of({self.constant(op)}, ({inputs}), parameters, count)"
        variables = iter(op.inputs)
        sources = [self._source(source, op, variables) for source in op.sources]
        made = " + ".join(sources) if op.op == "sum" else f"{self.constant(MAPS[op.op])}({', '.join(sources)})"
        return made if op.inputs else f"({made}).expand(count, *{op.result.shape})"

    def _source(self, source: Source, op: CellOp, variables: Any) -> str:
        shape = op.result.shape
        if source.variable is not None:
            name = next(variables)
            is_same = self._classes[name].shape == shape
            return self.local[name] if is_same else f"{self.local[name]}.reshape(count, *{shape})"
        if source.shared is not None:
            return f"parameters[{self.constant(source.shared)}].reshape(1, *{shape})"
        return self.constant(torch.tensor(source.number, dtype=torch_dtype(op.result.dtype)))
