"""What native code runs for a batch of one type, as values: phases over slots of memory.

Definitions.

(1) A *slot* names memory that a batch works in; an address is a slot's base, which moves from row to row, plus an
    offset in bytes. Slot 0 is the workspace, slot 1 the scratch row, slot 2 memory shared by all rows (its base is 0
    and offsets are addresses); then one slot per operand, then one per output.
(2) The *workspace* has a row per node of a batch, with the spans that products write and what lives from one pass to a
    later one. The *scratch row* is one for all nodes: what maps compute and use within one pass stays in
    cache.
(3) A *phase* runs for a whole batch: a product, which reads its operands where they are, or a *pass*, which runs a list
    of element-wise instructions row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from edbc.trace.table import SharedRef

WORKSPACE, SCRATCH, SHARED, FIRST_OPERAND = 0, 1, 2, 3
PRODUCT, PASS = 0, 1
PHASE_FIELDS = 12
INSTRUCTION_FIELDS = 11


Place = tuple[int, int]
"""Slot and offset in elements."""


@dataclass(frozen=True)
class Constant:
    """A vector in shared memory: `size` elements of a parameter from `offset` on, or a number `size` times."""

    value: SharedRef | float | int
    offset: int
    size: int


@dataclass(frozen=True)
class Piece:
    """`size` elements of a slot's rows from `offset` on."""

    slot: int
    offset: int
    size: int


@dataclass(frozen=True)
class Multiply:
    """`target = pieces @ weight (+ bias) (+ addend)`, where the pieces make one row, one after the other."""

    pieces: tuple[Piece, ...]
    target: Place
    weight: int
    addend: Place | None = None


@dataclass(frozen=True)
class Instruction:
    """`target = op(*sources)` on `size` elements of a row; `op` is a name of `walk.CODES`. Of a `matmul`, which
    writes, and a `matmul_add`, which adds to its target, `size` is the number of columns and `shape` (rows, inner size,
    columns of the matrix that the left one is cut from). Of a name in `dimensions.ALONG`, `shape` is (outer, n, inner),
    and one source is enough but for a normalisation, whose second is its epsilon."""

    op: str
    size: int
    target: Place
    sources: tuple[Place | Constant, ...]
    shape: tuple[int, int, int] = (0, 0, 0)


Phase = Multiply | tuple[Instruction, ...]


@dataclass(frozen=True)
class Encoded:
    """Phases with sizes and offsets in elements; `width` and `scratch` are the row lengths of definition (2)."""

    width: int
    scratch: int
    phases: tuple[Phase, ...]
    num_operands: int
    num_outputs: int

    def parameters(self) -> list[SharedRef]:
        """Parameters that instructions read whole."""
        passes = [phase for phase in self.phases if isinstance(phase, tuple)]
        sources = [source for phase in passes for instruction in phase for source in instruction.sources]
        return [s.value for s in sources if isinstance(s, Constant) and isinstance(s.value, SharedRef)]


class ProductField(IntEnum):
    """Fields of a product's phase, in bytes where they are offsets."""

    KERNEL = 1
    """The address of what multiplies."""
    TARGET = 2
    """A slot; its offset is the next field."""
    ROWS = 4
    COLUMNS = 5
    WEIGHT = 6
    BIAS = 7
    """Addresses; 0 for no bias."""
    ADDEND = 8
    """A slot, -1 for none; its offset is the next field."""
    BEGIN = 10
    END = 11
    """Rows of the table of instructions that hold its pieces."""
