"""Is `x += y` a sum that is made anew? Told by the user's code.

Definition. An *accumulator* is a variable of one function alone that begins as a number, is changed by `+=` and its
like, and is looked at by nobody else before the last of these: by `return x` alone, or by what comes after, where no
loop leads back. No second name can show the memory that is changed then, so `x = x + y` is the same, and recording need
not begin to keep books of who shares memory with whom (`record.functionalise`): losses are summed so everywhere.

Time is linear in the length of the code, once.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType

from edbc.base.kept import Kept

_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
_GIVEN = (4, 8)
"""Flags of a code that takes `*args`, and `**kwargs`."""
_known: Kept[int, tuple[CodeType, frozenset[int]]] = Kept(4096)
"""By the identity of the code, which the entry holds."""


def accumulates(frame: FrameType) -> bool:
    """Whether the operation in place that a frame executes changes an accumulator."""
    code = frame.f_code
    known = _known.get(id(code))
    if known is None:
        known = _known.add(id(code), (code, frozenset(changes_of(code))))
    return frame.f_lasti in known[1]


def changes_of(code: CodeType) -> Iterator[int]:
    """Offsets of the operations in place on accumulators."""
    instructions = [x for x in dis.get_instructions(code) if x.opname != "EXTENDED_ARG"]
    num_given = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in _GIVEN)
    places: dict[str, list[int]] = {}
    for place, x in enumerate(instructions):
        if "_FAST" in x.opname:
            for name in x.argval if type(x.argval) is tuple else (x.argval,):
                places.setdefault(name, []).append(place)
    for name in places.keys() - {*code.co_varnames[:num_given]}:
        yield from _of_variable(instructions, places[name])


def _of_variable(instructions: Sequence[dis.Instruction], places: Sequence[int]) -> Sequence[int]:
    """The same of one variable, by the places of what stores and loads it; none where it is no accumulator."""
    changes: list[dis.Instruction] = []
    loads: list[int] = []
    last = 0
    for place in places:
        before, x = instructions[place - 1], instructions[place]
        if x.opname in _LOADS:
            loads.append(place)
            continue
        if x.opname != "STORE_FAST" or x.is_jump_target:
            return ()
        if before.opname == "BINARY_OP" and before.argrepr.endswith("="):
            changes.append(before)
        elif not _begins_as_number(instructions, place - 1):
            return ()
        last = place
    begins = {_begin(x) for x in changes}
    if not changes or None in begins:
        return ()
    end = instructions[last].offset
    back = [i for i, x in enumerate(instructions) if "JUMP_BACKWARD" in x.opname and x.argval <= end]
    for place in loads:
        is_after = place > last and all(i < place for i in back)
        is_returned = instructions[place + 1].opname == "RETURN_VALUE"
        if not is_after and not is_returned and _begin(instructions[place]) not in begins:
            return ()
    return [x.offset for x in changes]


def _begins_as_number(instructions: Sequence[dis.Instruction], place: int) -> bool:
    """Whether a number is stored by what stands before a place and there: `x = 0`, `x = y = 0`, `x, y = 0, 0.0`."""
    while instructions[place].opname in ("STORE_FAST", "COPY") and not instructions[place].is_jump_target:
        place -= 1
    is_unpacked = instructions[place].opname == "UNPACK_SEQUENCE"
    x = instructions[place - is_unpacked]
    found = x.argval if is_unpacked else (x.argval,)
    return x.opname == "LOAD_CONST" and type(found) is tuple and {*map(type, found)} <= {int, float}


def _begin(x: dis.Instruction) -> tuple[int, int] | None:
    """Line and column, of an operation in place those of what it changes; None where the code does not tell."""
    at = x.positions
    return None if at is None or at.lineno is None or at.col_offset is None else (at.lineno, at.col_offset)
