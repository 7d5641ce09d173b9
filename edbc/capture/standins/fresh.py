"""What a change in place changes, where references do not tell it (`record.functionalise`) and the user's code does.

Definitions.

(1) A method in place changes a *fresh* tensor where it is called on what makes one (`torch.zeros(n).add_(x)`), or on a
    variable that the same block of statements has given such a tensor, and whose only uses in between are as what
    methods in place are called on. So messages are summed in graph networks; rows (`capture.ragged`) have no refs of
    which the references tell who shares their memory.
(2) What a call is given first is *made for it* where that is an expression (`self.relu(self.norm(x))`), or a variable
    that the statement before has given a value and the call's own statement gives another (`x = self.norm(x)`, then
    `x = self.relu(x)`, or `return self.relu(x)`); what is added to it in between (`x += y`) is added to what is made
    for that. Whether the expression makes a tensor of its own is not told here.
(3) `x[i] += y` changes an *item*: a part of `x`, which is then assigned to the same place of `x`. Where nobody else has
    that part, what is computed anew may be assigned in its stead.

Time is linear in the length of the code, once, and quadratic in the variables of one block.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from edbc.base.kept import Kept

_MAKERS = frozenset("zeros ones full zeros_like ones_like full_like".split())
"""Functions of torch that make a tensor."""
_MAKERS_OF_TENSORS = frozenset("new_zeros new_ones new_full".split())
ADDED = "="
_Position = tuple[int | None, int | None, int | None, int | None]


class MadeFor(NamedTuple):
    """Definition (2)."""

    function: str
    """The last name of what is called; of an operator in place ADDED."""
    maker: ast.expr


class _Place(NamedTuple):
    """What is done at a place of code, which it holds."""

    code: CodeType
    changes_fresh: bool
    makes_fresh: bool
    changes_item_of: tuple[str, ...]
    """The variable, and maybe an attribute of it, of which an item is changed; none where none is."""
    made_for: MadeFor | None
    """Definition (2)."""


_places: Kept[tuple[int, int], _Place] = Kept(4096)
"""By the identity of the code and an offset."""


def changes_fresh(frame: FrameType) -> bool:
    """Whether the method that a frame calls changes a fresh tensor in place."""
    return _place(frame).changes_fresh


def makes_fresh(frame: FrameType) -> bool:
    """Whether what a frame calls makes a tensor that is changed so."""
    return _place(frame).makes_fresh


def made_for(frame: FrameType) -> MadeFor | None:
    """Of the call that a frame makes the expression that makes what it is given first, and what nothing else has seen
    since; None where that is not told."""
    return _place(frame).made_for


def changed_item_of(frame: FrameType) -> Any:
    """Of what the operator in place that a frame calls changes an item, definition (3); None where that is not told."""
    names = _place(frame).changes_item_of
    found: Any = frame.f_locals.get(names[0]) if names else None
    return getattr(found, "__dict__", {}).get(names[1]) if len(names) > 1 else found


def _place(frame: FrameType) -> _Place:
    code = frame.f_code
    known = _places.get((id(code), frame.f_lasti))
    if known is None:
        text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
        at = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
        told = _told_by(text)
        known = _Place(code, at in told.changes, at in told.makers, told.items.get(at, ()), told.made_for.get(at))
        known = _places.add((id(code), frame.f_lasti), known)
    return known


class _Told(NamedTuple):
    """First and last line and column of what a file's code does."""

    changes: set[_Position]
    """Calls that change fresh tensors."""
    makers: set[_Position]
    """Calls that make them."""
    items: dict[_Position, tuple[str, ...]]
    """Operators that change items."""
    made_for: dict[_Position, MadeFor]
    """Calls that are given what is made for them."""


@functools.lru_cache(maxsize=16)
def _told_by(text: str) -> _Told:
    told = _Told(set(), set(), {}, {})
    changes, makers, items, _ = told
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return told
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Call | ast.BinOp):
            told.made_for[_position(node)] = MadeFor(_last_name(node.func), node.args[0])
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            items[_position(node)] = _names(node.target.value)
        if isinstance(node, ast.Call) and _is_in_place(node):
            maker = _maker(node)
            if maker is not None:
                changes.add(_position(node))
                makers.add(_position(maker))
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            for number, statement in enumerate(block if isinstance(block, list) else ()):
                told.made_for.update(_made_before(block[:number], statement))  # type: ignore[index]
            for number, statement in enumerate(block if isinstance(block, list) else ()):
                found = [*_of_block(statement, block[number + 1 :])]  # type: ignore[index]
                changes.update(found)
                makers.update(_position(_maker(statement.value)) for _ in found[:1])  # type: ignore[arg-type]
    return told


def _made_before(before: Sequence[ast.stmt], statement: ast.stmt) -> Iterator[tuple[_Position, MadeFor]]:
    """What in a statement is given what the statement before made, and what that was."""
    made = next((node for node in reversed(before) if not _adds(node, _target(statement))), None)
    name = _target(made) if isinstance(made, ast.Assign) and isinstance(made.value, ast.Call | ast.BinOp) else ""
    if not name or (made is not before[-1] and name != _target(statement)):
        return
    maker = made.value  # type: ignore[union-attr]
    if _adds(statement, name):
        yield _position(statement), MadeFor(ADDED, maker)
    if isinstance(statement, ast.AugAssign) or not (isinstance(statement, ast.Return) or _target(statement) == name):
        return
    value = getattr(statement, "value", None)
    if value is not None and sum(_is_name(node, name) for node in ast.walk(value)) == 1:
        while isinstance(value, ast.Call) and value.args:
            if _is_name(value.args[0], name):
                yield _position(value), MadeFor(_last_name(value.func), maker)
            value = value.args[0]


def _target(statement: ast.stmt | None) -> str:
    """The one variable that a statement gives a value, or that it returns a value of; none of any other statement."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if isinstance(statement, ast.Return):  # of the first argument of its calls
        targets = [statement.value]
        while isinstance(targets[0], ast.Call) and targets[0].args:
            targets = [targets[0].args[0]]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _adds(statement: ast.stmt, name: str) -> bool:
    """Whether a statement changes a variable of that name by an operator in place, and reads it nowhere else."""
    is_one = isinstance(statement, ast.AugAssign) and _is_name(statement.target, name)
    return is_one and not any(_is_name(node, name) for node in ast.walk(statement.value))  # type: ignore[attr-defined]


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


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _names(node: ast.expr) -> tuple[str, ...]:
    """`x`, or `x` and `y` of `x.y`; none of anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    return (node.id,) if isinstance(node, ast.Name) else ()


def _position(node: ast.expr | ast.stmt) -> _Position:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0
