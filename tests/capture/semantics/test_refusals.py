"""What cannot be batched is refused with the user's file and line, or right; never wrong in silence."""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound, graph_of, require_parity, seeded
from test_structures import SIZE, Base
from torch import nn
from torch.nn import functional as F

import edbc
from edbc.capture.code.shadow import ModelView
from edbc.errors import StaleError, UnsupportedError


def state(net: Any) -> Any:
    return net.join(net.table.weight[1], net.start)


def branch(net: Any, _: Any) -> Any:
    return state(net) if state(net).sum() > 0 else net.start


def compare(net: Any, _: Any) -> Any:
    h = state(net)
    return h if h[0] > h[1] and True else -h


def item(net: Any, _: Any) -> Any:
    return net.table.weight[int(net.out(state(net)).argmax())]


def call_item(net: Any, _: Any) -> Any:
    return state(net) * state(net).sum().item()


def to_numpy(net: Any, _: Any) -> Any:
    return torch.from_numpy(np.asarray(state(net)))


def numpy_method(net: Any, _: Any) -> Any:
    return float(state(net).detach().cpu().numpy()[0])


def value_assert(net: Any, _: Any) -> Any:
    h = state(net)
    assert torch.isfinite(h).all()
    return h


def caught(net: Any, _: Any) -> Any:
    h = state(net)
    try:
        return h * h.untyped_storage().nbytes()
    except Exception:
        return h


def caught_after_a_read(net: Any, word: Any) -> Any:
    h = state(net)
    if h.sum().item() > 1e9:
        return h
    with suppress(Exception):
        h = h * h.untyped_storage().nbytes()
    return h


@edbc.cell
class Catching(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return caught_by(h)


def caught_by(h: Any) -> Any:
    try:
        return h * h.untyped_storage().nbytes()
    except Exception:
        return h


def caught_in_a_cell(net: Any, _: Any) -> Any:
    return Catching()(state(net))


@pytest.mark.parametrize("run", [caught, caught_after_a_read, caught_in_a_cell])
def test_what_was_refused_is_told_where_the_model_catches_exceptions(run: Any) -> None:
    """It would go on as eager execution does not, which a sample that never gets there cannot tell."""

    class Net(Base):
        def forward(self, word: int) -> Any:
            return run(self, word) if word else state(self)

    net = bound(seeded(Net), [0] * 4)
    with pytest.raises(UnsupportedError, match=r"untyped_storage.*the model caught this"):
        net([0, 1])
    net([0, 0])


def mask_index(net: Any, _: Any) -> Any:
    h = state(net)
    return h[h > 0]


def nonzero(net: Any, _: Any) -> Any:
    return torch.nonzero(state(net))


def where_alone(net: Any, _: Any) -> Any:
    return torch.where(state(net) > 0)[0]


def add_in_place(net: Any, _: Any) -> Any:
    h = state(net)
    h += 1
    return h


def method_in_place(net: Any, _: Any) -> Any:
    return state(net).relu_()


def set_item(net: Any, _: Any) -> Any:
    h = state(net)
    h[0] = 0.0
    return h


def out_argument(net: Any, _: Any) -> Any:
    h = state(net)
    return torch.tanh(h, out=h)


def inplace_keyword(net: Any, _: Any) -> Any:
    return F.relu(state(net), inplace=True)


def write_into_real(net: Any, _: Any) -> Any:
    buffer = torch.zeros(2, SIZE)
    buffer[0] = state(net)
    return buffer


def random_like(net: Any, _: Any) -> Any:
    return state(net) + torch.randn_like(state(net))


def random_factory(net: Any, _: Any) -> Any:
    return state(net) + torch.randn(SIZE)


def dropout(net: Any, _: Any) -> Any:
    return F.dropout(state(net), 0.5, True)


def assign_parameter(net: Any, _: Any) -> Any:
    net.start = nn.Parameter(torch.zeros(SIZE))
    return state(net)


def user_object(net: Any, _: Any) -> Any:
    return net.join(state(net), object())


def returned_object(net: Any, _: Any) -> Any:
    class Holder:
        pass

    holder = Holder()
    holder.h = state(net)  # type: ignore[attr-defined]
    return holder


REFUSED = [
    branch, compare, item, call_item, to_numpy, numpy_method, value_assert, mask_index, nonzero, where_alone,
    random_like, random_factory, dropout, assign_parameter, user_object,
]  # fmt: skip


CHANGES = [add_in_place, method_in_place, set_item, out_argument, inplace_keyword, write_into_real]


@pytest.mark.parametrize("forward", CHANGES, ids=lambda f: f.__name__)
def test_changes_in_place_are_right(forward: Any) -> None:
    """BUGS 9: what forward changes in place is what it is in eager."""
    require_parity(seeded(Base, forward), [None, None])


@pytest.mark.parametrize("forward", REFUSED, ids=lambda f: f.__name__)
def test_refused_with_file_and_line(forward: Any) -> None:
    """BUGS 11, 13: values and random numbers stop with exit code 5 at the user's own line."""
    first = forward.__code__.co_firstlineno
    last = max(line for _, _, line in forward.__code__.co_lines() if line)

    with pytest.raises(UnsupportedError) as caught:
        graph_of(seeded(Base, forward), [None])

    match = re.search(r"test_refusals\.py:(\d+): .+; .+", str(caught.value))
    assert match is not None, str(caught.value)
    assert first < int(match.group(1)) <= last
    assert caught.value.exit_code == 5


def test_an_object_that_holds_recorded_tensors_is_no_result() -> None:
    """A stand-in must not leave forward inside an object of the user's."""
    with pytest.raises(UnsupportedError, match="Holder"):
        graph_of(seeded(Base, returned_object), [None])


@edbc.cell
class Looks(nn.Module):
    """A cell that branches on a value."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if h.sum() > 0:
            return h
        return -h


@edbc.cell
class Draws(nn.Module):
    """A cell that draws random numbers without looking at its operand."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.rand(SIZE)


@edbc.cell
class Counts(nn.Module):
    """A cell that counts in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return h * self.count


@pytest.mark.parametrize("cell", [Looks, Draws, Counts])
def test_refused_inside_a_cell(cell: Any) -> None:
    """The same inside a cell: the line is the cell's own and the message names the cell."""

    class Model(Base):
        def __init__(self) -> None:
            super().__init__()
            self.inner = cell()

        def forward(self, instance: Any) -> Any:
            return self.inner(state(self))

    line = cell.forward.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedError, match=rf"test_refusals\.py:{line}: .*in cell inner.*instance 0"):
        graph_of(seeded(Model), [None])


