"""In-place modules whose change nobody sees: `nn.Sequential(nn.Linear(...), nn.ReLU(inplace=True), ...)`.

A module with `inplace=True` changes what it is given, and to know who else would show that change costs at every view
(`capture.record.functionalise`). Inside of nn.Sequential's own `forward` nobody else holds the tensor that one module
hands to the next. So where a module that makes a new tensor (FRESH) stands in front of one, the latter computes a new
tensor as well: the values are the same. Whoever calls such a module by itself (`for layer in net: x = layer(x)`) may
hold its argument, and gets the change.

Time is linear in the number of modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from edbc.capture.code.mark import is_cell

FRESH = (nn.Linear, nn.Bilinear, _ConvNd, _NormBase, nn.LayerNorm, nn.GroupNorm)
"""Modules that give a new tensor, whatever they are given."""
APART = "out of place"
"""What a module's class has for a call that leaves the argument alone; no name that a user's class could have."""


def unseen(sequence: nn.Module) -> Iterator[nn.Module]:
    """The in-place modules of a sequence whose change nobody sees; of any other module none."""
    if not isinstance(sequence, nn.Sequential) or type(sequence).forward is not nn.Sequential.forward:
        return
    found: set[int] = set()
    for before, module in pairwise(sequence):
        is_leaf = type(module).__module__.startswith("torch.nn.") and not is_cell(module)
        if is_leaf and getattr(module, "inplace", False) and (isinstance(before, FRESH) or id(before) in found):
            found.add(id(module))
            yield module


def changes(module: nn.Module) -> bool:
    """Whether a call of a module changes what others may hold, as far as its in-place modules tell."""
    hidden = {id(part) for sequence in module.modules() for part in unseen(sequence)}
    return any(getattr(part, "inplace", False) and id(part) not in hidden for part in module.modules())


def forward_of(sequence: nn.Module) -> Callable[[nn.Module, Any], Any] | None:
    """The `forward` of a shadow of a sequence with in-place modules of that kind; None of anything else."""
    hidden = {id(module) for module in unseen(sequence)}
    if not hidden:
        return None
    steps = [_apart if id(module) in hidden else _called for module in sequence]  # type: ignore[attr-defined]

    def forward(self: Any, input: Any) -> Any:
        for step, module in zip(steps, self, strict=True):
            input = step(module, input)
        return input

    return forward


def _called(module: nn.Module, value: Any) -> Any:
    return module(value)


def _apart(module: nn.Module, value: Any) -> Any:
    call = getattr(type(module), APART, None)
    if call is not None:
        return call(module, value)
    module.inplace = False  # type: ignore[assignment]
    try:
        return module(value)
    finally:
        module.inplace = True  # type: ignore[assignment]
