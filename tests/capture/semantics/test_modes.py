"""Results of operators on tensors without data are those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edbc.capture.semantics.modes import DispatchMode, run


class Running(DispatchMode):
    """Every operator by `run`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


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
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0].__name__)
def test_results_are_those_of_torch(call: Any) -> None:
    """Shapes and dtypes, and errors where torch has some."""
    func, *args = call
    meta = [
        [y.to("meta") for y in x] if isinstance(x, list) else x.to("meta") if isinstance(x, torch.Tensor) else x
        for x in args
    ]
    try:
        expected = func(*[x.clone() if isinstance(x, torch.Tensor) else x for x in args])
    except RuntimeError:
        with pytest.raises(RuntimeError), Running():
            func(*meta)
        return
    with Running():
        found = func(*meta)
    assert (found.shape, found.dtype, found.device.type) == (expected.shape, expected.dtype, "meta")
