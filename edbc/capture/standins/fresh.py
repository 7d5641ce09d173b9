"""Does `x.index_add_(...)` change a tensor that nobody else shows? Told by the user's code, for rows of every length.

Definition. A method in place changes a *fresh* tensor where it is called on what makes one (`torch.zeros(n).add_(x)`),
or on a variable that the same block of statements has given such a tensor, and whose only uses in between are as what
methods in place are called on. So messages are summed in graph networks; rows (`capture.ragged`) have no refs of which
the references tell who shares their memory (`record.functionalise`, definition (4)).

Time is linear in the length of the code, once, and quadratic in the variables of one block.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType

from edbc.base.kept import Kept

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
                makers.update(_position(_maker(statement.value)) for _ in found[:1])  # type: ignore[arg-type]
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
