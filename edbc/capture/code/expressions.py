"""What the expressions of a method are: operations, which only compute, and what else stands below them.

Names and attributes of modules are looked up as they are now. That is a guess which `code.closed` proves of the
regions that are made by it; what it takes for an operation and is none makes a region open.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from edbc.capture.code.closed import Closed, is_in_place, only_computes
from edbc.capture.code.mark import is_cell
from edbc.capture.code.rebind import overridable
from edbc.capture.code.rewrite import as_python

LEAST = 2
"""Operations of a region."""
_CONTAINERS = frozenset(name for kind in (list, dict, set, str, bytes, tuple, int, float) for name in dir(kind))
_READS = frozenset("item tolist numpy backward register_hook retain_grad new_tensor data_ptr storage cpu cuda".split())
_TOLD = frozenset("size dim numel nelement ndimension type".split())
_VIEWS = frozenset(
    "view reshape squeeze unsqueeze t transpose permute flatten unflatten expand expand_as view_as chunk split unbind "
    "narrow select movedim swapaxes contiguous detach".split()
)
_NESTS = frozenset(
    "cat concat concatenate stack hstack vstack dstack column_stack row_stack block_diag einsum broadcast_tensors "
    "meshgrid cartesian_prod chain_matmul multi_dot pad_sequence atleast_1d atleast_2d atleast_3d index_put".split()
)
"""Functions that read a list of tensors."""
_MAKES = frozenset("zeros ones full empty eye arange linspace zeros_like ones_like full_like".split())
_NEW = _MAKES | frozenset("cat stack matmul mm bmm mv add mul tanh sigmoid exp softmax".split())
"""Functions that give a new tensor, whatever they are given; so do these methods."""
_NEW_OF_TENSORS = frozenset("clone new_zeros new_ones new_full new_empty".split())
_SEEN = _VIEWS - {"expand", "expand_as"} | frozenset("to cpu cuda float double half type type_as".split())
"""Methods that may show what they are called on, each element once."""
_PURE = frozenset("len int float bool min max abs range tuple isinstance round str".split())
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult, ast.Pow)
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
"""Comparisons that tensors answer by one."""
_ATTRIBUTES = frozenset("T mT values indices shape dtype device ndim".split())
_LOOK_UPS = (nn.Embedding, nn.EmbeddingBag)
_FRESH = (nn.Linear, nn.Bilinear, _ConvNd, _NormBase, nn.LayerNorm, nn.GroupNorm)
"""Modules that give a new tensor, whatever they are given."""


class Callee(NamedTuple):
    """What a call calls, definition (1)."""

    operations: int
    is_sure: bool
    is_of_tensor: bool = False
    reads_nests: bool = False


class Expressions:
    """Those of one method of a module, whose first argument is `own` and whose variables are `local`."""

    def __init__(self, closed: Closed, module: nn.Module, function: FunctionType, own: str, local: frozenset[str]):
        self._closed, self._module, self._function = closed, module, function
        self._self, self.local = own, local
        self._callees: dict[int, tuple[ast.AST, Callee | None]] = {}

    def stays(self, node: ast.expr) -> bool:
        """Whether an expression means the same inside a region: constants, and what names and attributes of the module
        that stay refer to."""
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.operand, ast.Constant)
        if isinstance(node, ast.Slice):
            return all(self.stays(x) for x in (node.lower, node.upper, node.step) if x is not None)
        if isinstance(node, ast.Tuple):
            return all(map(self.stays, node.elts))
        found = self.resolved(node)
        return isinstance(found, int | float | str | torch.Tensor | torch.dtype | torch.device)

    def resolved(self, node: ast.expr) -> Any:
        """What a name, or a chain of attributes from one or from the module, refers to; None where that may change."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        found: Any
        if node.id == self._self and names:
            found = self._module
        elif node.id in self.local or node.id in self._function.__code__.co_freevars:
            return None
        else:
            found = self._function.__globals__.get(node.id, vars(builtins).get(node.id))
        for name in reversed(names):
            if isinstance(found, nn.Module):
                held = (found._parameters, found._buffers, found._modules, vars(found), _class_of(found))
                found = next((h[name] for h in held if name in h), None)
                if name in self._closed.assigned:
                    return None
            elif isinstance(found, ModuleType):
                found = vars(found).get(name)
            else:
                return None
        return found

    def is_operation(self, node: ast.AST) -> bool:
        """Definition (1)."""
        if isinstance(node, ast.Call):
            return self.callee(node) is not None
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, _OPERATORS) and not _is_text(node.left)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self.is_operation(node.operand)
        if isinstance(node, ast.Compare):
            return all(isinstance(op, ORDERED) for op in node.ops) and self.is_operation(node.left)
        if isinstance(node, ast.Subscript):
            return self.is_operation(node.value) and self.stays(node.slice)
        return isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES and self.is_operation(node.value)

    def is_new(self, node: ast.expr) -> bool:
        """Whether an expression gives a number, or what nobody else has."""
        if not isinstance(node, ast.Call):
            return isinstance(node, ast.BinOp) or (isinstance(node, ast.Constant) and not isinstance(node.value, str))
        found = self.resolved(node.func)
        if any(keyword.arg in (None, "out") for keyword in node.keywords):
            return False
        if found is torch.autograd.Variable:
            return len(node.args) == 1 and self.is_new(node.args[0])
        if found is None:
            name, of = getattr(node.func, "attr", None), getattr(node.func, "value", None)
            return name in _NEW_OF_TENSORS or (name in _SEEN and isinstance(of, ast.Call) and self.is_new(of))
        is_module = isinstance(found, _FRESH) and type(found).__module__.startswith("torch.nn.")
        return is_module or (only_computes(found) and getattr(found, "__name__", "") in _NEW)

    def callee(self, node: ast.Call) -> Callee | None:
        """What an operation calls; None of a call that is none."""
        if id(node) not in self._callees:
            self._callees[id(node)] = node, self._new_callee(node)
        return self._callees[id(node)][1]

    def _new_callee(self, node: ast.Call) -> Callee | None:
        if any(keyword.arg in (None, "out", "inplace") for keyword in node.keywords):
            return None
        found = self.resolved(node.func)
        if isinstance(found, nn.Module):
            return self._of_module(found)
        if found is not None and not isinstance(found, type):
            return self._of_function(node, found)
        if isinstance(node.func, ast.Attribute) and not isinstance(found, type):
            return self._of_tensor(node.func)
        return None

    def _of_module(self, module: nn.Module) -> Callee | None:
        if changes(module) or not self._closed.module_only_computes(module):
            return None
        if not type(module).__module__.startswith("torch.nn."):
            return Callee(1, True, reads_nests=True)
        parts = [part for part in module.modules() if not part._modules and not is_cell(part)]
        if any(isinstance(part, _LOOK_UPS) for part in parts):
            return None
        return Callee(max(1, len(parts)), True)

    def _of_function(self, node: ast.Call, found: Any) -> Callee | None:
        found = as_python(found)
        name = getattr(found, "__name__", "")
        if only_computes(found):
            if is_in_place(name) or len(node.args) > _place_of_inplace(found):
                return None
            if name in _MAKES:
                given = (*node.args, *(keyword.value for keyword in node.keywords))
                return Callee(0, False) if all(map(self.stays, given)) else None
            is_known = id(found) in overridable() and not name.startswith(("rand", "embedding"))
            return Callee(name not in _VIEWS, True, reads_nests=name in _NESTS) if is_known else None
        if type(found) is not FunctionType:
            return None
        module = self._owner(node.func)
        if any(self.module_of(x) is not None for x in (*node.args, *(keyword.value for keyword in node.keywords))):
            return None  # its lines may be regions (`code.regions`, definition (4)), and what takes modules is no cell
        if not self._closed.only_computes(found, module):
            return None
        return Callee(1 if module is not None else LEAST, True, reads_nests=True)

    def _owner(self, func: ast.expr) -> nn.Module | None:
        """The module whose method is called."""
        if not isinstance(func, ast.Attribute):
            return None
        return self.module_of(func.value)

    def module_of(self, node: ast.expr) -> nn.Module | None:
        """The module that an expression is known to be."""
        is_self = isinstance(node, ast.Name) and node.id == self._self
        found = self._module if is_self else self.resolved(node)
        return found if isinstance(found, nn.Module) else None

    def _of_tensor(self, func: ast.Attribute) -> Callee | None:
        name = func.attr
        if is_in_place(name) or name in _READS or not callable(getattr(torch.Tensor, name, None)):
            return None
        if isinstance(func.value, ast.Name) and func.value.id == self._self:
            return None
        known = self.resolved(func.value)
        if not self.is_operation(func.value) and (name in _CONTAINERS or not isinstance(known, torch.Tensor | None)):
            return None
        is_computed = name not in _VIEWS and name not in _TOLD
        return Callee(int(is_computed), is_computed, is_of_tensor=True)

    def numbers_looked_up(self, node: ast.expr) -> tuple[ast.expr, ast.expr | None] | None:
        """What `self.words(torch.tensor(...))` looks up, and what makes it where it is `torch.LongTensor`; None for any
        other expression."""
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            return None
        inner = node.args[0]
        if not isinstance(inner, ast.Call) or len(inner.args) != 1 or isinstance(inner.args[0], ast.Starred):
            return None
        make = self.resolved(inner.func)
        is_long = all(k.arg == "dtype" and self.resolved(k.value) in (torch.long, torch.int) for k in inner.keywords)
        is_of_numbers = (is_long and make is torch.tensor) or (make is torch.LongTensor and not inner.keywords)
        if not is_of_numbers or type(self.resolved(node.func)) is not nn.Embedding:
            return None
        return inner.args[0], None if make is torch.tensor else inner.func

    def only_computes(self, node: ast.expr) -> bool:
        """Whether evaluating a leaf changes nothing."""
        return all(map(self._only_computes, ast.walk(node)))

    def _only_computes(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.NamedExpr):
            return False
        if not isinstance(node, ast.Call) or self.callee(node) is not None:
            return True
        found = self.resolved(node.func)
        if isinstance(found, nn.Module):
            return isinstance(found, _LOOK_UPS)
        name = getattr(found, "__name__", "")
        return name in _PURE if found is vars(builtins).get(name) else only_computes(found)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


