"""What of torch handles tensors below the level at which calls are recorded: passed through, or told by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradients import require_equal_gradients
from helpers import bound, require_parity
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from edbc.errors import UnsupportedError


class Base(nn.Module):
    """`use` of one word's row."""

    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.lin = nn.Embedding(10, 4), nn.Linear(4, 4)
        self.use = use

    def forward(self, word: int) -> Any:
        return self.use(self, torch.tanh(self.table.weight[word]))


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x.pow(3).sum()


def advice(use: Callable[..., Any]) -> str:
    """What is said of a forward that eager runs, without line and cause."""
    model = Base(use).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(1)
        with pytest.raises(UnsupportedError) as raised:
            bound(model, [1])
    said = re.fullmatch(r"test_advice\.py:\d+: (.*?) \(while recording instance 0.*\)", str(raised.value), re.DOTALL)
    assert said is not None, str(raised.value)
    return said[1]


EAGER = "runs in eager PyTorch but cannot take recorded tensors;"
WRITE_OUT = "write what it computes with other torch functions: "
NO_GRADIENTS = "gradients inside forward are not recorded"
BATCHED = f"instances are batched without it, and {NO_GRADIENTS}"
ADVICE: dict[str, tuple[Callable[..., Any], str]] = {
    "vmap": (
        lambda m, h: torch.vmap(doubled)(h.view(2, 2)),
        f"'torch.func.vmap' {EAGER} {WRITE_OUT}{BATCHED}",
    ),
    "grad": (lambda m, h: torch.func.grad(cubed)(h), f"'torch.func.grad' {EAGER} {WRITE_OUT}{BATCHED}"),
    "jacrev": (lambda m, h: torch.func.jacrev(cubed)(h), f"'torch.func.jacrev' {EAGER} {WRITE_OUT}{BATCHED}"),
    "autograd": (
        lambda m, h: torch.autograd.grad(cubed(h), h)[0],
        f"'torch.autograd.grad' {EAGER} {WRITE_OUT}{NO_GRADIENTS}",
    ),
    "compile": (
        lambda m, h: torch.compile(doubled, backend="eager")(h),
        f"'torch.compile' {EAGER} leave it out: edbc compiles the whole",
    ),
    "script": (
        lambda m, h: torch.jit.script(doubled)(h),
        f"'doubled' of torch.jit {EAGER} call the Python function that was scripted or traced",
    ),
    "trace": (
        lambda m, h: torch.jit.trace(doubled, h.detach())(h),
        f"'torch.jit.trace' {EAGER} call the Python function itself",
    ),
    "reentrant": (
        lambda m, h: checkpoint(doubled, h, use_reentrant=True),
        "checkpoint(use_reentrant=True) gives gradients only where an argument requires one, which recording does not "
        "know; pass use_reentrant=False",
    ),
    "made-up values": (
        lambda m, h: F.ctc_loss(h.view(2, 2).log_softmax(1), torch.tensor([1]), torch.tensor(2), torch.tensor(1)),
        f"'ctc_loss' {EAGER} it was given ones and zeros for its operands, to find the shape of its result, and "
        "refuses such values: pass what it checks (lengths, sizes) as Python numbers, not as tensors",
    ),
    "copied": (
        lambda m, h: torch.tensor(h),
        "torch.tensor, or what else copies memory, was given a recorded tensor, which has none; use "
        "x.detach().clone(), or torch.stack of several",
    ),
    "made in forward": (
        lambda m, h: nn.Linear(4, 2)(h),
        "a parameter was used that is not one of the model's (a module in a plain list or dict, or one made in forward)"
        "; make modules in __init__ and keep them in attributes, nn.ModuleList or nn.ModuleDict, so that the model "
        "knows their parameters",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_names_what_was_called(name: str) -> None:
    """The function by the name that the user knows, and what to do instead of it."""
    use, text = ADVICE[name]

    assert advice(use) == text


def both(net: Base, h: torch.Tensor) -> torch.Tensor:
    return torch.tanh(net.lin(h)) * h


CHECKPOINTED: dict[str, Callable[..., Any]] = {
    "function": lambda m, h: checkpoint(both, m, h, use_reentrant=False),
    "module": lambda m, h: checkpoint(m.lin, h, use_reentrant=False) + h,
    "nested": lambda m, h: checkpoint(lambda x: checkpoint(both, m, x, use_reentrant=False), h, use_reentrant=False),
    "sequence": lambda m, h: checkpoint_sequential(nn.Sequential(m.lin, nn.Tanh()), 2, h, use_reentrant=False),
    "detached": lambda m, h: checkpoint(both, m, h.detach(), use_reentrant=False),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoints_are_calls(name: str) -> None:
    """Outputs and gradients equal eager's; outside of recording torch's own checkpoints work as ever."""
    model = Base(CHECKPOINTED[name]).double()
    require_equal_gradients(require_parity(model, [1, 2, 3, 1]), [1, 2, 3, 1])


def test_an_exception_passes_through_a_checkpoint() -> None:
    """The user's own exception is raised, not one of the checkpoint's."""

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        bound(Base(lambda m, h: checkpoint(fails, h, use_reentrant=False)), [1])
