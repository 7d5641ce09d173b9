"""Functions that look at memory, at values or at old names of dtypes, and instances that bring data of their own."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from expressions import Expression, require_equal
from helpers import captured, graph_of, require_parity, seeded
from test_asker import Model
from torch import nn
from torch.nn import functional as F

from edbc.errors import UnsupportedError
from edbc.tools.parity import Eager

EXPRESSIONS: dict[str, Expression] = {
    "t contiguous": lambda m, x: x.view(2, 3).t().contiguous().view(6),
    "transpose contiguous": lambda m, x: x.view(1, 2, 3).transpose(1, 2).contiguous().view(6),
    "clone in order": lambda m, x: x.view(2, 3).t().clone(memory_format=torch.contiguous_format).view(6),
    "twice": lambda m, x: x.view(2, 3).t().contiguous().view(3, 2).t().contiguous().view(2, 3)[0].contiguous().view(3),
    "of a parameter": lambda m, x: x.repeat(3) * m.linear.weight.t().contiguous().view(18),
    "already in order": lambda m, x: x.view(2, 3)[1].contiguous().view(3, 1),
    "checks values": lambda m, x: F.gaussian_nll_loss(x, x * 2, x.abs() + 1),
    "flip": lambda m, x: x.sum().flip(()),
    "old class": lambda m, x: x.float().type(torch.DoubleTensor),
    "old class by name": lambda m, x: x.type("torch.LongTensor").double() + x,
    "name of the class": lambda m, x: x if x.type() == "torch.DoubleTensor" else -x,
    "like another": lambda m, x: x.float().to(x.double()),
    "largest and smallest of all": lambda m, x: torch.max(x) * x + x.view(2, 3).min(),
    "gradient of zeros that have no memory": lambda m, x: x.sgn(),
    "shallow copy, which is a leaf": lambda m, x: copy.copy(x) * x + copy.copy(m.linear.weight)[0],
    "minus infinity": lambda m, x: torch.where(x > 0, x, x + float("-inf")).amax(),
}


@pytest.mark.parametrize("in_cell", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_odd_functions(name: str, in_cell: bool) -> None:
    """What asks for memory in order, checks values or names dtypes in old ways has eager's values and gradients."""
    require_equal(EXPRESSIONS[name], lambda: {"linear": nn.Linear(6, 3)}, in_cell)


@pytest.mark.parametrize("counts", [[2, 0], [0, 0], [1, 3], [2], [-1, 1], [1, 1, 1], []])
def test_rows_as_often_as_a_tensor_says(counts: list[int]) -> None:
    """Eager's rows, and its exceptions."""

    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x)
            return torch.repeat_interleave(h, torch.tensor(counts, dtype=torch.int64), dim=0) * torch.tensor(2)

    model, instances = seeded(Repeats), [torch.randn(2, 3) for _ in range(3)]
    try:
        model(instances[0])
    except RuntimeError as expected:
        with pytest.raises(type(expected), match=re.escape(str(expected)[:20])):
            captured(model, instances)
    else:
        require_parity(model, instances)


def test_tensors_of_one_integer_are_torchs() -> None:
    """Of all that are 64 bits wide, and no others; truth values are none."""

    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number in (0, -(2**63), 2**63 - 1, True, np.int64(3)):
                found.append(torch.tensor(number))
            with pytest.raises(ValueError, match="Overflow"):
                torch.tensor(2**63)
            return x * 2

    found: list[torch.Tensor] = []
    captured(Makes().eval(), [torch.randn(3)])
    count = len(found) // 5
    expected = [torch.tensor(number) for number in (0, -(2**63), 2**63 - 1, True, np.int64(3))] * count
    assert [(x.dtype, x.shape, x.item()) for x in found] == [(x.dtype, x.shape, x.item()) for x in expected]


class Reads(nn.Module):
    """What a function makes of an instance, with a table and a layer."""

    def __init__(self, function: Any):
        super().__init__()
        self.table, self.linear, self.lstm = nn.Embedding(8, 6), nn.Linear(6, 3), nn.LSTM(6, 3)
        self.function = function

    def forward(self, instance: Any) -> Any:
        return self.function(self, instance)


def _numbers(number: int) -> torch.Tensor:
    return torch.linspace(-1, number, 6)


