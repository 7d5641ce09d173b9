"""Batched forms of torch functions, against the same call on every row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edbc.capture.record.table import Hole, SharedRef, View, fill
from edbc.capture.semantics.shapes import pick
from edbc.cells.rows import batched
from edbc.cells.rows.batched import batched_form
from edbc.cells.rows.rowfunction import RowFunction

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
DETACHED = View(torch.Tensor.detach, ((INPUT,), {}), None, ".detach()")
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
    "a part without gradients": (torch.mul, ((INPUT, OTHER), {}), [(3,), (3,)], [(DETACHED,), ()]),
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
    "added by numbers, times two": (
        torch.index_add,
        ((INPUT, -1, OTHER, Hole(2)), {"alpha": 2}),
        [(3, 2), (4,), (3, 4)],
        [(), (), ()],
    ),
    "an equation": (torch.einsum, (("ij,kj->ik", INPUT, OTHER), {}), [(3, 2), (4, 2)], [(), ()]),
    "an equation's implied result": (torch.einsum, (("ij,j", INPUT, OTHER), {}), [(3, 2), (2,)], [(), ()]),
    "an equation with a parameter": (torch.einsum, (("bi,ij->bj", INPUT, MATRIX), {}), [(3, 2)], [()]),
    "a bilinear function": (F.bilinear, ((INPUT, OTHER, LINE, BIAS), {}), [(3,), (3,)], [(), ()]),
    "a bilinear function of rows": (F.bilinear, ((INPUT, OTHER, LINE), {}), [(2, 3), (2, 3)], [(), ()]),
    "a parameter's row": (pick, ((LINE, INPUT), {}), [()], [()]),
    "a row by its number": (pick, ((INPUT, OTHER), {}), [(3, 2), ()], [(), ()]),
    "every pair": (torch.outer, ((INPUT, OTHER), {}), [(3,), (2,)], [(), ()]),
    "a product of vectors": (torch.Tensor.dot, ((INPUT, OTHER), {}), [(3,), (3,)], [(), ()]),
    "below the diagonal": (torch.tril, ((INPUT,), {}), [(3, 3)], [()]),
    "distances": (torch.cdist, ((INPUT, OTHER), {}), [(3, 2), (4, 2)], [(), ()]),
    "the first largest": (torch.argmax, ((INPUT, 0), {}), [(3, 2)], [()]),
}


Arguments = tuple[Any, Any, list[Any], list[Any]]


def operands(call: Any, shapes: list[Any], count: int) -> list[torch.Tensor]:
    """Of so many rows."""
    values = [rows(count, *shape) for shape in shapes]
    if call is torch.where:
        values[2] = values[2] > 0.5
    if call in BY_NUMBERS:
        values[1] = (values[1] * 2).long()
    if call is pick:
        values[-1] = (values[-1] * 2).long()
    return values


def form_of(arguments: Arguments) -> Any:
    """The batched form, found with seven rows."""
    call, template, shapes, views = arguments
    function = RowFunction(call, template, views)
    return batched_form(call, template, function._seen, operands(call, shapes, 7), shared)


def row_by_row(arguments: Arguments, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the call computes of every row."""
    call, template, _, views = arguments
    found = []
    for row in zip(*values, strict=True):
        seen = [view[0].apply(value, shared) if view else value for value, view in zip(row, views, strict=True)]
        args, kwargs = fill(template, seen, shared)
        found.append(call(*args, **kwargs))
    return found


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS)
def test_equal_to_every_row(arguments: Arguments) -> None:
    """The form gives what the call gives row by row, for any number of rows, in columns of a workspace."""
    form = form_of(arguments)

    assert form is not None
    for count in (1, 2, 5):
        values = operands(arguments[0], arguments[2], count)
        (found,) = form(values, count, shared)
        torch.testing.assert_close(found, torch.stack(row_by_row(arguments, values)), rtol=1e-5, atol=1e-6)


