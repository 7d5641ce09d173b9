"""The derivative of every element-wise operation, in terms of what it reads and what it computed.

Definitions.

(1) With y = op(x1, x2, ...) and d the gradient of y, a *rule* says what operand i's gradient grows by: one operation of
    the table `GRADIENTS` on d and on at most two of x1, x2 and y.
(2) What rules do not name need not be kept: of a sigmoid its result, of an addition nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

X, Y, RESULT = 0, 1, -1
"""First operand, second operand, result."""


@dataclass(frozen=True)
class Rule:
    """Definition (1): gradient operation `op` on d and on what `reads` names."""

    op: str
    reads: tuple[int, ...] = ()


GRADIENTS = (
    "zero", "pass", "negate", "times", "sigmoid", "tanh", "relu", "log", "sqrt", "abs", "square", "reciprocal",
    "gelu", "silu", "softplus", "quotient", "divisor", "maximum", "minimum", "power",
    "exponent",
)  # fmt: skip
"""Names of gradient operations; `training.rowgradients` has their loops, and their meaning in one line each."""

RULES: dict[str, tuple[Rule, ...]] = {
    "sigmoid": (Rule("sigmoid", (RESULT,)),),
    "tanh": (Rule("tanh", (RESULT,)),),
    "relu": (Rule("relu", (RESULT,)),),
    "neg": (Rule("negate"),),
    "exp": (Rule("times", (RESULT,)),),
    "log": (Rule("log", (X,)),),
    "sqrt": (Rule("sqrt", (RESULT,)),),
    "abs": (Rule("abs", (X,)),),
    "square": (Rule("square", (X,)),),
    "reciprocal": (Rule("reciprocal", (RESULT,)),),
    "gelu": (Rule("gelu", (X,)),),
    "silu": (Rule("silu", (X,)),),
    "softplus": (Rule("softplus", (X,)),),
    "add": (Rule("pass"), Rule("pass")),
    "sub": (Rule("pass"), Rule("negate")),
    "mul": (Rule("times", (Y,)), Rule("times", (X,))),
    "div": (Rule("quotient", (Y,)), Rule("divisor", (RESULT, Y))),
    "maximum": (Rule("maximum", (X, Y)), Rule("maximum", (Y, X))),
    "minimum": (Rule("minimum", (X, Y)), Rule("minimum", (Y, X))),
    "pow": (Rule("power", (X, Y)), Rule("exponent", (RESULT, X))),
}
"""By the operation's name, a rule per operand. `sum` passes d to each."""


def rule(op: str, operand: int) -> Rule | None:
    """What operand number `operand` of an operation gets, or None when the table does not say."""
    if op == "sum":
        return Rule("pass")
    rules = RULES.get(op)
    return rules[operand] if rules is not None else None
