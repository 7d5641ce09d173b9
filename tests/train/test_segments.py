"""`recompute=`: gradients of schedules cut into segments have the bits of whole ones, in less memory.

The bits are equal where rows are whole cache lines; elsewhere the BLAS rounds some products by the alignment of their
operands, and numbers agree as far as those of two mini-batches do.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import test_grad_mode
import test_random
import torch
from bound import RandomTreeModel, net_for, poison, random_trees
from budget import PLAIN, budget
from gradients import Gradients, gradients, random_loss, require_equal
from helpers import bound
from hypothesis import given, settings
from hypothesis import strategies as st
from test_training_zoo import MODELS
from torch import nn
from zoo_names import short_instances

import edbc
from edbc.errors import EdbcError
from edbc.run.modelfile import import_model_file
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.session import Net


def cut_net(net: Net, recompute: int | str | None) -> Net:
    """The same net with schedules cut in this way from now on, in the modules' present mode."""
    net.in_mode().recompute = recompute
    return net


def require_same_bits(ours: Gradients, theirs: Gradients) -> None:
    """None in the same places, and the same bits."""
    require_equal(ours, theirs, 0.0)


def segments_of(net: Net, instances: list[Any]) -> int:
    """Into how many segments a mini-batch is cut."""
    of_mode = net.in_mode()
    captured = of_mode.mini_batch(instances)
    scheduled = of_mode.passes.span("schedule", "schedule")(MiniBatch(capture=captured))
    return len(of_mode.trainer.place(scheduled).placement.borders) - 1


@settings(derandomize=True, deadline=None, max_examples=budget(8, 3))
@given(seed=st.integers(0, 10_000), mixed=st.booleans(), backend=st.sampled_from(["cpu", "reference"]),
       recompute=st.integers(2, 30))  # fmt: skip
def test_random_cells(seed: int, mixed: bool, backend: str, recompute: int) -> None:
    """Whatever a cell consists of, native and not, whatever stood in memory before."""
    instances = random_trees(seed, 5)
    net = net_for(RandomTreeModel(seed, 8, mixed), instances, backend)
    whole = gradients(net.model, random_loss(net(instances)))
    if backend == "cpu":
        poison(net)
    require_same_bits(gradients(net.model, random_loss(cut_net(net, recompute)(instances))), whole)


@pytest.mark.parametrize("name", ["lstm_lm", "lattice_lstm", "mv_rnn", *(pytest.param(name, marks=pytest.mark.slow)
                                  for name in ("tree_lstm", "transition_parser"))])  # fmt: skip
def test_the_zoo(name: str) -> None:
    """Models of several kinds in float32, as recorded instances and, where there are any, as vertices."""
    file = import_model_file(MODELS / f"{name}.py")
    known = file.config({})
    wanted = {"hidden_size": 16, "vocab_size": 32, "num_matrices": 5}
    config = file.config({key: value for key, value in wanted.items() if key in known})
    instances = short_instances(file, 4, 1, config)
    net = bound(file.build(config, 0), instances)
    has_vertices = hasattr(file.module, "vertex_instance")
    for form in [instances, list(map(file.vertex_instance(config), instances))] if has_vertices else [instances]:
        whole = gradients(net.model, random_loss(cut_net(net, None)(form)))
        cut = gradients(net.model, random_loss(cut_net(net, 4)(form)))
        assert segments_of(net, form) > 1
        require_same_bits(cut, whole)


def tree_net(seed: int, recompute: int | str | None = 4) -> tuple[Net, list[Any]]:
    instances = random_trees(seed, 6)
    net = net_for(RandomTreeModel(seed, 8), instances, recompute=recompute)
    return net, instances


