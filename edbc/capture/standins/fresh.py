"""What a change in place changes, where references do not tell it (`record.functionalise`) and the user's code does.

Definitions.

(1) A method in place changes a *fresh* tensor where it is called on what makes one (`torch.zeros(n).add_(x)`), or on a
    variable that the same block of statements has given such a tensor, and whose first use that is. So messages are
    summed in graph networks, in rows (`capture.ragged`).
(2) `x[i] += y` changes an *item*: a part of `x`, which is then assigned to the same place of `x`. Where nobody else has
    that part, what is computed anew may be assigned in its stead.

Time is linear in the length of the code, once, and quadratic in the variables of one block.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from edbc.base.kept import Kept

_MAKERS = frozenset("zeros ones full zeros_like ones_like full_like".split())
"""Functions of torch that make a tensor."""
_MAKERS_OF_TENSORS = frozenset("new_zeros new_ones new_full".split())
_Position = tuple[int | None, int | None, int | None, int | None]


class _Place(NamedTuple):
    """What is done at a place of code, which it holds."""

    code: CodeType
    makes_fresh: bool
    changes_item_of: tuple[str, ...]
    """The variable, and maybe an attribute of it, of which an item is changed; none where none is."""


_places: Kept[tuple[int, int], _Place] = Kept(4096)
"""By the identity of the code and an offset."""


def makes_fresh(frame: FrameType) -> bool:
    """Whether what a frame calls makes a tensor that is changed in place."""
    return _place(frame).makes_fresh


def changed_item_of(frame: FrameType) -> Any:
    """Of what the operator in place that a frame calls changes an item, definition (2); None where that is not told."""
    names = _place(frame).changes_item_of
    found: Any = frame.f_locals.get(names[0]) if names else None
    return getattr(found, "__dict__", {}).get(names[1]) if len(names) > 1 else found


def _place(frame: FrameType) -> _Place:
    code = frame.f_code
    known = _places.get((id(code), frame.f_lasti))
    if known is None:
        text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
        at = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
        makers, items = _told_by(text)
        known = _places.add((id(code), frame.f_lasti), _Place(code, at in makers, items.get(at, ())))
    return known


@functools.lru_cache(maxsize=16)
def _told_by(text: str) -> tuple[set[_Position], dict[_Position, tuple[str, ...]]]:
    """First and last line and column of the calls that make fresh tensors, and of the operators that change items."""
    makers: set[_Position] = set()
    items: dict[_Position, tuple[str, ...]] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return makers, items
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            items[_position(node)] = _names(node.target.value)
        if isinstance(node, ast.Call) and _is_in_place(node):
            maker = _maker(node)
            if maker is not None:
                makers.add(_position(maker))
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            for number, statement in enumerate(block if isinstance(block, list) else ()):
                maker = _maker(statement.value) if isinstance(statement, ast.Assign) else None
                if maker is not None and _changes(statement, block[number + 1 :]):  # type: ignore[index]
                    makers.add(_position(maker))
    return makers, items


def _changes(statement: ast.Assign, others: Sequence[ast.stmt]) -> bool:
    """Whether statements change the variable that one gives a tensor, before they use it otherwise."""
    variable = statement.targets[0]
    if not isinstance(variable, ast.Name) or len(statement.targets) > 1:
        return False
    for other in others:
        changes = [x for x in ast.walk(other) if isinstance(x, ast.Call) and _is_in_place(x)]
        changes = [x for x in changes if _is_name(x.func.value, variable.id)]  # type: ignore[attr-defined]
        is_again = isinstance(other, ast.Assign) and len(changes) == 1 and other.value is changes[0]
        uses = [x for x in ast.walk(other) if _is_name(x, variable.id)]
        own = {id(x.func.value) for x in changes} | ({id(x) for x in other.targets} if is_again else set())  # type: ignore[attr-defined]
        if uses:
            return bool(changes) and {*map(id, uses)} <= own
    return False


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


def _names(node: ast.expr) -> tuple[str, ...]:
    """`x`, or `x` and `y` of `x.y`; none of anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    return (node.id,) if isinstance(node, ast.Name) else ()


def _position(node: ast.expr | ast.stmt) -> _Position:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0
