"""The adjoint of a type: what its forward pass saves, and what its backward pass computes, both as values.

Definitions.

(1) Gradients are values (`edbc.cells.values.adjoint`), lowered and rendered as those of the forward pass. The backward
    pass of a node reads its operands, its outputs, what was saved and kept, and the gradients of its outputs; it adds
    to the gradients of its operands and of *vectors*, parameters that are read element by element, and writes its
    deltas.
(2) The *delta* of a product is the gradient of its result. All deltas of a node stand side by side; they are written
    late, over what the forward pass saved.
(3) What a product reads and neither operand nor output holds is *kept*: its weight's gradient needs it after the deltas
    have overwritten what was saved.
(4) After all batches, the gradient of a weight is one product over all nodes: deltas transposed with what the product
    read, gathered again. `inputs` says where that stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.kernels.steps import FIRST_OPERAND, Place, steps_of
from edbc.cells.kernels.steptables import Rendered
from edbc.cells.program import Program
from edbc.cells.values.adjoint import Gradients, Pieces, added, gradients_of, in_terms_of
from edbc.cells.values.value import LEAVES, V, Values, in_order, pieces_of


@dataclass(frozen=True)
class WeightProduct:
    """Definition (4) for one product: deltas `delta` to `delta + columns`, inputs `column` to `column + rows`."""

    weight: int
    delta: int
    columns: int
    column: int
    rows: int


@dataclass(frozen=True)
class Input:
    """Definition (4): `size` elements at a place go to column `column` of the gathered inputs."""

    place: Place
    size: int
    column: int


@dataclass(frozen=True)
class Vector:
    """`size` elements of a parameter from `offset` on."""

    ref: SharedRef
    offset: int
    size: int


@dataclass(frozen=True)
class Slots:
    """Numbers of a backward pass' operands and outputs, for a type of so many; `slot` gives those of the tables."""

    operands: int
    outputs: int

    @property
    def saved(self) -> int:
        """Operands come first, then outputs, then what is saved."""
        return self.operands + self.outputs

    @property
    def kept(self) -> int:
        """What is kept."""
        return self.saved + 1

    @property
    def gradients(self) -> int:
        """The first output's gradient."""
        return self.saved + 2

    @property
    def count(self) -> int:
        """How many operands the backward pass has; its outputs are gradients of operands, deltas and vectors."""
        return self.gradients + self.outputs

    @property
    def delta(self) -> int:
        """The slot of deltas."""
        return FIRST_OPERAND + self.count + self.operands


@dataclass(frozen=True, eq=False)
class Adjoint:
    """See the module's docstring. Sizes are in elements."""

    program: Program
    forward: tuple[V, ...]
    """Outputs, then what is saved and what is kept, where there is any."""
    backward: tuple[V, ...]
    """Gradients of operands, deltas side by side, gradients of vectors side by side."""
    slots: Slots
    saved: int
    kept: int
    weights: tuple[WeightProduct, ...]
    inputs: tuple[Input, ...]
    input_width: int
    vectors: tuple[Vector, ...]

    @cached_property
    def rendered(self) -> Rendered:
        """Steps of the backward pass, in which weights are transposed."""
        k, weights = self.slots.operands, self.program.weights
        steps = steps_of(self.backward, self.slots.count, adds=(*range(k), k + 1), late=(k,))
        sizes = tuple((packed.columns, packed.rows) for packed in weights)
        return Rendered(steps, torch_dtype(self.program.dtype).itemsize, sizes)


def adjoint_of(program: Program, outputs: Sequence[V]) -> Adjoint:
    """The adjoint of a type that computes these values. O(values)."""
    return _Building(program, tuple(outputs)).adjoint()


@dataclass
class _Row:
    """Values side by side."""

    offset_of: dict[V, int] = field(default_factory=dict)
    width: int = 0

    def of(self, v: V) -> int:
        """The offset of a value, put behind the others when it is new."""
        if v not in self.offset_of:
            self.offset_of[v] = self.width
            self.width += v.size
        return self.offset_of[v]


