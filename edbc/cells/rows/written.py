"""A cell's operations written out as Python: what torch runs of a cell, row by row or block by block.

Interpreted, a cell asks of every operation how its template is filled, what its result's shape is and which of its
operands stand for others; for batches of some dozens of rows that takes longer than torch's functions do: 180
microseconds for six of them, 60 written out. Written out, each operation is one line, and nothing is looked up.

Time and memory are those of the functions; a function is written once per cell.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from edbc.base.graph import ValueClass
from edbc.capture.record.table import Hole, SharedRef, fill
from edbc.capture.semantics.shapes import split_outputs
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.opgraph import Block, CellGraph, CellOp, Source
from edbc.cells.values.evaluate import MAPS

Tensors = Sequence[torch.Tensor]
Parameters = Mapping[SharedRef, torch.Tensor]
Support = frozenset[int]
"""The operands that a variable depends on."""
Call = tuple[int, tuple[str, ...]]


def call_of(op: CellOp) -> Call:
    """What operations have in common that are results of one call, which is made once for all of them."""
    return id(op.template), op.inputs


def bytes_of(value_class: ValueClass) -> int:
    """Of one value."""
    return value_class.size * torch_dtype(value_class.dtype).itemsize


class Writer:
    """Lines of Python for one row, of which each operation is one; `scope` has what they name."""

    def __init__(self, cell: CellGraph):
        self.cell, self.classes = cell, cell.classes()
        self.scope: dict[str, Any] = {
            "Tensor": torch.Tensor, "tensors_of": _tensors_of, "flat_operation": flat_operation
        }  # fmt: skip
        self.lines: list[str] = []
        self.local = {name: f"x{i}" for i, (name, _) in enumerate(cell.operands)}
        self._calls: dict[Call, str] = {}

    def operations(self) -> None:
        """The lines of all operations."""
        for op in self.cell.ops:
            if op.op == "generic":
                made = self._generic(op)
            else:
                made = self._map(op) if op.op in MAPS or op.op == "sum" else self._flat(op)
            name, dtype = f"v{len(self.local)}", self.constant(torch_dtype(op.result.dtype))
            self.lines += [f"{name} = {made}", f"if {name}.dtype is not {dtype}: {name} = {name}.to({dtype})"]
            self.local[op.name] = name

    def function(self, names: Iterable[str], before: str = "") -> Callable[..., Any]:
        """The function of so many arguments that all lines make."""
        between = "\n" + " " * (8 if before else 4)
        lines = between.join(_freeing(self.lines))
        text = f"def run({', '.join(names)}):\n    {before}{between if before else ''}{lines}\n"
        exec(compile(text, "<written cell>", "exec"), self.scope)
        run: Callable[..., Any] = self.scope["run"]
        return run

    def _generic(self, op: CellOp) -> str:
        call = self._calls.get(call_of(op))
        if call is None:
            made = self._called(op)
            call = self._calls[call_of(op)] = f"r{len(self._calls)}"
            self.lines.append(f"{call} = {made}")
        return self._result(call, op)

    def _called(self, op: CellOp) -> str:
        values = [self._seen(s.variable, s.views) for s in op.sources if s.variable is not None]
        return f"{self.constant(op.call)}({self.arguments(op.template, values)})"

    def _result(self, call: str, op: CellOp) -> str:
        return f"{call} if type({call}) is Tensor else tensors_of({call})[{op.output or 0}]"

    def _seen(self, variable: str, views: Sequence[Any]) -> str:
        seen = self.local[variable]
        for view in views:
            part = "" if view.index is None else f"[{view.index}]"
            seen = f"{self.constant(view.of_any_order)}({self.arguments(view.template, [seen])}){part}"
        return seen

    def _flat(self, op: CellOp) -> str:
        inputs = "".join(f"{self.local[name]}.unsqueeze(0), " for name in op.inputs)
        return f"flat_operation({self.constant(op)}, ({inputs}), parameters, 1)[0]"

    def _shape(self, op: CellOp) -> str:
        return f"*{op.result.shape}"

    def _operand(self, name: str, op: CellOp) -> str:
        """A variable as an operation reads it."""
        return self.local[name]

    def _map(self, op: CellOp) -> str:
        variables = iter(op.inputs)
        sources = [self._source(source, op, variables) for source in op.sources]
        made = " + ".join(sources) if op.op == "sum" else f"{self.constant(MAPS[op.op])}({', '.join(sources)})"
        return made if op.inputs else f"({made}).expand({self._shape(op)})"

    def _source(self, source: Source, op: CellOp, variables: Any) -> str:
        if source.variable is not None:
            name = next(variables)
            seen = self._operand(name, op)
            return seen if self.classes[name].shape == op.result.shape else f"{seen}.reshape({self._shape(op)})"
        if source.shared is not None:
            return f"parameters[{self.constant(source.shared)}].reshape({op.result.shape})"
        return self.constant(torch.tensor(source.number, dtype=torch_dtype(op.result.dtype)))

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


_LOCAL = re.compile(r"\b[vrx][0-9]+\b")


def _freeing(lines: Sequence[str]) -> list[str]:
    """The lines, each variable let go of behind the last that names it: its memory is in the caches still, and serves
    the next."""
    last = {name: number for number, line in enumerate(lines) for name in _LOCAL.findall(line)}
    written: list[str] = []
    for number, line in enumerate(lines):
        free = [f"{name} = " for name in dict.fromkeys(_LOCAL.findall(line)) if last[name] == number]
        written += [line, f"{''.join(free)}None"] if free and number < len(lines) - 1 else [line]
    return written


def _tensors_of(result: Any) -> list[torch.Tensor]:
    return split_outputs(result, "a generic operation")[1]


def _is_open(item: Any) -> bool:
    """Whether something of a template is filled in at every call."""
    if type(item) in (Hole, SharedRef):
        return True
    if isinstance(item, dict):
        return any(map(_is_open, item.values()))
    return isinstance(item, tuple | list | deque) and any(map(_is_open, item))


class RowsWriter(Writer):
    """The lines of many rows: of each variable as many as its support has distinct ones in a block, and lines spread
    them (`edbc.cells.rows.evaluation`)."""

    def __init__(self, cell: CellGraph, functions: Callable[[CellOp], Any], supports: Mapping[str, Support]):
        """`functions` gives what runs a generic operation, of operands, so many rows and what gives parameters."""
        super().__init__(cell)
        self._functions, self._supports = functions, supports
        self._counts: dict[Support, str] = {}

    def written(self) -> Callable[..., list[torch.Tensor]]:
        """`run(parameters, block, *operands)`: parameters as a mapping by SharedRef, operands `(rows, size)`. Outputs
        in the shapes of their variables, with the rows of their supports."""
        for i, (_, value_class) in enumerate(self.cell.operands):
            self.lines.append(f"x{i} = in{i}.view(in{i}.shape[0], *{value_class.shape})")
        self.operations()
        self.lines.append(f"return [{', '.join(self.local[name] for name in self.cell.outputs)}]")
        return self.function(["parameters", "block", *(f"in{i}" for i in range(len(self.cell.operands)))])

    def _shape(self, op: CellOp) -> str:
        return f"{self._count(op)}, *{op.result.shape}"

    def _operand(self, name: str, op: CellOp) -> str:
        own, wider = self._supports[name], self._supports[op.name]
        spread = f"block.spread({self.local[name]}, {self.constant(own)}, {self.constant(wider)})"
        return self.local[name] if own == wider else spread

    def _called(self, op: CellOp) -> str:
        return f"{self.constant(self._functions(op))}(({self._inputs(op)}), {self._count(op)}, parameters.__getitem__)"

    def _result(self, call: str, op: CellOp) -> str:
        return f"{call}[{op.output or 0}]"

    def _flat(self, op: CellOp) -> str:
        return f"flat_operation({self.constant(op)}, ({self._inputs(op)}), parameters, {self._count(op)})"

    def _inputs(self, op: CellOp) -> str:
        return "".join(f"{self._operand(name, op)}, " for name in op.inputs)

    def _count(self, op: CellOp) -> str:
        support = self._supports[op.name]
        if support not in self._counts:
            self._counts[support] = f"n{len(self._counts)}"
            self.lines.append(f"{self._counts[support]} = block.count({self.constant(support)})")
        return self._counts[support]


def flat_operation(op: CellOp, inputs: Tensors, parameters: Parameters, count: int) -> torch.Tensor:
    """An affine, a concatenation or a slice of operands of so many rows."""
    flat = [x.reshape(count, -1) for x in inputs]
    if op.op == "affine":
        found = _affine(op, flat, parameters, count)
    elif op.op == "cat":
        found = torch.cat(flat, 1)
    else:
        start, stop = map(int, op.attributes.split(":"))
        found = flat[0][:, start:stop]
    return found.reshape(count, *op.result.shape)


def _affine(op: CellOp, inputs: Tensors, parameters: Parameters, count: int) -> torch.Tensor:
    total: torch.Tensor | None = None if op.addend is None else inputs[-1]
    for block in op.biases:
        bias = _part(parameters[block.ref], 0, block.rows)
        total = bias if total is None else total + bias
    for x, block in zip(inputs, op.weights, strict=False):
        matrix = _block(block, parameters)
        total = x @ matrix if total is None else torch.addmm(total, x, matrix)
    assert total is not None
    return total.expand(count, op.result.size)


def _block(block: Block, parameters: Parameters) -> torch.Tensor:
    """The block as (in, out)."""
    whole = parameters[block.ref]
    assert block.columns is not None
    return _part(_part(whole if block.transposed else whole.t(), 0, block.columns), 1, block.rows)


def _part(tensor: torch.Tensor, dim: int, between: tuple[int, int]) -> torch.Tensor:
    size = between[1] - between[0]
    return tensor if size == tensor.shape[dim] else tensor.narrow(dim, between[0], size)