BROUGHT: dict[str, tuple[Any, Any]] = {
    "tensor": (lambda m, x: m.linear(x), _numbers),
    "in a dict": (lambda m, x: m.linear(x["a"]), lambda i: {"a": _numbers(i)}),
    "in an attribute": (lambda m, x: m.linear(x.a), lambda i: SimpleNamespace(a=_numbers(i))),
    "array": (lambda m, x: m.linear(torch.from_numpy(x)), lambda i: _numbers(i).numpy()),
    "cast in forward": (lambda m, x: m.linear(torch.from_numpy(x).float()), lambda i: _numbers(i).double().numpy()),
    "integers cast": (lambda m, x: m.linear(torch.tensor(x).float()), lambda i: [i] * 6),
    "recurrent": (lambda m, x: m.lstm(x)[0], lambda i: _numbers(i).repeat(2).view(2, 6)),
    "made in float32": (lambda m, x: m.linear(x + torch.ones(6, dtype=torch.float32)), _numbers),
    "index": (lambda m, x: torch.tanh(m.linear(m.table.weight[x]))[x % 3], torch.tensor),
    "index_select": (lambda m, x: torch.tanh(m.table.weight[1]).index_select(0, x % 6), torch.tensor),
    "sparse": (lambda m, x: torch.sparse.mm(x, torch.tanh(m.table.weight[:3])), lambda i: torch.eye(3).to_sparse()),
    "sparse operator": (lambda m, x: x @ torch.tanh(m.table.weight[:3]), lambda i: torch.eye(3).to_sparse()),
}


@pytest.mark.parametrize("name", BROUGHT)
def test_data_that_instances_bring(name: str) -> None:
    """Data in float32, which the comparison in float64 mixes with float64 weights, is compared; indices without
    dimensions and sparse matrices of the instance are operands."""
    function, instance = BROUGHT[name]

    require_parity(seeded(Reads, function), [instance(i) for i in range(8)])


def test_the_reference_is_more_exact_than_float32() -> None:
    """Where float32 data and float64 weights mix, the reference computes in float64: sums are not rounded."""
    model = seeded(Reads, lambda m, x: (x * 0.1).sum() + m.linear.bias.sum() * 0)
    data = torch.full((100_000,), 0.1)

    (reference,) = Eager(model).reference([data])

    assert reference.dtype is torch.float64
    assert float(reference) == pytest.approx(100_000 * float(torch.tensor(0.1)) * 0.1, rel=1e-12)


def test_one_of_many_instances_brings_float32() -> None:
    """The reference is in float64 also where the first instances of a mini-batch bring no data."""
    model = seeded(Reads, lambda m, x: m.linear(torch.ones(6) * x if isinstance(x, int) else x))

    references = Eager(model).reference([1, 2, torch.ones(6)])

    assert [reference.dtype for reference in references] == [torch.float64] * 3


def test_a_state_that_eager_left_on_the_model() -> None:
    """A model that ran eagerly with gradients, and keeps its states, binds and runs."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.last, self.all = nn.Linear(6, 6), None, []

        def forward(self, number: int) -> Any:
            state: Any = self.linear(torch.full((6,), float(number)))
            self.last = state
            return state

    model = seeded(Keeps)
    model.all.append(model(3))
    model(2)

    require_parity(model, [1, 2, 3])


def test_a_module_made_in_forward() -> None:
    """A module without weights may be made in forward; one with weights is told to be made in __init__."""
    require_parity(seeded(Model, lambda h: nn.Softmax(dim=-1)(h)), [1, 2])

    with pytest.raises(UnsupportedError, match=r"one made in forward.*make modules in __init__"):
        captured(seeded(Model, lambda h: nn.LayerNorm(3)(h)), [1])


def _look_ups(x: torch.Tensor, i: torch.Tensor, mask: torch.Tensor, t: int) -> list[torch.Tensor]:
    """Of `x`, (3, 4, 5, 6), where numbers stand among tensors."""
    return [
        x[i, t, t + 1, i], x[i, t], x[t, i], x[t, :, i], x[:, i, :, t], x[:, t, :, i], x[i, :, t], x[..., t, i],
        x[None, t, i], x[i, None, t], x[t, 1:3, i, ::2], x[i, 1:, t], x[-1, i, 1 - t], x[t, i[None], i[:, None], t],
        x[i, t, True], x[mask, t], x[t, mask[:2].repeat(2)], x[[0, 2], t, [1, 0]], x[i, t, ..., i], x[i[0], t, i],
    ]  # fmt: skip


def test_numbers_among_tensors_of_an_index() -> None:
    """They give what torch makes of them, and are no constants of the look-up."""

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Linear(1, 360)

        def forward(self, given: tuple[torch.Tensor, torch.Tensor, int]) -> list[torch.Tensor]:
            x, i, t = given
            return _look_ups(self.step(x).view(3, 4, 5, 6), i, torch.tensor([True, False, True]), t)

    class Table(Looks):
        def forward(self, given: tuple[torch.Tensor, torch.Tensor, int]) -> list[torch.Tensor]:
            x = self.step(given[0]).view(1, 12, 30)
            return [x[torch.arange(1), t, given[1] + t] for t in range(12)]

    instances = [(torch.randn(1), torch.tensor([2 - k % 3, k % 2]), k % 2) for k in range(4)]
    require_parity(seeded(Looks), instances, sizes=(1, 3))
    looks = [t for t in graph_of(seeded(Table), instances).types if t.name.startswith("getitem")]
    assert len(looks) == 1, looks