def test_a_kept_graph_runs_again() -> None:
    """retain_graph=True: the last segment, which was in memory the first time, is computed again the second time."""
    net, instances = tree_net(10)
    loss = random_loss(net(instances))
    parameters = list(net.model.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    net(random_trees(99, 9))  # would overwrite the arenas, were they free
    second = torch.autograd.grad(loss, parameters, allow_unused=True)

    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_loss_that_leaves_out_the_last_segments() -> None:
    """Segments without a live node pass nothing on, and parameters that the loss does not reach stay None."""
    net, instances = tree_net(3)
    for number in range(len(instances)):
        whole = gradients(net.model, cut_net(net, None)(instances)[number]["root"].sum())
        require_same_bits(gradients(net.model, cut_net(net, 6)(instances)[number]["root"].sum()), whole)


def test_mini_batches_that_wait() -> None:
    """Two forward passes before one backward pass, and forward passes of another thread in between."""
    net, instances = tree_net(8)
    others = random_trees(80, 5)

    def run() -> Gradients:
        loss = random_loss(net(instances)) + 2 * random_loss(net(others))
        thread = threading.Thread(target=lambda: random_loss(net(random_trees(3, 4))).backward)
        thread.start()
        thread.join()
        return gradients(net.model, loss)

    cut = run()
    cut_net(net, None)
    require_equal(cut, run(), 1e-14 if PLAIN else 0.0)


@pytest.mark.compiled
def test_segments_are_computed_with_the_weights_of_the_forward_pass() -> None:
    """What leaves no trace on a parameter, as fused optimisers do not, changes what a later mini-batch reads, not what
    is computed again: native code has packed weights of its own. Torch kernels read the parameters themselves, as
    eager's backward pass does, whose gradients are wrong then too."""
    net, instances = tree_net(8)

    def run() -> Gradients:
        before = [parameter.detach().clone() for parameter in net.model.parameters()]
        loss = random_loss(net(instances))
        for name, parameter in net.model.named_parameters():
            if name.startswith(("leaf", "inner")):
                parameter.data.mul_(2)
        net(instances)
        found = gradients(net.model, loss)
        for parameter, value in zip(net.model.parameters(), before, strict=True):
            parameter.data.copy_(value)
        return found

    cut = run()
    cut_net(net, None)
    require_same_bits(cut, run())


def test_masks_are_those_of_the_forward_pass() -> None:
    """Dropout in cells and between them: what is computed again reads the same numbers."""
    words = [[1, 2, 3, 4, 5, 6], [4], [5, 5, 6, 1], [7, 8]]
    net = test_random.training_net(test_random.chain, words)
    whole = test_random.step(net, groups=[words])
    cut_net(net, 3)
    assert segments_of(net, words) == 3
    cut = test_random.step(net, groups=[words])

    assert torch.equal(whole[0], cut[0])
    require_same_bits(cut[1], whole[1])


@pytest.mark.parametrize("rule", [test_grad_mode.truncated, test_grad_mode.every_other, test_grad_mode.stacks],
                         ids=lambda rule: rule.__name__)  # fmt: skip
def test_no_grad_inside_forward(rule: Any) -> None:
    """Nodes that pass no gradient are computed again like others."""
    net = bound(test_grad_mode.Model(rule), test_grad_mode.WORDS)
    whole = gradients(net.model, random_loss(net(test_grad_mode.WORDS)))
    require_equal(gradients(net.model, random_loss(cut_net(net, 3)(test_grad_mode.WORDS))), whole, 1e-14)


class Chain(nn.Module):
    """The last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 16)
        self.cell = edbc.cell(nn.LSTMCell(16, 16))
        self.register_buffer("zero", torch.zeros(16))

    def forward(self, words: list[int]) -> torch.Tensor:
        h = c = self.zero
        for word in words:
            h, c = self.cell(self.table.weight[word], (h, c))
        return h


def pool_bytes(recompute: int | str | None, words: list[list[int]]) -> int:
    """Memory of a step: idle buffers of a fresh net's pools after it."""
    net = bound(Chain(), [words[0][:2]], recompute=recompute)
    random_loss(net(words)).backward()
    pools: list[Any] = [net.backend.pool, net.trainer.pool]  # type: ignore[attr-defined]
    assert [len(pool._idle) for pool in pools] == [1, 1]
    return sum(buffer.numel() for pool in pools for buffer in pool._idle)


@pytest.mark.compiled
def test_memory_falls() -> None:
    """A chain of 400 steps takes less memory with each more of 2, 5, 20 segments, and less than a sixth with as many as
    is best."""
    words = [[(i * j) % 12 for i in range(400)] for j in range(16)]
    none, *cut = (pool_bytes(recompute, words) for recompute in (None, 2, 5, 20))

    assert none > cut[0] > cut[1] > cut[2]
    assert cut[2] * 6 < none
    assert pool_bytes("auto", words) == cut[2]


@pytest.mark.compiled
def test_auto_leaves_alone_what_it_cannot_lower() -> None:
    """Small trees would take more in segments, as rows of products wait in memory of their own."""
    net, instances = tree_net(3, "auto")
    assert segments_of(net, instances) == 1
    cut_net(net, 4)
    assert segments_of(net, instances) > 1


def test_another_word_is_refused_when_binding() -> None:
    """One line, both sides."""
    with pytest.raises(EdbcError, match="recompute: expected a number of segments"):
        net_for(RandomTreeModel(0, 8), random_trees(0, 2), recompute="much")


def test_modes_and_copies_are_cut_alike() -> None:
    """A net's twin for other training flags, and a copy of it, take the option along."""
    net, instances = tree_net(9)
    assert copy.deepcopy(net).recompute == 4
    net.model.train()
    assert segments_of(net, instances) > 1