class _Building:
    def __init__(self, program: Program, outputs: tuple[V, ...]):
        self.program, self.outputs = program, outputs
        self.values = Values()
        self.slots = Slots(len(program.loads), len(outputs))
        self.forward = {v for v in in_order(outputs) if v.op not in LEAVES}
        self.saved, self.kept = _Row(), _Row()
        self.standing: dict[V, V] = {}
        for j, output in enumerate(outputs):
            at = 0
            for piece in pieces_of(output):
                if piece.op not in LEAVES:
                    self.standing.setdefault(piece, self.values.load(self.slots.operands + j, at, piece.size))
                at += piece.size

    def adjoint(self) -> Adjoint:
        values, slots = self.values, self.slots
        given = [values.load(slots.gradients + j, 0, v.size) for j, v in enumerate(self.outputs)]
        found = gradients_of(values, self.outputs, given)
        sizes = {load.operand: load.span.size for load in self.program.loads}
        operands = [added(values, found.operands.get(k, []), sizes[k]) for k in range(slots.operands)]
        deltas, offset_of_delta = values.cat(found.deltas.values()), _offsets(found.deltas)
        vectors, of_vectors = self._vectors(found)
        backward = in_terms_of(values, [*operands, deltas, of_vectors], self.forward.__contains__, self.standing,
                               self._save)  # fmt: skip
        columns, inputs, input_width = self._inputs(list(found.deltas))
        weights = tuple(WeightProduct(v.arg[0], offset_of_delta[v], v.size, columns[v], v.sources[0].size)
                        for v in found.deltas)  # fmt: skip
        saved = max(self.saved.width, deltas.size)
        rows = [(self.saved, saved), (self.kept, self.kept.width)]
        hidden = [values.cat(row.offset_of) for row, width in rows if width]
        return Adjoint(self.program, (*self.outputs, *hidden), backward, slots, saved, self.kept.width, weights,
                       tuple(inputs), input_width, vectors)  # fmt: skip

    def _save(self, v: V) -> V:
        return self.values.load(self.slots.saved, self.saved.of(v), v.size)

    def _vectors(self, found: Gradients) -> tuple[tuple[Vector, ...], V]:
        """From the first to the last element of each parameter that has a gradient."""
        vectors, rows = [], []
        for ref, pieces in found.parameters.items():
            first = min(at for at, _ in pieces)
            size = max(at + d.size for at, d in pieces) - first
            shifted: Pieces = [(at - first, d) for at, d in pieces]
            vectors.append(Vector(ref, first, size))
            rows.append(added(self.values, shifted, size))
        return tuple(vectors), self.values.cat(rows)

    def _inputs(self, products: Sequence[V]) -> tuple[dict[V, int], list[Input], int]:
        """Columns of the gathered inputs: products that read the same share them, as do those that read a part."""
        columns: dict[V, int] = {}
        inputs: list[Input] = []
        laid: list[tuple[tuple[V, ...], int]] = []
        width = 0
        for v in sorted(products, key=lambda v: -len(pieces_of(v.sources[0]))):
            sources = pieces_of(v.sources[0])
            inside = (
                start + sum(piece.size for piece in row[:i])
                for row, start in laid
                for i in range(len(row) - len(sources) + 1)
                if row[i : i + len(sources)] == sources
            )
            shared = next(inside, None)
            if shared is None:
                shared = width
                laid.append((sources, width))
                for piece in sources:
                    inputs.append(Input(self._place(piece), piece.size, width))
                    width += piece.size
            columns[v] = shared
        return columns, inputs, width

    def _place(self, v: V) -> Place:
        """Definition (3)."""
        stands = v if v.op == "load" else self.standing.get(v)
        if stands is not None:
            return FIRST_OPERAND + stands.arg[0], stands.arg[1]
        return FIRST_OPERAND + self.slots.kept, self.kept.of(v)


def _offsets(values: dict[V, Any]) -> dict[V, int]:
    row = _Row()
    return {v: row.of(v) for v in values}
