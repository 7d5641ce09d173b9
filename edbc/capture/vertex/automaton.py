"""Fragments as records (`captured.joinloops`), and the automaton that finds the fragment of a vertex.

Definition. The automaton reads a vertex's type and then the interfaces of its predecessors in order. State 0 is dead:
nothing has been recorded for what was read. `root[t]` is the state after vertex type t; a state's fragment is -1 where
none has been recorded for exactly that many predecessors.

Tables never change once they are made: several threads may join mini-batches by them while another adds a fragment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.capture.captured.nesttext import Numbers
from edbc.capture.captured.vocabulary import KINDS
from edbc.capture.standins.standin import Slot
from edbc.capture.vertex.fragment import Fragment, Interface, Surroundings
from edbc.capture.vertex.pulls import Columns

Longs = NDArray[np.int64]
Places = NDArray[np.uint64]
"""What kernels index with."""


class Automaton(NamedTuple):
    """See the module's docstring."""

    root: Places  # (vertex types,)
    next_state: Places  # (states, interfaces)
    fragment_of_state: Longs  # (states,)
    interface_of_fragment: Longs  # (fragments,)


@dataclass(frozen=True, eq=False)
class FragmentTables:
    """All fragments recorded so far."""

    automaton: Automaton
    words: NDArray[np.int32]
    """Of all records, one after the other."""
    begin: Longs  # (fragments,)
    sources: tuple[Longs, Longs, Longs, Longs]
    """The fields of `captured.joinloops.Sources`."""
    outputs: tuple[tuple[str, Slot], ...]
    """Name and slot of each output."""
    columns: Columns
    constants: dict[int, list[torch.Tensor]]


def tabulate(automaton: Automaton, fragments: Sequence[Fragment], around: Surroundings) -> FragmentTables:
    """The tables of fragments. O(size of all fragments)."""
    records = [fragment.words for fragment in fragments]
    sources = around.recorder.table.sources
    unlimited = np.iinfo(np.int64).max
    return FragmentTables(
        automaton,
        np.array([word for record in records for word in record], np.int32),
        np.cumsum([0, *map(len, records)])[:-1],
        (_longs(KINDS.get(source.kind, -1) for source in sources),
         around.recorder.table.arrays().source_class,
         _longs(around.limits.get(number, unlimited) for number in range(len(sources))),
         _longs(around.items)),
        tuple(around.outputs.items()),
        around.columns.copy(),
        {source: list(tensors) for source, tensors in around.constants.items()},
    )  # fmt: skip


def _longs(values: Iterable[int]) -> Longs:
    return np.array(list(values), np.int64)


class AutomatonBuilder:
    """The automaton while fragments are added."""

    def __init__(self, num_types: int):
        self._num_types = num_types
        self._states: dict[tuple[int, int], int] = {}
        self._fragment_of_state = [-1] * (1 + num_types)
        self._interfaces = Numbers()
        self._interface_of_fragment: list[int] = []

    def add(self, kind: int, predecessors: Sequence[int], interface: Interface) -> None:
        """The next fragment, of a vertex type and the interface numbers of its predecessors."""
        state = 1 + kind
        for number in predecessors:
            state = self._states.setdefault((state, number), len(self._fragment_of_state))
            if state == len(self._fragment_of_state):
                self._fragment_of_state.append(-1)
        self._fragment_of_state[state] = len(self._interface_of_fragment)
        self._interface_of_fragment.append(self._interfaces[interface])

    def interfaces(self) -> list[Interface]:
        """All interfaces by number."""
        return list(self._interfaces)

    def build(self) -> Automaton:
        """The automaton as arrays."""
        next_state = np.zeros((len(self._fragment_of_state), max(len(self._interfaces), 1)), np.uint64)
        for (state, number), after in self._states.items():
            next_state[state, number] = after
        return Automaton(
            np.arange(1, 1 + self._num_types, dtype=np.uint64),
            next_state,
            _longs(self._fragment_of_state),
            _longs(self._interface_of_fragment),
        )
