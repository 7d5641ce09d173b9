"""Fragments as flat arrays, and the automaton that finds the fragment of a vertex.

Definition. The automaton reads a vertex's type and then the interfaces of its predecessors in order. State 0 is dead:
nothing has been recorded for what was read. `root[t]` is the state after vertex type t; a state's fragment is -1 where
none has been recorded for exactly that many predecessors.

Tables never change once they are made: several threads may join mini-batches by them while another adds a fragment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.graph import ValueClass
from edbc.trace.values import Slot
from edbc.vertex.fragment import SHARED, Fragment, Interface
from edbc.vertex.inputs import Columns

Longs = NDArray[np.int64]


class References(NamedTuple):
    """References (`vertex.fragment`) of several items as CSR arrays."""

    ptr: Longs
    kind: Longs
    item: Longs
    output: Longs


class Externals(NamedTuple):
    """Externals of all fragments as CSR arrays; `item` of a shared one is its number among shared externals."""

    ptr: Longs
    kind: Longs
    source: Longs
    item: Longs
    value_class: Longs
    limit: Longs


class Pushes(NamedTuple):
    """Pushed values of all fragments as CSR arrays; `name` is a number among outputs."""

    ptr: Longs
    name: Longs
    kind: Longs
    item: Longs
    output: Longs


class Automaton(NamedTuple):
    """See the module's docstring."""

    root: Longs  # (vertex types,)
    next_state: Longs  # (states, interfaces)
    fragment_of_state: Longs  # (states,)
    interface_of_fragment: Longs  # (fragments,)


class FragmentArrays(NamedTuple):
    """All fragments one after the other. f fragments."""

    node_ptr: Longs  # (f + 1,) into node_type and the nodes of `operands`
    node_type: Longs
    operands: References
    externals: Externals
    scattered: References
    pushes: Pushes


@dataclass(frozen=True, eq=False)
class FragmentTables:
    """All fragments recorded so far. f fragments, p outputs."""

    automaton: Automaton
    arrays: FragmentArrays
    sizes: Longs  # (f, 4) nodes, operands, externals and scattered values of each
    push_counts: Longs  # (f, p)
    outputs: tuple[tuple[str, Slot], ...]
    """Name and slot of each output."""
    classes: tuple[ValueClass, ...]
    """Classes of externals."""
    shared: tuple[tuple[int, int], ...]
    """Source and index of each shared external."""
    columns: Columns
    constants: dict[int, list[torch.Tensor]]


def tabulate(
    automaton: Automaton,
    fragments: Sequence[Fragment],
    outputs: Mapping[str, Slot],
    columns: Columns,
    constants: Mapping[int, list[torch.Tensor]],
) -> FragmentTables:
    """The tables of fragments. O(size of all fragments)."""
    classes, shared, names = _Numbers(), _Numbers(), _Numbers()
    externals = [
        (e.kind, e.source, shared[e.source, e.item] if e.kind == SHARED else e.item, classes[e.value_class], e.limit)
        for fragment in fragments
        for e in fragment.externals
    ]
    pushes = [(names[name], *r) for fragment in fragments for name, _, r in fragment.pushed]
    push_counts = np.zeros((len(fragments), len(outputs)), np.int64)
    for counts, fragment in zip(push_counts, fragments, strict=True):
        np.add.at(counts, [names[name] for name, _, _ in fragment.pushed], 1)
    nodes = [node for fragment in fragments for node in fragment.operands]
    scattered = [r for f in fragments for r in f.scattered]
    arrays = FragmentArrays(
        _offsets(len(f.node_types) for f in fragments),
        np.array([kind for f in fragments for kind in f.node_types], np.int64),
        References(_offsets(map(len, nodes)), *_columns([r for node in nodes for r in node], 3)),
        Externals(_offsets(len(f.externals) for f in fragments), *_columns(externals, 5)),
        References(_offsets(len(f.scattered) for f in fragments), *_columns(scattered, 3)),
        Pushes(_offsets(len(f.pushed) for f in fragments), *_columns(pushes, 4)),
    )  # fmt: skip
    sizes = [(len(f.node_types), f.num_operands, len(f.externals), len(f.scattered)) for f in fragments]
    return FragmentTables(
        automaton, arrays, np.array(sizes, np.int64).reshape(-1, 4), push_counts,
        tuple((name, outputs[name]) for name in names), tuple(classes), tuple(shared), columns.copy(),
        {source: list(tensors) for source, tensors in constants.items()},
    )  # fmt: skip


def _offsets(counts: Iterable[int]) -> Longs:
    return np.cumsum([0, *counts], dtype=np.int64)


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> list[Longs]:
    return list(np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, width).T))


class _Numbers(dict):
    """Numbers for keys in the order in which they are first asked for."""

    def __missing__(self, key: object) -> int:
        return self.setdefault(key, len(self))


class AutomatonBuilder:
    """The automaton while fragments are added."""

    def __init__(self, num_types: int):
        self._num_types = num_types
        self._states: dict[tuple[int, int], int] = {}
        self._fragment_of_state = [-1] * (1 + num_types)
        self._interfaces = _Numbers()
        self._interface_of_fragment: list[int] = []

    def add(self, kind: int, predecessors: Sequence[int], interface: Interface) -> int:
        """Number of the new fragment for a vertex type and the interface numbers of its predecessors."""
        state = 1 + kind
        for number in predecessors:
            state = self._states.setdefault((state, number), len(self._fragment_of_state))
            if state == len(self._fragment_of_state):
                self._fragment_of_state.append(-1)
        self._fragment_of_state[state] = len(self._interface_of_fragment)
        self._interface_of_fragment.append(self._interfaces[interface])
        return self._fragment_of_state[state]

    def interface(self, number: int) -> Interface:
        """The interface with a number."""
        return list(self._interfaces)[number]

    def build(self) -> Automaton:
        """The automaton as arrays."""
        next_state = np.zeros((len(self._fragment_of_state), max(len(self._interfaces), 1)), np.int64)
        for (state, number), after in self._states.items():
            next_state[state, number] = after
        return Automaton(
            np.arange(1, 1 + self._num_types, dtype=np.int64),
            next_state,
            np.array(self._fragment_of_state, np.int64),
            np.array(self._interface_of_fragment, np.int64),
        )