@lru_cache(maxsize=1024)
def _place_of_inplace(function: Any) -> int:
    """Where a function of torch has the argument `inplace`."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return sys.maxsize
    return names.index("inplace") if "inplace" in names else sys.maxsize


def unseen(sequence: nn.Module) -> Iterator[nn.Module]:
    """The in-place modules of a sequence whose change nobody sees: inside of its own `forward` nobody else holds what a
    module makes for the next. Of any other module none."""
    if not isinstance(sequence, nn.Sequential) or type(sequence).forward is not nn.Sequential.forward:
        return
    found: set[int] = set()
    for before, module in pairwise(sequence):
        is_leaf = type(module).__module__.startswith("torch.nn.") and not is_cell(module)
        if is_leaf and getattr(module, "inplace", False) and (isinstance(before, _FRESH) or id(before) in found):
            found.add(id(module))
            yield module


def changes(module: nn.Module) -> bool:
    """Whether a call of a module changes what others may hold, as far as its in-place modules tell."""
    hidden = {id(part) for sequence in module.modules() for part in unseen(sequence)}
    return any(getattr(part, "inplace", False) and id(part) not in hidden for part in module.modules())


def _class_of(module: nn.Module) -> dict[str, Any]:
    return {name: item for kind in reversed(type(module).__mro__) for name, item in vars(kind).items()
            if not kind.__module__.startswith("torch")}  # fmt: skip
