"""Reading the trace of a cell: torch functions become operations of `cells.graph`.

Definitions.

(1) A variable is flat memory; shape is how a generic operation sees it. A view that takes one ascending run of a
    variable's elements, whatever its shape, is the variable itself or a `slice` of it. Any other view stays with the
    operand of a generic operation.
(2) `linear(x, W, b)`, `W @ x` and `x @ W` with a parameter W and a vector x (or a matrix of one row) are an affine.
(3) An element-wise function of operands with as many elements as its result is that operation; broadcasting is not.
(4) `cat` and `stack` of runs are one concatenation when the result is their memory one after the other.
(5) torch's own recurrent cells on one row consist of affines, one per gate, and element-wise operations; so
    nn.LSTMCell, nn.GRUCell and nn.RNNCell lower like cells written by hand.
(6) Everything else is generic.
(7) What torch.autocast casts for a function (`edbc.capture.semantics.autocast`) is an operation: of each variable once,
    before the function's views. Parameters that it casts are parameters by another name. A function that casts inside
    is generic, torch's own recurrent cells apart, whose products are in autocast's dtype.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from edbc.base import operations
from edbc.base.graph import ValueClass
from edbc.base.operations import OPERATIONS
from edbc.capture.code.shadow import CellTrace, ModelView
from edbc.capture.forward.build import build
from edbc.capture.record.table import Entry, Hole, SharedRef, View, shared_refs, through
from edbc.capture.semantics import autocast
from edbc.capture.semantics.shapes import filled_with_zeros
from edbc.capture.standins.lazy import REDUCTIONS
from edbc.capture.standins.nests import mapped
from edbc.capture.standins.standin import Slot, bits_of, class_of, dtype_name, torch_dtype
from edbc.cells.opgraph import Block, CellGraph, CellOp, Source

SYNONYMS = {**operations.SYNONYMS, "mm": "matmul", "mv": "matmul"}
_FLAT = View(torch.Tensor.reshape, ((Hole(0), -1), {}), None, ".reshape(-1)")


def translate(trace: CellTrace, view: ModelView, prefix: str = "") -> CellGraph:
    """The operations of a traced cell, module or function, in the order of the user's code."""
    return _Translation(trace, view).cell(prefix)


def cast_view(dtype: torch.dtype) -> View:
    """Definition (7): what a parameter that is cast is seen through."""
    return View(torch.Tensor.to, ((Hole(0), dtype), {}), None, f".to({dtype})")


def is_cast_view(view: View) -> bool:
    """True for what `cast_view` gives."""
    return view.function is torch.Tensor.to


def _cast_slot(slot: Slot, dtype: torch.dtype) -> Slot:
    if not autocast.is_cast(slot.dtype):
        return slot
    base = ValueClass(slot.base.shape, dtype_name(dtype))
    return Slot(base, slot.views, slot.shape, dtype, slot.text)


