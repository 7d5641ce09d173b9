"""Hooks of modules that could not fire: those of cells, of what is inside them, and of leaf modules.

Such a module is a node, or a part of one, and runs once for a whole batch in code that no module is called from. Eager
would call its hooks once per node; so they are refused. Hooks of parameters and of the modules around cells are no
matter: the former belong to autograd, the latter run while recording (backward hooks of modules do not, and are refused
everywhere). So do hooks that compute a weight of torch's layers outside of marked cells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as of_all
from torch.nn.utils.weight_norm import WeightNorm

from edbc.errors import UnsupportedError

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_ALL = (*_FORWARD, *_BACKWARD)
_OF_ALL = tuple(getattr(of_all, f"_global{name}") for name in _ALL)
"""Where hooks of all modules stand."""


def hooks_of(module: nn.Module) -> list[dict[int, object]]:
    """The dictionaries of the hooks that are registered on a module itself."""
    state = module.__dict__
    return [state[name] for name in _ALL]


def num_hooks(module: nn.Module) -> int:
    """Hooks that are registered on a module itself, but for those that compute its weight."""
    return sum(map(len, hooks_of(module))) - computes_weight(module)


def hooks_of_forward(module: nn.Module) -> list[tuple[dict[Any, Any], Any, Any]]:
    """Those of its forward, but for those that compute its weight: each with where it stands."""
    state = module.__dict__
    found = [(state[name], number, hook) for name in _FORWARD for number, hook in state[name].items()]
    return [of for of in found if not isinstance(of[2], WeightNorm)]


def computes_weight(module: nn.Module) -> int:
    """How many of a module's hooks are torch's older weight norm, which makes the weight anew for each call. They run
    while recording, and what they make is a function of parameters."""
    return sum(isinstance(hook, WeightNorm) for hook in module._forward_pre_hooks.values())


def refuse_hooks_of_all() -> None:
    """Raise UnsupportedError for a hook of all modules, but for torch's own, which watch."""
    for hook in [hook for hooks in _OF_ALL for hook in hooks.values()] if any(_OF_ALL) else ():
        name = getattr(hook, "__qualname__", type(hook).__name__)
        if not str(getattr(hook, "__module__", "")).startswith("torch."):
            raise UnsupportedError(
                f"{name} is a hook of all modules (register_module_forward_hook and its like): expected none, as cells "
                "and layers run for whole batches at once; register it on the modules that it is for, or remove it"
            )


def refuse_hooks(model: nn.Module, is_node: Callable[[nn.Module], bool]) -> None:
    """Raise UnsupportedError for the first hook that could not fire; `is_node` tells cells and leaf modules."""
    nodes: set[str] = set()
    for path, module in model.named_modules():  # a module comes before those inside it
        parent = path.rpartition(".")[0]
        if is_node(module) or (parent and parent in nodes):
            nodes.add(path)
        inside = not path or path in nodes
        for name in (*(_FORWARD if inside else ()), *_BACKWARD):
            if getattr(module, name):
                raise UnsupportedError(
                    f"module {path or type(module).__name__!r} has a hook ({name.strip('_')}) that would not be "
                    "called: it runs for whole batches at once; remove the hook, put it on a parameter, or use "
                    "torch.nn.utils.parametrizations in place of the older spectral_norm, and weight_norm in a cell"
                )
