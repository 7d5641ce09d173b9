"""`torch.func.functional_call` while recording: the module's own code on the tensors that are given.

What is recorded of a module is its call, one node with the module's own parameters. So with other parameters it is
not the module that runs but a copy in which nothing is recorded as a whole: its classes are the user's again, and
what its functions do to tensors is recorded. torch puts the given tensors into the copy, and takes care of tied ones.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import stateless

from edbc.capture.semantics.gradmode import watcher_of_thread


def derived_class(kind: type[nn.Module], methods: dict[str, Any]) -> type[nn.Module]:
    """A class of a few methods more, which `user_class` sees through."""
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, "_edbc_of": kind})


def user_class(module: nn.Module) -> type[nn.Module]:
    """The class that the user wrote, of a module whose class edbc has derived from it to record."""
    kind = type(module)
    while "_edbc_of" in vars(kind):
        kind = vars(kind)["_edbc_of"]
    return kind


def _unrecorded(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """A copy whose calls are not recorded as such; its tensors are the same ones."""
    if id(module) in copies:
        return copies[id(module)]
    copy = copies[id(module)] = object.__new__(user_class(module))
    found = {*module._parameters, *module._buffers, *module._modules}
    copy.__dict__.update({name: value for name, value in module.__dict__.items() if name not in found})
    copy._parameters, copy._buffers = dict(module._parameters), dict(module._buffers)
    copy._modules = {name: child and _unrecorded(child, copies) for name, child in module._modules.items()}
    return copy


_call = stateless._functional_call


def _functional_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    is_recorded = watcher_of_thread() is not None and user_class(module) is not type(module)
    return _call(_unrecorded(module, {}) if is_recorded else module, *args, **kwargs)


stateless._functional_call = _functional_call
