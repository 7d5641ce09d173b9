"""Instances as arrays: what the vertex front end runs on.

Definitions.

(1) The *vertices* of an instance are numbered 0 to n - 1, and each has a *vertex type*: its position in what the
    model's `vertices()` returns.
(2) The *predecessors* of vertex v, in order and with repeats, are `edges[edge_ptr[v]:edge_ptr[v + 1]]`. Each has a
    smaller number than v: the vertices are numbered in topological order.
(3) An *input* is an array with one row per vertex; vertices that do not pull it have any value there.

These are the adjacency lists and the external inputs of Cavs (Xu et al., "Cavs: An Efficient Runtime System for Dynamic
Neural Networks", USENIX ATC 2018, section 3.1), with several vertex functions instead of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edbc.errors import InputError

_SAME: dict[tuple[str, ...], tuple[str, ...]] = {}
"""One object for equal names: comparing those of a mini-batch's instances then takes no look into them."""


@dataclass(frozen=True, eq=False)
class VertexInstance:
    """One instance, definitions (1) to (3); checked when it is made, in O(n + m) without Python per vertex.

    Raises InputError that names the first vertex at fault. Integers are kept as int32 and integer inputs as int64; the
    arrays are copied only where that is needed, and must not change afterwards.
    """

    types: NDArray[np.int32]  # (n,)
    edge_ptr: NDArray[np.int32]  # (n + 1,)
    edges: NDArray[np.int32]  # (m,)
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # (n, ...) each
    packed: bytes = field(init=False, repr=False)
    """What joining concatenates, as int32: n, m, the number of `packed_inputs`, the three arrays one after the other,
    and those inputs. Bytes take half as long to put together as arrays do (by hand)."""
    packed_inputs: tuple[str, ...] = field(init=False, repr=False)
    """Names of the inputs that are one integer of 32 bits per vertex."""

    def __post_init__(self) -> None:
        for name in ("types", "edge_ptr", "edges"):
            object.__setattr__(self, name, _integers(name, getattr(self, name)))
        object.__setattr__(self, "inputs", {name: _input(name, a, len(self.types)) for name, a in self.inputs.items()})
        self._check_types()
        self._check_edges()
        integers = {name: array for name, array in self.inputs.items() if _fits(array)}
        names = tuple(integers)
        sizes = np.array([len(self.types), len(self.edges), len(names)], np.int32)
        arrays = [sizes, self.types, self.edge_ptr, self.edges, *(a.astype(np.int32) for a in integers.values())]
        object.__setattr__(self, "packed", np.concatenate(arrays).tobytes())
        object.__setattr__(self, "packed_inputs", _SAME.setdefault(names, names))

    @classmethod
    def build(
        cls, vertices: Sequence[tuple[int, Sequence[int]]], inputs: Mapping[str, ArrayLike] | None = None
    ) -> VertexInstance:
        """An instance from `(vertex type, predecessors)` pairs; for tests, readers and small examples.

        >>> VertexInstance.build([(0, []), (0, []), (1, [0, 1])], {"word": [7, 9, 0]}).edge_ptr.tolist()
        [0, 0, 0, 2]
        """
        edge_ptr = np.cumsum([0, *(len(predecessors) for _, predecessors in vertices)])
        edges = [u for _, predecessors in vertices for u in predecessors]
        arrays = {name: np.asarray(values) for name, values in (inputs or {}).items()}
        types = np.array([kind for kind, _ in vertices], np.int32)
        return cls(types, edge_ptr.astype(np.int32), np.array(edges, np.int32), arrays)

    @property
    def num_vertices(self) -> int:
        """Number of vertices n."""
        return len(self.types)

    def predecessors(self, vertex: int) -> list[int]:
        """The predecessors of a vertex, definition (2)."""
        return self.edges[self.edge_ptr[vertex] : self.edge_ptr[vertex + 1]].tolist()

    def _check_types(self) -> None:
        negative = np.flatnonzero(self.types < 0)
        if len(negative):
            raise InputError(
                f"vertex {negative[0]}: expected a vertex type 0, 1, ..., got {self.types[negative[0]]}; a type is its "
                "position in the model's vertices()"
            )

    def _check_edges(self) -> None:
        n, m = len(self.types), len(self.edges)
        if len(self.edge_ptr) != n + 1 or self.edge_ptr[0] != 0 or self.edge_ptr[-1] != m:
            raise InputError(
                f"edge_ptr: expected {n + 1} entries that run from 0 to {m}, got {len(self.edge_ptr)}; vertex v has "
                "the edges from edge_ptr[v] to edge_ptr[v + 1]"
            )
        num_predecessors = np.diff(self.edge_ptr)
        shrinking = np.flatnonzero(num_predecessors < 0)
        if len(shrinking):
            raise InputError(f"vertex {shrinking[0]}: edge_ptr decreases; the edges of two vertices overlap")
        vertex_of_edge = np.repeat(np.arange(n, dtype=np.int32), num_predecessors)
        bad = np.flatnonzero((self.edges < 0) | (self.edges >= vertex_of_edge))
        if len(bad):
            raise InputError(
                f"vertex {vertex_of_edge[bad[0]]}: expected predecessors before it, got vertex {self.edges[bad[0]]}; "
                "number the vertices in topological order"
            )


def _integers(name: str, array: ArrayLike) -> NDArray[np.int32]:
    result = np.asarray(array)
    if result.ndim != 1 or (result.dtype.kind not in "iu" and result.size):
        raise InputError(f"{name}: expected a one-dimensional array of integers, got {_described(result)}")
    if result.size and result.dtype.itemsize >= 4 and np.abs(result.astype(np.int64)).max() > np.iinfo(np.int32).max:
        raise InputError(f"{name}: expected integers below 2**31, got {np.abs(result.astype(np.int64)).max()}")
    return np.ascontiguousarray(result, np.int32)


def _input(name: str, array: ArrayLike, num_vertices: int) -> NDArray[Any]:
    result = np.asarray(array)
    if result.ndim == 0 or result.shape[0] != num_vertices or result.dtype.kind not in "iufb":
        raise InputError(
            f"input {name!r}: expected an array of numbers with one row per vertex ({num_vertices}), got "
            f"{_described(result)}"
        )
    return np.ascontiguousarray(result, np.int64 if result.dtype.kind in "iu" else None)


def _fits(array: NDArray[Any]) -> bool:
    """True for one integer of 32 bits per vertex."""
    if array.ndim != 1 or array.dtype != np.int64:
        return False
    return not array.size or bool(array.min() >= -(2**31) and array.max() < 2**31)


def _described(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