class _Translation:
    def __init__(self, trace: CellTrace, view: ModelView):
        self.trace = trace
        self.view = view
        self.capture = build(trace.recording, fuse_sums=False)
        self.entries = [trace.recording.table.entries[e] for e in trace.recording.entries]
        self.ops: list[CellOp] = []
        self.classes: dict[str, ValueClass] = {}
        self.name_of_value: dict[tuple[int, int], str] = {}
        self.slices: dict[tuple[str, int, int], str] = {}
        self.casts: dict[tuple[str, torch.dtype], str] = {}

    def cell(self, prefix: str) -> CellGraph:
        graph = self.capture.graph
        external_class = [graph.classes[int(c)] for c in graph.external_class]
        operands = tuple(zip(self.trace.operand_names, external_class, strict=False))
        for i, (name, value_class) in enumerate(operands):
            self.classes[name] = value_class
            self.name_of_value[-1 - i, 0] = name
        for e in range(len(operands), graph.num_externals):
            self._constant(e)
        for node, entry in enumerate(self.entries):
            self._node(node, entry)
        outputs = tuple(self._output(value) for value in self.trace.outputs)
        return CellGraph(operands, tuple(self.ops), outputs, prefix)

    def append(self, wanted: str | None, op: str, sources: Sequence[Source], result: ValueClass, **fields: Any) -> str:
        """Add an operation under a fresh name, the user's own where there is one."""
        number = len(self.ops) + 1
        name = wanted or f"v{number}"
        while name in self.classes:
            number += 1
            name = f"{wanted}_{number}" if wanted else f"v{number}"
        self.classes[name] = result
        self.ops.append(CellOp(name, op, tuple(sources), result, **fields))
        return name

    def _constant(self, external: int) -> None:
        """Externals beyond the operands: parameters and rows of them used whole, tensors made inside the cell."""
        number = int(self.capture.external_source[external])
        index = int(self.capture.external_index[external])
        source = self.capture.sources[number]
        if source.ref is None:
            tensor = self.capture.constants[number][index]
            name = self.append(
                None,
                "generic",
                (),
                source.value_class,
                call=lambda: tensor,
                template=((), {}),
                attributes=f"constant {hashlib.sha256(bits_of(tensor.cpu()).numpy().tobytes()).hexdigest()[:16]}",
            )
        else:
            name = self.append(
                None,
                "generic",
                (Source(shared=source.ref),),
                source.value_class,
                call=lambda whole: whole,
                template=((source.ref,), {}),
                attributes="whole",
            )
        self.name_of_value[-1 - external, 0] = name

    def _node(self, node: int, entry: Entry) -> None:
        operands = self.capture.graph.operands_of(node)
        names = [self.name_of_value[operand] for operand in operands]
        entry, names = self._autocast(entry, names)
        slots = entry.operation.slots
        wanted = self.trace.recording.names.get(node)
        results = tuple(slot.base for slot in entry.output_slots)
        known = _Known(self, entry, names, results, wanted).names()
        if known is None:
            sources = [Source(name, slot.views) for name, slot in zip(names, slots, strict=True)]
            known = self._generic(entry, sources, results, wanted)
        for output, name in enumerate(known):
            self.name_of_value[node, output] = name

    def _autocast(self, entry: Entry, names: list[str]) -> tuple[Entry, list[str]]:
        """Definition (7): the entry of what runs after the casts, and its operands."""
        operation = entry.operation
        if operation.autocast is None or operation.call is None:
            return entry, names
        args, kwargs = filled_with_zeros(operation.template, operation.slots, self.view.shared)
        effect = autocast.effect(operation.call, args, kwargs, operation.autocast)
        if effect is None:
            operation = replace(operation, autocast=None)
        elif isinstance(effect, torch.dtype):
            names = [self.cast(name, effect) for name in names]
            slots = tuple(_cast_slot(slot, effect) for slot in operation.slots)
            template = self._cast_parameters(operation.template, effect)
            operation = replace(operation, autocast=None, slots=slots, template=template)
        return replace(entry, operation=operation), names

    def cast(self, name: str, dtype: torch.dtype) -> str:
        """A variable in another dtype, itself where it has that or none that autocast casts."""
        old = self.classes[name]
        if not autocast.is_cast(torch_dtype(old.dtype)) or torch_dtype(old.dtype) is dtype:
            return name
        if (name, dtype) not in self.casts:
            result = ValueClass(old.shape, dtype_name(dtype))
            self.casts[name, dtype] = self.append(
                f"{name}_{result.dtype}",
                "generic",
                (Source(name),),
                result,
                call=torch.Tensor.to,
                template=((Hole(0), dtype), {}),
                attributes=f"to _, {dtype}",
            )
        return self.casts[name, dtype]

    def cast_parameter(self, ref: SharedRef, dtype: torch.dtype) -> SharedRef:
        """A parameter in another dtype; see `cast`."""
        old = self.view.shared(ref).dtype
        return ref._replace(views=(*ref.views, cast_view(dtype))) if autocast.is_cast(old) and old is not dtype else ref

    def _cast_parameters(self, template: Any, dtype: torch.dtype) -> Any:
        return mapped(lambda item: self.cast_parameter(item, dtype) if type(item) is SharedRef else item, template)

    def _generic(
        self, entry: Entry, sources: list[Source], results: tuple[ValueClass, ...], wanted: str | None
    ) -> list[str]:
        """Definition (6): one operation per result."""
        operation = entry.operation
        shared = [Source(shared=ref) for ref in shared_refs(operation.template)]
        constants = self.capture.graph.types[entry.type_index].constants
        call = operation.call
        if operation.autocast is not None and call is not None:
            call = autocast.Under(call, operation.autocast)
            constants = f"{constants} {autocast.state_text(operation.autocast)}"
        return [
            self.append(
                wanted if output == 0 else None,
                "generic",
                (*sources, *shared),
                result,
                call=call,
                template=operation.template,
                attributes=f"{operation.name} {constants}".strip(),
                output=output if len(results) > 1 else None,
            )
            for output, result in enumerate(results)
        ]

    def flat(self, name: str, slot: Slot) -> str | None:
        """The variable whose memory is what a slot sees of variable `name`, definition (1); None when there is none."""
        run = _run(self.classes[name], slot)
        if run is None or run == (0, self.classes[name].size):
            return name if run is not None else None
        start, stop = run
        known = self.slices.get((name, start, stop))
        if known is None:
            number = sum(key[0] == name for key in self.slices)
            result = ValueClass((stop - start,), self.classes[name].dtype)
            known = self.append(f"{name}_{number}", "slice", (Source(name),), result, attributes=f"{start}:{stop}")
            self.slices[name, start, stop] = known
        return known

    def _output(self, value: Any) -> str:
        ref = self.trace.recording.local(value.ref)
        variable = self.name_of_value[(ref, 0) if ref < 0 else self._node_of_value(ref)]
        flat = self.flat(variable, value.slot)
        if flat is not None:
            return flat
        return self.append(
            None,
            "generic",
            (Source(variable, value.slot.views),),
            class_of(value.slot.meta()),
            call=lambda x: x,
            template=((Hole(0),), {}),
            attributes="view",
        )

    def _node_of_value(self, ref: int) -> tuple[int, int]:
        for node, entry in enumerate(self.entries):
            if ref < len(entry.output_slots):
                return node, ref
            ref -= len(entry.output_slots)
        raise AssertionError("a value belongs to a node")


