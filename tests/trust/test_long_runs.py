"""What shows only after a while, or with several threads: memory that grows, numbers that mix."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from helpers import bound
from memory import Held, held
from random_models import CODE, RandomModel

from edbc.capture.record import table
from edbc.run import session
from edbc.run.session import Net

POOL = 24


def universe(seed: int) -> tuple[Net, list[bytes]]:
    """A random model bound to a plan for a pool of instances."""
    rng = random.Random(seed)
    pool = [rng.randbytes(CODE * rng.randrange(1, 20)) for _ in range(POOL)]
    return bound(RandomModel(seed, torch.float64).eval(), pool, rows=None), pool


def growth(count: int, warm_up: int) -> Held:
    """What `count` mini-batches of 0 to 12 instances add after `warm_up` of them."""
    net, pool = universe(3)
    rng = random.Random(1)
    before = Held(0, 0)
    for number in range(warm_up + count):
        if number == warm_up:
            before = held()
        net(rng.choices(pool, k=rng.randrange(13)))
    return held() - before


@pytest.mark.long
def test_memory_is_flat_over_a_hundred_mini_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 mini-batches of random sizes add less than 0.25 MB and 20 objects each to what the first 100 took, which fill
    caches, small ones here; one kept arena each would add more."""
    for module in (table, session):
        monkeypatch.setattr(module, "MOST", 16)
    added = growth(100, 100)

    assert added.malloced < 0.25e6
    assert added.blocks < 20 * 100


@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_mini_batches() -> None:
    """10,000 mini-batches of random sizes add less than 2 MB and half an object each."""
    added = growth(10_000, 500)
    print(added)

    assert added.malloced < 2e6
    assert added.blocks < 5_000


@pytest.mark.long
def test_eight_threads_on_one_bound_plan() -> None:
    """Eight threads, each with mini-batches of its own over one net, recording, scheduling and executing at once: every
    result has the bits that it has alone."""
    net, pool = universe(5)
    rng = random.Random(0)
    batches = [rng.choices(pool, k=rng.randrange(1, 12)) for _ in range(8)]
    alone = [net(batch) for batch in batches]
    wrong: list[str] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for turn in range(4):
            which = (number + turn) % 8
            if not same_bits(net(batches[which]), alone[which]):
                wrong.append(f"thread {number}, mini-batch {which}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def same_bits(ours: list, theirs: list) -> bool:
    """True when all outputs are equal."""
    return all(
        torch.equal(a, b)
        for mine, other in zip(ours, theirs, strict=True)
        for kind in other
        for a, b in zip(mine[kind], other[kind], strict=True)
    )
