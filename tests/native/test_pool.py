"""Memory for mini-batches: who may give it back, and when."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from budget import HANGS

from edbc.native.pool import Pool


class Dead:
    """A mini-batch that only the garbage collector can end; then it gives its buffer back."""

    def __init__(self, pool: Pool, size: int):
        self.pool, self.buffer, self.itself = pool, pool.take(size), self

    def __del__(self) -> None:
        self.pool.give(self.buffer)


def test_the_garbage_collector_gives_while_a_buffer_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection in the middle of `take` gives a dead mini-batch's buffer back: nothing waits for itself, and no
    buffer is handed out twice."""
    pool = Pool()
    Dead(pool, 1024)
    pool.give(torch.empty(256, dtype=torch.uint8))
    numel = torch.Tensor.numel

    def collecting(tensor: torch.Tensor) -> int:
        gc.collect()
        return numel(tensor)

    taken: list[torch.Tensor] = []

    def take() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "numel", collecting)
            taken.append(pool.take(64))
        taken.extend(pool.take(64) for _ in range(4))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(HANGS)

    assert not thread.is_alive(), "take waits for itself"
    assert len({tensor.data_ptr() for tensor in taken}) == len(taken) == 5


def test_the_pool_is_bounded() -> None:
    """No more buffers wait than the limit, however many come back."""
    pool: Any = Pool(limit=2)
    for buffer in [pool.take(64) for _ in range(5)]:
        pool.give(buffer)
    assert len(pool._idle) == 2
