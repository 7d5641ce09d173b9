"""The table of element-wise operations: everything that edbc knows of one, in one entry.

Definitions.

(1) A *formula* is what is computed of one element, a Python expression of operands `x` and `y`, numbers that float32
    holds exactly, `+ - * / **`, comparisons, `and`, `or`, `a if test else b`, and calls of *primitives*, which the
    reference, native code and devices know: `exp log log1p sin cos sqrt abs sigmoid tanh`, and `cdf` and `density` of
    the standard normal distribution.
(2) A *derivative* is a formula of `d`, the gradient of the result, of the operands and of the result `r`. An operation
    has one per operand. What derivatives do not name need not be kept for the backward pass.
(3) The *error* of an operation is counted in units in the last place of the exact result, or of 1 where the formula
    cancels.

Recording, the grammar of plans, the reference and the tests read the entries. Renderers turn formulas into machine code
(`edbc.cells.kernels.formulas`) and into Triton's text (`edbc.run.cuda.tritonops`); `edbc.cells.values.adjoint` asks for
derivatives.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from struct import pack, unpack
from typing import NamedTuple

_LANGUAGE = (
    ast.Name, ast.Load, ast.IfExp, ast.UnaryOp, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult,
    ast.Div, ast.Pow, ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.BoolOp, ast.And, ast.Or,
)  # fmt: skip
GRADIENT = "d"
PRIMITIVES = frozenset("exp log log1p sin cos sqrt abs sigmoid tanh cdf density".split())


@dataclass(frozen=True)
class Operation:
    """An entry. `name` is torch's, of a function of `torch` or of `torch.nn.functional`."""

    name: str
    formula: str
    derivatives: tuple[str, ...]
    synonyms: tuple[str, ...] = ()
    defaults: tuple[tuple[str, float | str | None], ...] = ()
    """Further arguments of torch's function that change nothing, in its order."""
    error: tuple[float, float] = (1.0, 1.0)
    """Definition (3), at most, in float32 and float64."""
    cancels: bool = False

    @property
    def operands(self) -> int:
        """How many the operation has."""
        return len(self.derivatives)


_TABLE = (
    Operation("sigmoid", "sigmoid(x)", ("d * ((1 - r) * r)",), error=(3.0, 3.0), cancels=True),
    Operation("tanh", "tanh(x)", ("d * (1 - r * r)",), error=(6.0, 4.0)),
    Operation("relu", "0 if x < 0 else x", ("0 if r <= 0 else d",)),
    Operation("neg", "-x", ("-d",), synonyms=("negative",)),
    Operation("exp", "exp(x)", ("d * r",), error=(3.0, 3.0)),
    Operation("log", "log(x)", ("d / x",), error=(3.0, 3.0)),
    Operation("sqrt", "sqrt(x)", ("d / (2 * r)",)),
    Operation("abs", "abs(x)", ("d if x > 0 else -d if x < 0 else d * x",), synonyms=("absolute",)),
    Operation("expm1", "tanh(x / 2) * (exp(x) + 1)", ("d * (r + 1)",), error=(12.0, 12.0)),
    Operation("log1p", "log1p(x)", ("d / (1 + x)",), error=(3.0, 3.0)),
    Operation("sin", "sin(x)", ("d * cos(x)",), error=(2.0, 2.0)),
    Operation("cos", "cos(x)", ("-d * sin(x)",), error=(2.0, 2.0)),
    Operation("square", "x * x", ("d * (2 * x)",)),
    Operation("reciprocal", "1 / x", ("-d * (r * r)",)),
    Operation(
        "gelu", "x * cdf(x)", ("d * (cdf(x) + x * density(x))",),
        defaults=(("approximate", "none"),), error=(6.0, 4.0), cancels=True,
    ),
    Operation(
        "silu", "x * sigmoid(x)", ("d * (sigmoid(x) * (1 + x * (1 - sigmoid(x))))",), error=(6.0, 4.0), cancels=True
    ),
    Operation(
        "softplus", "x if x > 20 else log1p(exp(x))", ("d if x > 20 else d * sigmoid(x)",),
        defaults=(("beta", 1.0), ("threshold", 20.0)), error=(6.0, 4.0),
    ),
    Operation("add", "x + y", ("d", "d"), defaults=(("alpha", 1),)),
    Operation("sub", "x - y", ("d", "-d"), synonyms=("subtract",), defaults=(("alpha", 1),)),
    Operation("mul", "x * y", ("d * y", "d * x"), synonyms=("multiply",)),
    Operation(
        "div", "x / y", ("d / y", "-d * (r / y)"),
        synonyms=("true_divide", "divide", "truediv"), defaults=(("rounding_mode", None),),
    ),
    Operation(
        "maximum", "x if x > y or x != x else y",
        ("0 if x < y else d * 0.5 if x == y else d", "0 if y < x else d * 0.5 if y == x else d"),
    ),
    Operation(
        "minimum", "x if x < y or x != x else y",
        ("0 if x > y else d * 0.5 if x == y else d", "0 if y > x else d * 0.5 if y == x else d"),
    ),
    Operation(
        "pow", "x ** y",
        # 0 to a power that is not negative has no slope, as in torch; to a negative one it is infinite.
        ("0 if y == 0 else d * (y * x ** (y - 1))", "0 if x == 0 and abs(r) <= 1 else d * (r * log(x))"),
    ),
)  # fmt: skip

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _TABLE}
SYNONYMS = {synonym: operation.name for operation in _TABLE for synonym in operation.synonyms}
UNARY = frozenset(operation.name for operation in _TABLE if operation.operands == 1)
BINARY = frozenset(operation.name for operation in _TABLE if operation.operands == 2)
ELEMENTWISE = UNARY | BINARY | {"sum"}
"""With `sum`, of any number of operands from the left, whose derivatives are `d`."""


