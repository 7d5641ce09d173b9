"""From the trace of a cell to its operation graph in canonical form.

Rewrites, in this order; each keeps the value of every output (up to the rounding of a reordered sum):

(1) `linear(x, W, b)`, `W @ x` and `x @ W` with a parameter W and a vector x  -->  affine
(2) additions that are read once, by an addition, as its first term            -->  one sum
(3) sums of affines that are read once, and of parameters                      -->  one affine (and a sum of the rest)
(4) affine over cat(a, b)                                                      -->  affine over a, b with W's columns cut
(5) an affine of which only slices are read, by `gates.chunk(4)` for example   -->  an affine per slice, W's rows cut
(6) operations whose result nobody reads                                       -->  gone
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch

from edbc.cells.graph import BINARY, UNARY, Block, CellGraph, CellOp, Source
from edbc.graph import ValueClass
from edbc.trace.build import build
from edbc.trace.shadow import CellTrace, ModelView
from edbc.trace.table import Entry, Hole, SharedRef, fill
from edbc.trace.values import class_of

_SYNONYMS = {"true_divide": "div", "divide": "div", "truediv": "div", "multiply": "mul", "subtract": "sub",
             "negative": "neg", "absolute": "abs"}  # fmt: skip


def cell_graph(trace: CellTrace, view: ModelView, prefix: str = "") -> CellGraph:
    """The canonical operation graph of a traced cell, module or function. Parameters' names lose `prefix` in text."""
    return canonicalise(_Translation(trace, view).cell(prefix))


def canonicalise(cell: CellGraph) -> CellGraph:
    """Rewrites (2) to (6)."""
    for rewrite in (_chain_sums, _merge_affines, _open_cats, _split_slices, _merge_affines, _drop_dead):
        cell = rewrite(cell)
    return cell