def test_products_of_a_bilinear_function_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows some after the other."""
    monkeypatch.setattr(batched, "MOST_PRODUCTS", 2 * 5 * 3)
    arguments = CALLS["a bilinear function of rows"]
    values = operands(arguments[0], arguments[2], 4)
    (found,) = form_of(arguments)(values, 4, shared)

    torch.testing.assert_close(found, torch.stack(row_by_row(arguments, values)), rtol=1e-5, atol=1e-6)


FLOATS = {name: of for name, of in CALLS.items() if row_by_row(of, operands(of[0], of[2], 1))[0].is_floating_point()}


@pytest.mark.parametrize("arguments", FLOATS.values(), ids=FLOATS)
def test_gradients_of_every_row(arguments: Arguments) -> None:
    """Autograd follows a form, to operands and parameters."""
    call, _, shapes, _ = arguments
    for parameter in PARAMETERS.values():
        parameter.requires_grad_()
    try:
        values = [x.clone().requires_grad_() if x.is_floating_point() else x for x in operands(call, shapes, 3)]
        leaves = [x for x in (*values, *PARAMETERS.values()) if x.requires_grad]
        (found,) = form_of(arguments)(values, 3, shared)
        right = torch.stack(row_by_row(arguments, values))
        upstream = torch.rand(right.shape, generator=torch.Generator().manual_seed(3))
        if right.requires_grad or found.requires_grad:
            gradients = [torch.autograd.grad(y, leaves, upstream, allow_unused=True) for y in (found, right)]
            for ours, theirs, leaf in zip(*gradients, leaves, strict=True):
                pair = [torch.zeros_like(leaf) if g is None else g for g in (ours, theirs)]
                torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)
    finally:
        for parameter in PARAMETERS.values():
            parameter.requires_grad_(False)


RIGHT = {
    "the largest of all": (torch.max, ((INPUT,), {}), [(3,)], [()]),
    "the smallest of all": (torch.Tensor.min, ((INPUT,), {}), [(3, 2)], [()]),
    "several dimensions, one by one": (torch.Tensor.flip, ((INPUT, 0, 1), {}), [(3, 2)], [()]),
    "an equation of any rank": (torch.einsum, (("...i,i", INPUT, OTHER), {}), [(3, 2), (2,)], [(), ()]),
    "queries of other ranks": (
        F.scaled_dot_product_attention,
        ((INPUT, OTHER, OTHER), {}),
        [(2, 3), (4, 2, 3)],
        [(), ()],
    ),
    "along a number": (torch.sum, ((INPUT,), {}), [()], [()]),
    "along an axis": (torch.sum, ((INPUT,), {"axis": 0}), [(3,)], [()]),
    "products that do not line up": (torch.matmul, ((INPUT, OTHER), {}), [(2, 3, 4), (4, 2)], [(), ()]),
    "a kernel per row": (torch.conv2d, ((INPUT, OTHER), {}), [(3, 4, 6), (5, 3, 1, 1)], [(), ()]),
    "a view with a parameter in it": (torch.add, ((INPUT, 1), {}), [(5,)], [(JOINED,)]),
    "a function of another function": (F.huber_loss, ((INPUT, OTHER), {}), [(5,), (5,)], [(), ()]),
    "a view of nothing": (torch.sum, ((INPUT,), {}), [(4,)], [(index(slice(2, 2)),)]),
    "what is written on the way": (F.cosine_similarity, ((INPUT, OTHER, -1), {}), [(3,), (3,)], [(), ()]),
    "a product of all pairs": (torch.kron, ((INPUT, OTHER), {}), [(2, 2), (2, 3)], [(), ()]),
}
NONE = {
    "as many as there are": (torch.unique, ((INPUT,), {}), [(3,)], [()]),
    "memory for the result": (torch.add, ((INPUT, 1), {"out": BIAS}), [(5,)], [()]),
    "a user's function of a known name": (softmax, ((INPUT, 0), {}), [(3, 2)], [()]),
}


@pytest.mark.parametrize("arguments", RIGHT.values(), ids=RIGHT)
def test_whatever_vmap_knows_has_a_form(arguments: Arguments) -> None:
    """No list tells which functions have one."""
    values = operands(arguments[0], arguments[2], 4)
    (found,) = form_of(arguments)(values, 4, shared)
    torch.testing.assert_close(found, torch.stack(row_by_row(arguments, values)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arguments", NONE.values(), ids=NONE)
def test_calls_without_a_form(arguments: Arguments) -> None:
    """What vmap does not run, what writes elsewhere, and functions that are not torch's, whose gradients may be their
    own, have none."""
    try:
        form = form_of(arguments)
    except RuntimeError:
        form = None
    assert form is None


def looped(x: torch.Tensor) -> torch.Tensor:
    """As many additions as there are rows, where vmap shows one of them."""
    rows = torch._C._functorch.get_unwrapped(x) if torch._C._functorch.is_batchedtensor(x) else x[None]
    return sum((x for _ in rows), x)


looped.__module__ = "torch"


def test_as_many_operators_as_rows_are_no_form() -> None:
    """A function that vmap runs row by row inside differs in more than numbers."""
    assert form_of((looped, ((INPUT,), {}), [(3,)], [()])) is None


def test_a_matrix_that_is_one_for_all_rows_is_multiplied_with_all_at_once() -> None:
    """Neither repeated nor multiplied row by row."""
    form = form_of((torch.matmul, ((INPUT, MATRIX), {}), [(3, 2)], [()]))
    with batched.Seen() as seen:
        form(operands(torch.matmul, [(3, 2)], 5), 5, shared)
    assert "mm" in [step.name for step in seen.steps]
    assert not {"bmm", "expand"} & {step.name for step in seen.steps}


def test_several_results() -> None:
    """Every result of a call, by its batched form."""
    value = rows(3, 2, 4)
    found = RowFunction(torch.max, ((INPUT, 0), {}), [()])([value], 3, shared)

    for ours, theirs in zip(found, zip(*(row.max(0) for row in value), strict=True), strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True}, {"num_layers": 2}, {"num_layers": 2, "dropout": 0.5}, {"batch_first": True}],
)
def test_recurrent_networks_of_one_sequence(kind: Any, options: dict[str, Any]) -> None:
    """Sequences of one length are the batch of one call, what it hands back and its first states row by row."""
    net = kind(3, 4, **options)
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    values = [
        rows(3, *((1, 5, 3) if net.batch_first else (5, 1, 3))),
        *(rows(3, layers, 1, 4) for _ in range(1 + (kind is nn.LSTM))),
    ]
    states = (OTHER, Hole(2)) if kind is nn.LSTM else OTHER
    call = {nn.LSTM: torch.lstm, nn.GRU: torch.gru, nn.RNN: torch.rnn_tanh}[kind]
    template = (
        (
            INPUT,
            states,
            net._flat_weights,
            True,
            net.num_layers,
            net.dropout,
            False,
            net.bidirectional,
            net.batch_first,
        ),
        {},
    )

    function = RowFunction(call, template, [()] * len(values))
    with torch.no_grad():
        found = function(values, 3, shared)
        wanted = zip(*(call(*fill(template, row, shared)[0]) for row in zip(*values, strict=True)), strict=True)

    assert function.form is not None
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs))
