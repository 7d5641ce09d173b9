"""Gradients on random trees: what a loss reaches, what requires one, and what stays None, exactly as in eager."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bound import RandomTreeModel, net_for, random_trees
from gradients import gradients, random_loss, require_equal, require_equal_gradients, tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.errors import UnsupportedError
from edbc.run.session import Net
from edbc.run.weights.fingerprint import ELEMENTS
from edbc.train.results import SINGLES


def tree_net(seed: int = 1, mixed: bool = False, size: int = 5, backend: str | None = None) -> tuple[Net, list[Any]]:
    instances = random_trees(seed, 6)
    return net_for(RandomTreeModel(seed, size, mixed), instances, backend), instances


@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), mixed=st.booleans(), backend=st.sampled_from(["cpu", "reference"]))
@pytest.mark.long
def test_random_cells(seed: int, mixed: bool, backend: str) -> None:
    """Whatever a cell consists of, on both back ends."""
    net, instances = tree_net(seed, mixed, backend=backend)
    require_equal_gradients(net, instances, tolerance=1e-11)


LOSSES: dict[str, Callable[[list[Any]], torch.Tensor]] = {
    "one instance": lambda results: results[2]["root"].sum(),
    "roots": lambda results: torch.stack([r["root"] for r in results]).square().sum(),
    "one logit": lambda results: results[0]["logits"][0].exp().sum(),
    "an output twice": lambda results: (results[1]["root"] * results[1]["root"]).sum() + results[1]["root"].sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_parts_of_the_results(loss: str) -> None:
    """A loss over some results gives the gradients that eager gives, None included."""
    net, _ = tree_net(3)
    instances = random_trees(3, 3)
    assert sum(1 for _ in tensors(net(instances))) <= SINGLES
    require_equal_gradients(net, instances, LOSSES[loss])


def test_what_the_loss_leaves_out_cannot_harm() -> None:
    """Not-a-number in an instance that the loss does not use stays out of the gradients."""
    net, instances = tree_net(4)
    model: Any = net.model
    with torch.no_grad():
        model.table[7] = torch.nan
    bad = [i for i, tree in enumerate(instances) if "7" in str(tree).replace("17", "")]
    good = [i for i in range(len(instances)) if i not in bad]
    assert bad
    assert good
    ours = require_equal_gradients(net, instances, lambda results: random_loss([results[i] for i in good]))

    assert all(gradient is None or gradient.isfinite().all() for gradient in ours.values())


def test_a_parameter_that_no_instance_needs_stays_none() -> None:
    """BUGS 5: trees of one word use no inner cell."""
    net, _ = tree_net(5)
    ours = require_equal_gradients(net, [3, 4, 5])

    assert ours["table"] is not None
    assert all(gradient is None for name, gradient in ours.items() if name.startswith(("inner", "start")))


@pytest.mark.parametrize("frozen", ["table", "leaf", "inner", "out", "all but the start"])
def test_frozen_parameters(frozen: str) -> None:
    """What is frozen gets no gradient, everything else the same as before."""
    net, instances = tree_net(6)
    for name, parameter in net.model.named_parameters():
        parameter.requires_grad_(name == "start" if frozen == "all but the start" else not name.startswith(frozen))
    require_equal_gradients(net, instances)
    for ours, theirs in zip(tensors(net(instances)), tensors(map(net.model, instances)), strict=True):
        assert ours.requires_grad == theirs.requires_grad


def test_nothing_requires_a_gradient() -> None:
    """With every parameter frozen, or under no_grad, results are plain tensors; in eval mode gradients flow."""
    net, instances = tree_net(7)
    assert net.model.training is False
    assert all(t.requires_grad for t in tensors(net(instances)))
    with torch.no_grad():
        assert not any(t.requires_grad for t in tensors(net(instances)))
    net.model.requires_grad_(False)
    assert not any(t.requires_grad for t in tensors(net(instances)))


def test_two_mini_batches_before_one_backward() -> None:
    """Each mini-batch has memory of its own until its backward pass: gradients add up as in eager."""
    net, instances = tree_net(8)
    others = random_trees(80, 5)
    ours = gradients(net.model, random_loss(net(instances)) + 2 * random_loss(net(others)))
    eager = random_loss(list(map(net.model, instances))) + 2 * random_loss(list(map(net.model, others)))

    require_equal(ours, gradients(net.model, eager))


@pytest.mark.compiled
def test_memory_goes_back_to_the_pool() -> None:
    """After backward, and when results are dropped without one, the arenas are idle again; before, they are not."""
    net, instances = tree_net(9)
    pool: Any = net.backend.pool  # type: ignore[attr-defined]
    net(instances)
    idle = len(pool._idle)
    assert idle == 1
    loss = random_loss(net(instances))
    assert len(pool._idle) == idle - 1
    loss.backward()
    assert len(pool._idle) == idle
    loss = random_loss(net(instances))
    loss.backward(retain_graph=True)
    assert len(pool._idle) == idle - 1
    del loss
    assert len(pool._idle) == idle


@pytest.mark.compiled
@pytest.mark.long
def test_memory_stays_flat() -> None:
    """Sixty steps over mini-batches of many shapes leave one idle buffer for values and one for gradients."""
    net, _ = tree_net(9)
    for seed in range(60):
        random_loss(net(random_trees(seed, 1 + seed % 5))).backward()
    pools: list[Any] = [net.backend.pool, net.trainer.pool]  # type: ignore[attr-defined]
    assert [len(pool._idle) for pool in pools] == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    """One thread and two give the same bits, run after run, for the same outputs' gradients."""
    model = RandomTreeModel(12, 48).to(dtype)
    instances = random_trees(12, 40)
    net = net_for(model, instances)
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 1, 2):
            torch.set_num_threads(count)
            results = net(instances)
            weights = [torch.arange(t.numel(), dtype=dtype).view(t.shape) for t in tensors(results)]
            model.zero_grad(set_to_none=True)
            torch.autograd.backward(list(tensors(results)), weights)
            found.append([p.grad for p in model.parameters()])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_a_kept_graph_runs_again() -> None:
    """retain_graph=True: the second backward pass gives the same bits; without it, it is an error as in eager."""
    net, instances = tree_net(10)
    loss = random_loss(net(instances))
    model = net.model
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
    net(random_trees(99, 9))  # would overwrite the arenas, were they free
    second = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_where_torch_cannot_be_asked_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that does not tell whether the graph is kept: nothing is overwritten, and memory goes back when the
    graph dies."""
    net, instances = tree_net(10)
    monkeypatch.delattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
    loss, parameters = random_loss(net(instances)), list(net.model.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    net(random_trees(99, 9))
    second = torch.autograd.grad(loss, parameters, allow_unused=True)

    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_several_losses() -> None:
    """Two losses of one mini-batch, each with a backward pass of its own, add up as in eager."""
    net, instances = tree_net(11)

    def run(results: list[Any]) -> dict[str, Any]:
        net.model.zero_grad(set_to_none=True)
        results[0]["root"].sum().backward(retain_graph=True)
        random_loss(results).backward()
        return {name: p.grad for name, p in net.model.named_parameters()}

    require_equal(run(net(instances)), run([net.model(instance) for instance in instances]))


def test_parameters_that_change_before_backward_are_an_error() -> None:
    """An optimiser's step between forward and backward is found by version, as in eager."""
    net, instances = tree_net(12)
    loss = random_loss(net(instances))
    with torch.no_grad():
        net.model.get_parameter("out.weight").mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", ["table", "out"])