class _Translation:
    """Nodes of the recording to operations, one by one; rewrite (1)."""

    def __init__(self, trace: CellTrace, view: ModelView):
        self.trace = trace
        self.view = view
        self.capture = build(trace.recording, fuse_sums=False)
        self.entries = [trace.recording.table.entries[e] for e in trace.recording.entries]
        self.ops: list[CellOp] = []
        self.classes: dict[str, ValueClass] = {}
        self.name_of_value: dict[tuple[int, int], str] = {}

    def cell(self, prefix: str) -> CellGraph:
        """All operations, in the order of the user's code."""
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

    def _append(self, wanted: str | None, op: CellOp) -> str:
        """Add an operation under a fresh name, the user's own where there is one."""
        number = len(self.ops) + 1
        name = wanted or f"v{number}"
        while name in self.classes:
            number += 1
            name = f"{wanted}_{number}" if wanted else f"v{number}"
        self.classes[name] = op.result
        self.ops.append(replace(op, name=name))
        return name

    def _constant(self, external: int) -> None:
        """Externals beyond the operands: parameters and rows of them used whole, tensors made inside the cell."""
        number = int(self.capture.external_source[external])
        index = int(self.capture.external_index[external])
        source = self.capture.sources[number]
        if source.ref is None:
            tensor = self.capture.constants[number][index]
            op = CellOp("", "generic", (), source.value_class, call=lambda: tensor, template=((), {}),
                        attributes=_tensor_text(tensor))  # fmt: skip
        elif source.kind == "row":
            op = CellOp("", "generic", (Source(shared=source.ref),), source.value_class, call=lambda table: table[index],
                        template=((source.ref,), {}), attributes=f"row {index}")  # fmt: skip
        else:
            op = CellOp("", "generic", (Source(shared=source.ref),), source.value_class, call=lambda whole: whole,
                        template=((source.ref,), {}), attributes="whole")  # fmt: skip
        self.name_of_value[-1 - external, 0] = self._append(None, op)

    def _node(self, node: int, entry: Entry) -> None:
        operation = entry.operation
        operands = self.capture.graph.operands_of(node)
        sources = [
            Source(self.name_of_value[operand], slot.views)
            for operand, slot in zip(operands, operation.slots, strict=True)
        ]
        wanted = self.trace.recording.names.get(node)
        results = tuple(slot.base for slot in entry.output_slots)
        op = self._known(operation.name, operation.template, sources, results)
        if op is not None:
            self.name_of_value[node, 0] = self._append(wanted, op)
            return
        shared = tuple(Source(shared=ref) for ref in _shared_refs(operation.template))
        constants = self.capture.graph.types[entry.type_index].constants
        for output, result in enumerate(results):
            op = CellOp("", "generic", (*sources, *shared), result, call=operation.call, template=operation.template,
                        attributes=f"{operation.name} {constants}".strip(),
                        output=output if len(results) > 1 else None)  # fmt: skip
            self.name_of_value[node, output] = self._append(wanted if output == 0 else None, op)

    def _known(self, name: str, template: Any, sources: list[Source], results: tuple[ValueClass, ...]) -> CellOp | None:
        """The operation of the fixed table that a torch function with these operands is, if it is one."""
        args, kwargs = template
        name = _SYNONYMS.get(name, name)
        if len(results) != 1:
            return None
        result = results[0]
        if name in ("linear", "matmul", "mv"):
            return self._product(name, args, kwargs, sources, result)
        if name in UNARY and args == (Hole(0),) and not kwargs and self._elementwise_source(Hole(0), sources, result):
            return CellOp("", name, tuple(sources), result)
        if name in BINARY and len(args) == 2 and not kwargs:
            operands = [self._elementwise_source(arg, sources, result) for arg in args]
            if None not in operands:
                return CellOp("", name, tuple(o for o in operands if o is not None), result)
        if name in ("cat", "concat") and len(result.shape) == 1 and kwargs in ({}, {"dim": 0}, {"dim": -1}):
            plain = len(args) == 1 and all(type(a) is Hole for a in args[0])
            if plain and all(len(self.classes[s.variable or ""].shape) == 1 and not s.views for s in sources):
                return CellOp("", "cat", tuple(sources[a.index] for a in args[0]), result)
        return None

    def _fits(self, source: Source, result: ValueClass) -> bool:
        return source.variable is not None and not source.views and self.classes[source.variable] == result

    def _elementwise_source(self, arg: Any, sources: list[Source], result: ValueClass) -> Source | None:
        """An operand of an element-wise operation, when it has the result's shape or is a number."""
        if type(arg) is Hole:
            source = sources[arg.index]
            return source if self._fits(source, result) or _vector_slice(source, self.classes) is not None else None
        if type(arg) is SharedRef:
            return Source(shared=arg) if class_of(self.view.shared(arg)) == result else None
        return Source(number=arg) if type(arg) in (int, float) else None

    def _product(self, name: str, args: Any, kwargs: Any, sources: list[Source], result: ValueClass) -> CellOp | None:
        """Rewrite (1)."""
        if len(result.shape) != 1 or kwargs or len(args) < 2:
            return None
        transposed = type(args[0]) is Hole and name != "linear"
        vector, weight = args[:2] if transposed or name == "linear" else args[1::-1]
        bias = args[2] if len(args) > 2 else None
        if type(vector) is not Hole or type(weight) is not SharedRef or type(bias) not in (SharedRef, type(None)):
            return None
        shape = tuple(self.view.shared(weight).shape)
        if len(shape) != 2 or sources[vector.index].views:
            return None
        out, into = shape[::-1] if transposed else shape
        biases = () if bias is None else (Block(bias, (0, out), None, total_rows=out),)
        return CellOp("", "affine", (sources[vector.index],), result, (Block(weight, (0, out), (0, into), transposed, out),),
                      biases)  # fmt: skip

    def _output(self, value: Any) -> str:
        ref = value.ref
        if ref < 0:
            variable = self.name_of_value[ref, 0]
        else:
            node, output = self._node_of_value(ref)
            variable = self.name_of_value[node, output]
        if not value.slot.views:
            return variable
        op = CellOp("", "generic", (Source(variable, value.slot.views),), class_of(value.slot.meta()), call=lambda x: x,
                    template=((Hole(0),), {}), attributes="view")  # fmt: skip
        return self._append(None, op)

    def _node_of_value(self, ref: int) -> tuple[int, int]:
        for node, entry in enumerate(self.entries):
            if ref < len(entry.output_slots):
                return node, ref
            ref -= len(entry.output_slots)
        raise AssertionError("a value belongs to a node")


