"""Rows of one number per type, four numbers at a time.

numba leaves a loop over a handful of types as it is: its compiler unrolls it before it looks for vectors, and cannot
rule out that one row overlaps another. Passing rows along the edges of a graph is most of what analysing it takes. So
rows are padded to whole groups of `LANES` numbers, and the functions here read all numbers of a group before they write
one: of that the compiler makes vector instructions.

A row is given by its array, of 32-bit numbers, C-contiguous and with two dimensions, and its number, unsigned. All rows
of a call are equally long.
"""

from __future__ import annotations

import numpy as np

from edbc.base.graph import Ints
from edbc.native.kernelcache import U
from edbc.native.kinds import inlined, inner_uncounted

LANES = 4
Group = tuple[int, int, int, int]


@inner_uncounted
def padded(num_types: int) -> int:
    """Numbers in a row of so many types: at least one group."""
    return max(1, (num_types + LANES - 1) // LANES) * LANES


@inlined
def groups(target: Ints) -> range:
    """Where the groups of a row begin."""
    return range(U(0), U(target.shape[1]), U(LANES))


@inlined
def load(array: Ints, i: int, k: int) -> Group:
    """Of row i the numbers from k on."""
    return array[i, k], array[i, k + U(1)], array[i, k + U(2)], array[i, k + U(3)]


@inlined
def store(array: Ints, i: int, k: int, a: int, b: int, c: int, d: int) -> None:
    """Write them."""
    array[i, k], array[i, k + U(1)], array[i, k + U(2)], array[i, k + U(3)] = a, b, c, d


@inlined
def lower(a: int, b: int) -> int:
    """The smaller one; negative numbers count as larger than all others."""
    return b if np.uint32(b) < np.uint32(a) else a


@inner_uncounted
def copy_row(target: Ints, i: int, source: Ints, j: int) -> None:
    """Row i of `target` becomes row j of `source`."""
    for k in groups(target):
        store(target, i, k, *load(source, j, k))


@inner_uncounted
def raise_row(target: Ints, i: int, source: Ints, j: int) -> None:
    """Row i of `target` becomes the larger of itself and row j of `source`, number by number."""
    for k in groups(target):
        (a, b, c, d), (e, f, g, h) = load(target, i, k), load(source, j, k)
        store(target, i, k, max(a, e), max(b, f), max(c, g), max(d, h))


@inner_uncounted
def lower_row(target: Ints, i: int, source: Ints, j: int) -> None:
    """Row i of `target` becomes the smaller of itself and row j of `source`; negative numbers count as larger than all
    others."""
    for k in groups(target):
        (a, b, c, d), (e, f, g, h) = load(target, i, k), load(source, j, k)
        store(target, i, k, lower(a, e), lower(b, f), lower(c, g), lower(d, h))


@inner_uncounted
def add_row(target: Ints, i: int, source: Ints, j: int) -> None:
    """Add row j of `source` to row i of `target`."""
    for k in groups(target):
        (a, b, c, d), (e, f, g, h) = load(target, i, k), load(source, j, k)
        store(target, i, k, a + e, b + f, c + g, d + h)


@inner_uncounted
def put_row(target: Ints, i: int, source: Ints, j: int, value: int) -> None:
    """Row i of `target` becomes `value` where row j of `source` is not 0."""
    one = np.int32(value)
    for k in groups(target):
        (a, b, c, d), (e, f, g, h) = load(target, i, k), load(source, j, k)
        store(target, i, k, one if e else a, one if f else b, one if g else c, one if h else d)


@inner_uncounted
def tally_row(target: Ints, i: int, source: Ints, j: int, other: Ints, row: int, value: int) -> None:
    """Add `value` to row i of `target` where row j of `source` equals row `row` of `other`."""
    one = np.int32(value)
    for k in groups(target):
        (a, b, c, d), (e, f, g, h), (p, q, r, s) = load(target, i, k), load(source, j, k), load(other, row, k)
        store(target, i, k, a + one * (e == p), b + one * (f == q), c + one * (g == r), d + one * (h == s))


@inner_uncounted
def differing_lanes(target: Ints, i: int, source: Ints, j: int, k: int) -> int:
    """Of the numbers from k on in row i of `target` and row j of `source`: a bit for each that differs, the first
    number's lowest."""
    (a, b, c, d), (e, f, g, h) = load(target, i, k), load(source, j, k)
    return U(a != e) | U(b != f) << U(1) | U(c != g) << U(2) | U(d != h) << U(3)
