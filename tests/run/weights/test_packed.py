"""Packed weights follow their parameters, whichever way those change, on every back end, whole cells and parts."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bound import plan_for
from helpers import bound as bound_alone
from helpers import require_eager
from torch import nn

from edbc.capture.code.mark import cell
from edbc.cells.parts import splittable
from edbc.errors import StaleError
from edbc.run.session import Net
from edbc.run.weights.fingerprint import ELEMENTS, WORD, fingerprint, places
from edbc.run.weights.packed import PacksOfAll

SIZE = 8


class Step(nn.Module):
    """A recurrent cell whose linear layers may be another cell's, with a parameter that only a map reads."""

    def __init__(self, x: nn.Linear, h: nn.Linear):
        super().__init__()
        self.x, self.h = x, h
        self.scale = nn.Parameter(torch.randn(SIZE))

    def forward(self, x, h):
        return torch.tanh(self.x(x) + self.h(h)) * self.scale


class Tied(nn.Module):
    """Two cells that share a layer, and an output layer tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(10, SIZE)
        shared = nn.Linear(SIZE, SIZE)
        self.even = cell(Step(shared, nn.Linear(SIZE, SIZE)))
        self.odd = cell(Step(nn.Linear(SIZE, SIZE), shared))
        self.out = nn.Linear(SIZE, 10, bias=False)
        self.out.weight = self.words.weight
        self.start = nn.Parameter(torch.zeros(SIZE))

    def forward(self, words: list[int]) -> list[torch.Tensor]:
        h, logits = self.start, []
        for word in words:
            h = (self.odd if word % 2 else self.even)(self.words.weight[word], h)
            logits.append(self.out(h))
        return logits


INSTANCES = [[0, 1, 2, 3], [5, 4], [7, 7, 8, 9, 6, 1]]


def step_of_sgd(model: Tied) -> None:
    """One step after a backward pass of eager outputs."""
    sum(t.sum() for words in INSTANCES for t in model(words)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def every(change: Callable[[nn.Parameter], Any]) -> Callable[[Tied], None]:
    """The same change of every parameter."""

    def apply(model: Tied) -> None:
        for parameter in model.parameters():
            change(parameter)

    return apply


def halved(model: Tied) -> dict[str, torch.Tensor]:
    """A state with half of every value."""
    return {name: value / 2 for name, value in model.state_dict().items()}


def assign_halved(model: Tied) -> None:
    """Load by assignment, which makes tied parameters two, and tie them again."""
    model.load_state_dict(halved(model), assign=True)
    model.out.weight = model.words.weight


def replace_shared(model: Tied) -> None:
    """Another tensor for the layer that two cells share."""
    model.even.x.weight = nn.Parameter(torch.randn(SIZE, SIZE))


def transpose(model: Tied) -> None:
    """The same memory read the other way: no address, no version and no word changes."""
    for layer in (model.even.x, model.even.h, model.odd.x):
        layer.weight.data = layer.weight.data.t()


def transpose_and_scale(model: Tied) -> None:
    """What no version tells, of parameters that are not contiguous from the first mini-batch on."""
    if model.even.h.weight.is_contiguous():
        for layer in (model.even.x, model.even.h, model.odd.x):
            layer.weight.data = layer.weight.data.t().contiguous().t()
    for layer in (model.even.x, model.even.h, model.odd.x):
        layer.weight.data.mul_(-1.5)


def to_and_back(model: Tied) -> None:
    """Through bfloat16 and back: other storage, other values."""
    model.to(torch.bfloat16).to(torch.float32)


CHANGES: dict[str, Callable[[Tied], Any]] = {
    "load_state_dict": lambda m: m.load_state_dict(halved(m)),
    "load_state_dict by assignment": assign_halved,
    "optimiser step": step_of_sgd,
    "data": every(lambda p: setattr(p, "data", p.data * 1.5)),
    "in place on data": every(lambda p: p.data.mul_(1.5)),
    "copy_ on data": every(lambda p: p.data.copy_(torch.randn(p.shape))),
    "through numpy": every(lambda p: np.multiply(p.detach().numpy(), 2, out=p.detach().numpy())),
    "in place": every(lambda p: p.detach().mul_(0.5)),
    "to": to_and_back,
    "tied weight": lambda m: m.words.weight.detach().mul_(2),
    "shared layer": replace_shared,
    "another memory order": transpose,
    "in place on data in another memory order": transpose_and_scale,
    "only what a map reads": lambda m: m.even.scale.data.neg_(),
}


def bound(model: nn.Module, backend: str | None = None) -> Net:
    """The model bound, its cells split where compiling would."""
    return Net(plan_for(model, INSTANCES, split=splittable), model.eval(), backend=backend)


def require_equal(net: Net) -> list[torch.Tensor]:
    """The project's parity rule; all outputs."""
    with torch.no_grad():
        results = net(INSTANCES)
        require_eager(net, INSTANCES, results)
    return [tensor for result in results for tensor in result]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_parameter_is_seen(change: str, backend: str) -> None:
    """After it the next mini-batch has eager's numbers, which are other numbers than before; and so it does after the
    next change."""
    model = Tied()
    net = bound(model, backend)
    before = require_equal(net)
    CHANGES[change](model)
    after = require_equal(net)
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    CHANGES[change](model)
    require_equal(net)


