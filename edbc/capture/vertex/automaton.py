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

from edbc.capture.standins.standin import Slot
from edbc.capture.vertex.fragment import EXTERNAL, GATHERED, OWN, SHARED, Fragment, Interface, Reference
from edbc.capture.vertex.pulls import Columns

Longs = NDArray[np.int64]
Places = NDArray[np.uint64]
"""What kernels index with."""


class Nodes(NamedTuple):
    """Nodes of all fragments."""

    ptr: Places  # (f + 1,)
    node_type: Longs
    operand_end: Longs
    """Operands of the fragment up to and with those of the node."""


class References(NamedTuple):
    """References (`vertex.fragment`) of all fragments, in the form in which a value is computed from them.

    OWN: `code` + first node x 2**32. EXTERNAL: `code` - first external x 2**32. GATHERED: value `code` of what
    predecessor `item` gave. SHARED: shared external `item`.
    """

    ptr: Places  # (f + 1,)
    kind: Longs
    item: Places
    code: Longs


class Externals(NamedTuple):
    """Externals of all fragments, one per vertex: item `item` of their source, or what a column >= 0 says; see
    `fragment.External`."""

    ptr: Places  # (f + 1,)
    column: Longs
    source: Longs
    item: Longs
    value_class: Longs
    limit: Longs


class Shared(NamedTuple):
    """Externals of which a mini-batch has one each. The last three arrays go by `number`."""

    ptr: Places  # (f + 1,)
    number: Places
    source: Longs
    item: Longs
    value_class: Longs


class Pushes(NamedTuple):
    """Outputs to which fragments push; the values are the last ones of what a fragment gives, from `first` on."""

    ptr: Places  # (f + 1,)
    output: Places
    first: Places  # (f,)


SIZES = 4


class Automaton(NamedTuple):
    """See the module's docstring."""

    root: Places  # (vertex types,)
    next_state: Places  # (states, interfaces)
    fragment_of_state: Longs  # (states,)
    interface_of_fragment: Longs  # (fragments,)


class Contents(NamedTuple):
    """What fragments consist of."""

    nodes: Nodes
    operands: References
    given: References
    """What a fragment scatters, then what it pushes."""
    externals: Externals
    shared: Shared
    pushes: Pushes


@dataclass(frozen=True, eq=False)
class FragmentTables:
    """All fragments recorded so far. f fragments, p outputs."""

    automaton: Automaton
    contents: Longs
    """`Contents` as one array, see `packed`."""
    sizes: Longs
    """(f, SIZES + p + columns): nodes, operands, given values and externals of each, shared ones not counted, then how
    often it pushes to each output and pulls each column."""
    outputs: tuple[tuple[str, Slot], ...]
    """Name and slot of each output."""
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
    shared = Numbers()
    operands = [[r for node in f.operands for r in node] for f in fragments]
    given = [[*f.scattered, *(r for _, _, r in f.pushed)] for f in fragments]
    number_of_output = {name: number for number, name in enumerate(outputs)}
    pushed = [[number_of_output[name] for name, _, _ in f.pushed] for f in fragments]
    pulled = [[e.column for e in f.externals if e.column >= 0] for f in fragments]
    sizes = [(len(f.node_types), f.num_operands, len(f.scattered) + len(f.pushed), len(f.externals)) for f in fragments]
    contents = Contents(
        Nodes(
            _offsets(f.node_types for f in fragments),
            _longs(kind for f in fragments for kind in f.node_types),
            _longs(end for f in fragments for end in np.cumsum([len(node) for node in f.operands]).tolist()),
        ),
        _references(fragments, operands, shared),
        _references(fragments, given, shared),
        Externals(_offsets(f.externals for f in fragments), *_columns([e for f in fragments for e in f.externals], 5)),
        Shared(
            _offsets(f.shared for f in fragments),
            _places(shared[s] for f in fragments for s in f.shared),
            *_columns(list(shared), 3),
        ),
        Pushes(_offsets(pushed), _places(n for r in pushed for n in r), _places(len(f.scattered) for f in fragments)),
    )  # fmt: skip
    counts = [
        np.array(sizes, np.int64).reshape(-1, SIZES),
        _counts(pushed, len(outputs)),
        _counts(pulled, len(columns.names)),
    ]
    return FragmentTables(
        automaton,
        packed(contents),
        np.ascontiguousarray(np.concatenate(counts, axis=1)),
        tuple(outputs.items()),
        columns.copy(),
        {source: list(tensors) for source, tensors in constants.items()},
    )


def packed(contents: Contents) -> Longs:
    """All arrays one after the other, behind where each begins and where the last one ends: native code takes one array
    in a tenth of the time of so many. `kernels._unpacked` is its inverse."""
    arrays = [array for part in contents for array in part]
    first = len(arrays) + 1
    begin = np.cumsum([first, *map(len, arrays)])
    return np.concatenate([begin, *(array.view(np.int64) for array in arrays)])


def _references(fragments: Sequence[Fragment], rows: Sequence[Sequence[Reference]], shared: Numbers) -> References:
    coded = [_coded(r, f, shared) for f, row in zip(fragments, rows, strict=True) for r in row]
    kind, item, code = _columns(coded, 3)
    return References(_offsets(rows), kind, item.astype(np.uint64), code)


def _coded(reference: Reference, fragment: Fragment, shared: Numbers) -> tuple[int, int, int]:
    """Kind, item and code of a reference; see `References`."""
    kind, item, output = reference
    if kind == OWN:
        return kind, 0, (item << 32) + output
    if kind == EXTERNAL:
        return kind, 0, (-1 - item) << 32
    if kind == GATHERED:
        return kind, item, output
    assert kind == SHARED
    return kind, shared[fragment.shared[item]], 0


def _offsets(rows: Iterable[Sequence[object]]) -> Places:
    return np.cumsum([0, *map(len, rows)], dtype=np.uint64)


def _places(values: Iterable[int]) -> Places:
    return np.array(list(values), np.uint64)


def _counts(rows: Sequence[Sequence[int]], width: int) -> Longs:
    """How often each number below `width` stands in each row."""
    counts = [np.bincount(np.array(row, np.int64), minlength=width) for row in rows]
    return np.array(counts, np.int64).reshape(len(rows), width)


def _longs(values: Iterable[int]) -> Longs:
    return np.array(list(values), np.int64)


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> list[Longs]:
    return list(np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, width).T))


class Numbers(dict):
    """Numbers for keys in the order in which they are first asked for."""

    def __missing__(self, key: object) -> int:
        return self.setdefault(key, len(self))


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
