"""In-place modules whose change nobody sees: `nn.Sequential(nn.Linear(...), nn.ReLU(inplace=True), ...)`.

A module with `inplace=True` changes what it is given, and to know who else would show that change costs at every view
(`capture.record.functionalise`). Inside of nn.Sequential's own `forward` nobody else holds the tensor that one module
hands to the next. So where a module that makes a new tensor (FRESH) stands in front of one, the latter computes a new
tensor as well: the values are the same. So does one that is called by itself on what such a module or an operator makes
for it (`self.relu(self.norm(x))`, `standins.fresh`, definition (2)), and `F.relu(self.norm(x), inplace=True)`. Whoever
calls such a module otherwise (`for layer in net: x = layer(x)`) may hold its argument, and gets the change.

Time is linear in the number of modules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType, FunctionType
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from edbc.capture.code.closed import definition_of
from edbc.capture.code.hooks import num_hooks
from edbc.capture.code.mark import is_cell
from edbc.capture.semantics.stateless import user_class
from edbc.capture.standins.fresh import ADDED, made_for

FRESH = (nn.Linear, nn.Bilinear, _ConvNd, _NormBase, nn.LayerNorm, nn.GroupNorm)
"""Modules of torch's that give a new tensor, whatever they are given."""
APART = "out of place"
"""What a module's class has for a call that leaves the argument alone; no name that a user's class could have."""


def unseen(sequence: nn.Module) -> Iterator[nn.Module]:
    """The in-place modules of a sequence whose change nobody sees; of any other module none."""
    if not isinstance(sequence, nn.Sequential) or type(sequence).forward is not nn.Sequential.forward:
        return
    found: set[int] = set()
    for before, module in pairwise(sequence):
        is_leaf = type(module).__module__.startswith("torch.nn.") and not is_cell(module)
        if is_leaf and getattr(module, "inplace", False) and (makes_anew(before) or id(before) in found):
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
    return out_of_place(nn.Module.__call__)(module, value) if call is None else call(module, value)


def out_of_place(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of an in-place module that leaves its argument alone."""

    def apart(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        module.inplace = False  # type: ignore[assignment]
        try:
            return call(module, *args, **kwargs)
        finally:
            module.inplace = True  # type: ignore[assignment]

    return apart


def is_unseen(frame: FrameType | None, name: str = "") -> bool:
    """Whether nobody sees how the call that a frame makes, of a function of that name, changes its first argument."""
    made = None if frame is None else made_for(frame)
    if frame is None or made is None or made.function not in (name or made.function, ADDED):
        return False
    return _is_anew(made.maker, frame.f_locals)


def makes_anew(module: nn.Module | None) -> bool:
    """Whether what a module gives is a new tensor that nobody else has: one of FRESH, or of the user's whose forward
    returns operators and what such modules give, and where it is a variable, in the statement after."""
    if module is None or is_cell(module) or num_hooks(module):
        return False
    if isinstance(module, FRESH):
        return True
    kind: Any = user_class(module)
    definition = definition_of(kind.forward) if type(kind.forward) is FunctionType else None
    is_own = "forward" in vars(module) or kind.__call__ is not nn.Module.__call__
    if is_own or definition is None or not definition.args.args:
        return False
    names = {definition.args.args[0].arg: module}
    returns = [node for node in ast.walk(definition) if isinstance(node, ast.Return)]
    made = {id(after): before.value for before, after in _pairs(definition) if _gives(before, after)}
    return returns != [] and all(_is_anew(made.get(id(node), node.value), names) for node in returns)


def _pairs(definition: ast.AST) -> Iterator[tuple[Any, Any]]:
    """Each statement, with the one after in its block."""
    for node in ast.walk(definition):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            yield from pairwise(block if isinstance(block, list) else ())


def _gives(before: ast.stmt, after: ast.stmt) -> bool:
    """Whether a statement returns the variable to which the one before gave a value."""
    is_one = isinstance(before, ast.Assign) and len(before.targets) == 1 and isinstance(before.targets[0], ast.Name)
    value = after.value if isinstance(after, ast.Return) else None
    return is_one and isinstance(value, ast.Name) and value.id == before.targets[0].id  # type: ignore[attr-defined]


def _is_anew(made: ast.expr | None, names: dict[str, Any]) -> bool:
    """Whether an expression makes a new tensor that nobody else has."""
    is_call = isinstance(made, ast.Call)
    return isinstance(made, ast.BinOp) or (is_call and makes_anew(_module_at(made.func, names)))  # type: ignore[union-attr]


def _module_at(node: ast.expr, names: dict[str, Any]) -> nn.Module | None:
    """The module that an expression is, of variables, attributes and items of modules by written numbers and texts."""
    found: Any = None
    if isinstance(node, ast.Name):
        found = names.get(node.id)
    elif isinstance(node, ast.Attribute):
        found = getattr(_module_at(node.value, names), node.attr, None)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant | ast.Name):
        holder = _module_at(node.value, names)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else names.get(node.slice.id)
        items = list(holder) if isinstance(holder, nn.ModuleList | nn.Sequential) else []
        found = items[key] if type(key) is int and -len(items) <= key < len(items) else None
    return found if isinstance(found, nn.Module) else None
