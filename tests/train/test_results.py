"""Groups of results: which results of a mini-batch autograd sees as one tensor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edbc.train.results import SINGLES, _parts


@pytest.mark.parametrize("count", [0, 1, SINGLES, SINGLES + 1, 300])
@pytest.mark.parametrize("seed", range(4))
def test_parts_are_results_of_one_kind(count: int, seed: int) -> None:
    """Few results are groups of one; many are together exactly when type, output, class and gradient agree."""
    rng = np.random.default_rng(seed)
    node_type = rng.integers(4, size=20)
    node, output, classes = rng.integers(-3, 20, size=count), rng.integers(3, size=count), rng.integers(2, size=count)
    requires = rng.integers(2, size=count).astype(np.bool_)
    capture: Any = SimpleNamespace(graph=SimpleNamespace(node_type=node_type), result_node=node, result_output=output)
    kinds: dict[Any, list[int]] = {}
    for i in range(count):
        kind = (node_type[node[i]] if node[i] >= 0 else -1, output[i], classes[i], requires[i])
        kinds.setdefault(i if count <= SINGLES else kind, []).append(i)

    parts = [part.tolist() for part in _parts(capture, classes, requires)]

    assert sorted(parts) == sorted(kinds.values())
