"""Streams give what a loop over mini-batches gives: the same numbers in order, whatever the iterable does."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bound import RandomTreeModel, Tree, net_for, random_trees
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.errors import EdbcError, UnsupportedError
from edbc.run.session import Net

TREES = random_trees(2, 40)


@pytest.fixture(scope="module", params=["beside", "issued"])
def net(request: pytest.FixtureRequest) -> Net:
    """A net that knows all cells of TREES, whose mini-batches a thread prepares, or that says it issues them."""
    made = net_for(RandomTreeModel(2, 6), TREES)
    made.backend.issues = request.param == "issued"
    return made


def workers() -> list[threading.Thread]:
    """Streams at work."""
    return [thread for thread in threading.enumerate() if thread.name == "edbc-stream"]


@settings(derandomize=True, deadline=None, max_examples=12)
@given(count=st.integers(0, 40), batch_size=st.integers(1, 17), ahead=st.integers(1, 4))
def test_results_are_the_loops_in_order(net: Net, count: int, batch_size: int, ahead: int) -> None:
    """Any length, a generator without one, any mini-batch size: bit for bit what mini-batch after mini-batch gives."""
    trees = TREES[:count]
    starts = range(0, count, batch_size)
    with torch.no_grad():
        expected = [result for i in starts for result in net(trees[i : i + batch_size])]
    streamed = list(net.stream((tree for tree in trees), batch_size=batch_size, ahead=ahead))

    assert len(streamed) == count
    assert all(torch.equal(a["root"], b["root"]) for a, b in zip(streamed, expected, strict=True))
    assert not workers()


def test_an_endless_iterable_is_read_as_far_as_needed(net: Net) -> None:
    """The queue is bounded: after one result at most the executing, the waiting and the next mini-batch were read, and
    one that is issued behind the executing one."""
    taken = itertools.count()
    results = net.stream((TREES[next(taken) % 40] for _ in itertools.repeat(None)), batch_size=3, ahead=2)
    next(results)
    _settle()

    assert next(taken) <= 3 * (1 + 2 + 1 + net.backend.issues)
    results.close()  # type: ignore[attr-defined]
    assert not workers()


def _settle() -> None:
    """Long enough for a worker that does not wait to read on."""
    time.sleep(0.2)


def test_closing_early_stops_the_worker(net: Net) -> None:
    """By `close`, and by breaking out of a loop and dropping the iterator."""
    for _ in range(3):
        results = net.stream(itertools.cycle(TREES), batch_size=4)
        for _ in zip(range(6), results, strict=False):
            pass
        del results

    assert not workers()


def test_results_do_not_wait_for_later_instances(net: Net) -> None:
    """A source that goes on only when the results of what it gave have come."""
    seen, came = threading.Event(), list[bool]()

    def source() -> Iterator[Tree]:
        yield from TREES[:4]
        came.append(seen.wait(10))
        yield from TREES[4:6]

    results = []
    for result in net.stream(source(), batch_size=4):
        results.append(result)
        if len(results) == 4:
            seen.set()

    assert came == [True]
    assert len(results) == 6


def failing(at: int) -> Iterator[Tree]:
    """A source that breaks."""
    yield from TREES[:at]
    raise OSError("disk gone")


@pytest.mark.parametrize("at", [0, 1, 4, 5, 8])
def test_a_failing_iterable_costs_nothing_before_it(net: Net, at: int) -> None:
    """All results before the failure, then the iterable's own exception with the number of the instance."""
    results: list[Any] = []
    with pytest.raises(OSError, match="disk gone") as raised:
        results.extend(net.stream(failing(at), batch_size=4))

    assert len(results) == at
    assert f"while reading instance {at} of the stream" in raised.value.__notes__
    assert not workers()


@pytest.mark.parametrize(("bad", "expected", "numbers"), [(9, 8, "8 to 11"), (3, 0, "0 to 3")])
def test_the_models_exception_names_the_instance(net: Net, bad: int, expected: int, numbers: str) -> None:
    """Counted along the stream; results of mini-batches before it come first."""
    trees: list[Any] = [*TREES[:bad], None, *TREES[bad:12]]
    results: list[Any] = []
    with pytest.raises(TypeError) as raised:
        results.extend(net.stream(trees, batch_size=4))

    assert len(results) == expected
    assert f"while recording instance {bad}" in raised.value.__notes__
    assert f"in the mini-batch of instances {numbers} of the stream" in raised.value.__notes__


@pytest.mark.parametrize("bad", [[], [0], [5, 6], [2, 7, 12], list(range(13))])
def test_a_stream_may_go_on_with_the_others(net: Net, bad: list[int]) -> None:
    """An instance on which forward raises yields the exception, with its number; the others what they give."""
    trees: list[Any] = [None if number in bad else tree for number, tree in enumerate(TREES[:13])]
    results = list(net.stream(trees, batch_size=4, on_error="record"))
    with torch.no_grad():
        expected = net(TREES[:13])

    assert [i for i, result in enumerate(results) if isinstance(result, TypeError)] == bad
    assert all(f"while recording instance {i}" in results[i].__notes__ for i in bad)
    assert all(torch.equal(results[i]["root"], expected[i]["root"]) for i in range(13) if i not in bad)
    assert not workers()


class Looks(torch.nn.Module):
    """Refused for odd words: floating numbers are ordered by values and told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(4, 3))

    def forward(self, word: int) -> torch.Tensor:
        x = self.table[word].tanh()
        return x.unique() if word % 2 else x


def test_refusals_name_the_instance_too() -> None:
    """An error of edbc's own says the number in its one line."""
    net = net_for(Looks(), [0, 2])
    with pytest.raises(UnsupportedError, match="while recording instance 5"):
        list(net.stream([0, 2, 0, 2, 0, 1], batch_size=2))
    with pytest.raises(UnsupportedError, match="while recording instance 1"):
        net([0, 1])


def test_an_exception_while_executing_names_the_mini_batch(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Execution knows mini-batches, not instances."""

    def broken(*_: Any) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(net.backend, "walk", broken)
    with pytest.raises(MemoryError) as raised:
        list(net.stream(TREES, batch_size=6))

    assert raised.value.__notes__ == ["in the mini-batch of instances 0 to 5 of the stream"]
    assert not workers()


def test_streams_share_a_net(net: Net) -> None:
    """Four threads, each with its own stream of its own sizes: everybody gets his own numbers."""
    with torch.no_grad():
        expected = [net([tree])[0]["root"] for tree in TREES]
    wrong: list[int] = []

    def work(batch_size: int) -> None:
        for _ in range(3):
            for a, b in zip(net.stream(TREES, batch_size=batch_size), expected, strict=True):
                if not torch.allclose(a["root"], b, rtol=1e-12, atol=1e-12):
                    wrong.append(batch_size)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 3, 8, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    assert not workers()


def test_nonsense_is_refused_at_the_call(net: Net) -> None:
    """Not when the first result is asked for."""
    with pytest.raises(EdbcError, match=r"batch_size: expected an integer from 1 to .*, got 0"):
        net.stream(TREES, batch_size=0)
    with pytest.raises(EdbcError, match=r"ahead: expected an integer from 1 to .*, got 0"):
        net.stream(TREES, ahead=0)
    with pytest.raises(EdbcError, match=r"on_error: expected one of fail, record, got 'recrod'; did you mean 'record'"):
        net.stream(TREES, on_error="recrod")
