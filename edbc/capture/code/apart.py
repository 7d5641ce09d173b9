"""Variables that nobody but their own function has, which it changes: `total = torch.zeros(n)`, then `total += h`.

Nobody can tell such a change from `total = total + h`, so the copies of functions that are recorded (`code.regions`)
compute a new value (`changed`) in its place. A change in place has to ask who else holds the tensor, and code that
moves operations runs as it was written because of it.

Definition. A variable is *apart* at a change where (1) all that is ever assigned to it is new, and of the assignments
one stands in a block around the change, before it; (2) of every place that may give it to others, each way to the
change leads through that assignment. Operands of operators, and what is asked of a shape, give nothing. Changes in
`with` and `try` are left alone, and functions that speak of gradients: what is changed there may keep its old gradient.

Time is the number of its names times that of its changes.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

CHANGED = "changed apart"
"""The variable that copies call in place of a change; no name that a user's function could have."""
_GUARDED = (ast.With, ast.Try, ast.TryStar, ast.Match, ast.FunctionDef, ast.ClassDef)
_ASKED = frozenset("shape dtype device ndim size dim numel".split())
_OF_GRADIENTS = frozenset("set_grad_enabled requires_grad_ requires_grad".split())
_OPERATIONS = {
    kind: (getattr(operator, name), getattr(operator, "i" + name.rstrip("_"))) for kind, name in {
        "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "FloorDiv": "floordiv", "Mod": "mod", "Pow": "pow",
        "MatMult": "matmul", "BitAnd": "and_", "BitOr": "or_", "BitXor": "xor", "LShift": "lshift", "RShift": "rshift",
    }.items()
}  # fmt: skip


def changed(operation: str, old: Any, new: Any) -> Any:
    """What `old` is after a change that is apart, by the name of the operator's class: a new tensor where it has the
    shape and dtype of the old one, else what the change gives, or raises."""
    compute, change = _OPERATIONS[operation]
    if isinstance(old, torch.Tensor):
        made = compute(old, new)
        if isinstance(made, torch.Tensor) and made.shape == old.shape and made.dtype == old.dtype:
            return made
    return change(old, new)


class _Place(NamedTuple):
    """Where a statement stands: its number, the place in each block around it, and the loops."""

    number: int
    blocks: tuple[tuple[int, int], ...]
    loops: tuple[int, ...]
    is_guarded: bool

    def is_ahead_of(self, other: _Place) -> bool:
        """Whether it stands in a block around the other, before it."""
        depth = len(self.blocks) - 1
        (block, at), (around, later) = self.blocks[-1], [*other.blocks, (0, 0)][min(depth, len(other.blocks))]
        return self.blocks[:-1] == other.blocks[:depth] and block == around and at < later


def changes_apart(definition: ast.FunctionDef, variables: frozenset[str],
                  is_new: Callable[[ast.expr], bool]) -> set[int]:  # fmt: skip
    """The changes of `variables` that are apart, by the identity of their statements."""
    walked = list(ast.walk(definition))
    changes = [n for n in walked if isinstance(n, ast.AugAssign) and not isinstance(n.value, ast.Constant)]
    names = {change.target.id for change in changes if isinstance(change.target, ast.Name)}
    names &= variables - {node.arg for node in walked if isinstance(node, ast.arg)}
    speaks = {getattr(node, "attr", getattr(node, "arg", None)) for node in walked}
    if not names or speaks & _OF_GRADIENTS:
        return set()
    statements = list(_statements(definition.body, itertools.count(), (), (), False))
    return set().union(*(_of_variable(name, statements, is_new) for name in names))


def _of_variable(name: str, statements: list[tuple[ast.stmt, _Place]], is_new: Callable[[ast.expr], bool]) -> set[int]:
    made: list[_Place] = []
    given: list[_Place] = []
    changes: list[tuple[ast.stmt, _Place]] = []
    for statement, place in statements:
        own = [part for _, part in ast.iter_fields(statement) if not _is_block(part)]
        if isinstance(statement, ast.AugAssign) and _is(statement.target, name):
            changes.append((statement, place))
            own = [statement.value]
        values = [value for target, value in _pairs(statement) if _is(target, name)]
        if values:
            if not all(map(is_new, values)):
                return set()
            made.append(place)
            own = [part for target, value in _pairs(statement) for part in (target, value) if not _is(part, name)]
        found = [_gives(part, name) for part in own]
        if None in found:
            return set()
        given += [place] * any(found)
    return {id(change) for change, place in changes if not place.is_guarded and _is_apart(place, made, given)}


def _is_apart(change: _Place, made: list[_Place], given: list[_Place]) -> bool:
    """Definition."""
    last = max((place for place in made if place.is_ahead_of(change)), default=None)
    if last is None:
        return False

    def reaches(place: _Place) -> bool:
        if place.number <= change.number:
            return place.number > last.number
        common = [loop for loop, other in zip(place.loops, change.loops, strict=False) if loop == other]
        return bool(common) and common[-1] not in last.loops

    return not any(map(reaches, given))


def _statements(block: list[ast.stmt], numbers: Iterator[int], blocks: tuple[tuple[int, int], ...],
                loops: tuple[int, ...], is_guarded: bool) -> Iterator[tuple[ast.stmt, _Place]]:  # fmt: skip
    """All of a block, in their order; the head of a loop counts as in it."""
    for at, statement in enumerate(block):
        here = (*blocks, (id(block), at))
        inner = (*loops, id(statement)) if isinstance(statement, ast.For | ast.While) else loops
        is_inner_guarded = is_guarded or isinstance(statement, _GUARDED)
        yield statement, _Place(next(numbers), here, inner, is_inner_guarded)
        for _, part in ast.iter_fields(statement):
            for one in [part] if not _is_block(part) or isinstance(part[0], ast.stmt) else [x.body for x in part]:
                if _is_block(one):
                    yield from _statements(one, numbers, here, inner, is_inner_guarded)


def _pairs(statement: Any) -> list[tuple[ast.expr, Any]]:
    """What an assignment to one target assigns, of several variables at once one after the other."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or len(getattr(statement, "targets", "1")) > 1:
        return []
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    one, other = (node.elts if isinstance(node, ast.Tuple) else () for node in (target, statement.value))
    return [*zip(one, other, strict=True)] if one and len(one) == len(other) else [(target, statement.value)]


def _is_block(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and isinstance(part[0], ast.stmt | ast.ExceptHandler | ast.match_case)


def _is(node: Any, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _gives(node: Any, name: str) -> bool | None:
    """Whether a part of a statement may give a variable to others; None where it assigns it."""
    if isinstance(node, list):
        found = [_gives(item, name) for item in node]
    elif not isinstance(node, ast.AST):
        return False
    elif _is(node, name):
        return True if isinstance(node.ctx, ast.Load) else None  # type: ignore[attr-defined]
    else:
        is_asked = isinstance(node, ast.BinOp | ast.Compare) or getattr(node, "attr", None) in _ASKED
        found = [_gives(part, name) for part in ast.iter_child_nodes(node) if not (is_asked and _is(part, name))]
    return None if None in found else any(found)
