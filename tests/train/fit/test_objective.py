"""Losses and metrics of model files, and their sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.errors import ModelError
from edbc.train.fit.objective import Objective, Tally


def test_the_loss_of_a_mini_batch_is_the_mean_over_instances() -> None:
    """One number of shape (), whatever shape of one number an instance's loss has."""
    objective = Objective(lambda outputs, instance: outputs.reshape(1, 1) * instance)
    loss = objective.loss_of([torch.tensor(2.0), torch.tensor(3.0)], [1, 5])

    assert loss.shape == ()
    assert float(loss) == (2 + 15) / 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "expected a tensor of one number, got float"),
        (None, "expected a tensor of one number, got NoneType"),
        (torch.zeros(2), r"of shape \(2,\); reduce it"),
        (torch.tensor(1), "got torch.int64"),
    ],
)
def test_a_loss_that_is_no_number_is_refused(value: Any, message: str) -> None:
    """The message names the file and what came."""
    with pytest.raises(ModelError, match=rf"m\.py: loss: .*{message}"):
        Objective(lambda *_: value, where="m.py").loss_of([0], [0])


@pytest.mark.parametrize("value", [1, {"a": 1}, {"a": (1,)}, {"a": (torch.ones(()), 1)}, {"a": [1, 2]}])
def test_metrics_that_are_no_pairs_are_refused(value: Any) -> None:
    """A dict of pairs of plain numbers, and nothing else."""
    with pytest.raises(ModelError, match=r"m\.py: metrics: expected a dict of name: \(part, whole\)"):
        Objective(lambda *_: torch.ones(()), lambda *_: value, "m.py").pairs_of(0, 0)


PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


@settings(derandomize=True, max_examples=50)
@given(PAIRS, st.integers(1, 12))
def test_metrics_do_not_depend_on_the_grouping(pairs: list[tuple[int, int]], size: int) -> None:
    """In mini-batches of any size a metric is the sum of parts over the sum of wholes; without a whole it is absent."""
    objective = Objective(lambda *_: torch.ones(()), lambda _, instance: {"share": instance})
    tally = Tally()
    for start in range(0, len(pairs), size):
        batch = pairs[start : start + size]
        tally.add(objective, 1.0, batch, batch)
    parts, wholes = map(sum, zip(*pairs, strict=True))

    assert tally.means() == {"loss": 1.0} | ({"share": parts / wholes} if wholes else {})