def test_untied_weights_are_refused() -> None:
    """A parameter of its own where two names had one: an error that says so, for either name."""
    for name in ("out", "words"):
        model = Tied()
        net = bound(model)
        require_equal(net)
        getattr(model, name).weight = nn.Parameter(torch.randn(10, SIZE))
        with torch.no_grad(), pytest.raises(StaleError, match="were one tensor when it was bound and are two now"):
            net(INSTANCES)


def test_another_dtype_is_refused() -> None:
    """`.to(float64)` changes what the plan was bound to: an error that says so, not numbers of the old weights."""
    model = Tied()
    net = bound(model)
    require_equal(net)
    model.to(torch.float64)
    with torch.no_grad(), pytest.raises(StaleError, match="bind the model again"):
        net(INSTANCES)


def test_refresh_sees_what_no_comparison_does() -> None:
    """One element written through `.data` can go unseen; after `refresh` it is seen."""
    model = Tied()
    net = bound(model)
    require_equal(net)
    model.even.h.weight.data[3, 3] += 1
    net.refresh()
    require_equal(net)


def test_nothing_is_packed_again_without_a_change() -> None:
    """Mini-batch after mini-batch uses the same packed tensors."""
    net = bound(Tied())
    require_equal(net)
    packs = {kind: kernel.weights.pack for kind, kernel in net._kernels.items() if hasattr(kernel, "weights")}
    require_equal(net)
    assert packs
    assert all(net._kernels[kind].weights.pack is pack for kind, pack in packs.items())


MEMORY_ORDERS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(9, 12),
    "transposed": lambda: torch.randn(12, 9).t(),
    "columns of a wider matrix": lambda: torch.randn(9, 40)[:, 7:19],
    "every other row": lambda: torch.randn(18, 12)[::2],
    "float64": lambda: torch.randn(9, 12, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(9, 12).bfloat16(),
    "one element": lambda: torch.randn(()),
    "fewer elements than are looked at": lambda: torch.randn(5),
}


@pytest.mark.parametrize("order", MEMORY_ORDERS)
def test_fingerprints_tell_changes_in_any_memory_order(order: str) -> None:
    """What changes every element, the first or the last is told; what lies between the elements of a view is not
    looked at."""
    tensor = MEMORY_ORDERS[order]()
    words = places([tensor, torch.zeros(0), torch.zeros(3, device="meta")])
    assert len(words) == min(tensor.numel(), ELEMENTS) * tensor.itemsize // WORD
    first, last = tuple(0 for _ in tensor.shape), tuple(-1 for _ in tensor.shape)
    prints = [fingerprint(words)]
    for change in (lambda: tensor.mul_(2), lambda: tensor[first].sub_(1), lambda: tensor[last].add_(3)):
        change()
        prints.append(fingerprint(words))
    assert len(set(prints)) == len(prints)

    saved = tensor.clone()
    tensor.untyped_storage().fill_(7)
    tensor.copy_(saved)
    assert fingerprint(words) == prints[-1]