def _vector_slice(source: Source, classes: dict[str, ValueClass]) -> tuple[int, int] | None:
    """The range of elements that the views of a vector variable take, when they take one contiguous range."""
    value_class = classes[source.variable or ""]
    if not source.views or len(value_class.shape) != 1:
        return None
    elements = torch.arange(value_class.size)
    for view in source.views:
        elements = view.apply(elements)
    if elements.ndim != 1 or not len(elements):
        return None
    first = int(elements[0])
    return (first, first + len(elements)) if torch.equal(elements, torch.arange(first, first + len(elements))) else None


def _shared_refs(template: Any) -> list[SharedRef]:
    """The parameters that a template names, in order."""
    found: list[SharedRef] = []

    def walk(item: Any) -> None:
        if type(item) is SharedRef:
            found.append(item)
        elif type(item) in (tuple, list):
            for inner in item:
                walk(inner)
        elif type(item) is dict:
            walk(list(item.values()))

    walk(template)
    return found


def _tensor_text(tensor: torch.Tensor) -> str:
    """A constant by its content, so that two plans differ when a constant does."""
    data = fill(tensor, []).detach().cpu().contiguous().view(torch.uint8) if tensor.ndim else tensor.reshape(1)
    return f"constant {hashlib.sha256(data.numpy().tobytes()).hexdigest()[:16]}"


# --- rewrites ----------------------------------------------------------------------------------------------------------


def _uses(cell: CellGraph) -> dict[str, int]:
    """How often each variable is read, being an output counted."""
    count = dict.fromkeys(cell.classes(), 0)
    for name in [*(n for op in cell.ops for n in op.inputs), *cell.outputs]:
        count[name] += 1
    return count


def _chain_sums(cell: CellGraph) -> CellGraph:
    """Rewrite (2). Only first terms are taken in, so that the order of summation stays the user's."""
    uses = _uses(cell)
    ops: dict[str, CellOp] = {}
    for op in cell.ops:
        if op.op != "add" or any(s.number is not None or s.views for s in op.sources):
            ops[op.name] = op
            continue
        first = ops.get(op.sources[0].variable or "")
        terms = op.sources
        if first is not None and first.op == "sum" and uses[first.name] == 1:
            del ops[first.name]
            terms = (*first.sources, *op.sources[1:])
        ops[op.name] = replace(op, op="sum", sources=terms)
    return replace(cell, ops=tuple(ops.values()))


def _merge_affines(cell: CellGraph) -> CellGraph:
    """Rewrite (3), for sums with at least one affine and another term that an affine can take in."""
    uses = _uses(cell)
    ops: dict[str, CellOp] = {}
    for op in cell.ops:
        parts = [_affine_part(s, ops, uses, op.result) for s in op.sources] if op.op == "sum" else []
        taken = [part for part in parts if part is not None]
        if len(taken) < 2 or not any(part.weights for part in taken):
            ops[op.name] = op
            continue
        for part in taken:
            ops.pop(part.name, None)
        rest = tuple(s for s, part in zip(op.sources, parts, strict=True) if part is None)
        affine = CellOp(f"{op.name}_affine" if rest else op.name, "affine", tuple(s for p in taken for s in p.sources),
                        op.result, tuple(w for p in taken for w in p.weights),
                        tuple(b for p in taken for b in p.biases))  # fmt: skip
        ops[affine.name] = affine
        if rest:
            ops[op.name] = replace(op, sources=(Source(affine.name), *rest))
    return replace(cell, ops=tuple(ops.values()))


def _affine_part(source: Source, ops: dict[str, CellOp], uses: dict[str, int], result: ValueClass) -> CellOp | None:
    """What a term adds to a merged affine: the affine that it is, when nobody else reads it, or a bias."""
    if source.shared is not None and len(result.shape) == 1:
        return CellOp("", "affine", (), result, (), (Block(source.shared, (0, result.size), None, total_rows=result.size),))
    op = ops.get(source.variable or "")
    return op if op is not None and op.op == "affine" and not source.views and uses[op.name] == 1 else None


