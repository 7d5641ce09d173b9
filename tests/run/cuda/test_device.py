"""On a GPU: the nine workloads against the CPU's float64, no waiting, streams."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from bound import plan_for
from devices import NINE, PoisonedBackend, opened, paths, require_parity
from torch.utils._pytree import tree_leaves

from edbc.cells.parts import splittable
from edbc.run.session import Net


def on_gpu(name: str, dtype: torch.dtype, count: int = 32, **settings: Any) -> tuple[Net, list[Any]]:
    """A workload on the GPU at the size of the tables in docs/performance.md."""
    file, config = opened(name, hidden_size=128, vocab_size=256, num_matrices=256, **settings)
    instances = file.sample(count, 3, config)
    model = file.build(config, 0)
    plan = plan_for(model, instances, split=splittable)
    device = torch.device("cuda")
    rebind = dtype != torch.float32 or None
    return Net(plan, model.to(device, dtype), backend=PoisonedBackend(device), rebind=rebind), instances


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NINE)
def test_nine_workloads_equal_the_cpu(name: str, dtype: torch.dtype) -> None:
    """Hidden size 128, mini-batches of 32, memory poisoned before each run: the rule per dtype, all of it in Triton."""
    net, instances = on_gpu(name, dtype)
    require_parity(net, instances)

    assert set(paths(net, instances).values()) == {"triton"}


@pytest.mark.cuda
@pytest.mark.parametrize("name", NINE)
def test_nothing_waits_for_the_device(name: str) -> None:
    """torch raises at every synchronisation inside of a mini-batch, externals and results counted in."""
    net, instances = on_gpu(name, torch.float32)
    with torch.no_grad():
        net(instances)
        prepared = net.prepare(instances)
        torch.cuda.set_sync_debug_mode("error")
        try:
            net.execute(prepared)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@pytest.mark.parametrize("front_end", ["record", "vertex"])
def test_mini_batches_of_one_and_many(front_end: str) -> None:
    """1, 3 and 256 instances, by both front ends, through a stream too."""
    net, instances = on_gpu("tree_lstm", torch.float32, count=260)
    if front_end == "vertex":
        file, config = opened("tree_lstm", hidden_size=128, vocab_size=256)
        convert = file.vertex_instance(config)
        stacked = net([convert(instance) for instance in instances[:3]])
        assert all(leaf.is_cuda for result in stacked for leaf in result.values())
        return
    for batch in (instances[:1], instances[1:4], instances[4:]):
        require_parity(net, batch)
    assert len(list(net.stream(instances, batch_size=64))) == len(instances)


@pytest.mark.cuda
def test_runs_are_equal_bit_for_bit() -> None:
    """Sums of generated kernels add in the order of their items, however the device's blocks are scheduled."""
    net, instances = on_gpu("child_sum_tree_lstm", torch.float32)
    with torch.no_grad():
        first, second = (tree_leaves(net(instances)) for _ in range(2))

    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, torch.Tensor))


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["tree_lstm", "lattice_lstm"])
def test_gradients_are_equal_bit_for_bit(name: str) -> None:
    """Rows that many nodes read, as words and initial states are, get their gradients in the order of the schedule."""
    net, instances = on_gpu(name, torch.float32)
    found = []
    for _ in range(2):
        net.model.zero_grad()
        leaves = [leaf for leaf in tree_leaves(net.trainer.run(instances)) if isinstance(leaf, torch.Tensor)]
        sum(leaf.square().sum() for leaf in leaves).backward()  # type: ignore[union-attr]
        found.append([p.grad.clone() for p in net.model.parameters() if p.grad is not None])

    assert found[0]
    assert all(map(torch.equal, *found))


@pytest.mark.cuda
def test_threads_may_have_streams_of_their_own() -> None:
    """Two threads on two streams share a net that has packed no weights yet: each gets its own results."""
    net, instances = on_gpu("tree_lstm", torch.float64, count=64)
    halves = (instances[:32], instances[32:])
    found: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found[number] = net(halves[number])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for number, half in enumerate(halves):
            for ours, theirs in zip(tree_leaves(found[number]), tree_leaves(net(half)), strict=True):
                assert torch.equal(ours, theirs)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["tree_lstm", "lattice_lstm", "bilstm_tagger"])
def test_gradients_equal_the_cpu(name: str) -> None:
    """In float64, of every parameter; where eager has none there is none."""
    net, instances = on_gpu(name, torch.float64, count=8)
    twin = copy.deepcopy(net.model).cpu()
    for model, results in ((net.model, net(instances)), (twin, [twin(instance) for instance in instances])):
        model.zero_grad(set_to_none=True)
        sum(leaf.square().sum() for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)).backward()
    for (label, ours), theirs in zip(net.model.named_parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), label
        if ours.grad is not None and theirs.grad is not None:
            error = (ours.grad.cpu() - theirs.grad).abs().max()
            assert error <= 1e-11 * theirs.grad.abs().max() + 1e-15, label