def test_frozen_parameters_that_change_before_backward_are_an_error(name: str) -> None:
    """The backward pass reads rows of a frozen table again, and recomputation reads everything."""
    net, instances = tree_net(12)
    frozen = [p for n, p in net.model.named_parameters() if n.startswith(name)]
    for parameter in frozen:
        parameter.requires_grad_(False)
    loss = random_loss(net(instances))
    with torch.no_grad():
        frozen[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_results_that_change_in_place() -> None:
    """A result changed in place is right, or an error that says what to do; never a wrong gradient."""
    net, _ = tree_net(13)
    instances = [(1, 2, (3, 4)), (5, (6, 7))]

    def loss(results: list[Any]) -> torch.Tensor:
        results[0]["logits"][0].mul_(3)
        return random_loss(results)

    require_equal_gradients(net, instances, loss)
    many = net(random_trees(14, 40))
    with pytest.raises(RuntimeError, match="inplace"):
        many[0]["logits"][0].mul_(3)


def test_gradients_of_gradients_are_refused() -> None:
    """create_graph=True says what to do."""
    net, instances = tree_net(14)
    with pytest.raises(UnsupportedError, match="create_graph"):
        torch.autograd.grad(random_loss(net(instances)), [net.model.get_parameter("table")], create_graph=True)


def test_hooks_of_parameters_fire_once() -> None:
    """Tensor hooks and post-accumulate hooks see one whole gradient per backward pass."""
    net, instances = tree_net(15)
    expected = gradients(net.model, random_loss([net.model(instance) for instance in instances]))
    seen: list[tuple[str, torch.Tensor]] = []
    for name, parameter in net.model.named_parameters():
        parameter.register_hook(lambda g, name=name: seen.append((name, g)))
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((f"{name} after", p.grad)))
    random_loss(net(instances)).backward()
    reached = [name for name, gradient in expected.items() if gradient is not None]

    assert sorted(name for name, _ in seen) == sorted([*reached, *(f"{name} after" for name in reached)])
    require_equal(dict(seen) | {n: expected[n] for n in expected if n not in reached},  # type: ignore[arg-type]
                  expected | {f"{name} after": expected[name] for name in reached})  # fmt: skip


