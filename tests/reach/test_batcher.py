"""`Batcher`: what waits runs together, what cannot be answered fails alone and at once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from helpers import bound
from small import Sequence, fresh, sequences

from edbc.errors import EdbcError
from edbc.reach import Batcher, Busy, Late
from edbc.reach.batcher import ENOUGH, SHORT
from edbc.run.session import Net


@pytest.fixture(scope="module")
def net() -> Net:
    """A net of short sequences."""
    return bound(fresh(), sequences(10))


class Held:
    """A net whose first mini-batch waits until it is let go; what comes meanwhile waits in the queue."""

    def __init__(self, net: Net):
        self.net = net
        self.runs_eagerly = False
        self.sizes: list[int] = []
        self.go = threading.Event()

    def in_mode(self) -> Held:
        return self

    def run(self, instances: Any, observer: Callable[[str, Any], None]) -> Any:
        self.go.wait(60)
        self.sizes.append(len(instances))
        return self.net.run(instances, observer=observer)


def inside(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run in an event loop, a minute at most."""
    return asyncio.run(asyncio.wait_for(work(), 60))


async def all_of(batcher: Batcher, instances: list[Any], **options: float) -> list[Any]:
    """Outcomes of requests that come at once."""
    found = await asyncio.gather(*(batcher(x, **options) for x in instances), return_exceptions=True)
    await batcher.close()
    return found


def test_answers_are_those_of_each_instance(net: Net) -> None:
    """Fifty requests at once: each gets its own answer, the bits of a mini-batch of one."""
    many = sequences(50)
    batcher = Batcher(net)
    answers = inside(lambda: all_of(batcher, many))

    with torch.no_grad():
        assert all(torch.equal(a, net([x])[0]) for a, x in zip(answers, many, strict=True))
    assert batcher.counts.answered == 50


def test_what_waits_runs_together_up_to_the_limit(net: Net) -> None:
    """One runs at once; of the 25 that come meanwhile the next mini-batches take 10, 10 and 5."""
    held = Held(net)
    batcher = Batcher(held, max_instances=10)  # type: ignore[arg-type]

    async def work() -> None:
        first = asyncio.ensure_future(batcher(sequences(1)[0]))
        await asyncio.sleep(0.05)
        others = [asyncio.ensure_future(batcher(x)) for x in sequences(25)]
        await asyncio.sleep(0.05)
        held.go.set()
        await asyncio.gather(first, *others)

    inside(work)
    assert held.sizes == [1, 10, 10, 5]


def test_what_comes_while_a_mini_batch_runs_in_the_event_loop_is_in_the_next_one(net: Net) -> None:
    """Read from a socket, too, of which the event loop learns when the mini-batch is over."""
    held = Held(net)
    held.go.set()
    batcher, one = Batcher(held), sequences(1)[0]  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    answers: list[Any] = []

    def come(*_: Any) -> None:
        answers.append(batcher.submit(one))

    def while_it_runs(instances: Any, observer: Any) -> Any:
        held.run = plain  # type: ignore[method-assign]
        come()
        theirs.send(b"x")
        return plain(instances, observer)

    async def work() -> None:
        await batcher(one)  # in a thread, as nothing is known of its time
        asyncio.get_running_loop().add_reader(ours, lambda: come(ours.recv(1)))
        held.run = while_it_runs  # type: ignore[method-assign]
        await batcher(one)
        await asyncio.gather(*answers)
        await batcher.close()

    plain = held.run
    with ours, theirs:
        inside(work)

    assert held.sizes == [1, 1, 2]


@pytest.mark.parametrize(
    ("pace", "expected"), [(SHORT / ENOUGH, [ENOUGH, 200 - ENOUGH]), (1.01 * SHORT / ENOUGH, [200])]
)
def test_many_wait_run_in_parts_of_enough(net: Net, pace: float, expected: list[int]) -> None:
    """As many as take SHORT, where these are enough; the others run next, which knows another pace."""
    held = Held(net)
    held.go.set()
    batcher = Batcher(held)  # type: ignore[arg-type]
    batcher._pace = pace
    plain = batcher._run

    def run_slowly(instances: Any) -> list[Any]:
        found = plain(instances)
        batcher._pace = SHORT
        return found

    batcher._run = run_slowly  # type: ignore[method-assign]
    inside(lambda: all_of(batcher, sequences(200)))

    assert held.sizes == expected


