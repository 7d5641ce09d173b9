"""Numbers pass through every dtype as in eager, gradients too: BUGS 22."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from expressions import Expression, require_equal
from helpers import require_parity, seeded
from torch import nn

INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]

STEPS: dict[str, Expression] = {
    "rfft": lambda m, x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=6),
    "magnitude": lambda m, x: torch.fft.fft(x).abs(),
    "pairs": lambda m, x: torch.view_as_real(torch.view_as_complex(x.reshape(3, 2)) ** 2).reshape(6),
    "stft": lambda m, x: (
        torch.stft(x, 4, return_complex=True, window=torch.ones(4, dtype=x.dtype)).abs().reshape(-1)[:6]
    ),
    "angle": lambda m, x: torch.complex(x, x * 2 + 1).angle(),
    "exp": lambda m, x: torch.exp(1j * x).imag,
    "conj": lambda m, x: (torch.complex(x, x.cos()).conj() * torch.complex(x.sin(), x)).real,
    "float64": lambda m, x: x.double().sin(),
    "float32": lambda m, x: x.float().double(),
    "bfloat16": lambda m, x: x.bfloat16().double() * x,
    "float16": lambda m, x: x.half().double() * x,
    "integers": lambda m, x: (x * 10).long().double() * x,
    "booleans": lambda m, x: (x > 0).double() * x,
    "linear": lambda m, x: torch.tanh(m.linear(x)),
}
"""Of six numbers, six numbers, through another dtype."""


@pytest.mark.parametrize("in_cell", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_through_another_dtype(name: str, in_cell: bool) -> None:
    """Values and gradients through complex, short and integer dtypes are eager's, between cells and inside of one."""
    require_equal(STEPS[name], lambda: {"linear": nn.Linear(6, 6)}, in_cell)


@pytest.mark.parametrize("seed", range(6))
def test_chains_through_dtypes(seed: int) -> None:
    """Chains of such steps, drawn at random, have eager's values and gradients."""
    draw = random.Random(seed)
    names = draw.choices(list(STEPS), k=3)

    def chain(model: Any, x: Any) -> Any:
        for name in names:
            x = STEPS[name](model, x)
        return x

    require_equal(chain, lambda: {"linear": nn.Linear(6, 6)}, in_cell=seed % 2 == 1)


REDUCTIONS = "sum prod cumsum amax amin any all count_nonzero".split()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_stacks_have_torch_s_dtype(name: str, dtype: torch.dtype) -> None:
    """A reduction of stacked integers or booleans has the dtype that torch gives it: int64 for sums."""

    def reduce(model: Any, x: Any) -> Any:
        stack = torch.stack([(x * 3).to(dtype), (x > 0).to(dtype), (x + 2).to(dtype)])
        return getattr(torch, name)(stack, 0)

    require_equal(reduce)


def _arrays(x: Any) -> dict[str, Any]:
    return {
        "scalar on the left": lambda: np.float64(1 / 3) * x,
        "scalar on the right": lambda: x * np.float64(1 / 3),
        "no dimensions": lambda: x - np.array(1 / 3),
        "integers": lambda: x + np.arange(6),
        "one number": lambda: x / np.array([3.0]),
        "integers divided": lambda: (x > 0).int() / np.arange(1, 7),
        "product": lambda: x @ np.eye(6),
        "power": lambda: x ** np.array(2.0),
        "float32": lambda: x * np.arange(6, dtype=np.float32),
    }


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of eager's own road through NumPy
@pytest.mark.parametrize("name", _arrays(None))
def test_arrays_of_numpy_promote_as_numpy_does(name: str) -> None:
    """`tensor * array` is NumPy's to promote: float64 arrays and integers make float32 tensors float64, as in eager."""

    class Multiplies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 6)

        def forward(self, word: int) -> Any:
            return _arrays(torch.tanh(self.table.weight[word]))[name]()

    require_parity(seeded(Multiplies), [1, 2, 3])
