"""Attributes of recorded tensors: torch.Tensor's own, unknown ones, and those that somebody adds to torch.Tensor."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import bound, graph_of, require_parity, seeded
from test_refusals import state
from test_structures import SIZE, Base

from edbc.capture.standins.lazy import Stack
from edbc.capture.standins.standin import Rows, Shared, Symbol, Value
from edbc.errors import UnsupportedError


@pytest.mark.parametrize("of", ["state", "start", "table.weight", "table.weight[[0, 1]]"])
def test_an_unknown_attribute_is_what_it_is_of_a_tensor(of: str) -> None:
    """The message is torch's; hasattr and getattr with a default answer as for a tensor."""

    def forward(net: Any, wanted: bool) -> Any:
        h = state(net) if of == "state" else eval(f"net.{of}")
        assert all(hasattr(h, name) for name in ("relu", "real", "nbytes"))
        assert not any(hasattr(h, name) for name in ("hidden", "_hidden", "__hidden__"))
        assert getattr(h, "hidden", None) is None
        return h.hidden if wanted else state(net)

    graph_of(seeded(Base, forward), [False])
    with pytest.raises(AttributeError, match=r"^'Tensor' object has no attribute 'hidden'"):
        graph_of(seeded(Base, forward), [True])


@pytest.mark.parametrize(("name", "use"), [
    ("data", lambda h: setattr(h, "data", h)), ("grad", lambda h: setattr(h, "grad", h)), ("grad", lambda h: h.grad),
])  # fmt: skip
def test_data_is_not_set_and_grad_not_read_either(name: str, use: Any) -> None:
    """They would go around the recording."""

    def forward(net: Any, _: Any) -> Any:
        h = state(net)
        use(h)
        return h

    with pytest.raises(UnsupportedError, match=rf"'\.{name}' of a tensor was used"):
        graph_of(seeded(Base, forward), [None])


class Backend(Base):
    """Keeps modules of Python's in attributes and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.backend, self.others = torch, [F, math]

    def forward(self, word: int) -> Any:
        functional, numbers = self.others
        h = self.backend.tanh(self.out(self.table(self.backend.LongTensor([word]))))
        return functional.relu(h) * numbers.pi


def test_a_model_may_keep_modules_of_python() -> None:
    """`self.th = torch.cuda if use_gpu else torch`, which copy.deepcopy refuses."""
    require_parity(seeded(Backend), [1, 2, 3], (1, 3))


def test_properties_and_methods_are_recorded() -> None:
    """Views by property, methods with keywords, and methods taken off a tensor before they are called."""

    def forward(net: Any, ids: list[int]) -> Any:
        h = net.join(net.table.weight[ids[0]], net.start)
        total = h.sum
        return h.reshape(2, SIZE // 2).mT.sum(dim=0), h.reshape(2, -1).T.real[0], total(), h.clamp(min=0.1)

    require_parity(seeded(Base, forward), [[0], [3], [5]], sizes=(1, 3))


def test_operators_of_integers_are_recorded() -> None:
    """Bits of an index that is computed, shifted, masked and put together again, in place too."""

    def forward(net: Any, ids: list[int]) -> Any:
        index = net.join(net.table.weight[ids[0]], net.start).argmax()
        bits = (index.unsqueeze(0) >> torch.arange(3)) & 1
        index <<= 1
        return bits, (index | 1) >> 1, 1 << index, index ^ 3, (index - 3) // 2, -index % 4

    require_parity(seeded(Base, forward), [[0], [3], [5]], sizes=(1, 3))


def twice(self: torch.Tensor) -> torch.Tensor:
    return self + self


def squared(self: torch.Tensor) -> torch.Tensor:
    return self * self


def test_what_is_added_to_torch_later_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the model is bound already; one that took another's place is another one."""

    def forward(net: Any, names: list[str]) -> Any:
        h = net.join(net.start, net.start)
        for name in names:
            h = getattr(h, name)()
        return h + 1

    model = seeded(Base, forward)
    net = bound(model, [[]])
    net([[]])
    for method in (twice, squared):
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, method.__name__, method, raising=False)
            with torch.no_grad():
                assert torch.allclose(net([[method.__name__]])[0], model([method.__name__]), atol=1e-6)


def test_methods_of_the_users_are_not_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lambdas share a name, and `gelu` is no method of torch.Tensor but a function that edbc knows; a property too."""
    monkeypatch.setattr(torch.Tensor, "twice", lambda h: h * 2, raising=False)
    monkeypatch.setattr(torch.Tensor, "thrice", lambda h: h * 3, raising=False)
    monkeypatch.setattr(torch.Tensor, "half", property(lambda h: h / 2), raising=False)
    monkeypatch.setattr(torch.Tensor, "gelu", gelu, raising=False)
    monkeypatch.setattr(torch.Tensor, "relu", lambda h: h.clamp(min=-1))

    def forward(net: Any, ids: list[int]) -> Any:
        h = net.join(net.table.weight[ids[0]], net.start)
        return h.twice(), h.thrice(), h.half, h.gelu(), h.relu()

    require_parity(seeded(Base, forward), [[0], [3], [5]], sizes=(1, 3))


def gelu(h: torch.Tensor) -> torch.Tensor:
    return h + 1


def closing(by: float) -> type[torch.autograd.Function]:
    """A class of a name that all classes from here have, which closes over a number."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, h: torch.Tensor) -> torch.Tensor:
            return h * by

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * by

    return Scale