def test_a_full_queue_refuses_at_once(net: Net) -> None:
    """While the runtime is busy, two wait and the third is refused without waiting; the others are answered."""
    held = Held(net)
    batcher = Batcher(held, max_waiting=2)  # type: ignore[arg-type]

    async def work() -> list[Any]:
        running = asyncio.ensure_future(batcher(sequences(1)[0]))
        await asyncio.sleep(0.05)
        waiting = [asyncio.ensure_future(batcher(x)) for x in sequences(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="at most 2 waiting requests"):
            await batcher(sequences(1)[0])
        held.go.set()
        return await asyncio.gather(running, *waiting)

    assert len(inside(work)) == 3
    assert batcher.counts.busy == 1


def test_cancelled_and_late_requests_do_not_execute(net: Net) -> None:
    """A client that went away, and a request whose time was over: neither is in a mini-batch."""
    held = Held(net)
    batcher = Batcher(held)  # type: ignore[arg-type]

    async def work() -> None:
        running = asyncio.ensure_future(batcher(sequences(1)[0]))
        await asyncio.sleep(0.05)
        gone, late, stays = (
            asyncio.ensure_future(batcher(x, within=w)) for x, w in zip(sequences(3), (None, 0.01, 5.0), strict=True)
        )
        await asyncio.sleep(0.05)
        gone.cancel()
        held.go.set()
        await asyncio.gather(running, stays)
        with pytest.raises(Late):
            await late

    inside(work)
    assert held.sizes == [1, 1]
    assert batcher.counts.dropped == 2


@pytest.mark.parametrize("bad", [None, "text", ((1, 99), 0), 7, ((1.5,), 0)])
def test_a_bad_request_fails_alone(net: Net, bad: Any) -> None:
    """What is no instance, or one with a word that the table has not, between twenty good ones."""
    many: list[Any] = [*sequences(13), bad, *sequences(7)]
    batcher = Batcher(net)
    outcomes = inside(lambda: all_of(batcher, many))

    failed = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
    assert failed == [13]
    assert (batcher.counts.answered, batcher.counts.failed) == (20, 1)


def test_nodes_limit_a_mini_batch(net: Net) -> None:
    """With room for 30 nodes, no mini-batch has more, and an instance of 100,000 runs alone among small ones."""
    long: Sequence = (tuple(i % 16 for i in range(33_333)), 1)
    many = [*sequences(6), long, *sequences(6)]
    batcher = Batcher(net, max_nodes=30)
    sizes: list[tuple[int, int]] = []
    plain = batcher._require_room
    batcher._require_room = lambda count, name, prepared: (  # type: ignore[method-assign]
        plain(count, name, prepared),
        sizes.append((count, prepared.capture.graph.num_nodes)) if name == "place" else None)[0]  # fmt: skip
    answers = inside(lambda: all_of(batcher, many))

    assert all(isinstance(answer, torch.Tensor) for answer in answers)
    assert all(nodes <= 30 for count, nodes in sizes if count > 1)
    assert (1, 100_000) in sizes


def test_bytes_limit_a_mini_batch(net: Net) -> None:
    """With room for nothing, every instance runs alone."""
    batcher = Batcher(net, max_bytes=1)
    answers = inside(lambda: all_of(batcher, list(sequences(5))))

    assert len(answers) == 5
    assert (batcher.counts.answered, batcher.counts.halved) == (5, 4)


def test_one_batcher_serves_again_after_it_was_idle(net: Net) -> None:
    """Requests of a second burst, when the first has been answered."""
    batcher = Batcher(net)

    async def work() -> None:
        for _ in range(3):
            await asyncio.gather(*(batcher(x) for x in sequences(4)))
            await asyncio.sleep(0.01)
        await batcher.close()

    inside(work)
    assert batcher.counts.answered == 12


def test_nonsense_limits_are_refused(net: Net) -> None:
    """No mini-batch of no instances."""
    with pytest.raises(EdbcError, match="max_instances: expected an integer"):
        Batcher(net, max_instances=0)
