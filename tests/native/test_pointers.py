"""Records say where arrays are, and their sizes."""

from __future__ import annotations

import numpy as np
import pytest

from edbc.native.pointers import WORDS, record_of


def test_a_record_tells_addresses_and_sizes() -> None:
    """Of vectors and matrices, empty ones, views and read-only ones."""
    matrix = np.arange(12.0).reshape(4, 3)
    arrays = [
        np.zeros(3, np.int32),
        matrix,
        np.zeros(0, np.int64),
        matrix[1:],
        np.zeros((0, 5)),
        np.frombuffer(b"ab", "u1"),
    ]
    told = record_of(arrays).reshape(-1, WORDS).tolist()
    assert told == [[a.ctypes.data, a.shape[0], a.shape[1] if a.ndim == 2 else 0] for a in arrays]


@pytest.mark.parametrize("array", [np.zeros((4, 4))[:, :2], np.zeros(6)[::2], np.zeros((2, 2, 2)), np.array(1.0)])
def test_what_is_not_in_order_is_refused(array: np.ndarray) -> None:
    """Native code would read other elements."""
    with pytest.raises(ValueError, match="in order"):
        record_of([np.zeros(2), array])