def parse(formula: str) -> ast.expr:
    """The expression that a formula states; ValueError for what is not in the language."""
    tree = ast.parse(formula, mode="eval").body
    for node in ast.walk(tree):
        if not _is_known(node):
            raise ValueError(
                f"formula {formula!r}: expected what edbc.base.operations defines, got {ast.unparse(node)!r}"
            )
    return tree


def _is_known(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in PRIMITIVES and len(node.args) == 1 and not node.keywords
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float) and unpack("f", pack("f", node.value)) == (node.value,)
    return isinstance(node, _LANGUAGE)


class Formula(NamedTuple):
    """What an element-wise value computes (`edbc.cells.kernels`) of operands by these names."""

    text: str
    names: tuple[str, ...]


def derivative(name: str, operand: int) -> str:
    """The name in `FORMULAS` of the gradient of an operation's operand: a function of `d` and of what it reads."""
    return f"{name}'{operand}"


def _formulas() -> Iterator[tuple[str, Formula]]:
    for name, entry in OPERATIONS.items():
        yield name, Formula(entry.formula, ("x", "y")[: entry.operands])
        for operand, text in enumerate(entry.derivatives):
            read = {node.id for node in ast.walk(parse(text)) if isinstance(node, ast.Name)}
            yield derivative(name, operand), Formula(text, (GRADIENT, *(n for n in ("x", "y", "r") if n in read)))


FORMULAS: dict[str, Formula] = {
    **dict(_formulas()),
    "held": Formula("x", ("x",)),
    "equal": Formula("1 if x == y else 0", ("x", "y")),
    "less": Formula("1 if x < y else 0", ("x", "y")),
    "at_most": Formula("1 if x <= y else 0", ("x", "y")),
    "raised": Formula("x if x >= y or x != x else y", ("x", "y")),
    "lowered": Formula("x if x <= y or x != x else y", ("x", "y")),
    "chosen": Formula("y if x != 0 else 0", ("x", "y")),
    "cdf": Formula("cdf(x)", ("x",)),
    derivative("cdf", 0): Formula("d * density(x)", ("d", "x")),
    derivative("chosen", 1): Formula("d if x != 0 else 0", ("d", "x")),
    # Bounds: where they are met the gradient is all x's, which `maximum` and `minimum` share.
    derivative("raised", 0): Formula("d if x >= y else 0", ("d", "x", "y")),
    derivative("raised", 1): Formula("d if x < y else 0", ("d", "x", "y")),
    derivative("lowered", 0): Formula("d if x <= y else 0", ("d", "x", "y")),
    derivative("lowered", 1): Formula("d if x > y else 0", ("d", "x", "y")),
}
"""Operations, their derivatives, and what else calls of torch and derivatives consist of; what has no derivative here
passes no gradient on."""