def test_a_forward_in_another_thread() -> None:
    """Mini-batches of other threads between forward and backward do not touch this one's memory."""
    net, instances = tree_net(16)
    loss = random_loss(net(instances))
    others = [threading.Thread(target=lambda: random_loss(net(random_trees(3, 4))).backward) for _ in range(3)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()

    require_equal(gradients(net.model, loss),
                  gradients(net.model, random_loss([net.model(instance) for instance in instances])))  # fmt: skip


def test_a_copied_model_trains_on_its_own() -> None:
    """copy.deepcopy of a model that has been trained, and load_state_dict, work as ever; a copied net is bound to the
    copy."""
    net, instances = tree_net(17)
    random_loss(net(instances)).backward()
    twin = copy.deepcopy(net)
    assert twin.model is not net.model
    twin.model.load_state_dict(net.model.state_dict())
    with torch.no_grad():
        twin.model.get_parameter("start").add_(1)
    require_equal_gradients(twin, instances)
    require_equal_gradients(net, instances)


@pytest.mark.parametrize("optimiser", ["SGD", "Adam", "fused", "foreach"])
def test_optimisers(optimiser: str) -> None:
    """Five steps leave the parameters where eager's leave them."""
    net, instances = tree_net(18)
    eager = copy.deepcopy(net.model)

    def steps(model: torch.nn.Module, forward: Callable[[], list[Any]]) -> None:
        options = {"fused": {"fused": True}, "foreach": {"foreach": True}}.get(optimiser, {})
        kind = torch.optim.SGD if optimiser == "SGD" else torch.optim.Adam
        updates = kind(model.parameters(), lr=0.01, **options)
        for _ in range(5):
            updates.zero_grad()
            random_loss(forward()).backward()
            updates.step()

    steps(net.model, lambda: net(instances))
    steps(eager, lambda: [eager(instance) for instance in instances])
    for ours, theirs in zip(net.model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_mini_batch_that_needs_no_gradient_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen parameters with gradients enabled: one capture and one schedule per mini-batch, and the numbers of
    `no_grad`."""
    net, instances = tree_net()
    net.model.requires_grad_(False)
    with torch.no_grad():
        expected = net(instances)
    calls: list[str] = []
    for name in ("mini_batch", "schedule"):
        whole = getattr(net, name)

        def counted(*args: Any, name: str = name, whole: Any = whole, **kwargs: Any) -> Any:
            calls.append(name)
            return whole(*args, **kwargs)

        monkeypatch.setattr(net, name, counted)

    results = net(instances)

    assert calls == ["mini_batch", "schedule"]
    for ours, theirs in zip(tensors(results), tensors(expected), strict=True):
        assert not ours.requires_grad
        assert torch.equal(ours, theirs)


def test_parameters_changed_through_data() -> None:
    """Writing through `.data` leaves no trace on a parameter; the next mini-batch of training reads it all the same."""
    net, instances = tree_net(13)
    require_equal_gradients(net, instances)
    for parameter in net.model.parameters():
        parameter.data.mul_(0.5)
    require_equal_gradients(net, instances)


def test_an_element_changed_through_data() -> None:
    """In training weights are packed for every mini-batch: one element that no comparison looks at is read too."""
    net, instances = tree_net(13, size=16)
    require_equal_gradients(net, instances)
    weight = net.model.get_parameter("out.weight").data.view(-1)
    looked_at = np.linspace(0, len(weight) - 1, ELEMENTS).astype(np.int64)
    weight[int(np.setdiff1d(np.arange(len(weight)), looked_at)[0])] += 1
    require_equal_gradients(net, instances)
