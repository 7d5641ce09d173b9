"""Instances as arrays: what is accepted, and how what is not is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from edbc.errors import InputError
from edbc.vertex import VertexInstance


def test_arrays_are_packed_in_order() -> None:
    """`packed` is n, m, how many inputs it holds, types, edge_ptr, edges, and the inputs of one integer per vertex."""
    inputs = {"far": [1, 2**31], "row": [[1], [2]], "id": [7, -8], "real": [0.5, 1.0], "next": [3, 2**31 - 1]}
    instance = VertexInstance([2, 0], [0, 0, 2], [0, 0], inputs)

    assert np.frombuffer(instance.packed, np.int32).tolist() == [2, 2, 2, 2, 0, 0, 0, 2, 0, 0, 7, -8, 3, 2**31 - 1]
    assert instance.packed_inputs == ("id", "next")
    assert instance.predecessors(1) == [0, 0]
    assert instance.num_vertices == 2


def test_any_integer_arrays_are_taken() -> None:
    """Lists and arrays of other integer types give the same instance."""
    arrays = [np.array([1, 1], np.uint8), np.array([0, 0, 1], np.int64), np.array([0], np.int16)]

    assert VertexInstance(*arrays).packed == VertexInstance([1, 1], [0, 0, 1], [0]).packed
    assert VertexInstance([0], [0, 0], [], {"x": np.array([7], np.uint8)}).inputs["x"].dtype == np.int64


@pytest.mark.parametrize(
    ("types", "edge_ptr", "edges", "message"),
    [
        ([0, 0], [0, 0, 1], [1], "vertex 1: expected predecessors before it, got vertex 1"),
        ([0, 0, 0], [0, 0, 1, 2], [0, 2], "vertex 2: expected predecessors before it, got vertex 2"),
        ([0, 0], [0, 0, 1], [-1], "vertex 1: expected predecessors before it, got vertex -1"),
        ([0, 0], [0, 1, 1], [0], "vertex 0: expected predecessors before it, got vertex 0"),
        ([0, 0], [0, 1], [0], "edge_ptr: expected 3 entries that run from 0 to 1, got 2"),
        ([0, 0], [0, 0, 2], [0], "edge_ptr: expected 3 entries that run from 0 to 1, got 3"),
        ([0, 0], [1, 1, 1], [0], "edge_ptr: expected 3 entries that run from 0 to 1, got 3"),
        ([0, 0, 0], [0, 1, 0, 1], [0], "vertex 1: edge_ptr decreases"),
        ([0, -3], [0, 0, 0], [], "vertex 1: expected a vertex type 0, 1, ..., got -3"),
        ([0.5], [0, 0], [], "types: expected a one-dimensional array of integers, got float64 of shape (1,)"),
        ([[0]], [0, 0], [], "types: expected a one-dimensional array of integers, got int64 of shape (1, 1)"),
        ([2**31], [0, 0], [], "types: expected integers below 2**31, got 2147483648"),
    ],
)
def test_broken_structure_is_refused(types: list, edge_ptr: list, edges: list, message: str) -> None:
    """Every fault raises InputError that names the array or the first vertex at fault."""
    with pytest.raises(InputError) as raised:
        VertexInstance(types, edge_ptr, edges)

    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("array", [np.zeros(2), np.zeros((3, 2)), np.array(1), np.array(["a"])])
def test_inputs_have_a_row_per_vertex(array: np.ndarray) -> None:
    """An input of another length, without rows, or not of numbers raises InputError that names it."""
    with pytest.raises(
        InputError, match=r"input 'x': expected an array of numbers with one row per vertex \(1\), got "
    ):
        VertexInstance([0], [0, 0], [], {"x": array})


def test_importing_needs_neither_torch_nor_numba() -> None:
    """A reader of data can make instances without loading torch."""
    code = "import edbc.vertex\nedbc.vertex.VertexInstance([0], [0, 0], [])\nimport sys\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert not {"torch", "numba"} & set(loaded)
