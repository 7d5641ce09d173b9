"""A lowered cell: a short list of steps over one row of memory per node.

Definitions.

(1) A batch of n nodes of a type works in a *workspace*, an (n, width) matrix, one row per node. A variable of the cell
    is a *span* of columns. Offsets follow the order that the plan's layout gives, and nothing else.
(2) `Load` gathers an operand into its span; `Product` is one matrix product from a span of adjacent operands to a span
    of adjacent results, with all weights packed into one matrix; `Map` applies one element-wise operation to adjacent
    variables at once; `Copy` moves a span where the layout could not make operands adjacent; `Call` runs any other
    torch function; `Store` gives an output's span.
(3) A cell of several dtypes (integers, or casts: `edbc.capture.semantics.autocast`) has a workspace for each. Spans say
    which.

A program is data: a back end turns it into torch calls, native code or device kernels, and no step knows a cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from edbc.base.graph import ValueClass
from edbc.capture.record.table import SharedRef
from edbc.cells.opgraph import Block, CellGraph, CellOp


@dataclass(frozen=True)
class Span:
    """Columns `offset` to `offset + size` of a workspace."""

    offset: int
    size: int
    dtype: str = ""
    """In a program of several dtypes, that of the workspace; see `Program.widths`."""

    @property
    def stop(self) -> int:
        """First column after the span."""
        return self.offset + self.size


@dataclass(frozen=True)
class Load:
    """Gather operand number `operand` into `span`."""

    operand: int
    span: Span


@dataclass(frozen=True)
class Placed:
    """A block of a parameter at row `row`, column `column` of a packed matrix (in, out)."""

    block: Block
    row: int
    column: int


@dataclass(frozen=True)
class Packed:
    """One packed weight, (rows, columns) = (inputs, outputs), and its packed bias, if any."""

    rows: int
    columns: int
    blocks: tuple[Placed, ...]
    biases: tuple[Placed, ...]
    dtype: str = ""
    """In a program of several dtypes, that of the product."""


@dataclass(frozen=True)
class Product:
    """`result = source @ packed[weight] (+ bias) (+ addend)`."""

    source: Span
    result: Span
    weight: int
    addend: Span | None = None
    """As wide as the result."""


@dataclass(frozen=True)
class Map:
    """`result = op(*sources)` element by element; a source is a span of the same size, a parameter or a number."""

    op: str
    result: Span
    sources: tuple[Span | SharedRef | float | int, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """`result = source`, which is a cast where they are of two dtypes."""

    source: Span
    result: Span


@dataclass(frozen=True, eq=False)
class Call:
    """`result = op(...)` for every row, each source a span seen in its class's shape."""

    op: CellOp
    sources: tuple[tuple[Span, ValueClass], ...]
    result: Span


@dataclass(frozen=True)
class Store:
    """Output number `output` is what `span` holds in the end."""

    output: int
    span: Span


Step = Product | Map | Copy | Call


@dataclass(frozen=True, eq=False)
class Program:
    """See the module's docstring."""

    width: int
    loads: tuple[Load, ...]
    steps: tuple[Step, ...]
    stores: tuple[Store, ...]
    weights: tuple[Packed, ...]
    dtype: str
    cell: CellGraph | None = None
    """What it computes, where nothing has been added to it since it was lowered."""
    widths: tuple[tuple[str, int], ...] = ()
    """Definition (3): dtypes and widths of the workspaces; `dtype` is empty then, and `width` that of all together."""

    @property
    def num_copies(self) -> int:
        """Steps that only move memory, loads and stores apart."""
        return sum(isinstance(step, Copy) for step in self.steps)

    @property
    def num_kernels(self) -> int:
        """Steps."""
        return len(self.steps)

    @property
    def copied_elements(self) -> int:
        """Elements per node that copies move."""
        return sum(step.result.size for step in self.steps if isinstance(step, Copy))
