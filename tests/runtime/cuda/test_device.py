"""On a GPU: the nine workloads against the CPU's float64, no waiting, streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bound import plan_for
from devices import NINE, PoisonedBackend, opened, paths, require_parity

from edbc.cells.split import splittable
from edbc.runtime.session import Net


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
