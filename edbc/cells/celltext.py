"""A cell's operations as lines of a plan, in the grammar of `edbc.plan.oplines`.

Sizes are left out where they follow from the model: parts of a vector are told as fractions (`2/4`). So the lines of a
cell stay the same when the model is built with another hidden size, and a plan can be bound to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from edbc.capture.record.table import SharedRef
from edbc.cells.opgraph import Block, CellGraph, CellOp


def cell_lines(cell: CellGraph) -> tuple[str, ...]:
    """Operands, parameters used outside of affines, then operations, each with the outputs that it is."""
    outputs: dict[str, list[int]] = {}
    for number, name in enumerate(cell.outputs):
        outputs.setdefault(name, []).append(number)
    parameters = _parameter_names(cell)
    lines = [
        f"{name} = input({_joined([f'index={i}'], outputs.get(name))})" for i, (name, _) in enumerate(cell.operands)
    ]
    lines += [
        f"{name} = parameter(name={_quoted(repr(ref).removeprefix(cell.prefix))})" for ref, name in parameters.items()
    ]
    lines += [
        f"{op.name} = {op.op}({_joined(list(_arguments(op, cell, parameters)), outputs.get(op.name))})"
        for op in cell.ops
    ]
    return tuple(lines)


def _parameter_names(cell: CellGraph) -> dict[SharedRef, str]:
    """A variable name for every parameter that an operation reads as a whole."""
    taken = set(cell.classes())
    names: dict[SharedRef, str] = {}
    for op in cell.ops:
        for source in op.sources:
            if source.shared is not None and source.shared not in names:
                number = len(names) + 1
                while f"p{number}" in taken:
                    number += 1
                names[source.shared] = f"p{number}"
                taken.add(f"p{number}")
    return names


def _joined(arguments: list[str], outputs: list[int] | None) -> str:
    if outputs:
        number = str(outputs[0]) if len(outputs) == 1 else f"({', '.join(map(str, outputs))})"
        arguments = [*arguments, f"output={number}"]
    return ", ".join(arguments)


def _arguments(op: CellOp, cell: CellGraph, parameters: dict[SharedRef, str]) -> Iterator[str]:
    for source in op.sources:
        if source.variable is not None:
            yield source.variable
        elif source.shared is not None:
            yield parameters[source.shared]
        else:
            yield repr(source.number)
    if op.op == "affine":
        yield from _block_attribute("weight", op.weights, cell.prefix)
        yield from _block_attribute("bias", op.biases, cell.prefix)
    elif op.op == "slice":
        start, stop = map(int, op.attributes.split(":"))
        whole = cell.classes()[op.inputs[0]].size
        yield f"start={_fraction(start, stop - start, whole)}"
        yield f"stop={_fraction(stop, stop - start, whole)}"
    elif op.op == "generic":
        views = "; ".join(
            f"{s.variable}{''.join(view.text for view in s.views)}" for s in op.sources if s.views and s.variable
        )
        yield f"function={_quoted(op.attributes)}"
        if views:
            yield f"constants={_quoted(views)}"
        if op.output is not None:
            yield f"index={op.output}"


def _block_attribute(key: str, blocks: tuple[Block, ...], prefix: str) -> Iterator[str]:
    if not blocks:
        return
    names = [_quoted(block_text(block, prefix)) for block in blocks]
    yield f"{key}={names[0]}" if len(names) == 1 else f"{key}=({', '.join(names)})"


def block_text(block: Block, prefix: str) -> str:
    """`U_i.weight`, or `weight_ih[1/4]` for the second of four equal parts of its rows."""
    name = repr(block.ref).removeprefix(prefix) + (".T" if block.transposed else "")
    start, stop = block.rows
    if stop - start == block.total_rows or not block.total_rows:
        return name
    part = _fraction(start, stop - start, block.total_rows).strip('"')
    return f"{name}[{part}]"


def _fraction(at: int, size: int, whole: int) -> str:
    if size and at % size == 0 and whole % size == 0:
        return f'"{at // size}/{whole // size}"'
    return str(at)


def _quoted(text: str) -> str:
    """A string of the grammar: printable ASCII without quotation marks and backslashes."""
    plain = text.replace('"', "'").replace("\\", "/")
    return '"' + "".join(c if " " <= c <= "~" else "?" for c in plain) + '"'
