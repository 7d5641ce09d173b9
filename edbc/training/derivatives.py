"""Gradient operations: the derivatives of the table of operations, each kind of work once.

Definitions.

(1) With y = op(x1, x2, ...) and d the gradient of y, a *rule* says what operand i's gradient grows by: a *gradient
    operation*, which is a formula of d and of at most two of x1, x2 and y, called a and b in it.
(2) What rules do not name need not be kept: of a sigmoid its result, of an addition nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from edbc.operations import OPERATIONS, canonical

ZERO, PASS = "0", "d"
"""The gradient operations of nothing, and of sums."""
_OPERANDS = {"x": 0, "y": 1, "r": -1}
"""By their names in formulas; the last is the result."""


@dataclass(frozen=True)
class Rule:
    """Definition (1): gradient operation `op` on d and on what `reads` names: operands by number, the result by -1."""

    op: str
    reads: tuple[int, ...] = ()


def _rule(derivative: str) -> Rule:
    op, read = canonical(derivative)
    return Rule(op, tuple(_OPERANDS[name] for name in read))


RULES = {name: tuple(map(_rule, operation.derivatives)) for name, operation in OPERATIONS.items()}
"""By the operation's name, a rule per operand. `sum` passes d to each."""
GRADIENTS = tuple(dict.fromkeys([ZERO, PASS, *(rule.op for rules in RULES.values() for rule in rules)]))
"""`training.rowgradients` has their loops."""


def rule(op: str, operand: int) -> Rule | None:
    """What operand number `operand` of an operation gets, or None when the table does not say."""
    if op == "sum":
        return Rule(PASS)
    rules = RULES.get(op)
    return rules[operand] if rules is not None else None
