"""Steps as code: every kind of argument, and one piece of code for steps of one form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edbc.capture.alike import steps
from edbc.capture.alike.steps import OfNumbers, Place, Step, filled_each, written
from edbc.capture.record.table import Hole
from edbc.capture.standins.told import Fill, Fills, Write, filled

LEAVES, NUMBERS = [torch.arange(6.0).view(2, 3), torch.ones(3)], [2, 5, 1.5]
SOME = torch.ones(1)
FILL = Fill(np.zeros((2, 3)), [Write(np.array([[1, -1]]), 7.0), Write(np.array([[0, 0], [0, 2]]), np.array([1, 0]))])


@pytest.mark.parametrize(("told", "given"), [
    (Hole(0), LEAVES[0]), (Place(2), 1.5), (None, None), (True, True), (3, 3), (float("inf"), float("inf")),
    ("text'\n", "text'\n"), (torch.float64, torch.float64), (slice(1, None), slice(1, None)), (Ellipsis, Ellipsis),
    (SOME, SOME), (torch.Size([2]), torch.Size([2])), ((), ()), ([], []), ({}, {}), ((Hole(1),), (LEAVES[1],)),
    ([Place(0), (Hole(0), "x")], [2, (LEAVES[0], "x")]), ({"a b": [Place(1)], 3: None}, {"a b": [5], 3: None}),
    (OfNumbers([1], torch.Size([]), torch.int64), torch.tensor(5)),
    (OfNumbers([1, 0], torch.Size([2]), torch.float64), torch.tensor([5.0, 2.0], dtype=torch.float64)),
    (OfNumbers([0, 1], torch.Size([2, 1]), torch.int64), torch.tensor([[2], [5]])),
    (FILL, torch.tensor([[5.0, 0, 2], [0, 0, 7]], dtype=torch.float64)),
])  # fmt: skip
def test_every_argument(told: Any, given: Any) -> None:
    """By place and by keyword, whatever its name, it is what the instance has."""
    found: list[Any] = []

    def function(*args: Any, **kwargs: Any) -> torch.Tensor:
        found.extend((*args, *kwargs.values()))
        return SOME

    names = ("c0", "lambda", "torch")
    made = written([Step(function, (told, 1, told), dict.fromkeys(names, told), 2, 1)], 2)
    made.run(LEAVES, NUMBERS, filled_each([made.fills], [NUMBERS])[0])

    assert [*map(_plain, found)] == [*map(_plain, (given, 1, *[given] * 4))]


def _plain(item: Any) -> Any:
    return (item.dtype, item.tolist()) if isinstance(item, torch.Tensor) else repr(item)


def test_results_stand_by_their_numbers() -> None:
    """Of steps that are left out nothing does; one that gives several has several."""
    of_several = Step(torch.max, (Hole(0), 1), {}, 2, 2)
    of_one = Step(torch.split, (Hole(2), 2), {}, 5, 1)
    values = written([of_several, of_one, Step(torch.add, (Hole(5), Hole(3)), {}, 6, 1)], 2).run(LEAVES, NUMBERS, [])

    assert values[:2] == LEAVES
    assert [None if value is None else value.tolist() for value in values[2:]] == [
        [2, 5], [2, 2], None, [2, 5], [4, 7]]  # fmt: skip


def test_steps_of_one_form_are_compiled_once() -> None:
    """Sizes are given to the code, and no part of it."""
    make = lambda size: [Step(torch.Tensor.expand, (Hole(0), size, 3), {}, 1, 1)]  # noqa: E731
    written(make(2), 1)
    before = steps._maker.cache_info().misses
    for size in (4, 5):
        assert written(make(size), 1).run([torch.ones(3)], [], [])[1].shape == (size, 3)
    assert steps._maker.cache_info().misses == before


WRITES: list[Any] = [
    ([[1, 0], [1, 2]], np.array([2, 0])),
    ([[-1, 1], [0, -3]], np.array([1, 1])),
    ([[1, -1]], 7.0),
    ([[-3, -1], [-3, 2]], -0.0),
    ([[0, 0]], 3.0),
    ([[-1, -1], [-1, -2]], 9.0),
]
PLANNED = [Fill(np.full((2, 3), float(base)), [Write(np.array(at), value)]) for base, (at, value) in enumerate(WRITES)]


def test_filled_tensors_that_steps_take_are_those_of_each_instance() -> None:
    """With a plan and without, of two dtypes, in any company."""
    fills = [FILL, *PLANNED, Fill(np.zeros((3,), np.bool_), [Write(np.array([[-2]]), True)])]
    alone = [Fills([fill]) for fill in fills]
    wanted, numbers = [alone, alone[::-1], alone[3:6]], [(1, 2, 0), [0, -1, 1], (1, 0, -2)]
    for of_instance, tensors, own in zip(wanted, filled_each(wanted, numbers), numbers, strict=True):
        for of, tensor in zip(of_instance, tensors, strict=True):
            assert _plain(tensor) == _plain(torch.from_numpy(fills[alone.index(of)].of(own)))


def test_filled_tensors_together_are_those_alone() -> None:
    """Runs of several, of plans and others, of several instances, one behind the other."""
    runs = [(PLANNED, [1, 2, 0]), ([FILL, *PLANNED[2:], FILL], [0, -2, 1]), (PLANNED[:1], (2, 0, 0))]
    found = filled([(Fills(fills), numbers) for fills, numbers in runs])
    expected = np.concatenate([fill.of(numbers).reshape(-1) for fills, numbers in runs for fill in fills])

    assert found.tobytes() == expected.tobytes()
    for at in (3, -4):
        with pytest.raises(IndexError):
            filled([(Fills(PLANNED), [0, 0, 0]), (Fills(PLANNED), [at, 0, 0])])
