"""What a mini-batch asks of a device, counted on torch's meta device, where looking at a value is an error.

A meta tensor has no data: `.item()`, `.cpu()`, `nonzero` and their like raise. So whatever runs through here never
waits for the device; and a copy from host to device is a call with a host tensor in and a meta tensor out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bound import plan_for
from devices import NINE, opened
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edbc.cells.parts import splittable
from edbc.run.cuda.chains import cut
from edbc.run.cuda.cudabackend import CudaBackend
from edbc.run.cuda.issue import ON_HOST
from edbc.run.cuda.upload import Upload
from edbc.run.session import Net, Stats
from edbc.tools.running import Report, Setting

META = torch.device("meta")


_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Calls(TorchDispatchMode):
    """Counts copies from the host to the device. A number that an operation takes as a host tensor without dimensions
    is an argument of its kernel, not a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.copies += func in _COPIES and "cpu" in given and "meta" in made
        return result


class Recording(CudaBackend):
    """A back end that notes launches in place of Triton."""

    def __init__(self, use_triton: bool):
        super().__init__(META, use_triton)
        self.why_not = None if use_triton else self.why_not
        self.started: list[int] = []
        for issuer in (self.forward, self.backward):
            issuer._function = lambda text: {(ON_HOST,): self._note}

    def _note(self, cursor: torch.Tensor, number: int, ahead: int, **constants: Any) -> None:
        assert constants["PROGRAMS"] == ON_HOST
        self.started.append(number)


def meta_net(name: str, use_triton: bool) -> tuple[Net, list[Any], Recording]:
    """A model of the zoo whose parameters are meta tensors."""
    file, config = opened(name)
    instances = file.sample(5, 3, config)
    model = file.build(config, 0)
    plan = plan_for(model, instances, split=splittable)
    backend = Recording(use_triton)
    return Net(plan, model.to(META), backend=backend), instances, backend


@pytest.mark.parametrize(
    ("name", "use_triton"),
    [(name, True) for name in NINE] + [(name, False) for name in ("tree_gru", "mv_rnn", "lattice_lstm")],
)
def test_one_copy_and_no_waiting(name: str, use_triton: bool) -> None:
    """The whole way of a mini-batch, from externals to results: one copy up, nothing down, on both paths."""
    net, instances, _ = meta_net(name, use_triton)
    net.run(instances)
    prepared = net.prepare(instances)
    with Calls() as calls:
        results = net.execute(prepared)

    assert calls.copies == 1
    assert {leaf.device.type for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)} == {"meta"}