def test_a_tensor_kept_from_an_earlier_recording_is_refused() -> None:
    """A state memoised on an instance whose recording never ran is found exactly, also when numbers of nodes happen to
    agree; what a mini-batch has left is a tensor like others."""

    def forward(net: Any, node: dict[str, Any]) -> Any:
        if "h" not in node:
            node["h"] = state(net)
        return net.out(node["h"])

    model = seeded(Base, forward)
    net = bound(model, [{}])
    kept: dict[str, Any] = {}
    net.mini_batch([kept])

    for batch in ([{}, kept], [kept, {}]):
        with pytest.raises(
            UnsupportedError, match=r"(test_refusals\.py:\d+: an operand of out \(instance \d\).*earlier)"
        ):
            net(batch)
    kept.clear()
    first = net([kept])
    torch.testing.assert_close(net([{}, kept]), [first[0], first[0]])


def test_a_kept_tensor_as_result_is_refused() -> None:
    """A result that an earlier mini-batch computed is found too."""
    memory: list[Any] = []

    def forward(net: Any, keeps: bool) -> Any:
        found = [state(net)]
        memory.extend(found if keeps else [])
        return (memory if keeps else found)[0]

    net = bound(seeded(Base, forward), [False])
    net([True])

    with pytest.raises(UnsupportedError, match="a result is a tensor that an earlier mini-batch computed"):
        net([True])


def test_a_buffer_that_the_user_fills_anew_is_read_as_it_was() -> None:
    """BUGS 9: the instance's own tensors may be changed in place after they were used; each use has its value."""

    def forward(net: Any, ids: list[int]) -> Any:
        one_hot = torch.zeros(SIZE)
        h = net.start
        for i in ids:
            one_hot.zero_()
            one_hot[i] = 1.0
            h = net.join(h, one_hot)
        return h

    require_parity(seeded(Base, forward), [[0, 1, 2], [3, 3], [5]], sizes=(1, 3))


