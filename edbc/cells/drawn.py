"""A planned cell in training: the plan's batches and memory order for a cell that draws random numbers.

A plan is made of what a cell computes in evaluation. In training it computes the same and multiplies some variables by
what it draws (`edbc.trace.draws`), a variable x becoming x * m for all that read it, or for some. Batches and order
carry over:

(1) Operations *correspond* when they are the same operation with the same parameters over variables that correspond;
    a product with a draw corresponds to what it multiplies.
(2) A batch runs the operations that correspond to the plan's, in as many batches as their operands now ask for;
    products with draws run one by one, as late as possible.
(3) In memory a product with a draw takes the place of what it multiplies where nothing else reads that; then what is
    multiplied stands at the end, and so do draws and all other products with them.

A cell where some operation corresponds to none (a product was merged with another one that a draw now keeps apart)
runs operation by operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edbc.cells.graph import CellGraph, CellOp, Source
from edbc.cells.lower import batch_key

Batches = Sequence[Sequence[str]]


def with_draws(
    evaluated: CellGraph, cell: CellGraph, batches: Batches, order: Sequence[str]
) -> tuple[Batches, list[str]]:
    """Batches and order for `cell`, made of those for `evaluated`, the same cell in evaluation."""
    drawn = {name for name, _ in cell.operands} - {name for name, _ in evaluated.operands}
    planned = _correspondence(evaluated, cell, drawn)
    if planned is None:
        return [[op.name] for op in cell.ops], list(cell.classes())
    return list(_batches(cell, batches, planned, drawn)), _order(cell, order, planned, drawn)


def _correspondence(evaluated: CellGraph, cell: CellGraph, drawn: set[str]) -> dict[str, str] | None:
    """Definition (1): the plan's variable for each variable but draws."""
    names = {name: name for name, _ in evaluated.operands}
    left: dict[object, list[str]] = {}
    for op in evaluated.ops:
        left.setdefault(_key(op, {name: name for name in op.inputs}), []).append(op.name)
    for op in cell.ops:
        masked = _masked(op, drawn)
        if masked is not None:
            names[op.name] = names[masked]
            continue
        if drawn & set(op.inputs):
            return None
        same = left.get(_key(op, names))
        if not same:
            return None
        names[op.name] = same.pop(0)
    return None if any(left.values()) else names


def _masked(op: CellOp, drawn: set[str]) -> str | None:
    """What a product with a draw multiplies; None for other operations."""
    plain = op.op == "mul" and len(op.inputs) == 2 and not any(source.views for source in op.sources)
    return op.inputs[0] if plain and op.inputs[1] in drawn and op.inputs[0] not in drawn else None


def _key(op: CellOp, names: dict[str, str]) -> object:
    def source(item: Source) -> object:
        variable = None if item.variable is None else names[item.variable]
        return variable, "".join(view.text for view in item.views), item.shared, item.number

    return op.op, tuple(map(source, op.sources)), op.result, op.weights, op.biases, op.attributes, op.output


def _batches(cell: CellGraph, batches: Batches, planned: dict[str, str], drawn: set[str]) -> Iterator[list[str]]:
    """Definition (2)."""
    ops = {op.name: op for op in cell.ops}
    masked = {name: x for name, op in ops.items() if (x := _masked(op, drawn)) is not None}
    here = {planned[name]: op for name, op in ops.items() if name not in masked}
    done: set[str] = set()

    def masks(names: Sequence[str]) -> Iterator[list[str]]:
        for name in names:
            if name in masked and name not in done:
                yield from masks([masked[name]])
                done.add(name)
                yield [name]

    for batch in batches:
        parts: dict[object, list[str]] = {}
        for name in batch:
            yield from masks(here[name].inputs)
            parts.setdefault(batch_key(here[name]), []).append(here[name].name)
        yield from parts.values()
    yield from masks(cell.outputs)


def _order(cell: CellGraph, order: Sequence[str], planned: dict[str, str], drawn: set[str]) -> list[str]:
    """Definition (3)."""
    users = cell.users()
    last: dict[str, str] = {}
    ends: list[str] = []
    for name in cell.classes():
        if name in drawn:
            ends.append(name)
            continue
        before = last.get(planned[name])
        takes_over = before is not None and before not in cell.outputs and len(users[before]) == 1
        if before is not None:
            ends.append(before if takes_over else name)
        if before is None or takes_over:
            last[planned[name]] = name
    return [*(last[name] for name in order), *ends]
