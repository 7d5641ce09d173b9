"""Branches that print, warn or log cost nothing until they are taken, and are taken as often as in eager execution."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import bound, seeded
from torch import Tensor, nn

from edbc.capture.code.closed import Closed
from edbc.run.session import Net

SIZE = 4
HEARD: list[str] = []
logger = logging.getLogger(__name__)


def print(*what: Any) -> None:  # of this file: what is said is counted
    HEARD.append(" ".join(map(str, what)))


def shown(x: Tensor, verbose: int) -> Tensor:
    if verbose > 1:
        print("shown", x.shape)
    return torch.tanh(x) * 2


def plain(x: Tensor) -> Tensor:
    if len(x) > 7:
        logger.warning("long")
    return x * 2


class Sized:
    def of(self, x: Tensor) -> Tensor:
        if len(x) > 7:
            print("long")
        return x * 2


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor, verbose: int = 0) -> Tensor:
        if verbose:
            print("in", verbose)
        h = shown(self.up(x), verbose)
        if verbose == 3:
            warnings.warn("three", stacklevel=2)
        else:
            h = torch.relu(self.down(h))
        return h


class Verbose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.out, self.functions, self.sized = Encoder(), nn.Linear(SIZE, 2), [plain], Sized()

    def forward(self, item: tuple[Tensor, int]) -> Tensor:
        x, verbose = item
        h = self.encoder(x, verbose)
        return self.out(h.mean(0) if h.ndim > 1 else h)

    def of_functions(self, x: Tensor) -> Tensor:
        return self.functions[0](x)

    def of_objects(self, x: Tensor) -> Tensor:
        return self.sized.of(x)

    def of_values(self, x: Tensor) -> Tensor:
        function = plain
        return function(x)

    def by_name(self, x: Tensor) -> Tensor:
        return plain(x)

    def below_the_level(self, x: Tensor) -> Tensor:
        logger.debug("of %d", len(x))
        logger.info(f"of {x.shape}")
        return x * 2 if __debug__ else x

    def at_the_level(self, x: Tensor) -> Tensor:
        logger.warning("of %d", len(x))
        return x * 2


def items(count: int, seed: int, shape: Callable[[int], tuple[int, ...]], verbose: bool) -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape(i), generator=generator), i % 4 * verbose) for i in range(count)]


@pytest.mark.parametrize("rows", [True, None])
@pytest.mark.parametrize("cells", ["marked", "auto"])
def test_what_is_said_is_said_each_time(rows: bool | None, cells: str) -> None:
    """Of rows and of vectors, in kept calls, joined instances and cells: numbers and what is heard are eager's."""
    model = seeded(Verbose)

    def shape(i: int) -> tuple[int, ...]:
        return (2 + i % 5, 3) if rows else (3,)

    net: Net = bound(model, items(12, 0, shape, False), cells, rows)
    assert net.view.closed.is_forward_told
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for seed in range(1, 5):
            given = items(12, seed, shape, seed > 1)
            heard = []
            for run in (net, lambda given: [model(item) for item in given]):
                HEARD.clear()
                caught.clear()
                results = run(given)
                heard.append((sorted(HEARD), len(caught), torch.stack(results)))
            assert heard[0][:2] == heard[1][:2]
            assert len(HEARD) == (9 + 6 if seed > 1 else 0)
            torch.testing.assert_close(heard[0][2], heard[1][2])


def test_functions_of_which_no_copy_runs_are_read_whole() -> None:
    """A function in a list or a variable, and methods of other objects, run as they are: they would say nothing."""
    model = Verbose()
    closed = Closed(model)
    assert closed.obstacle(model, "by_name") is None
    for name in ("of_functions", "of_objects", "of_values"):
        assert closed.obstacle(model, name) is not None


class Logs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.out = nn.Linear(3, SIZE), nn.Linear(SIZE, 2)

    def combine(self, x: Tensor) -> Tensor:
        logger.info("combining")
        return torch.tanh(self.out(torch.relu(self.up(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(x) * 2


@pytest.mark.parametrize("change", ["own", "above", "all"])
def test_what_loggers_are_told_below_their_level(change: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is no obstacle, until a level is another: then all is told each time."""
    model, above = seeded(Logs), logging.getLogger()
    with caplog.at_level(logging.WARNING):
        if change == "all":
            logger.setLevel(logging.INFO)
            logging.disable(logging.INFO)
        try:
            closed = Closed(Verbose())
            assert closed.obstacle(closed.model, "below_the_level") is None
            assert closed.obstacle(closed.model, "at_the_level") is not None
            given = [torch.ones(3) * i for i in range(4)]
            net = bound(model, given, "auto", None)
            assert net.plan.automatic
            caplog.handler.setLevel(logging.NOTSET)
            net(given)
            assert not caplog.records
            if change == "all":
                logging.disable(logging.NOTSET)
            else:
                (logger if change == "own" else above).setLevel(logging.INFO)
            for _ in range(2):
                net(given)
            assert len(caplog.records) == 8
        finally:
            logging.disable(logging.NOTSET)
            logger.setLevel(logging.NOTSET)
