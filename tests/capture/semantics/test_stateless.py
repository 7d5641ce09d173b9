"""torch.func.functional_call computes with the tensors that it is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from expressions import Expression, require_equal
from torch import nn
from torch.func import functional_call


class Tied(nn.Module):
    """Two layers of one weight, the second in a container."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.rest = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.rest[0].weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.rest(self.first(x))


CALLS: dict[str, Expression] = {
    "parameters of the model": lambda m, x: functional_call(m.layer, {"weight": m.other * 2}, (x,)),
    "values": lambda m, x: functional_call(m.layer, {"weight": torch.outer(x, x), "bias": x}, (x,)),
    "tied": lambda m, x: functional_call(m.tied, {"first.weight": torch.outer(x, x)}, (x,)),
    "untied": lambda m, x: functional_call(m.tied, {"rest.0.weight": torch.outer(x, x)}, (x,), tie_weights=False),
    "and as it is": lambda m, x: functional_call(m.layer, {"bias": x}, (x,)) + m.layer(x),
}


@pytest.mark.parametrize("in_cell", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize("name", CALLS)
def test_functional_call(name: str, in_cell: bool) -> None:
    """Given tensors take the place of a module's own, tied ones too, with eager's values and gradients."""

    def modules() -> dict[str, Any]:
        return {"layer": nn.Linear(6, 6), "tied": Tied(), "other": nn.Parameter(torch.randn(6, 6))}

    require_equal(CALLS[name], modules, in_cell)
