"""The native back end against torch: random cells, random trees, both widths."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from bound import RandomTreeModel, net_for, poison, random_trees
from helpers import require_eager
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.cells.rows.reduction import ReductionKernel
from edbc.run.cpu.walktables import NativeKernel


@pytest.mark.compiled
@settings(derandomize=True, deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 4, 19]))
@pytest.mark.long
def test_random_cells_run_natively_and_equal_eager(seed: int, size: int) -> None:
    """Whatever products, gates, sums and slices a cell has, no type needs torch, and the numbers are eager's."""
    model = RandomTreeModel(seed, size)
    instances = random_trees(seed, 5)
    net = net_for(model, instances)
    require_eager(net, instances)
    poison(net)
    require_eager(net, instances)
    graph = net.mini_batch(instances).graph
    assert all(net.backend.runs_natively(t, net.kernel(i)) for i, t in enumerate(graph.types))
    assert {type(net.kernel(i)) for i in range(graph.num_types)} <= {NativeKernel, ReductionKernel}


@pytest.mark.parametrize("seed", range(8))
def test_float32_equals_eager(seed: int) -> None:
    """The same in float32, whose activations are approximations of our own."""
    model = RandomTreeModel(seed, 33).float()
    instances = random_trees(seed, 8)
    require_eager(net_for(model, instances), instances)


@pytest.mark.parametrize("can_switch", [True, False])
def test_results_are_tensors_of_their_own(can_switch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No result is a view of another tensor, as in eager; each may be changed in place, require a gradient, be copied.
    Where torch has no switch for views the numbers are the same."""
    if not can_switch:
        monkeypatch.setattr("edbc.capture.forward.carried._EXCLUDE", None)
    instances = random_trees(1, 3)
    net = net_for(RandomTreeModel(1, 4), instances)
    with torch.no_grad():
        results = [result["logits"] for result in net(instances)]
    tensors = [tensor for logits in results for tensor in logits]
    before = [tensor.clone() for tensor in tensors]
    assert len(tensors) > 8
    assert all(tensor._base is None for tensor in tensors) == can_switch

    tensors[0].fill_(torch.nan)
    tensors[1].requires_grad_()
    (tensors[1] * 2).sum().backward()
    assert tensors[1].grad.tolist() == [2.0] * 3
    assert copy.deepcopy(tensors[2]).tolist() == before[2].tolist()
    assert all(map(torch.equal, tensors[1:], before[1:]))


@pytest.mark.parametrize("seed", range(4))
def test_native_equals_reference(seed: int) -> None:
    """Both back ends run the same plan to the same float64 numbers."""
    model = RandomTreeModel(seed, 8, mixed=seed % 2 == 1)
    instances = random_trees(seed, 6)
    native, reference = (net_for(model, instances, backend)(instances) for backend in ("cpu", "reference"))
    for ours, theirs in zip(native, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(4))
def test_functions_without_native_code_run_in_between(seed: int) -> None:
    """What has no native code goes to torch between cells; its neighbours stay native, all numbers are eager's."""
    instances = random_trees(seed, 8)
    net = net_for(RandomTreeModel(seed, 6, mixed=True), instances)
    require_eager(net, instances)
    graph = net.mini_batch(instances).graph
    native = {t.op: net.backend.runs_natively(t, net.kernel(i)) for i, t in enumerate(graph.types)}
    assert not native["torch.logcumsumexp"]
    assert native["cell inner"]
    poison(net)
    require_eager(net, instances)


def test_batches_larger_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond a block go through the workspace in turns."""
    instances = random_trees(3, 40)
    net = net_for(RandomTreeModel(3, 4), instances)
    monkeypatch.setattr("edbc.run.cpu.cpubackend.BLOCK", 3)
    require_eager(net, instances)


def test_edges_of_a_mini_batch() -> None:
    """No instances, one instance of one node, and values that are results without being computed."""
    net = net_for(RandomTreeModel(1, 4), random_trees(1, 6))
    assert net([]) == []
    require_eager(net, [3])
    require_eager(net, [(1,), 2, (4, 4, 4)])


def test_results_own_their_memory() -> None:
    """Three mini-batches later the first results are what they were."""
    batches = [random_trees(seed, 6) for seed in range(3)]
    net = net_for(RandomTreeModel(2, 8), [tree for batch in batches for tree in batch])
    results = [net(batch) for batch in batches]
    poison(net)
    for batch, result in zip(batches, results, strict=True):
        require_eager(net, batch, result)


def test_threads_share_a_net() -> None:
    """Two threads on one net, different mini-batches, many times: each gets its own numbers."""
    batches = [random_trees(seed, 6) for seed in range(2)]
    net = net_for(RandomTreeModel(5, 16), [tree for batch in batches for tree in batch])
    expected = [net(batch) for batch in batches]
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(50):
            for ours, theirs in zip(net(batches[number]), expected[number], strict=True):
                if not torch.equal(ours["root"], theirs["root"]):
                    wrong.append(f"thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_change_of_weights_is_seen() -> None:
    """Assigning, loading and stepping parameters changes the next mini-batch, packed ones and element-wise ones
    alike."""
    instances = random_trees(7, 5)
    model = RandomTreeModel(7, 4)
    net = net_for(model, instances)
    roots = [net(instances)[0]["root"]]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    roots.append(net(instances)[0]["root"])
    assert not torch.equal(*roots)
    require_eager(net, instances)
    model.table.data = model.table.data * 2
    require_eager(net, instances)


@pytest.mark.compiled
def test_memory_stays_flat() -> None:
    """Two hundred mini-batches of many shapes leave one idle buffer, no larger than the largest needed."""
    net = net_for(RandomTreeModel(4, 4), random_trees(0, 64))
    largest = 0
    for seed in range(200):
        prepared = net.prepare(random_trees(seed, 1 + seed % 7))
        largest = max(largest, prepared.demand.total)
        net.execute(prepared)
    idle = net.backend.pool._idle
    assert len(idle) == 1
    assert idle[0].numel() <= largest + 4096


class Zero(torch.nn.Module):
    """A model whose cell works on vectors of no elements and whose operand is one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(4, 3))
        self.empty = torch.nn.Linear(3, 0)
        self.back = torch.nn.Linear(0, 2)

    def forward(self, word: int):
        x = self.table[word]
        nothing = self.empty(x)
        return {"nothing": nothing, "bias": self.back(nothing), "twice": torch.sigmoid(x + x) * x}


def test_tensors_without_elements_and_repeated_operands() -> None:
    """A product to no columns, a product from no rows (its bias), and x + x."""
    with pytest.warns(UserWarning, match="zero-element"):
        model = Zero()
    require_eager(net_for(model, [0, 1, 1, 3]), [0, 1, 1, 3])
