"""Units of a static graph, and what is known of each: what it reads, its shape, its work, and its text.

The text of a unit says all that its cost depends on, and nothing else: its operations with their constants and shapes,
no names, no weights. Units of equal text cost the same, so tables of costs are kept by text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import fx

from edbc.stages.endings import Dag


@dataclass(frozen=True, eq=False)
class Unit:
    """Operators that always run together; the last one's result is the unit's value."""

    name: str
    """Of the model's module where it stands, made unique: `blocks.0.five.1`."""
    kind: str
    """`conv`, `separable`, `linear`, `sum`, `cat`, `pool`, or the name of a torch function."""
    nodes: tuple[fx.Node, ...]
    """In order. Cheap ones (views, sizes, a relu that several read) may stand in several units."""
    reads: tuple[int, ...]
    """Units whose values it reads, negative ones for the graph's inputs, in the order in which it reads them."""
    shape: tuple[int, ...]
    """Of its value, for one instance."""
    text: str
    flops: int
    """Of its products for one instance, two per multiplication."""

    @property
    def value(self) -> fx.Node:
        """The node that gives the unit's value."""
        return self.nodes[-1]


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """All units of a model, in the order of forward."""

    units: tuple[Unit, ...]
    inputs: tuple[fx.Node, ...]
    """Placeholders; input i is -1 - i in `Unit.reads`."""
    output: fx.Node
    tail: tuple[fx.Node, ...]
    """Cheap nodes between the units and what forward returns."""
    results: tuple[int, ...]
    """Units (or inputs) that the tail reads."""
    of_node: dict[fx.Node, int] = field(default_factory=dict)
    """The unit whose value a node is."""

    @cached_property
    def dag(self) -> Dag:
        """The whole graph's edges as sets. (It may have more units than transitions can be listed for.)"""
        return Dag(tuple(sum(1 << other for other in {*unit.reads} if other >= 0) for unit in self.units))

    def readers(self) -> list[list[int]]:
        """Per unit those that read it; `len(units)` stands for the result."""
        found: list[list[int]] = [[] for _ in self.units]
        for number, unit in enumerate(self.units):
            for other in dict.fromkeys(unit.reads):
                if other >= 0:
                    found[other].append(number)
        for other in dict.fromkeys(self.results):
            if other >= 0:
                found[other].append(len(self.units))
        return found


@dataclass(frozen=True)
class Block:
    """Units that are scheduled together."""

    units: tuple[int, ...]
    """Numbers in the graph, in order; unit i of the block is `units[i]`."""
    text: str
    """The block in canonical form: its units' texts, and what each reads, by number within the block."""
    note: str = ""
    """Why it ends where the graph has no cut."""

    @property
    def kind(self) -> str:
        """A short name for the text: blocks of one kind have the same schedules at the same costs."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def block_of(graph: UnitGraph, units: Sequence[int], note: str = "") -> Block:
    """A block of some units, which it lists in order."""
    place = {unit: position for position, unit in enumerate(units)}
    outside: dict[int, int] = {}
    lines = []
    for unit in units:
        reads = []
        for other in graph.units[unit].reads:
            name = f"u{place[other]}" if other in place else f"x{outside.setdefault(other, len(outside))}"
            reads.append(name)
        lines.append(f"u{place[unit]} = {graph.units[unit].text} of {', '.join(reads) or 'nothing'}")
    return Block(tuple(units), "\n".join(lines), note)


def block_dag(graph: UnitGraph, block: Block) -> Dag:
    """The edges inside a block."""
    place = {unit: position for position, unit in enumerate(block.units)}
    return Dag(
        tuple(sum(1 << place[other] for other in {*graph.units[unit].reads} if other in place) for unit in block.units)
    )
