"""The torch path of the CUDA back end, without Triton: the same arenas and the same upload, batched torch calls."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from bound import RandomTreeModel, plan_for, random_trees
from devices import DEVICE, NINE, on_device, paths, require_parity, zoo_net
from gradients import require_equal_gradients
from helpers import bound
from torch import nn

from edbc.errors import DeviceError
from edbc.run.backend import backend_of
from edbc.run.cuda.cudabackend import CudaBackend
from edbc.run.passes.boundary import collect, load_externals, wanted

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=pytest.mark.slow if dtype is DTYPES[1 + number % 2] else ())
        for number, name in enumerate(NINE)
        for dtype in DTYPES
    ],
    ids=str,
)
def test_nine_workloads_equal_eager(name: str, dtype: torch.dtype) -> None:
    """Every type in torch, memory poisoned before the run; in float64 and one of the others, in all with `--slow`."""
    net, instances = zoo_net(name, dtype, use_triton=False, count=4)
    require_parity(net, instances)

    assert set(paths(net, instances).values()) == {"torch"}


@pytest.mark.parametrize("seed", range(4))
def test_random_trees_equal_eager(seed: int) -> None:
    """Sums of any arity, functions without a program, results that are externals."""
    instances = random_trees(seed, 6)
    model = RandomTreeModel(seed, 6, mixed=seed % 2 == 1)
    net = on_device(plan_for(model, instances), model, use_triton=False)
    require_parity(net, instances)
    require_parity(net, [3])

    assert net([]) == []


class OfRuns(nn.Module):
    """Functions of all rows of an instance: attention, a reduction, and one that gives a row for each."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query = self.query(rows)
        seen = torch.softmax(query @ self.key(rows).t() / 3, 1) @ rows
        return seen.logcumsumexp(0).sum(0), torch.cumsum(query, 0)[-1]


def test_functions_of_runs_equal_eager() -> None:
    """Values and gradients; of which node its items are is told to them as to reductions."""
    model = OfRuns().double().to(DEVICE)
    instances = [torch.randn(n, 8, dtype=torch.float64) for n in (2, 3, 5, 7, 3)]
    net = bound(model, instances, rows=True, backend=CudaBackend(DEVICE, use_triton=False))

    assert sum(t.is_run for t in net.prepare(instances).capture.graph.types) == 3
    require_equal_gradients(net, instances)


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal bits on a CPU; on a GPU torch's own sums add in any order."""
    return torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12) if ours.is_cuda else torch.equal(ours, theirs)


def test_batches_run_in_two_calls() -> None:
    """Up to any point, then the rest: the schedule goes up once, with the first."""
    instances = random_trees(11, 5)
    model = RandomTreeModel(11, 6)
    net = on_device(plan_for(model, instances), model, use_triton=False)
    expected = net(instances)
    prepared = net.prepare(instances)
    wants = wanted(prepared.capture, prepared.placement)
    for cut in (0, 1, prepared.schedule.num_batches):
        arenas = net.backend.arenas(prepared.segment, prepared.demand)
        load_externals(prepared.capture, prepared.boundary.lookups, arenas, net.view)
        for want in wants:
            arenas.expect(want.class_index, want.rows)
        with torch.no_grad():
            net.backend.execute(replace(prepared.segment, end=cut), arenas, net.kernel)
            net.backend.execute(replace(prepared.segment, begin=cut), arenas, net.kernel)
        results = collect(prepared.capture, prepared.placement, arenas, wants)

        assert arenas.copies == 1  # type: ignore[attr-defined]
        for ours, theirs in zip(results, expected, strict=True):
            assert same(ours["root"], theirs["root"])


def test_threads_share_a_net() -> None:
    """Two threads, different mini-batches, many times: nobody sees another's indices or arenas."""
    batches = [random_trees(seed, 5) for seed in range(2)]
    model = RandomTreeModel(5, 6)
    net = on_device(plan_for(model, [tree for batch in batches for tree in batch]), model, use_triton=False)
    with torch.no_grad():
        expected = [net(batch) for batch in batches]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            with torch.no_grad():
                results = net(batches[number])
            if not all(same(a["root"], b["root"]) for a, b in zip(results, expected[number], strict=True)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU is here")
def test_the_cuda_back_end_needs_a_cuda_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by name with a model on the CPU: both sides and the choices in one line; Triton's interpreter needs
    no device."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend_of("cuda", torch.device("cpu")).name == "cuda"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(DeviceError, match=r"expected one that runs on cpu \(reference or cpu\), got 'cuda'"):
        backend_of("cuda", torch.device("cpu"))


def test_the_reason_without_triton_is_told() -> None:
    """A back end whose Triton is off says so."""
    assert CudaBackend(DEVICE, use_triton=False).why_not == "Triton is switched off"
