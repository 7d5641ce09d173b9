"""Keys of calls: what tells a recorded call from others, without describing it.

Most calls of a function or a module repeat an earlier one on other values. Their key, the function and the slots and
constants among its arguments, finds the entry of that call.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from edbc.capture.standins.lazy import Stack
from edbc.capture.standins.standin import PLAIN, Lazy, Shared, Value

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


def quick_key(items: Iterable[Any], parts: list[Any], operands: list[Any], rec: Recorder, of_call: bool) -> bool:
    """Append what tells a call from others, and its operands; False for arguments that only `describe` knows.

    Vectors of parameters are operands of a cell (`of_call`); matrices, with which products are made once they are
    packed, are constants of it, and any parameter is one of a function. A stack is a node to a cell; to a
    function it may be none (`stack.sum(0)`), so it stays a stack among the operands. Tensors of numbers that the
    instance brings are operands, told from recorded ones, as some calls look at them (`sequences.selected`); a list of
    indices is where an operand comes before it, and may be a look-up else.
    """
    for item in items:
        kind = type(item)
        if kind is not Value:
            if kind is Shared and (not of_call or item.is_matrix):
                parts.append(item.key)
                continue
            if kind is Stack and not of_call:
                operands.append(item)
                parts.append(item.key())
                continue
            if kind in PLAIN or (kind is float and item == item):  # NaN is not itself
                parts += kind, item if kind is not float or item else str(item)  # zeros have signs
                continue
            if kind in _NESTS or issubclass(kind, tuple):  # named ones too
                inner: Any = (item.start, item.stop, item.step) if kind is slice else item
                parts += kind, len(inner)
                if kind is dict:
                    parts += item
                    inner = item.values()
                if not quick_key(inner, parts, operands, rec, of_call):
                    return False
                continue
            if kind is Shared:
                item = rec.whole(item)
            elif kind is torch.Tensor and (of_call or operands or item.ndim > 1 or item.is_floating_point()):
                parts.append(kind)
                item = rec.constant(item)
            elif issubclass(kind, Lazy):
                item = item.materialise()
            else:
                return False
        operands.append(item.ref)
        parts.append(item.slot)
    return True


_NESTS = frozenset((tuple, list, dict, slice))
_CONSTANTS = (
    bool,
    int,
    str,
    bytes,
    enum.Enum,
    type,
    FunctionType,
    BuiltinFunctionType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def is_constant(item: Any) -> bool:
    """True for what a signature may hold; not for functions without names of their own (lambdas, functions made by
    functions)."""
    name = item.__qualname__ if isinstance(item, FunctionType) else ""
    return isinstance(item, _CONSTANTS) and "<" not in name
