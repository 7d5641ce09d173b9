"""A cell's memory before and after layout planning, with what each batch finds there.

Worked out from the plan's text alone. *Before* is the order in which the cell's code defines its variables, *after* the
plan's. A batch's operands stand *in place* when they are side by side and in step with each other
(`edbc.layout.problem`, definition 4); the others would be copied or would split the batch. The count uses
`edbc.layout.copies`, which shares no code with the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edbc.layout.copies import count_copies
from edbc.layout.problem import LayoutBatch
from edbc.plan.oplines import OPERATIONS, Line, parse_line
from edbc.plan.plan import PlanCell


@dataclass(frozen=True)
class Operand:
    """The variables that a batch wants side by side in one role."""

    role: str
    """`result`, `operand 1`, ..., or `inputs` of a product."""
    variables: tuple[str, ...]
    in_place_before: bool
    in_place_after: bool


@dataclass(frozen=True)
class CellBatch:
    """One batch of a cell's operations."""

    operation: str
    operands: tuple[Operand, ...]
    """Those that ask something of the layout."""
    width: int
    """Number of operations."""


@dataclass(frozen=True)
class CellLayout:
    """One cell."""

    name: str
    num_operations: int
    batches: tuple[CellBatch, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    copies: int
    """Copies that the plan records."""
    generic: tuple[str, ...]
    """Functions of operations that the plan's table lacks."""
    eager: tuple[str, ...]
    """Operands from which operations may be split off; see `edbc.cells.parts`."""

    @property
    def split_text(self) -> str:
        """What may run outside of the schedule, in words; empty when nothing may."""
        names = ", ".join(self.eager)
        return f"what depends on {names} alone runs for many nodes at once, ahead of them" if names else ""

    @property
    def misplaced_before(self) -> int:
        """Operands out of place in the order of definition."""
        return sum(not operand.in_place_before for batch in self.batches for operand in batch.operands)

    @property
    def misplaced_after(self) -> int:
        """Operands out of place in the plan's order."""
        return sum(not operand.in_place_after for batch in self.batches for operand in batch.operands)


def cell_layout(name: str, cell: PlanCell) -> CellLayout:
    """What a plan says of one cell."""
    lines = {line.name: line for line in map(parse_line, cell.operations)}
    before = tuple(name for name, line in lines.items() if not OPERATIONS[line.operation].is_shared)
    operations = [line for line in lines.values() if not OPERATIONS[line.operation].is_source]
    batches = tuple(_cell_batch([lines[v] for v in batch], set(before), before, cell.layout) for batch in cell.batches)
    generic = tuple(_generic_text(line) for line in operations if line.operation == "generic")
    return CellLayout(name, len(operations), batches, before, cell.layout, cell.copies, generic, cell.eager)


def _generic_text(line: Line) -> str:
    return str(dict(line.attributes).get("function", line.name))


def _cell_batch(lines: Sequence[Line], variables: set[str], before: Sequence[str], after: Sequence[str]) -> CellBatch:
    demands = list(_demands(lines, variables))
    asked = LayoutBatch(
        "batch",
        tuple(operands for role, operands in demands if role != "inputs"),
        tuple(operands for role, operands in demands if role == "inputs"),
    )
    copied = [{(copy.kind, copy.index) for copy in count_copies(order, [asked])} for order in (before, after)]
    operands = []
    index = {"operand": 0, "adjacent_only": 0}
    for role, names in demands:
        kind = "adjacent_only" if role == "inputs" else "operand"
        place = (kind, index[kind])
        index[kind] += 1
        if len(set(names)) > 1:
            operands.append(Operand(role, names, place not in copied[0], place not in copied[1]))
    return CellBatch(lines[0].operation, tuple(operands), len(lines))


def _demands(lines: Sequence[Line], variables: set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What `edbc.cells.batching.layout_batches` asks, read from the plan's lines."""
    if lines[0].operation == "affine":
        yield "result", tuple(line.name for line in lines)
        yield "inputs", tuple(dict.fromkeys(v for v in lines[0].variables if v in variables))
    elif len(lines) > 1:
        yield "result", tuple(line.name for line in lines)
        for position in range(len(lines[0].operands)):
            names = tuple(str(line.operands[position]) for line in lines)
            if set(names) <= variables:
                yield f"operand {position + 1}", names
