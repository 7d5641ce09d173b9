"""Ordinary code: every program of the corpus against eager, forward and backward.

A combination is a program, a number of instances, their order, and whether what may be ragged is, as compiling would
choose it only where it pays. Of a third of the programs one combination always runs, a seeded choice; all with
`--slow`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Any

import pytest
import torch
from budget import PLAIN
from helpers import bound, default_dtype, recorded
from torch import nn

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.forward.repeat import require_repeatable
from edbc.capture.record import recorder
from edbc.capture.record.table import TypeTable
from edbc.errors import EdbcError, UnsupportedError
from edbc.run.outputs import by_name
from edbc.run.session import Net
from edbc.tools.parity import Eager, Parity
from ordinary.registry import PROGRAMS, Program, in_order, load_all

SIZES, ORDERS = (1, 7, 32), ("as they come", "shuffled", "twice")
AWAITED: dict[str, str] = {}
"""Programs that do not run yet, with the reason; each is expected to fail, so that its mending shows."""
REFUSED: dict[str, str] = {}
"""Programs that are refused by design, with what the refusal says."""

load_all()


@pytest.fixture(autouse=True)
def often_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of code are asked for in every second mini-batch from the third on, as in few of a long run."""
    monkeypatch.setattr(recorder, "LOOKS", 2)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All combinations with `--slow`; else those that were chosen, and nothing of the others: 3,700 skips took a third
    of a minute."""
    if "rows" in metafunc.fixturenames:
        metafunc.parametrize(("name", "size", "order", "rows"), combinations(metafunc.config.getoption("--slow")))


def combinations(slow: bool) -> list[Any]:
    """All of them, or those that were chosen."""
    cases = []
    for number, name in enumerate(sorted(set(PROGRAMS) - set(REFUSED))):
        rng = Random(number)
        chosen = rng.choice([None] * 14 + [*itertools.product(SIZES[:2], ORDERS), (SIZES[2], ORDERS[1])])
        with_rows = rng.random() < 0.5
        marks = pytest.mark.xfail(reason=AWAITED[name], strict=True, raises=EdbcError) if name in AWAITED else ()
        for size, order, rows in itertools.product(SIZES, ORDERS, (False, True)):
            if slow or (((size, order), rows) == (chosen, with_rows) and not PLAIN):
                case = f"{name}-{size}-{order}{' in rows' * rows}"
                cases.append(pytest.param(name, size, order, rows, id=case, marks=marks))
    return cases


class Ways:
    """A program run by edbc, by eager, and by eager in float64, each on instances of its own."""

    def __init__(self, program: Program, order: str, rows: bool):
        self.program, self.order = program, order
        self.model = program.build()
        self.net: Net = bound(self.model, program.instances(0, 3), cells="auto", rows=rows)
        self.twin: nn.Module = copy.deepcopy(self.model).double() if program.in_double else self.model

    def instances(self, seed: int, count: int) -> list[Any]:
        """In the order of the combination."""
        return in_order(self.program.instances(seed, count), self.order, seed)

    def three(self, seed: int, count: int, measure: Callable[[nn.Module, list[Any]], Any],
              run: Callable[[Net, list[Any]], list[Any]] = Net.__call__) -> list[Any]:  # fmt: skip
        """What `measure` makes of the model and a list of results, by edbc, eager and in float64."""
        ours = measure(self.model, run(self.net, self.instances(seed, count)))
        theirs = measure(self.model, [self.model(x) for x in self.instances(seed, count)])
        with default_dtype(torch.float64) if self.program.in_double else nothing():
            exact = measure(self.twin, [self.twin(x) for x in self.instances(seed, count)])
        return [ours, theirs, exact]


def nothing() -> AbstractContextManager[Any]:
    """The default dtype as it is."""
    return default_dtype(torch.get_default_dtype())


def gradients(model: nn.Module, results: list[Any]) -> list[torch.Tensor]:
    """Of a sum that weighs every element of every result differently, all in one: a gradient that is zero but for
    rounding (of a bias before a softmax) has no scale of its own."""
    model.zero_grad()
    total = torch.zeros(())
    for result in results:
        for tensor in itertools.chain.from_iterable(by_name(result).values()):
            if tensor.requires_grad:
                weights = torch.linspace(0.5, 1.5, tensor.numel(), dtype=tensor.dtype)
                total = total + (tensor.flatten() * weights).sum()
    if total.requires_grad:
        total.backward()
    return [torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])]


def require_equal(results: list[Any]) -> None:
    """The rule of `edbc.tools.parity`, instance by instance."""
    parity = Parity()
    for three in zip(*results, strict=True):
        parity.add(*three)
    assert parity.outputs
    parity.require()


def test_ordinary_code_gives_eager_results_and_gradients(name: str, size: int, order: str, rows: bool) -> None:
    """Recorded, twice in a row, after another seed, and backward."""
    ways = Ways(PROGRAMS[name], order, rows)
    with torch.no_grad():
        require_equal(ways.three(1, size, lambda _, results: results, recorded))
        for seed in (1, 1, 2):
            require_equal(ways.three(seed, size, lambda _, results: results))
    require_equal(ways.three(1, size, gradients))


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_ordinary_code_makes_the_same_graph_again(name: str) -> None:
    """What compiling asks before it learns anything: a program that it refuses has no plan, though it runs."""
    program = PROGRAMS[name]
    view, table, instances = ModelView(program.build()), TypeTable(), program.instances(0, 3)
    shadow = recording_shadow(view, table)
    capture(*shadow, instances)
    require_repeatable(view, table, shadow, instances)


def test_what_is_refused_says_why() -> None:
    """A program that edbc refuses by design gets the documented words."""
    for name, words in REFUSED.items():
        with pytest.raises(UnsupportedError) as refusal:
            bound(PROGRAMS[name].build(), PROGRAMS[name].instances(0, 2))
        assert words in str(refusal.value)


def test_the_corpus_is_large_and_seeded() -> None:
    """120 programs at least; equal seeds give equal instances, and eager equal results on them."""
    assert len(PROGRAMS) >= 120
    program = PROGRAMS["PairTree"]
    assert program.instances(3, 5) == program.instances(3, 5) != program.instances(4, 5)
    one, two = (Eager(program.build()).run(program.instances(1, 2)) for _ in range(2))
    assert all(map(torch.equal, one, two))


def test_layers_that_torch_would_take_step_by_step_are_rows() -> None:
    """Chosen by what a recurrent layer takes whole, for each length apart."""
    program = load_all()["BiGRUMean"]
    assert bound(program.build(64), program.instances(1, 32), "auto").plan.ragged