def test_parameters_outside_the_model_are_refused() -> None:
    """A module in a plain list has parameters that the model does not know; they would be frozen into the graph."""

    class Hidden(Base):
        def __init__(self) -> None:
            super().__init__()
            self.extra = [nn.Linear(SIZE, SIZE)]

        def forward(self, _: Any) -> Any:
            return self.extra[0](state(self))

    with pytest.raises(UnsupportedError, match=r"not one of the model's.*nn\.ModuleList"):
        graph_of(seeded(Hidden), [None])


def test_changes_of_the_model_after_binding_are_noticed() -> None:
    """Shadows are copies: an attribute or a module that changes afterwards is an error, not an old value."""

    def forward(net: Any, _: Any) -> Any:
        return state(net) * net.factor

    model: Any = seeded(Base, forward)
    model.factor = 2.0
    net = bound(model, [None])
    net([None])
    model.factor = 3.0

    with pytest.raises(StaleError, match=r"factor.*bind"):
        net([None])


def _to_buffer(model: nn.Sequential) -> None:
    """The last parameter of the last module, whose buffers are none before."""
    bias = model[1].bias.detach()
    del model[1].bias
    model[1].register_buffer("offset", bias)


def _move_hook(model: nn.Sequential) -> None:
    model[1].register_forward_hook(model[0]._forward_hooks.popitem()[1])


@pytest.mark.parametrize(("change", "named"), [(_to_buffer, r"1\.bias"), (_move_hook, "number of hooks")])
def test_changes_that_leave_as_many_things_are_noticed(change: Any, named: str) -> None:
    """One thing less at one place and one more at another."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: None)
    view = ModelView(model)
    view.require_unchanged()
    change(model)

    with pytest.raises(StaleError, match=named):
        view.require_unchanged()


def test_hooks_of_all_modules_are_refused_while_they_are_there() -> None:
    """They would run for no cell and no layer; torch's own watch."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    view = ModelView(model)
    for function, is_own in ((lambda *_: None, False), (torch.nn.functional.relu, True)):
        hook = torch.nn.modules.module.register_module_forward_hook(function)
        try:
            with nullcontext() if is_own else pytest.raises(UnsupportedError, match="a hook of all modules"):
                view.require_unchanged()
        finally:
            hook.remove()
    view.require_unchanged()


def test_an_exception_of_the_users_code_names_the_instance() -> None:
    """Errors of the user's own keep their traceback and say which instance it was."""

    def forward(net: Any, ids: list[int]) -> Any:
        return net.table.weight[ids[0]]

    with pytest.raises(IndexError) as caught:
        graph_of(seeded(Base, forward), [[1], []])

    assert caught.value.__notes__ == ["while recording instance 1"]


def test_unbounded_constants_are_refused() -> None:
    """BUGS 13: a signature per node is reported, not executed one by one."""

    def forward(net: Any, _: Any) -> Any:
        h = state(net)
        return [torch.clamp(h, max=i / 1000) for i in range(600)]

    with pytest.raises(UnsupportedError, match="different constants"):
        graph_of(seeded(Base, forward), [None])


def test_attributes_that_forward_assigns_may_change() -> None:
    """State that forward puts on the model anew each time is no change of the model, whoever runs it."""

    def forward(net: Any, ids: list[int]) -> Any:
        net.words = ids
        net.trail = []
        net.trail.append(state(net))
        return net.out(net.trail[0] + net.table.weight[net.words[0]])

    model: Any = seeded(Base, forward)
    model.trail = None

    require_parity(model, [[1], [2], [3]], sizes=(1, 3))


def test_a_dropout_that_is_always_on_is_told_to_follow_the_model() -> None:
    """`F.dropout` outside of training is its own argument's doing: `model.eval()` is no remedy, `self.training` is."""
    with pytest.raises(UnsupportedError, match=r"self\.training"):
        graph_of(seeded(Base, dropout), [None])


def test_no_refusal_advises_to_move_a_decision_into_a_cell() -> None:
    """Cells look at no values either, so the advice is the same inside and outside of them."""

    @edbc.cell
    class Deciding(nn.Module):
        def forward(self, h: Any) -> Any:
            return h if h.sum() > 0 else -h

    class Model(Base):
        def __init__(self) -> None:
            super().__init__()
            self.deciding = Deciding()

        def forward(self, _: Any) -> Any:
            return self.deciding(state(self))

    with pytest.raises(UnsupportedError, match=r"torch\.where") as caught:
        graph_of(seeded(Model), [None])
    assert "into a cell" not in str(caught.value)
