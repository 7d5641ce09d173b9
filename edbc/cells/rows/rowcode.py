"""A cell's operations on one row, written out as Python: what batches of few rows run by.

Types that depend on a size have batches of few rows. Together their rows cost what `runtime.evaluation` takes to find
equal operands, batched forms and blocks: 50 to 200 microseconds, where torch's own function takes 2 to 10. Written out,
a row costs a microsecond beside it: nothing is looked up, and no template is filled.

Operands come in the shapes of their variables, in memory of their own as in eager (some functions ask where memory
begins), and so do results, of whatever strides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from ctypes import memmove
from typing import Any

import torch

from edbc.base.graph import ValueClass
from edbc.capture.record.table import Hole, SharedRef, fill
from edbc.capture.semantics.shapes import split_outputs
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.opgraph import CellGraph, CellOp
from edbc.cells.rows.evaluation import operation_of


def row_code(cell: CellGraph) -> Callable[..., None]:
    """`run(parameters, count, *operands, *outputs)`: parameters as a mapping by SharedRef, operands and outputs as
    lists of the addresses of `count` rows."""
    return _RowWriter(cell).function()


class Writer:
    """Lines of Python; `scope` has what they name."""

    def __init__(self, cell: CellGraph):
        self.cell = cell
        self.scope: dict[str, Any] = {
            "Tensor": torch.Tensor, "empty": torch.empty, "memmove": memmove, "tensors_of": _tensors_of
        }  # fmt: skip
        self.lines: list[str] = []
        self.local = {name: f"x{i}" for i, (name, _) in enumerate(cell.operands)}
        self.calls: dict[tuple[int, tuple[str, ...]], str] = {}

    def arguments(self, template: Any, values: Sequence[str]) -> str:
        """A template's arguments, with values in its holes, as text."""
        args, kwargs = template
        if all(map(str.isidentifier, kwargs)):
            named = [f"{name}={self._expression(item, values)}" for name, item in kwargs.items()]
            return ", ".join([self._expression(item, values) for item in args] + named)
        return f"*{self._expression(args, values)}, **{self._expression(kwargs, values)}"

    def _expression(self, item: Any, values: Sequence[str]) -> str:
        kind = type(item)
        if kind is Hole:
            return values[item.index]
        if kind is SharedRef:
            return f"parameters[{self.constant(item)}]"
        if not _is_open(item):
            return self.constant(item)
        if kind is tuple:
            return f"({''.join(self._expression(x, values) + ', ' for x in item)})"
        if kind is list:
            return f"[{', '.join(self._expression(x, values) for x in item)}]"
        if kind is dict:
            return "{" + ", ".join(f"{key!r}: {self._expression(x, values)}" for key, x in item.items()) + "}"
        return f"{self.constant(fill)}({self.constant(item)}, [{', '.join(values)}], parameters.__getitem__)"

    def constant(self, item: Any) -> str:
        """A name for something."""
        name = f"k{len(self.scope)}"
        self.scope[name] = item
        return name


class _RowWriter(Writer):
    """The lines of one row."""

    def function(self) -> Callable[..., None]:
        """The function that all lines make."""
        for i, (_, value_class) in enumerate(self.cell.operands):
            shape, dtype = self.constant(value_class.shape), self.constant(torch_dtype(value_class.dtype))
            self.lines.append(f"x{i} = empty({shape}, dtype={dtype})")
            self.lines.append(f"memmove(x{i}.data_ptr(), in{i}[row], {bytes_of(value_class)})")
        for op in self.cell.ops:
            self._operation(op)
        classes = self.cell.classes()
        is_complex = any(torch_dtype(value_class.dtype).is_complex for value_class in classes.values())
        as_it_is = ".resolve_conj().resolve_neg()" if is_complex else ""  # torch conjugates in name, not in memory
        for i, name in enumerate(self.cell.outputs):
            value = self.local[name] + as_it_is
            self.lines.append(f"y = {value}.contiguous()")
            self.lines.append(f"memmove(out{i}[row], y.data_ptr(), {bytes_of(classes[name])})")
        operands = [f"in{i}" for i in range(len(self.cell.operands))]
        outputs = [f"out{i}" for i in range(len(self.cell.outputs))]
        body = "\n        ".join(self.lines)
        text = f"def run({', '.join(['parameters', 'count', *operands, *outputs])}):\n    for row in range(count):"
        exec(compile(f"{text}\n        {body}\n", "<row code>", "exec"), self.scope)
        run: Callable[..., None] = self.scope["run"]
        return run

    def _operation(self, op: CellOp) -> None:
        made = self._generic(op) if op.op == "generic" else self._known(op)
        name = self.local[op.name] = f"v{len(self.local)}"
        dtype = self.constant(torch_dtype(op.result.dtype))
        self.lines += [f"{name} = {made}", f"if {name}.dtype is not {dtype}: {name} = {name}.to({dtype})"]

    def _known(self, op: CellOp) -> str:
        inputs = "".join(f"{self.local[name]}.unsqueeze(0), " for name in op.inputs)
        return f"{self.constant(operation_of)}({self.constant(op)}, ({inputs}), parameters, 1)[0]"

    def _generic(self, op: CellOp) -> str:
        """One of the results of a call, which is made once for all of them."""
        key = id(op.template), op.inputs
        call = self.calls.get(key)
        if call is None:
            call = self.calls[key] = f"r{len(self.calls)}"
            values = [self._seen(s.variable, s.views) for s in op.sources if s.variable is not None]
            self.lines.append(f"{call} = {self.constant(op.call)}({self.arguments(op.template, values)})")
        return f"{call} if type({call}) is Tensor else tensors_of({call})[{op.output or 0}]"

    def _seen(self, variable: str, views: Sequence[Any]) -> str:
        seen = self.local[variable]
        for view in views:
            part = "" if view.index is None else f"[{view.index}]"
            seen = f"{self.constant(view.function)}({self.arguments(view.template, [seen])}){part}"
        return seen


def _is_open(item: Any) -> bool:
    """Whether something of a template is filled in at every call."""
    if type(item) in (Hole, SharedRef):
        return True
    if isinstance(item, dict):
        return any(map(_is_open, item.values()))
    return isinstance(item, tuple | list | deque) and any(map(_is_open, item))


def _tensors_of(result: Any) -> list[torch.Tensor]:
    return split_outputs(result, "a generic operation")[1]


FEW, FEW_BYTES = 8, 64 << 10
"""Rows of a batch, and bytes of their variables, up to which they run one after the other. Where they are more, what
rows share is worth computing once, and calls of torch are few beside it."""


class RowKernel:
    """Rows of a batch one after the other, found by their addresses."""

    def __init__(self, cell: CellGraph):
        self.run = row_code(cell)
        self._bytes = sum(map(bytes_of, cell.classes().values()))

    def pays(self, count: int) -> bool:
        """Whether so many rows are few."""
        return count == 1 or (count <= FEW and count * self._bytes <= FEW_BYTES)


def bytes_of(value_class: ValueClass) -> int:
    """Of one value."""
    return value_class.size * torch_dtype(value_class.dtype).itemsize
