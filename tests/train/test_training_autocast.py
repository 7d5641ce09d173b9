"""Training under torch.autocast: gradients of float32 parameters, as exact as eager's."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from bound import plan_for
from gradients import Gradients, gradients, random_loss, tensors
from helpers import bound
from torch import Tensor, nn
from zoo_names import short_instances

import edbc
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.tools.parity import Parity

MODELS = Path(__file__).resolve().parents[2] / "models"
BF16 = torch.bfloat16
QUICK = ("tree_lstm", "dag_gru")
ELEVEN = ("tree_lstm", "tree_gru", "tree_lstm_2type", "mv_rnn", "lattice_lstm", "lattice_gru", "bilstm_tagger",
          "bilstm_tagger_char", "lstm_nmt", "child_sum_tree_lstm", "dag_gru")  # fmt: skip


def wide_loss(results: Any) -> Tensor:
    """The random loss in float64, so that its own rounding shows nowhere."""
    return random_loss([{"all": [t.double() for t in tensors(results)]}])


def require_gradients(model: nn.Module, ours: Gradients, theirs: Gradients, exact: Gradients) -> None:
    """The rule of `edbc.tools.parity` per parameter; None and dtypes as in eager."""
    parity = Parity()
    for name, parameter in model.named_parameters():
        got, expected, reference = ours[name], theirs[name], exact[name]
        assert (got is None) == (expected is None), name
        if got is not None:
            assert got.dtype is parameter.dtype
            parity.add({name: got.to_dense()}, {name: expected.to_dense()}, {name: reference.to_dense()})  # type: ignore[union-attr]
    parity.require()


def exact_gradients(model: nn.Module, instances: list[Any]) -> Gradients:
    """Eager's in float64."""
    twin = copy.deepcopy(model).double()
    torch.set_default_dtype(torch.float64)
    try:
        return gradients(twin, wide_loss([twin(instance) for instance in instances]))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ELEVEN]
)
def test_the_zoo_equals_eager(name: str) -> None:
    """In training mode, recorded and through vertex functions; outside of the context gradients are as before."""
    file = import_model_file(MODELS / f"{name}.py")
    known = file.config({})
    wanted = {"hidden_size": 8, "vocab_size": 20, "num_matrices": 5}
    config = file.config({key: value for key, value in wanted.items() if key in known})
    instances = short_instances(file, 2, 3, config)
    model = file.build(config, 0)
    net = Net(plan_for(model, instances), model)
    model.train()
    before = gradients(model, wide_loss(net(instances)))
    exact = exact_gradients(model, instances)
    with torch.autocast("cpu", BF16):
        eager = wide_loss([model(instance) for instance in instances])
        ours = wide_loss(net(instances))
    theirs = gradients(model, eager)
    require_gradients(model, gradients(model, ours), theirs, exact)
    if hasattr(file.module, "vertex_instance"):
        with torch.autocast("cpu", BF16):
            packed = wide_loss(net(list(map(file.vertex_instance(config), instances))))
        require_gradients(model, gradients(model, packed), theirs, exact)
    after = gradients(model, wide_loss(net(instances)))

    assert all(a is None if (b := before[name]) is None else torch.equal(a, b) for name, a in after.items())  # type: ignore[arg-type]


@edbc.cell
class Cell(nn.Module):
    """Products of the same variables, one frozen; dropout of a short and of a wide value."""

    def __init__(self, size: int, p: float):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(size, size), nn.Linear(size, size, bias=False), nn.Linear(size, size)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.a(x) + self.drop(self.c(h))) * torch.sigmoid(self.b(x)) + self.drop(h)


class Model(nn.Module):
    """A chain of cells and a layer."""

    def __init__(self, size: int = 6, p: float = 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, size)
        self.cell = Cell(size, p)
        self.out = nn.Linear(size, 3)
        self.h0 = nn.Parameter(torch.randn(size))

    def forward(self, words: list[int]) -> Tensor:
        h = self.h0
        for w in words:
            h = self.cell(self.table.weight[w], h)
        return self.out(h)


WORDS = [[1, 2, 3], [4], [5, 5, 6, 1]]


def test_backward_products_are_in_the_short_dtype() -> None:
    """1 + 2**-9 is 1 in bfloat16: the gradient of a weight is a product with what the forward product read."""
    model = Model()
    with torch.no_grad():
        model.table.weight.fill_(1 + 2**-9)
        for parameter in (model.cell.b.weight, model.cell.c.weight, model.out.weight):
            parameter.fill_(0.25)
        model.cell.a.weight.zero_()
        model.cell.a.bias.zero_()
        model.cell.c.weight.zero_()
        model.cell.c.bias.zero_()
        model.h0.zero_()
    net = bound(model, WORDS)
    found = []
    for run, enabled in ((net, True), (lambda all_words: [model(words) for words in all_words], True), (net, False)):
        with torch.autocast("cpu", BF16, enabled=enabled):
            loss = sum(result.double().sum() for result in run(WORDS[1:2]))
        found.append(gradients(model, loss)["cell.a.weight"])  # type: ignore[arg-type]
    ours, theirs, wide = found

    assert torch.equal(ours, theirs)  # type: ignore[arg-type]
    assert not torch.equal(ours, wide)  # type: ignore[arg-type]


def test_the_loop_of_a_user() -> None:
    """Forward and loss inside, backward and step outside or inside; frozen parameters; a second backward pass."""
    model = Model()
    model.cell.b.requires_grad_(False)
    net, exact = bound(model, WORDS), exact_gradients(model, WORDS)
    with torch.autocast("cpu", BF16):
        theirs = gradients(model, wide_loss([model(words) for words in WORDS]))
        inside = gradients(model, wide_loss(net(WORDS)))
    require_gradients(model, inside, theirs, exact)
    with torch.autocast("cpu", BF16):
        loss = wide_loss(net(WORDS))
    loss.backward(retain_graph=True)
    once = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    loss.backward()

    assert model.cell.b.weight.grad is None
    for name, p in model.named_parameters():
        assert p.grad is None if once[name] is None else torch.equal(p.grad, 2 * once[name])  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", BF16):
            ours, eager = net(WORDS), [model(words) for words in WORDS]
            loss = wide_loss(ours)
        assert all(torch.allclose(a, b, atol=0.05, rtol=0.05) for a, b in zip(ours, eager, strict=True))
        loss.backward()
        optimizer.step()


def test_dropout_draws_what_it_draws_without_autocast() -> None:
    """Same seed and step, same masks: in float32 and in bfloat16 results differ by rounding only."""
    model = Model(p=0.5)
    net = bound(model, WORDS)
    model.train()
    found = []
    for enabled in (False, True):
        torch.manual_seed(3)
        with torch.autocast("cpu", BF16, enabled=enabled):
            found.append(net(WORDS))
    model.eval()
    with torch.no_grad():
        evaluated = net(WORDS)

    assert all(b.dtype is BF16 and torch.allclose(a, b.float(), atol=0.1) for a, b in zip(*found, strict=True))
    assert not all(torch.allclose(a, b, atol=0.1) for a, b in zip(found[0], evaluated, strict=True))
