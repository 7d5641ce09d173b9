"""Groups of results: which results of a mini-batch autograd sees as one tensor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from edbc.base.graph import ValueClass
from edbc.train.results import SINGLES, _parts, nonzero_rows


class Seen(NamedTuple):
    """What grouping asks of a slot."""

    base: ValueClass


@pytest.mark.parametrize("count", [0, 1, SINGLES, SINGLES + 1, 300])
@pytest.mark.parametrize("seed", range(4))
def test_parts_are_results_of_one_kind(count: int, seed: int) -> None:
    """Stacks are groups; of others, few are groups of one, and many are together exactly when type, output, class, its
    shape and gradient agree."""
    rng = np.random.default_rng(seed)
    node_type = rng.integers(4, size=20)
    node, output, classes = rng.integers(-3, 20, size=count), rng.integers(3, size=count), rng.integers(2, size=count)
    requires = rng.integers(2, size=count).astype(np.bool_)
    slots = [Seen(ValueClass((6,) if shape else (1, 6))) for shape in rng.integers(1 + seed // 2, size=count).tolist()]
    stacks = [(count // 9, count // 7), (count // 7, count // 5)] if seed % 2 and count > SINGLES else []
    capture: Any = SimpleNamespace(
        graph=SimpleNamespace(node_type=node_type), result_node=node, result_output=output, stacks=stacks,
        result_slots=slots,
    )  # fmt: skip
    alone = [i for i in range(count) if not any(start <= i < stop for start, stop in stacks)]
    kinds: dict[Any, list[int]] = {}
    for i in alone:
        kind = (node_type[node[i]] if node[i] >= 0 else -1, output[i], classes[i], slots[i].base, requires[i])
        kinds.setdefault(i if len(alone) <= SINGLES else kind, []).append(i)

    parts, num_stacks = _parts(capture, classes, requires)

    assert [part.tolist() for part in parts[:num_stacks]] == [list(range(*stack)) for stack in stacks]
    assert sorted(part.tolist() for part in parts[num_stacks:]) == sorted(kinds.values())


@pytest.mark.parametrize("width", [0, 1, 16, 17, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_with_any_number_but_zero_are_found(width: int, dtype: torch.dtype) -> None:
    """Wherever in a row it stands; not-a-number is one, minus zero is none."""
    rng = torch.Generator().manual_seed(width)
    gradient = torch.zeros(200, width, dtype=dtype)
    gradient[torch.rand(200, width, generator=rng) < 0.02] = 1.0
    gradient[torch.rand(200, width, generator=rng) < 0.02] = -0.0
    gradient[torch.rand(200, width, generator=rng) < 0.002] = torch.nan

    assert nonzero_rows(gradient).tolist() == gradient.any(1).tolist() == [any(row) for row in gradient.tolist()]
