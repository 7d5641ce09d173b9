"""What a layout is asked for and what it answers: batches in, order and dropped operands out.

Definitions (S. Chen, P. Fegade, T. Chen, P. B. Gibbons, T. C. Mowry, "ED-Batch: Efficient Automatic Batching of Dynamic
Neural Networks via Learned Finite State Machines", ICML 2023, section 3.2).

(1) A *layout* is an order of a cell's variables in memory.
(2) A *batch* runs m operations at once. Each of its *operands*, result or source, is a tuple of m variables; the i-th
    variable belongs to the i-th operation, at *position* i.
(3) An operand is *adjacent* in a layout when its variables stand side by side. Operands are *aligned* when memory order
    runs through the positions of each in the same way.
(4) A batch runs without copies when all its operands are adjacent and aligned. An operand that is not has to be
    *dropped* from that demand: it is gathered before the batch, or scattered after it.

What an operand with repeated variables demands. One variable at every position is a *broadcast*: it is read with stride
zero, so it demands nothing and costs nothing. Any other repeat, (x, x, y), demands what no layout has, since a slice of
memory holds x once: the operand is always gathered, listed as dropped for the reason `repeats`, and binds nothing else.
(Patterns such as (x, x, y, y) could be read with two strides; that is left to whoever makes the batches, who can split
them.) An operand of one position is always adjacent and aligned.

`adjacent_only` lists sets that a batch wants side by side in any order, without positions: the columns of one fused
product. Repeats within such a set are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edbc.errors import LayoutError

Variables = tuple[str, ...]
Kind = Literal["operand", "adjacent_only"]
Reason = Literal["repeats", "adjacency", "broadcast", "alignment"]

REASON_TEXT: dict[Reason, str] = {
    "repeats": "a variable occurs at several positions and not at all of them",
    "adjacency": "no order that keeps the others has it adjacent",
    "broadcast": "aligned operands impose an adjacency on each other that no order has",
    "alignment": "its positions cannot run in the order of the batch's other operands",
}


@dataclass(frozen=True)
class LayoutBatch:
    """One batch, definition (2)."""

    name: str
    operands: tuple[Variables, ...]
    """Result and source operands, all of the same length."""
    adjacent_only: tuple[Variables, ...] = ()

    def __post_init__(self) -> None:
        widths = {len(operand) for operand in self.operands}
        if len(widths) > 1 or 0 in widths:
            raise LayoutError(
                f"batch {self.name}: expected operands of one length, at least 1, got lengths {sorted(widths)}; "
                "an operand has one variable for each operation"
            )
        if not all(self.adjacent_only):
            raise LayoutError(f"batch {self.name}: expected variables in each adjacent-only set, got an empty one")


@dataclass(frozen=True)
class Demand:
    """One operand or adjacent-only set of one batch, as a planner handles it."""

    batch: str
    kind: Kind
    index: int
    """Place in `LayoutBatch.operands` or `.adjacent_only`."""
    variables: Variables
    cost: int
    """Elements to copy when the demand is not met; one per variable where sizes are not known."""

    @property
    def is_trivial(self) -> bool:
        """True when every layout meets the demand: one variable, or one at every position."""
        return len(set(self.variables)) < 2

    @property
    def has_repeats(self) -> bool:
        """True when no layout meets the demand."""
        return self.kind == "operand" and not self.is_trivial and len(set(self.variables)) < len(self.variables)

    def __str__(self) -> str:
        return f"{self.batch}.{self.kind}[{self.index}] ({' '.join(self.variables)})"


@dataclass(frozen=True)
class DroppedOperand(Demand):
    """An operand that has to be gathered or scattered, definition (4), and why."""

    reason: Reason

    def __str__(self) -> str:
        return f"{super().__str__()}: copies {self.cost}; {REASON_TEXT[self.reason]}"


@dataclass(frozen=True)
class LayoutPlan:
    """A layout and what it does not achieve."""

    order: Variables
    """Every variable once, in memory order."""
    dropped: tuple[DroppedOperand, ...]
    """In order of batches, operands before adjacent-only sets."""
    adjacency_tree: str
    """The PQ tree when each kept operand was adjacent, before constraints were broadcast."""
    tree: str
    """The PQ tree afterwards, when the kept operands of each batch are isomorphic."""

    def __str__(self) -> str:
        lines = [
            f"order      {' '.join(self.order)}",
            f"adjacency  {self.adjacency_tree}",
            f"aligned    {self.tree}",
            *(f"dropped    {operand}" for operand in self.dropped),
        ]
        return "\n".join(lines)


def demands_of(batches: Sequence[LayoutBatch], sizes: Mapping[str, int] | None = None) -> Iterator[Demand]:
    """The demands of all batches in order; a variable without size counts as one element."""
    for batch in batches:
        for index, variables in enumerate(batch.operands):
            yield Demand(batch.name, "operand", index, variables, _elements(variables, sizes))
        for index, variables in enumerate(batch.adjacent_only):
            unique = tuple(dict.fromkeys(variables))
            yield Demand(batch.name, "adjacent_only", index, unique, _elements(unique, sizes))


def _elements(variables: Variables, sizes: Mapping[str, int] | None) -> int:
    return len(variables) if sizes is None else sum(sizes.get(variable, 1) for variable in variables)
