"""Batched forms of torch functions, against the same call on every row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edbc.capture.record.table import Hole, SharedRef, View, fill
from edbc.cells.rows.rowfunction import RowFunction
from edbc.cells.rows.rowrules import BatchedForm, Glimpse

SHAPES = {
    "pixel": (5, 3, 1, 1),
    "square": (5, 3, 3, 3),
    "grouped": (6, 1, 1, 1),
    "bias": (5,),
    "map": (3, 4, 6),
    "matrix": (2, 4),
    "line": (5, 3, 3),
    "back": (3, 2, 3, 3),
}
PARAMETERS = {name: torch.randn(shape, generator=torch.Generator().manual_seed(7)) for name, shape in SHAPES.items()}
PIXEL, SQUARE, GROUPED, BIAS, MAP, MATRIX, LINE, BACK = map(SharedRef, SHAPES)
INPUT, OTHER = Hole(0), Hole(1)


def index(*items: Any) -> View:
    return View(torch.Tensor.__getitem__, ((INPUT, items), {}), None, str(items))


COLUMNS, MIDDLE, LAST = index(slice(None), None, None), index(slice(3, 6)), index(3)
STEPS = index(slice(None, None, 2))
WINDOWS = View(torch.Tensor.unfold, ((INPUT, 1, 3, 1), {}), None, ".unfold(1, 3, 1)")
WIDE = View(torch.Tensor.expand, ((INPUT, 5, -1), {}), None, ".expand(5, -1)")
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


BY_NUMBERS = (torch.gather, torch.index_select, torch.Tensor.__getitem__, torch.index_add)
CALLS = {
    "every other element": (torch.add, ((INPUT, 1), {}), [(6,)], [(STEPS,)]),
    "windows of a matrix's rows": (torch.tanh, ((INPUT,), {}), [(2, 6)], [(WINDOWS,)]),
    "one row for all": (torch.cumsum, ((INPUT, 0), {}), [(1, 4)], [(WIDE,)]),
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
    "what torch calls pointwise": (torch.sign, ((INPUT,), {}), [(2, 3)], [()]),
    "pointwise with numbers": (torch.nan_to_num, ((INPUT,), {"nan": 1.0}), [(2, 3)], [()]),
    "the last dimensions": (F.layer_norm, ((INPUT, (5,), BIAS), {}), [(2, 5)], [()]),
    "all dimensions alike": (F.layer_norm, ((INPUT, (2, 5)), {}), [(2, 5)], [()]),
    "a product's last dimension": (F.linear, ((INPUT, MATRIX), {}), [(3, 4)], [()]),
    "along the first dimension": (torch.softmax, ((INPUT, 0), {}), [(3, 2)], [()]),
    "along the last": (F.log_softmax, ((INPUT,), {"dim": -1}), [(3, 2)], [()]),
    "along a part": (torch.softmax, ((INPUT, 0), {}), [(9,)], [(MIDDLE,)]),
    "along two": (torch.sum, ((INPUT, (0, -1)), {"keepdim": True}), [(3, 2, 4)], [()]),
    "along all": (torch.Tensor.mean, ((INPUT,), {}), [(3, 2)], [()]),
    "along none": (torch.amax, ((INPUT, ()), {}), [(3, 2)], [()]),
    "along an empty list": (torch.sum, ((INPUT,), {"dim": []}), [(3, 2)], [()]),
    "a running sum": (torch.cumsum, ((INPUT, 1), {}), [(3, 2)], [()]),
    "vector, matrix": (torch.matmul, ((INPUT, OTHER), {}), [(3,), (3, 2)], [(), ()]),
    "matrix, vector": (torch.matmul, ((INPUT, OTHER), {}), [(2, 3), (3,)], [(), ()]),
    "vector, vector": (torch.matmul, ((OTHER, INPUT), {}), [(3,), (3,)], [(), ()]),
    "matrix, matrix": (torch.Tensor.matmul, ((OTHER, INPUT), {}), [(2, 4), (3, 2)], [(), ()]),
    "matrices, shared vector": (torch.matmul, ((INPUT, BIAS), {}), [(4, 2, 5)], [()]),
    "shared matrix, vector": (torch.matmul, ((MATRIX, INPUT), {}), [(4,)], [()]),
    "shared matrix, matrices": (torch.matmul, ((MATRIX, INPUT), {}), [(2, 4, 3)], [()]),
    "shared vector, vector": (torch.matmul, ((BIAS, INPUT), {}), [(5,)], [()]),
    "batches of products": (torch.matmul, ((INPUT, OTHER), {}), [(2, 3, 4), (2, 4, 5)], [(), ()]),
    "a row's elements in another order": (torch.add, ((INPUT, 1), {}), [(2, 3)], [(TURNED,)]),
    "a turned part": (torch.matmul, ((INPUT, OTHER), {}), [(2, 3), (2, 3)], [(), (TURNED,)]),
    "maps with a batch of their own": (torch.conv2d, ((INPUT, SQUARE, BIAS), {}), [(2, 3, 4, 6)], [()]),
    "maps of no batch of their own": (torch.conv2d, ((INPUT, PIXEL), {}), [(0, 3, 4, 6)], [()]),
    "one dimension": (torch.conv1d, ((INPUT, LINE, None, 2, 1), {}), [(3, 6)], [()]),
    "the other way round": (torch.conv_transpose2d, ((INPUT, BACK), {"stride": 2}), [(3, 4, 6)], [()]),
    "the largest of a window": (torch.max_pool2d, ((INPUT, 2), {}), [(3, 4, 6)], [()]),
    "the mean of a window": (F.avg_pool2d, ((INPUT, 3, 1, 1), {"count_include_pad": False}), [(3, 4, 6)], [()]),
    "a mean of a size": (F.adaptive_avg_pool2d, ((INPUT, (2, 1)), {}), [(3, 4, 6)], [()]),
    "attention": (F.scaled_dot_product_attention, ((INPUT, OTHER, OTHER), {"scale": 0.5}), [(2, 3), (4, 3)], [(), ()]),
    "attention, causal": (
        F.scaled_dot_product_attention,
        ((INPUT, OTHER, OTHER), {"is_causal": True}),
        [(2, 4, 3), (2, 4, 3)],
        [(), ()],
    ),
    "a choice": (torch.where, ((Hole(2), INPUT, OTHER), {}), [(3,), (2, 3), (2, 1)], [(), (), ()]),
    "between": (torch.lerp, ((INPUT, OTHER, 0.3), {}), [(2, 3), (3,)], [(), ()]),
    "joined": (torch.cat, (([INPUT, OTHER, BIAS],), {}), [(2,), (3,)], [(), ()]),
    "joined along the last": (torch.cat, (((INPUT, OTHER), -1), {}), [(2, 2), (2, 3)], [(), ()]),
    "stacked": (torch.stack, (([INPUT, OTHER], 1), {}), [(2,), (2,)], [(), ()]),
    "a running product": (torch.cumprod, ((INPUT, 0), {}), [(3, 2)], [()]),
    "the other way round, by rows": (torch.Tensor.flip, ((INPUT, (0, -1)), {}), [(3, 2)], [()]),
    "rolled": (torch.roll, ((INPUT, 1, 0), {}), [(3, 2)], [()]),
    "of length one": (F.normalize, ((INPUT,), {}), [(3, 2)], [()]),
    "half of it gates": (F.glu, ((INPUT,), {}), [(4,)], [()]),
    "differences": (torch.diff, ((INPUT,), {"dim": 0}), [(3, 2)], [()]),
    "alike": (F.cosine_similarity, ((INPUT, OTHER, 0), {}), [(3, 2), (3, 2)], [(), ()]),
    "elements by numbers": (torch.gather, ((INPUT, 1, OTHER), {}), [(3, 2), (3, 4)], [(), ()]),
    "rows by numbers": (torch.index_select, ((INPUT, 0, OTHER), {}), [(3, 2), (4,)], [(), ()]),
    "columns by numbers": (torch.index_select, ((INPUT, -1, OTHER), {}), [(3, 2), (4,)], [(), ()]),
    "rows by an index": (torch.Tensor.__getitem__, ((INPUT, OTHER), {}), [(3, 2), (4,)], [(), ()]),
    "added by numbers": (torch.index_add, ((INPUT, 0, OTHER, Hole(2)), {}), [(3, 2), (4,), (4, 2)], [(), (), ()]),
    "an equation": (torch.einsum, (("ij,kj->ik", INPUT, OTHER), {}), [(3, 2), (4, 2)], [(), ()]),
    "an equation's implied result": (torch.einsum, (("ij,j", INPUT, OTHER), {}), [(3, 2), (2,)], [(), ()]),
    "an equation with a parameter": (torch.einsum, (("bi,ij->bj", INPUT, MATRIX), {}), [(3, 2)], [()]),
    "every pair": (torch.outer, ((INPUT, OTHER), {}), [(3,), (2,)], [(), ()]),
    "a product of vectors": (torch.Tensor.dot, ((INPUT, OTHER), {}), [(3,), (3,)], [(), ()]),
    "below the diagonal": (torch.tril, ((INPUT,), {}), [(3, 3)], [()]),
    "distances": (torch.cdist, ((INPUT, OTHER), {}), [(3, 2), (4, 2)], [(), ()]),
    "the first largest": (torch.argmax, ((INPUT, 0), {}), [(3, 2)], [()]),
}


@pytest.mark.parametrize(("call", "template", "shapes", "views"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("count", [1, 3])
def test_equal_to_every_row(call: Any, template: Any, shapes: list[Any], views: list[Any], count: int) -> None:
    """The rule gives what the call gives row by row, from operands that stand in columns of a workspace."""
    values = [rows(count, *shape) for shape in shapes]
    if call is torch.where:
        values[2] = values[2] > 0.5
    if call in BY_NUMBERS:
        values[1] = (values[1] * 2).long()
    expected = []
    for row in zip(*values, strict=True):
        seen = [view[0].apply(value) if view else value for value, view in zip(row, views, strict=True)]
        args, kwargs = fill(template, seen, shared)
        expected.append(call(*args, **kwargs))

    form = BatchedForm.find(call, template, views, shapes, shared)

    assert form is not None
    torch.testing.assert_close(form.apply(values, shared), torch.stack(expected), rtol=1e-5, atol=1e-6)


NONE = {
    "another function": (torch.unique, ((INPUT,), {}), [(3,)], [()]),
    "the largest of all": (torch.max, ((INPUT,), {}), [(3,)], [()]),
    "the smallest of all": (torch.Tensor.min, ((INPUT,), {}), [(3, 2)], [()]),
    "several dimensions, one by one": (torch.Tensor.flip, ((INPUT, 0, 1), {}), [(3, 2)], [()]),
    "an equation of any rank": (torch.einsum, (("...i,i", INPUT, OTHER), {}), [(3, 2), (2,)], [(), ()]),
    "joined along what is not said by number": (torch.cat, (([INPUT, OTHER],), {"dim": "x"}), [(3,), (3,)], [(), ()]),
    "queries of other ranks": (
        F.scaled_dot_product_attention,
        ((INPUT, OTHER, OTHER), {}),
        [(2, 3), (4, 2, 3)],
        [(), ()],
    ),
    "memory for the result": (torch.add, ((INPUT, 1), {"out": BIAS}), [(5,)], [()]),
    "along what is not said": (F.softmax, ((INPUT,), {}), [(3,)], [()]),
    "along a number": (torch.sum, ((INPUT,), {}), [()], [()]),
    "along an axis": (torch.sum, ((INPUT,), {"axis": 0}), [(3,)], [()]),
    "products that do not line up": (torch.matmul, ((INPUT, OTHER), {}), [(2, 3, 4), (4, 2)], [(), ()]),
    "a bias per row": (F.layer_norm, ((INPUT, (5,), OTHER), {}), [(5,), (5,)], [(), ()]),
    "a user's function of a known name": (softmax, ((INPUT, 0), {}), [(3, 2)], [()]),
    "a kernel per row": (torch.conv2d, ((INPUT, OTHER), {}), [(3, 4, 6), (5, 3, 1, 1)], [(), ()]),
    "a view with a parameter in it": (torch.add, ((INPUT, 1), {}), [(5,)], [(JOINED,)]),
    "no operand": (torch.add, ((MAP, MAP), {}), [], []),
}


@pytest.mark.parametrize(("call", "template", "shapes", "views"), NONE.values(), ids=NONE)
def test_calls_without_a_rule(call: Any, template: Any, shapes: list[Any], views: list[Any]) -> None:
    """Whatever no rule fits is left to vmap."""
    assert BatchedForm.find(call, template, views, shapes, shared) is None


def test_several_results() -> None:
    """Every result of a call, by its batched form."""
    value = rows(3, 2, 4)
    found = RowFunction(torch.max, ((INPUT, 0), {}), [()])([value], 3, shared)

    for ours, theirs in zip(found, zip(*(row.max(0) for row in value), strict=True), strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}])
def test_recurrent_networks_of_one_sequence(kind: Any, options: dict[str, Any]) -> None:
    """Sequences of one length are the batch of one call, what it hands back and its first states row by row."""
    net = kind(3, 4, **options)
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    values = [rows(3, 5, 1, 3), *(rows(3, layers, 1, 4) for _ in range(1 + (kind is nn.LSTM)))]
    states = (OTHER, Hole(2)) if kind is nn.LSTM else OTHER
    call = {nn.LSTM: torch.lstm, nn.GRU: torch.gru, nn.RNN: torch.rnn_tanh}[kind]
    template = ((INPUT, states, net._flat_weights, True, net.num_layers, 0.0, False, net.bidirectional, False), {})

    function = RowFunction(call, template, [()] * len(values))
    with torch.no_grad():
        found = function(values, 3, shared)
        wanted = zip(*(call(*fill(template, row, shared)[0]) for row in zip(*values, strict=True)), strict=True)

    assert function.form is not None
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs))


def test_glimpse_of_nothing() -> None:
    """A view of no elements is a run of none, in its shape."""
    assert Glimpse.through((index(slice(2, 2)),), (4,)) == Glimpse(0, 0, (0,))
    assert Glimpse(0, 0, (0,)).of(rows(2, 4)).shape == (2, 0)
