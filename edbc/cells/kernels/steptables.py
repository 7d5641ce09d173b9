"""Steps as arrays that walks read: sizes in bytes, kernels by address, and addresses of weights filled in late.

One table holds the steps of several types, one after the other. All but addresses of weights and parameters depends on
types alone; these stand at places that the table knows, and are filled in for one set of weights at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edbc.cells.kernels.loops import constants_of, text_of
from edbc.cells.kernels.microkernel import address_of_product, lanes_of
from edbc.cells.kernels.steps import PIECE_FIELDS, STEP_FIELDS, Multiply, Pass, Place, StepField, Steps
from edbc.cells.values.value import V
from edbc.native.machinecode import addresses_of
from edbc.native.pool import ALIGNMENT, aligned

Longs = NDArray[np.int64]
_WEIGHT, _BIAS = int(StepField.WEIGHT), int(StepField.BIAS)


@dataclass(frozen=True, eq=False)
class Rendered:
    """Steps for elements of `width` bytes, with the text of their passes, which is made once; `sizes` are the rows and
    columns of their weights."""

    steps: Steps
    width: int
    sizes: tuple[tuple[int, int], ...]
    lanes: int = 0
    """Elements of a vector; 0: as many as this processor's have."""

    @cached_property
    def texts(self) -> dict[Pass, tuple[str, str]]:
        """Name and LLVM's text of every pass."""
        lanes = self.lanes or lanes_of(self.width)
        return {step: text_of(step, self.width, lanes) for step in self.steps.passes()}

    @property
    def constants(self) -> list[V]:
        """Parameters that passes read."""
        return [v for step in self.steps.passes() for v in constants_of(step)]

    @cached_property
    def stride(self) -> int:
        """Bytes of a workspace row: whole cache lines, and no multiple of a power of two that makes rows collide."""
        size = aligned(self.steps.width * self.width)
        return size + ALIGNMENT if size and size % 1024 == 0 else size

    @cached_property
    def scratch(self) -> int:
        """Bytes of the scratch row."""
        return aligned(self.steps.scratch * self.width)


@dataclass(frozen=True, eq=False)
class StepTable:
    """See the module's docstring; those of type k are steps `ptr[k]` to `ptr[k + 1]`."""

    ptr: Longs
    steps: Longs
    pieces: Longs
    weights: tuple[tuple[int, int], ...]
    """Type and number of each weight."""
    of_steps: Longs
    """A step, and which of the weights it takes, (., 2)."""
    parameters: tuple[tuple[int, V], ...]
    """Type and value of each parameter."""
    of_pieces: Longs
    """A piece, and which of the parameters it is, (., 2)."""

    def filled(self, weight: Callable[[int, int], tuple[int, int]],
               parameter: Callable[[int, V], int]) -> tuple[Longs, Longs]:  # fmt: skip
        """Steps and pieces with addresses, by type: of a weight and its bias (0: none), and of a parameter."""
        steps, pieces = self.steps.copy(), self.pieces.copy()
        found = np.array([weight(*of) for of in self.weights], np.int64).reshape(-1, 2)
        steps[self.of_steps[:, 0], _WEIGHT : _BIAS + 1] = found[self.of_steps[:, 1]]
        pieces[self.of_pieces[:, 0], 0] = np.array([parameter(*of) for of in self.parameters], np.int64)[
            self.of_pieces[:, 1]
        ]
        return steps, pieces


def table_of(rendered: Mapping[int, Rendered], num_types: int,
             leaders: Mapping[int, int] | None = None) -> StepTable:  # fmt: skip
    """The table of types given by number; what is not compiled yet is compiled as one module. `leaders` are the first
    of types whose weights are the same, which are asked for once."""
    return _Writer(rendered, leaders or {}).table(num_types)


class _Writer:
    def __init__(self, rendered: Mapping[int, Rendered], leaders: Mapping[int, int]):
        self.rendered, self.leaders = rendered, leaders
        self.addresses = addresses_of(dict(named for one in rendered.values() for named in one.texts.values()))
        self.steps: list[list[int]] = []
        self.pieces: list[list[int]] = []
        self.weights: dict[tuple[int, int], tuple[int, int, int]] = {}
        """By leader and number the place among them, type and number."""
        self.parameters: dict[tuple[int, Any], tuple[int, int, V]] = {}
        self.of_steps: list[tuple[int, int]] = []
        self.of_pieces: list[tuple[int, int]] = []

    def table(self, num_types: int) -> StepTable:
        ptr = np.zeros(num_types + 1, np.int64)
        for kind in range(num_types):
            one = self.rendered.get(kind)
            for step in () if one is None else one.steps.steps:
                assert one is not None
                begin = len(self.pieces)
                row = self._multiply(kind, one, step) if isinstance(step, Multiply) else self._pass(kind, one, step)
                self.steps.append([*row, begin, len(self.pieces)])
            ptr[kind + 1] = len(self.steps)
        weights = tuple((kind, number) for _, kind, number in self.weights.values())
        parameters = tuple((kind, value) for _, kind, value in self.parameters.values())
        steps, pieces = (np.array(of, np.int64).reshape(-1, 2) for of in (self.of_steps, self.of_pieces))
        return StepTable(ptr, matrix(self.steps, STEP_FIELDS), matrix(self.pieces, PIECE_FIELDS), weights, steps,
                         parameters, pieces)  # fmt: skip

    def _multiply(self, kind: int, one: Rendered, step: Multiply) -> list[int]:
        def in_bytes(place: Place) -> Place:
            return place[0], place[1] * one.width

        asked = kind, step.weight
        known = self.weights.setdefault((self.leaders.get(kind, kind), step.weight), (len(self.weights), *asked))
        self.of_steps.append((len(self.steps), known[0]))
        self.pieces += [[*in_bytes((piece.slot, piece.offset)), piece.size] for piece in step.pieces]
        addend = (-1, 0) if step.addend is None else in_bytes(step.addend)
        return [address_of_product(one.width), *in_bytes(step.target), *one.sizes[step.weight], 0, 0, *addend]

    def _pass(self, kind: int, one: Rendered, step: Pass) -> list[int]:
        for parameter in constants_of(step):
            key = self.leaders.get(kind, kind), parameter.arg
            known = self.parameters.setdefault(key, (len(self.parameters), kind, parameter))
            self.of_pieces.append((len(self.pieces), known[0]))
            self.pieces.append([])
        return [self.addresses[one.texts[step][0]], *[0] * (StepField.BEGIN - 1)]


def matrix(rows: Iterable[list[int]], fields: int) -> Longs:
    """Rows padded with zeros to one length."""
    return np.array([row + [0] * (fields - len(row)) for row in rows], np.int64).reshape(-1, fields)
