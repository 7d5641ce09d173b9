"""Optimisers by name, and their state as named tensors.

(1) The state of an optimiser is a table from (slot, parameter) to tensors: Adam's `exp_avg` of `out.weight`. Named so,
    it can stand in a safetensors file beside the weights, without pickle. A parameter that no gradient ever reached has
    no slots.
(2) Hyperparameters are no state: they come from the command line, and a checkpoint records what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edbc.errors import EdbcError, ModelError


@dataclass(frozen=True)
class Kind:
    """An optimiser of torch and the learning rate that it gets where none is given."""

    make: Callable[..., torch.optim.Optimizer]
    rate: float


KINDS = {
    "adam": Kind(torch.optim.Adam, 1e-3),
    "adamw": Kind(torch.optim.AdamW, 1e-3),
    "adagrad": Kind(torch.optim.Adagrad, 5e-2),
    "sgd": Kind(torch.optim.SGD, 1e-2),
}


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen. Raises ModelError when there are none."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ModelError(f"{type(model).__name__}: expected a parameter that requires a gradient, got none")
    return found


def optimizer_of(model: nn.Module, name: str, rate: float) -> torch.optim.Optimizer:
    """The optimiser of a model's parameters."""
    return KINDS[name].make(list(trained(model).values()), lr=rate)


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Definition (1), as `slot.parameter`."""
    names = list(trained(model))
    state = optimizer.state_dict()["state"]
    return {f"{slot}.{names[i]}": value for i, slots in state.items() for slot, value in slots.items()}


def restore_state(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors back. Raises EdbcError for one of an unknown parameter or of another shape than it."""
    own = trained(model)
    numbers = {name: i for i, name in enumerate(own)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        slot, _, name = key.partition(".")
        if name not in own or value.shape not in (own[name].shape, torch.Size([])):
            shape = tuple(own[name].shape) if name in own else "no such parameter"
            raise EdbcError(f"optimiser state {key!r}: expected {shape} from the model, got {tuple(value.shape)}")
        state.setdefault(numbers[name], {})[slot] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
