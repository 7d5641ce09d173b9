"""Random functions are known by what torch says of its operators, so that none is recorded as an ordinary one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from expressions import Expression, require_equal
from helpers import captured, seeded
from test_asker import Model
from torch import nn
from torch.nn import functional as F

from edbc.capture.semantics.randomness import Dispatched
from edbc.errors import UnsupportedError

DRAWING: dict[str, Expression] = {
    "binomial": lambda m, x: torch.binomial(torch.full_like(x, 10), x.abs() / 2),
    "native_dropout": lambda m, x: torch.native_dropout(x, 0.5, True)[0],
    "_standard_gamma": lambda m, x: torch._standard_gamma(x.abs() + 1),
    "fractional_max_pool2d": lambda m, x: F.fractional_max_pool2d(x.repeat(3).view(1, 3, 3), 2, output_size=2),
    "svd_lowrank": lambda m, x: torch.svd_lowrank(torch.outer(x, x), q=2)[1],
    "poisson": lambda m, x: torch.poisson(x.abs()),
    "bernoulli": lambda m, x: torch.bernoulli(x.abs() / 2),
    "multinomial": lambda m, x: torch.multinomial(x.abs(), 1),
    "normal": lambda m, x: torch.normal(x, 1.0),
    "dropout": lambda m, x: F.dropout(x, 0.5, True),
    "rand_like": lambda m, x: torch.rand_like(x),
    "scaled_dot_product_attention": lambda m, x: F.scaled_dot_product_attention(*[x.view(1, 1, 3)] * 3, dropout_p=0.5),
    "noise": lambda m, x: torch.ops.edbc_tests.noise(x),
}


@torch.library.custom_op("edbc_tests::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    """An operator of no tags that draws."""
    return x + torch.rand(x.shape)


@noise.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("name", DRAWING)
def test_random_functions_are_refused(name: str) -> None:
    """What draws is refused by name with file and line, also what no list names and what other libraries define."""
    model = seeded(Model, lambda h: DRAWING[name](None, h))
    state = torch.default_generator.get_state()

    with pytest.raises(UnsupportedError, match=rf"test_randomness\.py:\d+: '{name}.*' draws random numbers"):
        captured(model, [1])
    assert torch.equal(state, torch.default_generator.get_state())


OFF: dict[str, Expression] = {
    "rrelu": lambda m, x: F.rrelu(x, training=False),
    "dropout": lambda m, x: F.dropout(x, 0.5, False),
    "native_dropout": lambda m, x: torch.native_dropout(x, 0.5, False)[0],
    "attention": lambda m, x: F.scaled_dot_product_attention(*[x.view(1, 2, 3)] * 3, dropout_p=0.0),
    "lstm": lambda m, x: m.lstm(x.view(2, 3))[0],
}


@pytest.mark.parametrize("name", OFF)
def test_random_functions_that_are_off_draw_nothing(name: str) -> None:
    """Operators that may draw, and say by an argument that they do not, are recorded."""
    require_equal(OFF[name], lambda: {"lstm": nn.LSTM(3, 2, num_layers=2, dropout=0.5)})


def _tagged() -> list[Any]:
    names = (name.partition(".") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    packets = {getattr(torch.ops.aten, name.removeprefix("aten::"), None) for name, _, _ in names}
    overloads = [getattr(p, o) for p in packets if p is not None for o in p.overloads()]
    return sorted((o for o in overloads if torch.Tag.nondeterministic_seeded in o.tags), key=str)


def test_all_of_torch_s_random_operators_are_known() -> None:
    """Every operator that torch tags as random is seen as drawing when it is dispatched to, unless an argument that
    switches it off says so."""
    operators = _tagged()

    assert len(operators) > 100
    for operator in operators:
        seen = Dispatched()
        on = {"train": True, "training": True, "dropout_p": 0.5}
        names = {argument.name for argument in operator._schema.arguments}
        seen._note(operator, (), {name: value for name, value in on.items() if name in names})
        assert seen.draws, operator
