"""Sizes that depend on lengths: polynomials of degree 2 with whole coefficients, told by what they are at some lengths.

What torch says of a function at fixed lengths are numbers: sizes, strides, offsets. Each is the same polynomial of the
lengths wherever the function does the same, and `Fit` finds it: it takes as many lengths as there are coefficients,
and is held against one more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Poly:
    """A sum of products of up to two lengths: (lengths by number, coefficient), in order, no coefficient 0."""

    terms: tuple[tuple[tuple[int, ...], int], ...]

    @property
    def number(self) -> int | None:
        """What it is at all lengths."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    def __add__(self, other: Poly) -> Poly:
        found = dict(self.terms)
        for lengths, factor in other.terms:
            found[lengths] = found.get(lengths, 0) + factor
        return _poly(found)

    def __mul__(self, other: Poly) -> Poly:
        found: dict[tuple[int, ...], int] = {}
        for (a, x), (b, y) in itertools.product(self.terms, other.terms):
            lengths = tuple(sorted((*a, *b)))
            found[lengths] = found.get(lengths, 0) + x * y
        return _poly(found)

    def at(self, lengths: Sequence[int]) -> int:
        """What it is at lengths; arrays of them give an array."""
        return sum(factor * math.prod(lengths[i] for i in which) for which, factor in self.terms)


def _poly(found: dict[tuple[int, ...], int]) -> Poly:
    return Poly(tuple(sorted((lengths, factor) for lengths, factor in found.items() if factor)))


def const(number: int) -> Poly:
    """A number."""
    return _poly({(): number})


class Fit:
    """Polynomials of `count` lengths, told by what they are at each of `lengths`. Some lengths are `products` of two
    others: (which, one, other)."""

    def __init__(self, count: int, products: Sequence[tuple[int, int, int]] = ()):
        of = [i for i in range(count) if i not in {which for which, *_ in products}]
        self.monomials = [(), *[(i,) for i in of], *itertools.combinations_with_replacement(of, 2)]
        lengths = itertools.islice(_lengths(count), len(self.monomials) + 1)
        self.lengths = [with_products(at, products) for at in lengths]
        self._matrix = np.array([[math.prod(at[i] for i in which) for which in self.monomials] for at in self.lengths])

    def of(self, numbers: Sequence[int | None]) -> Poly | None:
        """The polynomial that is this at the lengths, of which None says nothing; None where there is none."""
        known = [i for i, number in enumerate(numbers) if number is not None]
        told = [numbers[i] for i in known]
        if len(set(told)) <= 1:
            return const(told[0] if told else 0)  # type: ignore[arg-type]
        matrix = self._matrix[known]
        found = np.rint(np.linalg.lstsq(matrix.astype(np.float64), np.array(told, np.float64), rcond=None)[0])
        coefficients = [int(x) for x in found]
        is_it = (matrix @ np.array(coefficients) == told).all()
        return _poly(dict(zip(self.monomials, coefficients, strict=True))) if is_it else None


def with_products(lengths: Lengths, products: Sequence[tuple[int, int, int]]) -> Lengths:
    """Lengths of which these are what they have to be."""
    found = [*lengths]
    for which, one, other in products:
        found[which] = lengths[one] * lengths[other]
    return tuple(found)


def _lengths(count: int) -> Iterator[Lengths]:
    """Lengths that differ from each other, each time others, few rows and more, rising and falling: what is cut or
    filled up to another length is another function where that one is the shorter. The shortest hold what is packed
    (`capture.ragged.whole.function.packed`) of a matrix of the longest."""
    rng = Random(0)
    for k in itertools.count():
        yield tuple(sorted(rng.sample(range(7, 15) if k & 2 else range(27, 42), count), reverse=k % 2 == 1))
