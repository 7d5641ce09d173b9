"""Carrying a plan's batches and memory order over to a cell that also draws random numbers, or casts.

A plan is made of what a cell computes in evaluation and in the model's own dtype. In training it computes the same and
multiplies some variables by what it draws (`edbc.capture.record.draws`), a variable x becoming x * m for all that read
it, or for some. Under torch.autocast some variables are read in another dtype (`edbc.capture.semantics.autocast`).
Batches and order carry over:

(1) Operations *correspond* when they are the same operation with the same parameters over variables that correspond,
    whatever their dtypes; a product with a draw corresponds to what it multiplies, a cast to what it casts.
(2) A batch runs the operations that correspond to the plan's, in as many batches as their operands now ask for;
    products with draws and casts run one by one, as late as possible.
(3) In memory a product with a draw takes the place of what it multiplies where nothing else reads that; then what is
    multiplied stands at the end, and so do draws and all other products with them. A cast stands behind what it casts:
    dtypes have workspaces of their own, so that casts stand side by side in theirs as what they cast does.

A cell where some operation corresponds to none (a product was merged with another one that a draw or a dtype now keeps
apart) runs operation by operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edbc.capture.record.table import SharedRef
from edbc.cells.lower import batch_key
from edbc.cells.opgraph import CellGraph, CellOp, Source
from edbc.cells.translate import is_cast_view

Batches = Sequence[Sequence[str]]


def carry_over(
    evaluated: CellGraph, cell: CellGraph, batches: Batches, order: Sequence[str]
) -> tuple[Batches, list[str]]:
    """Batches and order for `cell`, made of those for `evaluated`, the same cell in evaluation and without casts."""
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
        source = _same_as(op, drawn)
        if source is not None and not (op.is_cast and _key(op, names) in left):
            names[op.name] = names[source]
            continue
        if drawn & set(op.inputs):
            return None
        same = left.get(_key(op, names))
        if not same:
            return None
        names[op.name] = same.pop(0)
    return None if any(left.values()) else names


def _same_as(op: CellOp, drawn: set[str]) -> str | None:
    """What a product with a draw multiplies, or a cast casts; None for other operations."""
    if op.is_cast:
        return None if op.inputs[0] in drawn else op.inputs[0]
    plain = op.op == "mul" and len(op.inputs) == 2 and not any(source.views for source in op.sources)
    return op.inputs[0] if plain and op.inputs[1] in drawn and op.inputs[0] not in drawn else None


def _key(op: CellOp, names: dict[str, str]) -> object:
    def source(item: Source) -> object:
        variable = None if item.variable is None else names[item.variable]
        return variable, "".join(view.text for view in item.views), _plain(item.shared), item.number

    weights = tuple((_plain(b.ref), b.rows, b.columns, b.transposed) for b in op.weights)
    biases = tuple((_plain(b.ref), b.rows) for b in op.biases)
    return op.op, tuple(map(source, op.sources)), op.result.shape, weights, biases, op.attributes, op.output


def _plain(ref: SharedRef | None) -> SharedRef | None:
    """A parameter, before it is cast."""
    cast = ref is not None and ref.views and is_cast_view(ref.views[-1])
    return ref._replace(views=ref.views[:-1]) if cast and ref is not None else ref


def _batches(cell: CellGraph, batches: Batches, planned: dict[str, str], drawn: set[str]) -> Iterator[list[str]]:
    """Definition (2)."""
    ops = {op.name: op for op in cell.ops}
    same_as = {n: x for n, op in ops.items() if (x := _same_as(op, drawn)) is not None and planned[n] == planned[x]}
    here = {planned[name]: op for name, op in ops.items() if name not in same_as}
    done: set[str] = set()

    def these(names: Sequence[str]) -> Iterator[list[str]]:
        for name in names:
            if name in same_as and name not in done:
                yield from these([same_as[name]])
                done.add(name)
                yield [name]

    for batch in batches:
        parts: dict[object, list[str]] = {}
        for name in batch:
            yield from these(here[name].inputs)
            parts.setdefault(batch_key(here[name]), []).append(here[name].name)
        yield from parts.values()
    yield from these(cell.outputs)


def _order(cell: CellGraph, order: Sequence[str], planned: dict[str, str], drawn: set[str]) -> list[str]:
    """Definition (3)."""
    users = cell.users()
    ops = {op.name: op for op in cell.ops}
    last: dict[str, str] = {}
    ends: list[str] = []
    casts: dict[str, list[str]] = {}
    for name in cell.classes():
        if name in drawn:
            ends.append(name)
            continue
        if name in ops and ops[name].is_cast and planned[name] == planned.get(ops[name].inputs[0]):
            casts.setdefault(ops[name].inputs[0], []).append(name)
            continue
        before = last.get(planned[name])
        takes_over = before is not None and before not in cell.outputs and len(users[before]) == 1
        if before is not None:
            ends.append(before if takes_over else name)
        if before is None or takes_over:
            last[planned[name]] = name

    def with_casts(names: Sequence[str]) -> Iterator[str]:
        for name in names:
            yield name
            yield from with_casts(casts.get(name, ()))

    return list(with_casts([*(last[name] for name in order), *ends]))