@pytest.mark.parametrize("name", ["tree_lstm", "bilstm_tagger"])
def test_a_training_step_goes_up_in_one_copy_too(name: str) -> None:
    """Rows of results are known beforehand with gradients as without, however many tensors autograd gets."""
    net, instances, _ = meta_net(name, use_triton=True)
    net.trainer.run(instances)
    with Calls() as calls:
        results = net.trainer.run(instances)

    assert calls.copies == 1
    assert any(leaf.requires_grad for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize("name", ["tree_lstm", "lattice_lstm"])
def test_a_backward_pass_goes_up_in_one_copy_and_nothing_comes_down(name: str) -> None:
    """Looking at a value of a meta tensor raises, so nothing waits for the device."""
    net, instances, backend = meta_net(name, use_triton=True)
    losses = [[leaf for leaf in tree_leaves(net.trainer.run(instances)) if leaf.requires_grad] for _ in range(2)]
    torch.autograd.backward(losses[0], [torch.empty_like(loss) for loss in losses[0]])
    given = [torch.empty_like(loss) for loss in losses[1]]
    backend.started.clear()
    with Calls() as calls:
        torch.autograd.backward(losses[1], given)

    assert calls.copies == 1
    assert backend.started
    assert all(p.grad is not None and p.grad.device == META for p in net.model.parameters())


@pytest.mark.parametrize("name", NINE)
def test_steps_as_reported(name: str) -> None:
    """As many steps as the longest path, those of `path` for each batch where somebody watches; numbered by chains."""
    net, instances, backend = meta_net(name, use_triton=True)
    net.run(instances)
    prepared = net.prepare(instances)
    backend.started.clear()
    net.execute(prepared)

    assert len(backend.started) == sum(cut(prepared.demand.steps)) >= prepared.demand.steps > 0
    assert backend.started == [k for n in cut(prepared.demand.steps) for k in (*range(n - 1), -1)]
    per_batch: list[int] = []
    backend.started.clear()
    net.execute(prepared, lambda _, batch: per_batch.append(len(backend.started) - sum(per_batch)))
    types = prepared.capture.graph.types
    said = [net.backend.path(types[kind], net.kernel(kind)).steps for kind in prepared.schedule.batch_type.tolist()]
    graph, takes = prepared.capture.graph, dict(zip(prepared.schedule.batch_type.tolist(), said, strict=True))
    ends: list[int] = []
    for node, kind in enumerate(graph.node_type.tolist()):
        operands = graph.operands[graph.operand_ptr[node] : graph.operand_ptr[node + 1]].tolist()
        ends.append((takes[kind] or 0) + max((ends[u] for u in operands if u >= 0), default=0))
    assert prepared.demand.steps == 1 + max(ends)  # the longest path, though the plan has no waves
    said[0] = (said[0] or 0) + 1  # rows of externals

    assert per_batch == [sum(cut(steps or 0)) for steps in said]
    assert max(said[1:], default=0) <= 2  # type: ignore[type-var]


def test_a_run_tells_paths_and_launches() -> None:
    """Stats name what ran each type and count steps and launches; the report shows them, and what warming up cost."""
    net, instances, _ = meta_net("tree_lstm", use_triton=True)
    stats = Stats()
    with torch.no_grad():
        net.run(instances, stats)
    text = str(Report("p.yaml", Setting(device="cuda"), net, stats, None, (), ()))

    assert {name: str(path) for name, path in stats.paths.items()} == dict.fromkeys(
        ("leaf", "internal", "out"), "triton, 1 step per batch"
    )
    assert "ran by       triton: internal (1), leaf (1), out (1)" in text
    assert f"launches     {stats.launches:,} for {stats.device_steps:,} steps" in text
    assert "warm-up: 1 step kernel compiled and 5 chains captured in" in text
    assert "issued in" in text
    assert "policy       waves by the rule" in text


def test_the_report_says_why_triton_does_not_run() -> None:
    """A device without Triton is no silent matter."""
    net, instances, _ = meta_net("tree_lstm", use_triton=False)
    stats = Stats()
    with torch.no_grad():
        net.run(instances, stats)
    text = str(Report("p.yaml", Setting(device="cuda"), net, stats, None, (), ()))

    assert "ran by       torch: internal, leaf, out" in text
    assert "no Triton    Triton is switched off" in text


def test_waiting_would_show() -> None:
    """The guard can fail: looking at a value on the meta device raises, and a second copy is counted."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.zeros(1, device=META).item()
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.zeros(1, device=META).nonzero()
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.zeros(1, device=META).cpu()
    with Calls() as calls:
        torch.zeros(1).to(META)
        torch.zeros(1, device=META).copy_(torch.zeros(1))
        torch.zeros(1, device=META) + 1

    assert calls.copies == 2


def test_parts_of_an_upload_come_out_as_they_went_in() -> None:
    """Indices as int32, data in their own type, shapes kept, parts without elements too; one buffer."""
    upload = Upload(torch.device("cpu"))
    values = [np.arange(5), np.zeros(0, np.int64), np.array([7, -1])]
    data = [torch.randn(3, 2, dtype=torch.float64), torch.randn(1).bfloat16(), torch.zeros(0, 4)]
    parts = [upload.indices(v) for v in values] + [upload.data(d) for d in data]
    for part, expected in zip(parts, [*map(torch.from_numpy, values), *data], strict=True):
        assert part.tensor.dtype == (torch.int32 if expected.dtype == torch.int64 else expected.dtype)
        assert torch.equal(part.tensor.to(expected.dtype), expected)
        assert part.tensor.untyped_storage().data_ptr() == upload.buffer.data_ptr()