def _without_defaults(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """A call's arguments without those that change nothing, which modules (nn.GELU, nn.Softplus) pass all the same."""
    operation = OPERATIONS.get(SYNONYMS.get(name, name))
    defaults = () if operation is None else operation.defaults
    rest = {key: value for key, value in kwargs.items() if (key, value) not in (("inplace", False), *defaults)}
    count = len(args) if operation is None else operation.operands
    by_position = all(arg == default for arg, (_, default) in zip(args[count:], defaults, strict=False))
    return (args[:count] if by_position else args), rest


class _Known:
    """Definitions (2) to (5) for one node of the trace; `names()` appends what it consists of."""

    def __init__(
        self,
        translation: _Translation,
        entry: Entry,
        names: list[str],
        results: tuple[ValueClass, ...],
        wanted: str | None,
    ):
        self.cell = translation
        self.operation = entry.operation
        self.operands = names
        self.results = results
        self.result = results[0]
        self.wanted = wanted
        self.product = None if entry.operation.autocast is None else dtype_name(entry.operation.autocast)
        """The dtype of products inside of it where torch.autocast casts there, definition (7)."""
        self.args, self.kwargs = _without_defaults(entry.operation.name, *entry.operation.template)

    def names(self) -> list[str] | None:
        """The variables of the results, or None for what is generic."""
        name = SYNONYMS.get(self.operation.name, self.operation.name)
        if name in _RECURRENT:
            found = _recurrent_operands(self, 2 if name == "lstm_cell" else 1)
            return None if found is None else _RECURRENT[name](self, found[1], *found[0])
        if self.product is not None:
            return None
        known = self._single(name) if len(self.results) == 1 else None
        return None if known is None else [known]

    def _single(self, name: str) -> str | None:
        if name in ("sum", "mean") and self.operation.call is REDUCTIONS[name]:
            return self._reduction(name)
        if name in ("linear", "matmul", "addmm"):
            return self._product(name)
        operation = OPERATIONS.get(name)
        if operation is not None and len(self.args) == operation.operands and not self.kwargs:
            return self._elementwise(name)
        return self._cat(name) if name in ("cat", "concat", "concatenate", "stack") else None

    def append(
        self,
        op: str,
        *sources: Source | str,
        result: ValueClass | None = None,
        wanted: str | None = None,
        **fields: Any,
    ) -> str:
        """An operation over variables and other sources."""
        full = [Source(s) if isinstance(s, str) else s for s in sources]
        return self.cell.append(wanted, op, full, result or self.result, **fields)

    def map(self, op: str, *operands: str) -> str:
        """An element-wise operation, in the widest dtype of its operands."""
        dtypes = [torch_dtype(self.cell.classes[name].dtype) for name in operands]
        widest = dtype_name(functools.reduce(torch.promote_types, dtypes))
        return self.append(op, *operands, result=replace(self.result, dtype=widest))

    def run(self, arg: Any) -> str | None:
        """The variable that an argument is, definition (1)."""
        if type(arg) is not Hole:
            return None
        return self.cell.flat(self.operands[arg.index], self.operation.slots[arg.index])

    def _size(self, name: str) -> int:
        return self.cell.classes[name].size

    def _elementwise(self, name: str) -> str | None:
        """Definition (3)."""
        shapes = [self.operation.slots[a.index].shape for a in self.args if type(a) is Hole]
        if any(shape.numel() != self.result.size for shape in shapes) or not shapes or not self._widens():
            return None
        sources = [self._elementwise_source(arg) for arg in self.args]
        return (
            None if None in sources else self.append(name, *[s for s in sources if s is not None], wanted=self.wanted)
        )

    def _widens(self) -> bool:
        """True when the result has the one dtype of the operands, or the widest of floating ones."""
        dtypes = [self.operation.slots[a.index].dtype for a in self.args if type(a) is Hole]
        dtypes += [self.cell.view.shared(a).dtype for a in self.args if type(a) is SharedRef]
        result = torch_dtype(self.result.dtype)
        floats = all(dtype.is_floating_point for dtype in dtypes)
        return {*dtypes} == {result} or (floats and functools.reduce(torch.promote_types, dtypes) is result)

    def _elementwise_source(self, arg: Any) -> Source | None:
        if type(arg) is SharedRef:
            tensor = self.cell.view.shared(arg)
            if tensor.numel() != self.result.size:
                return None
            return Source(shared=arg if tensor.ndim == 1 else arg._replace(views=(*arg.views, _FLAT)))
        if type(arg) in (int, float):
            return Source(number=arg) if math.isfinite(arg) else None  # plans have no word for others
        variable = self.run(arg)
        return None if variable is None else Source(variable)

    def _product(self, name: str) -> str | None:
        """Definition (2); a bias may be a variable."""
        arguments = dict(enumerate(self.args)) | {
            {"input": 0, "weight": 1, "bias": 2}.get(k, k): v for k, v in self.kwargs.items()
        }
        order = (1, 2, 0) if name == "addmm" else (0, 1, 2)
        if set(arguments) - {0, 1, 2} or len(arguments) < 2:
            return None
        vector, weight, bias = (arguments.get(i) for i in order)
        transposed = name != "linear"
        if transposed and type(vector) is SharedRef:
            vector, weight, transposed = weight, vector, False
        variable = self.run(vector)
        addend = self.run(bias)
        if variable is None or type(weight) is not SharedRef:
            return None
        if addend is None and type(bias) not in (SharedRef, type(None)):
            return None
        shape = tuple(self.cell.view.shared(weight).shape)
        if len(shape) != 2:
            return None
        out, into = shape[::-1] if transposed else shape
        if self._size(variable) != into or self.result.size != out:
            return None
        if self.cell.classes[variable].dtype != self.result.dtype:
            return None
        weights = (Block(weight, (0, out), (0, into), transposed, out),)
        if addend is not None:
            if self._size(addend) != out or self.cell.classes[addend].dtype != self.result.dtype:
                return None
            return self.append("sum", self.append("affine", variable, weights=weights), addend, wanted=self.wanted)
        if bias is not None and tuple(self.cell.view.shared(bias).shape) != (out,):
            return None
        biases = () if bias is None else (Block(bias, (0, out), None, total_rows=out),)
        return self.append("affine", variable, wanted=self.wanted, weights=weights, biases=biases)

    def _cat(self, name: str) -> str | None:
        """Definition (4)."""
        arguments = dict(enumerate(self.args)) | {
            {"dim": 1, "axis": 1, "tensors": 0}.get(k, k): v for k, v in self.kwargs.items()
        }
        parts, dim = arguments.get(0), arguments.get(1, 0)
        if set(arguments) - {0, 1} or not isinstance(parts, list | tuple) or type(dim) is not int:
            return None
        variables = [self.run(part) for part in parts]
        if None in variables or any(n != 1 for n in self.result.shape[: dim % len(self.result.shape)]):
            return None
        return self.append("cat", *[v for v in variables if v is not None], wanted=self.wanted)

    def _reduction(self, name: str) -> str | None:
        """A sum or mean of several variables."""
        variables = [v for v in map(self.run, self.args) if v is not None]
        if len(variables) < len(self.args):
            return None
        total = self.append("sum", *variables, wanted=self.wanted if name == "sum" else None)
        return total if name == "sum" else self.append("div", total, Source(number=len(variables)), wanted=self.wanted)

    def gates(self, count: int, x: str, h: str, parameters: Sequence[SharedRef | None]) -> list[tuple[CellOp, CellOp]]:
        """The affines of x and of h for each gate of a recurrent cell, not yet appended."""
        dtype = torch_dtype(self.product or self.result.dtype)
        w_x, w_h, b_x, b_h = (None if p is None else self.cell.cast_parameter(p, dtype) for p in parameters)
        x, h = self.cell.cast(x, dtype), self.cell.cast(h, dtype)
        size = self.result.size
        result = replace(self.result, dtype=self.product or self.result.dtype)

        def affine(source: str, weight: Any, bias: Any, gate: int) -> CellOp:
            rows = (gate * size, (gate + 1) * size)
            biases = () if bias is None else (Block(bias, rows, None, total_rows=count * size),)
            weights = (Block(weight, rows, (0, self._size(source)), total_rows=count * size),)
            return CellOp("", "affine", (Source(source),), result, weights, biases)

        return [(affine(x, w_x, b_x, gate), affine(h, w_h, b_h, gate)) for gate in range(count)]

    def affine(self, *parts: CellOp) -> str:
        """One affine that is the sum of several."""
        return self.cell.append(
            None,
            "affine",
            [s for p in parts for s in p.sources],
            parts[0].result,
            weights=tuple(w for p in parts for w in p.weights),
            biases=tuple(b for p in parts for b in p.biases),
        )


Parameters = list[SharedRef | None]


def _recurrent_operands(node: _Known, num_states: int) -> tuple[list[str], Parameters] | None:
    """Input and states of one row as runs, and the four parameters; None when the call has another form."""
    if node.kwargs or len(node.args) < 4:
        return None
    states = node.args[1] if isinstance(node.args[1], list | tuple) else (node.args[1],)
    states = states if not isinstance(node.args[1], Hole) else (node.args[1],)
    runs = [node.run(arg) for arg in (node.args[0], *states)]
    parameters = [*node.args[2:], None, None][:4]
    if len(states) != num_states or None in runs or any(type(p) not in (SharedRef, type(None)) for p in parameters):
        return None
    found = [run for run in runs if run is not None]
    columns = [node.cell.view.shared(p).shape[1] for p in parameters[:2] if p is not None]
    sizes = [node.cell.classes[run].size for run in found]
    is_of_one_row = sizes == [*columns, *columns[1:] * (num_states - 1)] and node.result.size == columns[1]
    return (found, parameters) if is_of_one_row else None


def _lstm_cell(node: _Known, parameters: Parameters, x: str, h: str, c: str) -> list[str]:
    i, f, g, o = (node.affine(*pair) for pair in node.gates(4, x, h, parameters))
    i, f, g, o = node.map("sigmoid", i), node.map("sigmoid", f), node.map("tanh", g), node.map("sigmoid", o)
    new_c = node.map("add", node.map("mul", f, c), node.map("mul", i, g))
    return [node.map("mul", o, node.map("tanh", new_c)), new_c]


def _gru_cell(node: _Known, parameters: Parameters, x: str, h: str) -> list[str]:
    of_r, of_z, (new_x, new_h) = node.gates(3, x, h, parameters)
    r, z = node.map("sigmoid", node.affine(*of_r)), node.map("sigmoid", node.affine(*of_z))
    new = node.map("tanh", node.map("add", node.affine(new_x), node.map("mul", r, node.affine(new_h))))
    return [node.map("add", new, node.map("mul", z, node.map("sub", h, new)))]


def _rnn_cell(node: _Known, parameters: Parameters, x: str, h: str) -> list[str]:
    return [node.append(node.operation.name.split("_")[1], node.affine(*node.gates(1, x, h, parameters)[0]))]


_RECURRENT: dict[str, Any] = {
    "lstm_cell": _lstm_cell, "gru_cell": _gru_cell, "rnn_tanh_cell": _rnn_cell, "rnn_relu_cell": _rnn_cell,
}  # fmt: skip


def _run(value_class: ValueClass, slot: Slot) -> tuple[int, int] | None:
    """The elements of a variable that a slot's views take, when they are one ascending run that gradients flow
    through."""
    if not slot.views:
        return 0, value_class.size
    if any(view.detaches for view in slot.views):
        return None
    elements = through(slot.views, torch.arange(value_class.size).reshape(value_class.shape)).reshape(-1)
    if not len(elements):
        return None
    first = int(elements[0])
    return (first, first + len(elements)) if torch.equal(elements, torch.arange(first, first + len(elements))) else None
