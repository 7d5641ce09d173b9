"""What torch's tags and schemas tell of its functions: shapes made of values, and tensors that are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from expressions import Expression, require_equal
from helpers import captured, seeded
from test_asker import Model
from torch.nn import functional as F

from edbc.capture.semantics import rules
from edbc.capture.semantics.modes import SETTLED
from edbc.capture.semantics.randomness import NO_VALUES, Dispatched
from edbc.errors import UnsupportedError


def tall(x: torch.Tensor) -> torch.Tensor:
    """Six equations of three unknowns."""
    return torch.cat([torch.outer(x, x), torch.eye(3)])


BY_VALUE: dict[str, Expression] = {
    "nonzero": lambda m, x: x.nonzero(),
    "argwhere": lambda m, x: torch.argwhere(x),
    "where": lambda m, x: torch.where(x > 0)[0],
    "masked_select": lambda m, x: x.masked_select(x > 0),
    "bincount": lambda m, x: torch.bincount(x.long().abs()),
    "unique": lambda m, x: torch.unique(x),
    "unique_consecutive": lambda m, x: torch.unique_consecutive(x),
    "unique of rows": lambda m, x: torch.unique(x.view(3, 1), dim=0),
    "_unique": lambda m, x: torch._unique(x)[0],
    "_unique2": lambda m, x: torch._unique2(x)[0],
    "unique_dim": lambda m, x: torch.ops.aten.unique_dim(x.view(3, 1), 0)[0],
    "one_hot": lambda m, x: F.one_hot(x.long().abs()),
    "repeat_interleave": lambda m, x: torch.repeat_interleave(x, x.long().abs()),
    "linalg_lstsq": lambda m, x: torch.linalg.lstsq(tall(x), torch.ones(6, 1)).residuals,
    "getitem": lambda m, x: x[x > 0],
    "index": lambda m, x: torch.ops.aten.index(x, [x > 0]),
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_shapes_made_of_values_are_refused(name: str) -> None:
    """Whatever has a shape that depends on values is refused with file and line, also what no list names."""
    model = seeded(Model, lambda h: BY_VALUE[name](None, h))

    by_value = "asks for the value of a tensor|the shape of what"
    with pytest.raises(UnsupportedError, match=rf"test_tags\.py:\d+: .*({by_value})"):
        captured(model, [1])


SHAPED: dict[str, Expression] = {
    "combinations": lambda m, x: torch.combinations(x),
    "one_hot": lambda m, x: F.one_hot(x.long().abs().clamp(0, 4), 5).float() * x[0],
    "repeat_interleave": lambda m, x: torch.repeat_interleave(x, 2),
    "index": lambda m, x: x[torch.tensor([0, 2])],
    "lstsq": lambda m, x: torch.linalg.lstsq(torch.outer(x, x) + torch.eye(len(x)), x.view(-1, 1)).solution,
    "ctc_loss": lambda m, x: F.ctc_loss(x.view(-1, 1, 1).repeat(1, 1, 4), torch.tensor([[1]]), (len(x),), (1,)),
}


@pytest.mark.parametrize("name", SHAPED)
def test_what_tags_do_not_say_is_recorded(name: str) -> None:
    """Operators of the tag whose arguments settle the shape, and functions that use them on positions alone."""
    require_equal(SHAPED[name])


WRITES: dict[str, Expression] = {
    "_cummax_helper": lambda m, x: torch._cummax_helper(x, x.new_zeros(3), torch.zeros(3, dtype=torch.long), 0),
    "_native_batch_norm_legit": lambda m, x: torch._native_batch_norm_legit(
        x.view(1, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5)[0],
    "rrelu_with_noise": lambda m, x: torch.ops.aten.rrelu_with_noise(x, x.new_zeros(3), 0.1, 0.3, False),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_functions_that_write_what_they_are_given_are_refused(name: str) -> None:
    """As their schemas tell: nothing in their names does."""
    model = seeded(Model, lambda h: WRITES[name](None, h))

    with pytest.raises(UnsupportedError, match=rf"test_tags\.py:\d+: '{name}.*' changes tensors that it is given"):
        captured(model, [1])


def packets() -> list[Any]:
    """All of torch's own operators."""
    names = {name.removeprefix("aten::").partition(".")[0] for name in torch._C._dispatch_get_all_op_names()
             if name.startswith("aten::")}  # fmt: skip
    return [packet for name in sorted(names) if (packet := getattr(torch.ops.aten, name, None)) is not None]


def test_all_of_torch_s_operators_with_shapes_by_value_are_known() -> None:
    """Every operator that torch tags is seen when it is dispatched to, but where its arguments settle the shape; no
    entry of the table is of an operator without the tag."""
    tagged = [
        getattr(packet, overload)
        for packet in packets()
        for overload in packet.overloads()
        if torch.Tag.dynamic_output_shape in getattr(packet, overload).tags
    ]

    assert len(tagged) >= 14
    assert set(SETTLED) <= {operator._schema.name.removeprefix("aten::") for operator in tagged}
    for operator in tagged:
        seen = Dispatched()
        mask = torch.zeros(2, dtype=torch.bool)
        given = {"indices": [mask], "num_classes": -1, "output_size": None, "self": torch.zeros(3, 2)}
        seen._note(operator, (), given)
        assert seen.shape_by_value, operator
    assert all(hasattr(torch, name) or hasattr(F, name) for name in NO_VALUES)


def test_all_of_torch_s_schemas_that_write_are_known() -> None:
    """Every operator that writes a tensor of its arguments ends in `_`, takes `out=`, or is known to write."""
    for packet in packets():
        name = packet._qualified_op_name.removeprefix("aten::")
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            written = [
                a for a in operator._schema.arguments
                if a.alias_info is not None and a.alias_info.is_write and not a.is_out
                and isinstance(a.real_type, torch.TensorType)
            ]  # fmt: skip
            if written and not name.endswith("_") and "out" not in overload:
                assert rules.writes_operands(name), operator
