"""Results of operators on tensors without data are those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edbc.capture.semantics.modes import WithoutData
from edbc.capture.semantics.shapes import flat

X, Y, V, N = torch.randn(3, 4), torch.randn(4, 5), torch.randn(4), torch.arange(4)
CALLS = [
    (torch.add, X, V),
    (torch.tanh, X),
    (torch.mul, X, 2),
    (torch.div, N, 2),
    (torch.eq, X, V),
    (torch.add, N, 0.5),
    (torch.where, X > 0, X, 1.0),
    (torch.floor_divide, N, torch.tensor(2)),
    (torch.addmm, torch.randn(5), X, Y),
    (torch.cat, [X, X[:1]]),
    (torch.cat, [X, X], -1),
    (torch.stack, [V, V], 1),
    (torch.stack, [V, V], -1),
    (torch.mm, X, Y),
    (torch.add, N, torch.tensor(0.5)),
    (torch.pow, 2.0, X),
    (torch.add, X, torch.randn(3)),
    (torch.addmm, V, X, X),
    (torch.cat, [X, Y]),
    (torch.Tensor.add_, X, V),
    (torch.Tensor.add_, V, X),
    (torch.clamp, X, 0.0),
    (torch.lerp, X, X, 0.5),
    (torch.matmul, V, Y),
    (torch.Tensor.squeeze_, X[:1]),
    (torch.nn.functional.linear, V, X),
    (torch.softmax, X, -1),
    (torch.std, X, 0),
    (torch.Tensor.__getitem__, X, N[:2]),
    (torch.index_select, X, 0, N[:3]),
    (torch.nn.functional.embedding, N[:3], X),
    (torch.bmm, X[None], Y[None]),
    (torch.bmm, X[None], X[None]),
    (torch.baddbmm, X[:, :3], X[None], X[None].mT),
    (torch.inverse, X[:, :3]),
    (torch.conv1d, X[None], torch.randn(2, 3, 3)),
    (torch.nn.functional.scaled_dot_product_attention, X[None], X[None], X[None]),
    (torch.nn.functional.layer_norm, X, (4,)),
    (torch.cdist, X, X),
    (torch.topk, X, 2, -1),
    (torch.relu_, X.t()),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0].__name__)
def test_results_are_those_of_torch(call: Any) -> None:
    """Shapes, strides and dtypes, and errors where torch has some."""
    func, *args = call
    meta = [
        [y.to("meta") for y in x] if isinstance(x, list) else x.to("meta") if isinstance(x, torch.Tensor) else x
        for x in args
    ]
    try:
        expected = func(*[x.clone() if isinstance(x, torch.Tensor) else x for x in args])
    except RuntimeError:
        with pytest.raises(RuntimeError), WithoutData():
            func(*meta)
        return
    with WithoutData():
        found = func(*meta)
    for ours, theirs in zip(flat(found), flat(expected), strict=True):
        described = theirs.shape, theirs.dtype, theirs.stride(), "meta"
        assert (ours.shape, ours.dtype, ours.stride(), ours.device.type) == described
