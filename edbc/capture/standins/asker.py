"""Who asks a stand-in for its class.

`isinstance(x, torch.Tensor)` is true of a stand-in because its `__class__` says so. But torch's argument parser asks
the same question before it reads an object's memory as a tensor's, and a stand-in has none: the process dies. Both
arrive as a read of `__class__` from C, and all that tells them apart is the instruction that the asking frame executes:
a call of `isinstance`, a read of the attribute `__class__`, a class pattern, or else some function of torch. So the
claim is made to those three and to nobody else; who is not recognised gets the truth, and with it `__torch_function__`.

The classes that torch has kept from before dtypes (`torch.FloatTensor`) look into the object's memory too: asking
whether a stand-in is one of them is refused; it is no sparse one.

What an instruction asks does not change, so a question asked again costs one look into a dictionary.
"""

from __future__ import annotations

import dis
import linecache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from edbc.base.kept import Kept
from edbc.capture.standins.source import location_of, user_frame
from edbc.errors import UnsupportedError

_ASKING = frozenset(("isinstance", "__instancecheck__"))
_CALLS = frozenset(("PRECALL", "CALL"))
_SILENT = frozenset(("CACHE", "EXTENDED_ARG", "KW_NAMES", "PUSH_NULL", "NOP"))
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_LOCALS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF"))
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_OLD_CLASS = type(torch.FloatTensor)
_Loads = tuple[dis.Instruction, ...]


class _Question(NamedTuple):
    """What an instruction asks. `loads` load the second argument of `isinstance` where that must be looked at, because
    it may be an old class, now or the next time."""

    code: CodeType
    is_for_class: bool
    loads: _Loads = ()


_known: Kept[tuple[int, int], _Question] = Kept(4096)
"""By the identity of the code, which the question holds, and the instruction's offset: code that is made anew for every
call must not fill memory."""


def asks_for_class(frame: FrameType) -> bool:
    """True when the instruction that `frame` executes asks for an object's class in Python's sense. Raises
    UnsupportedError when it compares with an old class."""
    key = id(frame.f_code), frame.f_lasti
    question = _known.get(key)
    if question is None:
        question = _known.add(key, _question(frame))
    if question.loads and _has_old_class(classes := _loaded(question.loads, frame)):
        if all(map(_is_sparse, classes if type(classes) is tuple else (classes,))):
            return False
        raise UnsupportedError(
            f"{location_of(user_frame(start=frame))}: a recorded tensor was compared with a class such as "
            "torch.FloatTensor; ask for its dtype (x.dtype is torch.float32)"
        )
    return question.is_for_class


def _question(frame: FrameType) -> _Question:
    code, offset = frame.f_code, frame.f_lasti
    before = [i for i in dis.get_instructions(code) if i.offset <= offset and i.opname not in _SILENT]
    asking = before.pop()
    if asking.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return _Question(code, asking.argval == "__class__")
    if asking.opname not in _CALLS:
        return _Question(code, asking.opname == "MATCH_CLASS")
    if before[-1].opname == "PRECALL":  # the first half of a call in Python 3.11
        before.pop()
    first = _first_of_last(before, asking.arg or 0)
    if not first:  # no straight line leads there, as in isinstance(a if c else b, T)
        return _Question(code, _reads_isinstance(code, offset))
    if before[first - 1].argval not in _ASKING:
        return _Question(code, False)
    loads = tuple(before[_first_of_last(before, 1) or len(before) :])
    may_change = any(i.opname in _LOCALS for i in loads)
    return _Question(code, True, loads if may_change or _has_old_class(_loaded(loads, frame)) else ())


def _first_of_last(instructions: list[dis.Instruction], count: int) -> int:
    """Index of the first of the instructions, a straight line up to the end, that leave the last `count` values on the
    stack; 0 where there is no such line, or nothing before it."""
    for index in range(len(instructions), 0, -1):
        instruction = instructions[index - 1]
        if instruction.opcode in _JUMPS or count < 0:
            return 0
        if count == 0:
            return index
        count -= dis.stack_effect(instruction.opcode, instruction.arg)
    return 0


def _reads_isinstance(code: CodeType, offset: int) -> bool:
    """True when the source of the call at an offset begins with `isinstance`; False without source."""
    line, _, column, _ = list(code.co_positions())[offset // 2]
    text = linecache.getline(code.co_filename, line or 0).encode()
    return text[column or 0 :].startswith(b"isinstance(")


def _loaded(loads: _Loads, frame: FrameType) -> Any:
    """What instructions load, without executing any: names, attributes, constants and tuples; None for all else."""
    stack: list[Any] = []
    for load in loads:
        if load.opname == "BUILD_TUPLE":
            count = load.arg or 0
            stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]
        elif load.opname == "LOAD_ATTR" and stack:
            stack[-1] = getattr(stack[-1], load.argval, None)
        elif load.opname == "LOAD_CONST":
            stack.append(load.argval)
        elif load.opname in _GLOBALS:
            stack.append(frame.f_globals.get(load.argval))
        elif load.opname in _LOCALS:
            stack.append(frame.f_locals.get(load.argval))
        else:
            return None
    return stack[-1] if stack else None


def _is_sparse(kind: Any) -> bool:
    return type(kind) is _OLD_CLASS and kind.is_sparse


def _has_old_class(classes: Any) -> bool:
    if isinstance(classes, tuple):
        return any(map(_has_old_class, classes))
    return type(classes) is _OLD_CLASS