def defaulting(by: float) -> type[torch.autograd.Function]:
    """The same with a default in place of what is closed over."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, h: torch.Tensor, *, by: float = by) -> torch.Tensor:
            return h * by

    return Scale


@pytest.mark.parametrize("scaling", [closing, defaulting])
def test_autograd_functions_of_one_name_must_do_the_same(scaling: Any) -> None:
    """Of nodes and of parameters; those that close over equal numbers do."""
    for factors, allowed in (((2.0, 2.0), True), ((2.0, 3.0), False)):
        for of in ("state", "start"):
            one, other = map(scaling, factors)

            def forward(net: Any, _: Any, of: str = of, one: Any = one, other: Any = other) -> Any:
                h = state(net) if of == "state" else net.start
                return state(net) * one.apply(h), state(net) * other.apply(h)

            if allowed:
                require_parity(seeded(Base, forward), [None], sizes=(1,))
                continue
            with pytest.raises(
                UnsupportedError, match=rf"test_attributes\.py:\d+: two autograd functions.*{scaling.__name__}"
            ):
                graph_of(seeded(Base, forward), [None])


def test_every_stand_in_answers_what_a_tensor_has() -> None:
    """Classes of stand-ins have all public names of torch.Tensor once there is a recorder."""
    graph_of(seeded(Base, lambda net, _: state(net)), [None])
    for kind in (Value, Shared, Rows, Stack):
        assert not [name for name in dir(torch.Tensor) if not name.startswith("__") and not hasattr(kind, name)]
    assert not hasattr(Symbol, "__getattr__")  # it makes every read of an attribute slow


TOLD = """
h.shape, h.size(-1), h.dim(), h.numel(), h.nelement(), h.ndimension()
h.dtype, h.device, h.layout, h.element_size(), h.nbytes, h.is_floating_point(), h.is_cpu, h.is_meta
h.sum().is_contiguous(), (h > 0).requires_grad, net.start.requires_grad, (h * 9).long().requires_grad
torch.result_type(h, 1), torch.is_same_size(h, h), torch.is_tensor(h)
""".strip().splitlines()
NOT_TOLD = """
h.requires_grad
h.is_leaf
h.grad_fn
h.stride()
h.t().stride(0)
h.storage_offset()
h.is_contiguous()
h.unsqueeze(0).t().is_contiguous()
h.data_ptr()
h.untyped_storage()
net.start.is_leaf
net.start.stride()
h.to_sparse()
h.t().as_strided((1,), (2,))
""".strip().splitlines()


@pytest.mark.parametrize("question", TOLD)
def test_what_shape_and_dtype_decide_is_answered_as_in_eager(question: str) -> None:
    """Answers are eager's, whether or not gradients are on."""

    def forward(net: Any, _: Any) -> Any:
        h = state(net)
        return eval(question, {"torch": torch, "h": h, "net": net}), h

    model = seeded(Base, forward)
    for on in (True, False):
        with torch.set_grad_enabled(on):
            assert bound(model, [None])([None])[0][0] == model(None)[0]


@pytest.mark.parametrize("question", NOT_TOLD)
def test_what_they_do_not_decide_is_refused(question: str) -> None:
    """Strides, offsets, addresses and places in the graph of gradients are not known while recording."""

    def forward(net: Any, _: Any) -> Any:
        h = state(net)
        return eval(question, {"torch": torch, "h": h, "net": net}), h

    with pytest.raises(UnsupportedError, match=r"test_attributes.py:\d+: '\w+' "):
        graph_of(seeded(Base, forward), [None])


@pytest.mark.parametrize("function", [torch.sym_int, torch.sym_float, torch.sym_not])
def test_python_of_torch_that_returns_numbers_is_asked_what_they_depend_on(function: Any) -> None:
    """A function of torch's that is Python and asks for a value is refused; it is the user who called it, not torch."""

    def forward(net: Any, _: Any) -> Any:
        h = state(net)
        return h * function(h.sum() * 9)

    with pytest.raises(UnsupportedError, match=r"test_attributes.py:\d+: '\w+' of a recorded tensor says more than"):
        graph_of(seeded(Base, forward), [None])


ALIAS = """
import torch
from torch import nn


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


twice = Twice.apply


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.again = nn.Linear(4, 4), Twice.apply

    def forward(self, x):
        return self.again(twice(self.linear(x)))


from helpers import bound

model, instances = Net(), [torch.ones(4), torch.zeros(4)]
results = torch.stack(bound(model, instances)(instances))
expected = torch.stack([model(x) for x in instances])
torch.testing.assert_close(results, expected)
ours, theirs = (torch.autograd.grad(t.sum(), model.linear.weight)[0] for t in (results, expected))
torch.testing.assert_close(ours, theirs)
"""


def test_a_name_for_apply_from_before_edbc_was_imported_records() -> None:
    """Models keep `apply` by a name of their own, in a module or an attribute; whoever imports edbc does so later."""
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", ALIAS], env=there, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
