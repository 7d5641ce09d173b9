"""Sizes that follow from others, of programs of runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from edbc.capture.ragged.program import Count, Part, Sum, size_of


class Asked(list[Any]):
    """Sizes of arguments, counted as they are asked for."""

    count = 0

    def __getitem__(self, index: Any) -> Any:
        self.count += 1
        return super().__getitem__(index)


def test_a_size_that_others_consist_of_is_found_once() -> None:
    """As where convolutions pad and slice what the one before has made, and skip connections join it with that."""
    count: Count = Part(0, (None, -1, None))
    for _ in range(10):
        count = Sum((count, count))
    for sizes, expected in ((Asked([4]), 3 << 10), (Asked([np.array([1, 4])]), [0, 3 << 10])):
        assert np.all(size_of(count, sizes) == expected)
        assert sizes.count == 1