@pytest.mark.long
def test_without_the_compiler_packed_weights_still_run() -> None:
    """Under NUMBA_DISABLE_JIT=1; changes that count no version up are seen there too."""
    code = (
        "import torch\nfrom test_packed import Tied, bound, require_equal\n"
        "net = bound(Tied())\nassert net.backend.name == 'reference'\nrequire_equal(net)\n"
        "net.model.even.scale.detach().neg_()\nrequire_equal(net)\n"
        "net.model.even.scale.data.neg_()\nrequire_equal(net)\n"
    )
    here = Path(__file__).parent
    tests = here.parents[1]
    paths = [str(folder) for folder in (here, here.parent, tests, tests / "cells", tests.parent)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_threads_never_meet_half_of_a_change() -> None:
    """Two threads run mini-batches while a third writes through `.data` and puts other storages in: afterwards the next
    mini-batch has the parameters' numbers, and memory that was given back is never read."""
    model = Tied()
    net = bound(model)
    stop = threading.Event()
    failures: list[BaseException] = []

    def call() -> None:
        try:
            with torch.no_grad():
                while not stop.is_set():
                    net(INSTANCES)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        for layer in (model.even.h, model.odd.x):
            layer.weight.data = (layer.weight.data * 1.01).clone()
            layer.weight.data.mul_(1 - number % 2 / 50)
    stop.set()
    for thread in threads:
        thread.join()

    assert not failures
    require_equal(net)


def test_what_was_packed_keeps_its_addresses() -> None:
    """While a pack stands, no new tensor is put where its parameters were: the storage is not given back."""
    model = Tied()
    net = bound(model)
    require_equal(net)
    before = {p.data_ptr() for p in model.even.parameters()}
    for parameter in model.even.parameters():
        parameter.data = parameter.data.half().float()
    fresh = [torch.empty(SIZE, SIZE) for _ in range(200)]

    assert not before & {t.data_ptr() for t in [*fresh, *model.even.parameters()]}
    require_equal(net)


def test_programs_are_compared_together() -> None:
    """The same packs while no parameter has changed; where one has, that of a single program too, all are looked at
    anew, and those of programs that do not read it stay the very same."""
    model = Tied()
    net = Net(plan_for(model, INSTANCES), model, backend="cpu", split=False)
    net(INSTANCES)
    kernels = {net.table.types[kind].name: net.kernel(kind) for kind in range(net.table.num_known)}
    weights = {name: kernel.weights for name, kernel in kernels.items() if hasattr(kernel, "weights")}
    of_all = PacksOfAll([*weights.values()])

    before = of_all.packs

    assert len(before) == 3
    assert of_all.packs is before
    for changed in (model.odd.scale, model.odd.h.weight):  # odd's alone; the layer that both cells have
        with torch.no_grad():
            changed.mul_(2)
        after = of_all.packs
        assert after is not before
        assert after == tuple(each.pack for each in weights.values())
        readers = {name for name, one, other in zip(weights, before, after, strict=True) if one is not other}
        assert readers == ({"odd"} if changed is model.odd.scale else {"even", "odd"})
        before = after


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.up(x)))


def test_types_that_differ_in_a_size_share_what_is_packed() -> None:
    """Before and after a change: each was packed for every size, which was half of a training step of 16 sizes."""
    torch.manual_seed(0)
    model = Normed().eval()
    instances = [torch.randn(n, SIZE) for n in (2, 3, 5)]
    net = bound_alone(model, instances, "auto", rows=None)
    for _ in range(2):
        require_eager(net, instances)
        packs = PacksOfAll([kernel.weights for kernel in map(net.kernel, range(len(net.plan.types)))]).packs
        assert len(packs) >= 3
        for of in zip(*[pack.tensors() for pack in packs], strict=True):
            assert len({tensor.data_ptr() for tensor in of}) == 1
        with torch.no_grad():
            model.up.weight.mul_(0.5)
            model.norm.weight.add_(0.1)


class Sized(nn.Module):
    """A type for each number of rows, all with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(SIZE, SIZE)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(torch.tanh(self.up(rows)), rows.shape)


@torch.no_grad()
def test_copies_of_a_net_have_weights_of_their_own() -> None:
    """Though they share a back end, and types of one have run there that the other's have not met."""
    torch.manual_seed(0)
    of_size = {n: [torch.randn(n, SIZE) for _ in range(3)] for n in (2, 3, 4, 5)}
    net = bound_alone(Sized().eval(), [*(rows for of in of_size.values() for rows in of)], rows=False)
    net([rows for of in of_size.values() for rows in of])
    other = copy.deepcopy(net)
    for factor in (-1.7, 0.3):
        other.model.up.weight.mul_(factor)
        for one, sizes in ((other, (2, 3)), (net, (2, 3)), (net, (4,)), (other, (5,)), (other, (4, 5)), (net, (3,))):
            require_eager(one, [rows for n in sizes for rows in of_size[n]])
        net.model.up.weight.mul_(factor)
