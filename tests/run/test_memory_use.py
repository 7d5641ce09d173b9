"""What a mini-batch takes in memory: known before it executes, close to what its values need, and no more over time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bound import poison
from helpers import bound, model_file
from torch.profiler import ProfilerActivity, profile
from zoo_names import shortest

from edbc.capture.standins.standin import torch_dtype
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.session import Net, Stats

pytestmark = pytest.mark.compiled

NINE = (
    "tree_lstm",
    "tree_gru",
    "tree_lstm_2type",
    "mv_rnn",
    "lattice_lstm",
    "lattice_gru",
    "bilstm_tagger",
    "bilstm_tagger_char",
    "lstm_nmt",
)
IN_CHUNKS = ("lattice_lstm", "lattice_gru", "bilstm_tagger")
MODELS = (*NINE, "dag_gru", "transition_parser")


@pytest.fixture(autouse=True)
def parts_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small cells run in parts too, wherever there is memory for it."""
    monkeypatch.setattr("edbc.cells.parts.MULTIPLICATIONS_PER_TYPE", 0)
    monkeypatch.setattr("edbc.cells.parts.ON_CPU.chunk", 0)
    monkeypatch.setattr("edbc.cells.parts.MULTIPLICATIONS_PER_NODE", 0)
    monkeypatch.setattr("edbc.cells.parts.ON_CPU.element", 0)


def net_of(name: str, size: int, **options: Any) -> tuple[Net, list[Any]]:
    """A model of the zoo with hidden size 32, bound to a plan made in memory, and made-up instances."""
    file = model_file(name)
    torch.manual_seed(0)
    instances = shortest(list(file.sample(3 * size, 3)), size)
    return bound(file.build(hidden_size=32).eval(), instances, **options), instances


def bytes_of_outputs(prepared: MiniBatch) -> int:
    """Every output of every node that the policy saw, cells whole, equal nodes once, one by one."""
    graph = prepared.whole[0].graph
    outputs = [graph.types[kind].outputs for kind in graph.node_type.tolist()]
    return sum(c.size * torch_dtype(c.dtype).itemsize for classes in outputs for c in classes)


def workspace_of_one_batch(net: Net, prepared: MiniBatch) -> int:
    """The most that one batch of the policy's schedule, its cell whole, needs for its operands side by side and its
    intermediate values."""
    batches = [(len(nodes), net.program(kind)) for kind, nodes in prepared.whole[1].batches() if has_program(net, kind)]
    return max(count * program.width * net.dtype.itemsize for count, program in batches if program is not None)


def has_program(net: Net, kind: int) -> bool:
    """A sum has none."""
    node_type = net.table.types[kind]
    return node_type is not None and not node_type.variadic


def allocated(net: Net, instances: list[Any]) -> tuple[int, int]:
    """Bytes that torch held at most while a mini-batch ran, its results apart, and those of its buffer."""
    with torch.no_grad():
        net(instances)
        net.backend.pool._idle.clear()  # type: ignore[attr-defined]
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            results = net(instances)
    held, most = 0, 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        held += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, held)
    (buffer,) = net.backend.pool._idle  # type: ignore[attr-defined]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(results)}
    return most - sum(storages.values()), buffer.numel()


def tensors_of(item: Any) -> list[torch.Tensor]:
    """All tensors in what a model returned."""
    if isinstance(item, torch.Tensor):
        return [item]
    parts = item.values() if isinstance(item, dict) else item
    return [tensor for part in parts for tensor in tensors_of(part)]


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("name", MODELS)
def test_memory_is_what_outputs_and_one_batch_need(name: str, size: int) -> None:
    """What torch allocates while a mini-batch runs is at most 1.2 times the sum of all cell outputs plus the workspace
    of one batch, and is what was known before it ran, to a few cache lines per class; with cells in parts too."""
    net, instances = net_of(name, size)
    stats = Stats()
    _, prepared = net.run(instances, stats)
    most, buffer = allocated(net, instances)
    slack = 64 * (4 + len(prepared.placement.classes))

    assert stats.arena_bytes == prepared.demand.total
    assert 0 <= buffer - prepared.demand.total <= slack
    assert 0 < buffer <= 1.2 * bytes_of_outputs(prepared) + workspace_of_one_batch(net, prepared) + slack
    assert most <= buffer + 20_000


@pytest.mark.parametrize("name", IN_CHUNKS)
def test_parts_are_among_what_is_measured(name: str) -> None:
    """Workloads with recurrent cells over words do run in parts above, and in several chunks."""
    net, instances = net_of(name, 6)
    prepared = net.prepare(instances)
    batches = prepared.schedule.batch_type.tolist()

    assert any(prepared.capture.graph.types[kind].transient and batches.count(kind) > 1 for kind in set(batches))


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
