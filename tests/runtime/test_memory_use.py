"""What a mini-batch takes in memory: known before it executes, close to what its values need, and no more over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bound import poison
from helpers import bound, model_file

from edbc.runtime.arenas import arena_bytes
from edbc.runtime.session import Net, Prepared, Stats

MODELS = (
    "tree_lstm",
    "tree_gru",
    "mv_rnn",
    "lattice_lstm",
    "bilstm_tagger",
    "lstm_nmt",
    "dag_gru",
    "transition_parser",
)


def net_of(name: str, size: int, **options: Any) -> tuple[Net, list[Any]]:
    """A model of the zoo with hidden size 32, bound to a plan made in memory, and made-up instances."""
    file = model_file(name)
    torch.manual_seed(0)
    instances = list(file.sample(size, 3))
    return bound(file.build(hidden_size=32).eval(), instances, **options), instances


def workspace_of_one_batch(net: Net, prepared: Prepared) -> int:
    """The most that one batch, whole, needs for its operands side by side and its intermediate values."""
    counts = np.diff(prepared.schedule.batch_ptr).tolist()
    programs = [getattr(net.kernel(int(kind)), "program", None) for kind in prepared.schedule.batch_type]
    itemsize = net.dtype.itemsize
    return max(count * p.width * itemsize for count, p in zip(counts, programs, strict=True) if p is not None)


@pytest.mark.parametrize("name", MODELS)
def test_memory_is_what_outputs_and_one_batch_need(name: str) -> None:
    """Values and workspace together: at most 1.2 times the sum of all cell outputs, plus the workspace of one batch.
    (Cells that run in parts have the parts' outputs beside their own.)"""
    net, instances = net_of(name, 16, split=False)
    prepared = net.prepare(instances)
    outputs = arena_bytes(prepared.placement, externals=False)

    assert 0 < prepared.demand.total <= 1.2 * outputs + workspace_of_one_batch(net, prepared)


@pytest.mark.parametrize("name", MODELS)
def test_the_demand_is_what_is_taken(name: str) -> None:
    """The buffer that executing takes from the pool is what was said before, to a few cache lines per class."""
    net, instances = net_of(name, 5)
    stats = Stats()
    _, prepared = net.run(instances, stats)
    idle = net.backend._pool._idle  # type: ignore[attr-defined]

    assert stats.arena_bytes == prepared.demand.total
    assert len(idle) == 1
    assert 0 <= idle[0].numel() - prepared.demand.total <= 64 * (4 + len(prepared.placement.classes))


@pytest.mark.parametrize("front_end", ["record", "vertex"])
def test_outputs_of_three_mini_batches_are_kept(front_end: str) -> None:
    """Outputs of three successive mini-batches, held together, equal what each gives alone; by both front ends."""
    file = model_file("lattice_lstm")
    torch.manual_seed(0)
    instances = list(file.sample(18, 4))
    net = bound(file.build(hidden_size=16).eval(), instances)
    if front_end == "vertex":
        instances = [file.vertex_instance(lattice) for lattice in instances]
    batches = [instances[:6], instances[6:12], instances[12:]]
    alone = [[[row.clone() for row in result["logits"]] for result in net.run(batch)[0]] for batch in batches]
    kept = [net.run(batch)[0] for batch in batches]
    poison(net)

    for ours, theirs in zip(kept, alone, strict=True):
        for result, rows in zip(ours, theirs, strict=True):
            assert all(map(torch.equal, result["logits"], rows))
