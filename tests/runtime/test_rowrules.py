"""Batched forms of torch functions, against the same call on every row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from edbc.runtime.rowfunction import RowFunction
from edbc.runtime.rowrules import BatchedForm, Glimpse
from edbc.trace.table import Hole, SharedRef, View, fill

SHAPES = {
    "pixel": (5, 3, 1, 1),
    "square": (5, 3, 3, 3),
    "grouped": (6, 1, 1, 1),
    "bias": (5,),
    "map": (3, 4, 6),
    "matrix": (2, 4),
}
PARAMETERS = {name: torch.randn(shape, generator=torch.Generator().manual_seed(7)) for name, shape in SHAPES.items()}
PIXEL, SQUARE, GROUPED, BIAS, MAP, MATRIX = map(SharedRef, SHAPES)
INPUT, OTHER = Hole(0), Hole(1)


def index(*items: Any) -> View:
    return View(torch.Tensor.__getitem__, ((INPUT, items), {}), None, str(items))


COLUMNS, MIDDLE, LAST = index(slice(None), None, None), index(slice(3, 6)), index(3)
TURNED = View(torch.Tensor.t, ((INPUT,), {}), None, ".t()")
JOINED = View(torch.Tensor.add, ((INPUT, BIAS), {}), None, "+ bias")


def shared(ref: SharedRef) -> torch.Tensor:
    return PARAMETERS[ref.name]


def rows(count: int, *shape: int) -> torch.Tensor:
    """Values of `count` rows, each in the middle of a longer row of memory, as in a workspace."""
    size = torch.Size(shape).numel()
    workspace = torch.rand(count, size + 20, generator=torch.Generator().manual_seed(count))
    return workspace[:, 10 : 10 + size].view(count, *shape)


def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x


CALLS = {
    "a kernel of one pixel": (torch.conv2d, ((INPUT, PIXEL, BIAS), {}), [(3, 4, 6)], [()]),
    "no bias": (torch.conv2d, ((INPUT, PIXEL), {}), [(3, 4, 6)], [()]),
    "every argument": (torch.conv2d, ((INPUT, PIXEL, BIAS, (1, 1), (0, 0), (1, 1), 1), {}), [(3, 4, 6)], [()]),
    "padding by name": (torch.conv2d, ((INPUT, PIXEL, BIAS), {"padding": "same"}), [(3, 4, 6)], [()]),
    "one pixel, padded": (torch.conv2d, ((INPUT, PIXEL, BIAS), {"padding": 1}), [(3, 4, 6)], [()]),
    "one pixel, strided": (torch.conv2d, ((INPUT, PIXEL, BIAS), {"stride": (1, 2)}), [(3, 4, 6)], [()]),
    "one pixel, grouped": (torch.conv2d, ((INPUT, GROUPED), {"groups": 3}), [(3, 4, 6)], [()]),
    "a larger kernel": (torch.conv2d, ((INPUT, SQUARE, BIAS), {"padding": 1, "dilation": 1}), [(3, 4, 6)], [()]),
    "one factor per channel": (torch.mul, ((INPUT, OTHER), {}), [(3, 4, 6), (3,)], [(), (COLUMNS,)]),
    "fewer dimensions": (torch.sub, ((INPUT, OTHER), {}), [(6,), (3, 4, 6)], [(), ()]),
    "a row's part": (torch.maximum, ((INPUT, OTHER), {}), [(9,), (2, 3)], [(MIDDLE,), ()]),
    "a row's number": (torch.div, ((INPUT, OTHER), {}), [(2, 3), (9,)], [(), (LAST,)]),
    "a parameter of more dimensions": (torch.add, ((INPUT, MAP), {"alpha": 2}), [(6,)], [()]),
    "a number": (torch.pow, ((INPUT, 2), {}), [(2, 3)], [()]),
    "every element alike": (F.gelu, ((INPUT,), {"approximate": "tanh"}), [(2, 3)], [()]),
    "a number's elements": (torch.exp, ((INPUT,), {}), [()], [()]),
    "a method": (torch.Tensor.clamp, ((INPUT, 0.2), {"max": 0.5}), [(4,)], [()]),
    "the last dimensions": (F.layer_norm, ((INPUT, (5,), BIAS), {}), [(2, 5)], [()]),
    "all dimensions alike": (F.layer_norm, ((INPUT, (2, 5)), {}), [(2, 5)], [()]),
    "a product's last dimension": (F.linear, ((INPUT, MATRIX), {}), [(3, 4)], [()]),
    "along the first dimension": (torch.softmax, ((INPUT, 0), {}), [(3, 2)], [()]),
    "along the last": (F.log_softmax, ((INPUT,), {"dim": -1}), [(3, 2)], [()]),
    "along a part": (torch.softmax, ((INPUT, 0), {}), [(9,)], [(MIDDLE,)]),
    "along two": (torch.sum, ((INPUT, (0, -1)), {"keepdim": True}), [(3, 2, 4)], [()]),
    "along all": (torch.Tensor.mean, ((INPUT,), {}), [(3, 2)], [()]),
    "along none": (torch.amax, ((INPUT, ()), {}), [(3, 2)], [()]),
    "a running sum": (torch.cumsum, ((INPUT, 1), {}), [(3, 2)], [()]),
    "vector, matrix": (torch.matmul, ((INPUT, OTHER), {}), [(3,), (3, 2)], [(), ()]),
    "matrix, vector": (torch.matmul, ((INPUT, OTHER), {}), [(2, 3), (3,)], [(), ()]),
    "vector, vector": (torch.matmul, ((OTHER, INPUT), {}), [(3,), (3,)], [(), ()]),
    "matrix, matrix": (torch.Tensor.matmul, ((OTHER, INPUT), {}), [(2, 4), (3, 2)], [(), ()]),
    "matrices, shared vector": (torch.matmul, ((INPUT, BIAS), {}), [(4, 2, 5)], [()]),
    "shared matrix, vector": (torch.matmul, ((MATRIX, INPUT), {}), [(4,)], [()]),
    "shared matrix, matrices": (torch.matmul, ((MATRIX, INPUT), {}), [(2, 4, 3)], [()]),
    "shared vector, vector": (torch.matmul, ((BIAS, INPUT), {}), [(5,)], [()]),
}


@pytest.mark.parametrize(("call", "template", "shapes", "views"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("count", [1, 3])
def test_equal_to_every_row(call: Any, template: Any, shapes: list[Any], views: list[Any], count: int) -> None:
    """The rule fills columns of a workspace with what the call gives row by row, and leaves the other columns alone."""
    values = [rows(count, *shape) for shape in shapes]
    expected = []
    for row in zip(*values, strict=True):
        seen = [view[0].apply(value) if view else value for value, view in zip(row, views, strict=True)]
        args, kwargs = fill(template, seen, shared)
        expected.append(call(*args, **kwargs))
    size = expected[0].numel()
    workspace = torch.full((count, size + 20), 7.0)
    out = workspace[:, 10 : 10 + size].view(count, *expected[0].shape)

    assert RowFunction(call, template, views, shared).fill(values, out)
    torch.testing.assert_close(out, torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert (torch.cat([workspace[:, :10], workspace[:, 10 + size :]], dim=1) == 7).all()
    form = BatchedForm.find(call, template, views, shapes, shared)
    assert form is not None
    torch.testing.assert_close(form.apply(values, shared), torch.stack(expected), rtol=1e-5, atol=1e-6)


NONE = {
    "another function": (torch.sort, ((INPUT,), {}), [(3,)], [()]),
    "along what is not said": (F.softmax, ((INPUT,), {}), [(3,)], [()]),
    "along a number": (torch.sum, ((INPUT,), {}), [()], [()]),
    "along an axis": (torch.sum, ((INPUT,), {"axis": 0}), [(3,)], [()]),
    "products that do not line up": (torch.matmul, ((INPUT, OTHER), {}), [(2, 3, 4), (4, 2)], [(), ()]),
    "a bias per row": (F.layer_norm, ((INPUT, (5,), OTHER), {}), [(5,), (5,)], [(), ()]),
    "a user's function of a known name": (softmax, ((INPUT, 0), {}), [(3, 2)], [()]),
    "a map with a batch of its own": (torch.conv2d, ((INPUT, PIXEL), {}), [(1, 3, 4, 6)], [()]),
    "a kernel per row": (torch.conv2d, ((INPUT, OTHER), {}), [(3, 4, 6), (5, 3, 1, 1)], [(), ()]),
    "a row's elements in another order": (torch.add, ((INPUT, 1), {}), [(2, 3)], [(TURNED,)]),
    "a view with a parameter in it": (torch.add, ((INPUT, 1), {}), [(5,)], [(JOINED,)]),
    "no operand": (torch.add, ((MAP, MAP), {}), [], []),
}


@pytest.mark.parametrize(("call", "template", "shapes", "views"), NONE.values(), ids=NONE)
def test_calls_without_a_rule(call: Any, template: Any, shapes: list[Any], views: list[Any]) -> None:
    """Whatever no rule fits is left to vmap, and nothing is written."""
    out = torch.full((3, 1), 7.0)

    assert not RowFunction(call, template, views, shared).fill([rows(3, *shape) for shape in shapes], out)
    assert (out == 7).all()


def test_glimpse_of_nothing() -> None:
    """A view of no elements is a run of none, in its shape."""
    assert Glimpse.through((index(slice(2, 2)),), (4,)) == Glimpse(0, 0, (0,))
    assert Glimpse(0, 0, (0,)).of(rows(2, 4)).shape == (2, 0)