def _open_cats(cell: CellGraph) -> CellGraph:
    """Rewrite (4); an affine is opened again while one of its operands is still a concatenation."""
    sizes = cell.sizes()
    cats = {op.name: op for op in cell.ops if op.op == "cat"}

    def opened(op: CellOp) -> CellOp:
        sources: list[Source] = []
        weights: list[Block] = []
        for source, block in zip(op.sources, op.weights, strict=True):
            cat = cats.get(source.variable or "")
            if cat is None:
                sources.append(source)
                weights.append(block)
                continue
            assert block.columns is not None
            start = block.columns[0]
            for part in cat.sources:
                size = sizes[part.variable or ""]
                sources.append(part)
                weights.append(replace(block, columns=(start, start + size)))
                start += size
        result = replace(op, sources=tuple(sources), weights=tuple(weights))
        return opened(result) if any(name in cats for name in result.inputs) else result

    return _drop_dead(replace(cell, ops=tuple(opened(op) if op.op == "affine" else op for op in cell.ops)))


def _split_slices(cell: CellGraph) -> CellGraph:
    """Rewrite (5); slices of operands and of other results become `slice` operations."""
    classes = cell.classes()
    users = cell.users()
    parts_of: dict[str, dict[tuple[int, int], str]] = {}
    for name in classes:
        for op in users[name]:
            for source in op.sources:
                if op.op in (*UNARY, *BINARY) and source.variable == name and source.views:
                    span = _vector_slice(source, classes)
                    assert span is not None
                    parts_of.setdefault(name, {}).setdefault(span, "")
    if not parts_of:
        return cell
    for name, parts in parts_of.items():
        for number, span in enumerate(sorted(parts)):
            parts[span] = f"{name}_{number}"
    result = [part for name, _ in cell.operands for part in _slices(name, parts_of, classes)]
    for op in cell.ops:
        cut = replace(op, sources=tuple(_to_part(s, parts_of, classes) for s in op.sources)) \
            if op.op in (*UNARY, *BINARY) else op  # fmt: skip
        only_parts = op.name in parts_of and op.op == "affine" and op.name not in cell.outputs and all(
            s.views and u.op in (*UNARY, *BINARY) for u in users[op.name] for s in u.sources if s.variable == op.name
        )  # fmt: skip
        if only_parts:
            result += [_rows_of(cut, name, span) for span, name in sorted(parts_of[op.name].items())]
        else:
            result += [cut, *_slices(op.name, parts_of, classes)]
    return replace(cell, ops=tuple(result))


def _slices(name: str, parts_of: dict[str, dict[tuple[int, int], str]], classes: dict[str, ValueClass]) -> list[CellOp]:
    dtype = classes[name].dtype
    return [
        CellOp(part, "slice", (Source(name),), ValueClass((stop - start,), dtype), attributes=f"{start}:{stop}")
        for (start, stop), part in sorted(parts_of.get(name, {}).items())
    ]


def _to_part(source: Source, parts_of: dict[str, dict[tuple[int, int], str]], classes: dict[str, ValueClass]) -> Source:
    if source.variable is None or not source.views:
        return source
    span = _vector_slice(source, classes)
    assert span is not None
    return Source(parts_of[source.variable][span])


def _rows_of(op: CellOp, name: str, span: tuple[int, int]) -> CellOp:
    """The affine that computes elements `span` of another one."""
    start, stop = span

    def cut(block: Block) -> Block:
        return replace(block, rows=(block.rows[0] + start, block.rows[0] + stop))

    return replace(op, name=name, result=ValueClass((stop - start,), op.result.dtype),
                   weights=tuple(map(cut, op.weights)), biases=tuple(map(cut, op.biases)))  # fmt: skip


def _drop_dead(cell: CellGraph) -> CellGraph:
    """Rewrite (6)."""
    needed = set(cell.outputs)
    kept = []
    for op in reversed(cell.ops):
        if op.name in needed:
            needed.update(op.inputs)
            kept.append(op)
    return replace(cell, ops=tuple(kept[::-1]))
