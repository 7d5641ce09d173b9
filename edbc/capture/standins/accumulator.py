"""Is `x += y` a sum that is made anew, and `x.index_add_(...)` a tensor? Told by the user's code.

(1) An *accumulator* is a variable of one function alone that begins as a number, is changed by `+=` and its
like, and is looked at by nobody else before the last of these: by `return x` alone, or by what comes after, where no
loop leads back. No second name can show the memory that is changed then, so `x = x + y` is the same, and recording need
not begin to keep books of who shares memory with whom (`record.functionalise`): losses are summed so everywhere.

(2) A method in place changes a *fresh* tensor where it is called on what makes one (`torch.zeros(n).add_(x)`), or
on a variable that the same block of statements has given such a tensor, and whose only uses in between are as what
methods in place are called on. Nobody else can show its memory either. So messages are summed in graph networks.

Time is linear in the length of the code, once; of (2) quadratic in the variables of one block.
"""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
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


# --- (2) ----------------------------------------------------------------------------------------------------------

_MAKERS = frozenset("zeros ones full zeros_like ones_like full_like".split())
"""Functions of torch that make a tensor."""
_MAKERS_OF_TENSORS = frozenset("new_zeros new_ones new_full".split())
_Position = tuple[int, int, int, int]
_places: Kept[tuple[int, int], tuple[CodeType, bool, bool]] = Kept(4096)
"""By the identity of the code, which the entry holds, and an offset: whether a fresh tensor is changed, and made."""


def changes_fresh(frame: FrameType) -> bool:
    """Whether the method that a frame calls changes a fresh tensor in place."""
    return _place(frame)[1]


def makes_fresh(frame: FrameType) -> bool:
    """Whether what a frame calls makes a tensor that is changed so."""
    return _place(frame)[2]


def _place(frame: FrameType) -> tuple[CodeType, bool, bool]:
    code = frame.f_code
    known = _places.get((id(code), frame.f_lasti))
    if known is None:
        text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
        at = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
        changes, makers = _fresh_in(text)
        known = _places.add((id(code), frame.f_lasti), (code, at in changes, at in makers))
    return known


@functools.lru_cache(maxsize=16)
def _fresh_in(text: str) -> tuple[frozenset[_Position], frozenset[_Position]]:
    """First and last line and column of the calls that change fresh tensors, and of those that make them."""
    changes: set[_Position] = set()
    makers: set[_Position] = set()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return frozenset(), frozenset()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_in_place(node):
            maker = _maker(node)
            if maker is not None:
                changes.add(_position(node))
                makers.add(_position(maker))
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            for number, statement in enumerate(block if isinstance(block, list) else ()):
                found = [*_of_block(statement, block[number + 1 :])]  # type: ignore[index]
                changes.update(found)
                makers.update(_position(_maker(statement.value)) for _ in found[:1])  # type: ignore[attr-defined, arg-type]
    return frozenset(changes), frozenset(makers)


def _of_block(statement: ast.stmt, others: Sequence[ast.stmt]) -> Iterator[_Position]:
    """The changes of the variable that a statement gives a fresh tensor, in those that follow."""
    if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1 and _maker(statement.value) is not None):
        return
    variable = statement.targets[0]
    if not isinstance(variable, ast.Name):
        return
    for other in others:
        changes = [x for x in ast.walk(other) if isinstance(x, ast.Call) and _is_in_place(x)]
        changes = [x for x in changes if _is_name(x.func.value, variable.id)]  # type: ignore[attr-defined]
        is_again = isinstance(other, ast.Assign) and len(changes) == 1 and other.value is changes[0]
        uses = [x for x in ast.walk(other) if _is_name(x, variable.id)]
        own = {id(x.func.value) for x in changes} | ({id(x) for x in other.targets} if is_again else set())  # type: ignore[attr-defined]
        if not {*map(id, uses)} <= own:
            return
        yield from map(_position, changes)


def _maker(node: ast.AST) -> ast.Call | None:
    """The call in an expression that makes the tensor that the expression is, and that nobody else has."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if _is_in_place(node):
        return _maker(node.func.value)
    return node if node.func.attr in (_MAKERS if _is_name(node.func.value, "torch") else _MAKERS_OF_TENSORS) else None


def _is_in_place(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return name.endswith("_") and not name.endswith("__")


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _position(node: ast.expr) -> _Position:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0
