"""Sizes of made-up instances that follow the statistics of a data set.

A data set is known here by four numbers, the minimum, median, 95th percentile and maximum of a size. Between them the
quantile function is a straight line up to the 95th percentile and geometric above it, where real sizes thin out.
"""

from __future__ import annotations

import random

Quartet = tuple[int, int, int, int]
"""Minimum, median, 95th percentile, maximum."""


def sample_sizes(count: int, statistics: Quartet, rng: random.Random) -> list[int]:
    """`count` sizes at evenly spaced quantiles, shuffled: two or more hold the minimum and the maximum, one the median.

    >>> sorted(sample_sizes(5, (2, 10, 20, 40), random.Random(0)))
    [2, 6, 10, 16, 40]
    """
    return [size_at(quantile, statistics) for quantile in sample_quantiles(count, rng)]


def sample_quantiles(count: int, rng: random.Random) -> list[float]:
    """`count` evenly spaced quantiles from 0 to 1, shuffled; one is the median."""
    if count == 1:
        return [0.5]
    quantiles = [k / (count - 1) for k in range(count)]
    rng.shuffle(quantiles)
    return quantiles


def size_at(quantile: float, statistics: Quartet) -> int:
    """The size at a quantile in [0, 1]."""
    minimum, median, p95, maximum = statistics
    if quantile <= 0.5:
        size = minimum + (median - minimum) * quantile / 0.5
    elif quantile <= 0.95:
        size = median + (p95 - median) * (quantile - 0.5) / 0.45
    else:
        size = p95 * (maximum / p95) ** ((quantile - 0.95) / 0.05)
    return round(size)
