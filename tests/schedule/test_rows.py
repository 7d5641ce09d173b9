"""Operations on rows of one number per type, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edbc.native.kernelcache import U, njit
from edbc.schedule import rows
from edbc.schedule.rows import LANES, add_row, copy_row, differing_lanes, lower_row, put_row, raise_row, tally_row

Rows = np.ndarray[Any, np.dtype[np.int32]]


@njit
def padded(num_types: int) -> int:
    return rows.padded(num_types)


@njit
def combine_all(target: Rows, other: Rows) -> None:
    """Every operation on a row of its own of `target`, with rows 5 and 6 of `other`."""
    copy_row(target, U(0), other, U(5))
    raise_row(target, U(1), other, U(5))
    lower_row(target, U(2), other, U(5))
    add_row(target, U(3), other, U(5))
    put_row(target, U(4), other, U(5), U(1234567))
    tally_row(target, U(5), other, U(5), other, U(6), U(65537))


@njit
def differing(target: Rows, other: Rows, at: int) -> int:
    return differing_lanes(target, U(at), other, U(at))


def made_up(num_types: int, seed: int) -> Rows:
    """Eight rows, half of the numbers equal to one another, some negative, some as large as they come."""
    rng = np.random.default_rng(seed)
    width = padded(num_types)
    return rng.choice([-1, -1, 0, 3, 7, 2**31 - 1, *rng.integers(-9, 9, 6)], (8, width)).astype(np.int32)


@pytest.mark.parametrize("num_types", [1, 3, 4, 5, 8, 9, 13, 30])
def test_rows_are_combined_as_numpy_does(num_types: int) -> None:
    """One group of numbers, two and more; no other row changes."""
    target, other = made_up(num_types, 1), made_up(num_types, 2)
    before, given = target.copy(), other.copy()
    combine_all(target, other)
    with np.errstate(over="ignore"):
        expected = [
            given[5],
            np.maximum(before[1], given[5]),
            np.minimum(before[2].view(np.uint32), given[5].view(np.uint32)).view(np.int32),
            before[3] + given[5],
            np.where(given[5] != 0, 1234567, before[4]),
            before[5] + np.where(given[5] == given[6], 65537, 0).astype(np.int32),
        ]

    assert target.shape[1] % LANES == 0
    assert target.shape[1] - num_types < LANES
    np.testing.assert_array_equal(target, [*expected, *before[6:]])
    np.testing.assert_array_equal(other, given)


@pytest.mark.parametrize("pattern", range(1 << LANES))
def test_differing_numbers_are_marked(pattern: int) -> None:
    """A bit for each of the group's numbers, whatever stands beside the group."""
    target = np.arange(3 * LANES, dtype=np.int32).reshape(1, -1)
    other = target + 1
    other[0, LANES : 2 * LANES] = [LANES + k + 5 * (pattern >> k & 1) for k in range(LANES)]

    assert differing(target, other, LANES) == pattern


def test_operations_have_no_callers_left_out() -> None:
    """Each operation on rows is in the test above."""
    tested: set[Callable[..., Any]] = {add_row, copy_row, lower_row, put_row, raise_row, tally_row}

    assert tested == {value for name, value in vars(rows).items() if name.endswith("_row")}
