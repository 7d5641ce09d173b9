"""The operations that a cell may consist of, and the one-line grammar in which a plan states them.

Definitions.

(1) A *line* defines one variable:  `name = operation(operand, ..., attribute=value, ...)`.

        line       ::=  name " = " operation "(" [argument {", " argument}] ")"
        argument   ::=  operand | attribute "=" value             operands come first
        operand    ::=  name | number
        value      ::=  number | string | "true" | "false" | "(" [item {", " item}] [","] ")"
        item       ::=  number | string                           a tuple of one item ends with a comma
        name       ::=  [A-Za-z_][A-Za-z0-9_]*
        string     ::=  '"' {printable ASCII except " and \\} '"'
        number     ::=  JSON's, finite

    Spaces are where the grammar has them and nowhere else, so two lines say the same exactly when they are equal.
(2) A *source* (`input`, `lookup`, `parameter`, `constant`) brings a value into the cell and is part of no batch.
    `input` and `lookup` define variables, which differ between the nodes of a batch and have a place in the layout;
    `parameter` and `constant` define *shared* values, which have none.
(3) `output=k`, or `output=(j, k)`, on any line says that its value is output k of the cell.

The table is closed: a name that is not in it is refused. Names in a plan are looked up here and nowhere else; none is
ever imported, evaluated or given to `getattr`. `generic` runs what the model itself recorded at this place of the
cell; its attributes only tell two such operations apart.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

from edbc.base.operations import OPERATIONS as ELEMENTWISE
from edbc.plan.scalars import shorten

Number: TypeAlias = int | float
Attribute: TypeAlias = Number | str | bool | tuple[Number | str, ...]

ANY_NUMBER = 1 << 16
"""Arity without a bound of its own; longer lines are cut off by the plan's limits on text."""

LARGEST_INTEGER = 1 << 53
"""Integers beyond it would not survive a reader that has only doubles."""


@dataclass(frozen=True)
class Operation:
    """A row of the table: how many operands an operation takes, and which attributes besides `output`."""

    name: str
    least: int
    most: int
    attributes: tuple[str, ...] = ()
    is_source: bool = False
    """Definition (2)."""
    is_shared: bool = False
    """Definition (2): a source whose value is the same for all nodes."""

    @property
    def arity(self) -> str:
        """`2`, `1 to 3` or `1 or more`."""
        if self.most == ANY_NUMBER:
            return f"{self.least} or more"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


def _reduction(*names: str) -> list[Operation]:
    return [Operation(name, 1, 1, ("dim", "keepdim")) for name in names]


_TABLE = [
    Operation("input", 0, 0, ("index", "shape", "dtype"), is_source=True),
    Operation("lookup", 0, 1, ("table", "index", "shape", "dtype"), is_source=True),
    Operation("parameter", 0, 0, ("name", "shape", "dtype"), is_source=True, is_shared=True),
    Operation("constant", 0, 0, ("value", "shape", "dtype"), is_source=True, is_shared=True),
    Operation("linear", 1, 3, ("weight", "bias")),
    Operation("affine", 1, ANY_NUMBER, ("weight", "bias")),
    *(Operation(entry.name, entry.operands, entry.operands) for entry in ELEMENTWISE.values()),
    *(Operation(name, 1, 1) for name in ("rsqrt", "erf", "elu", "leaky_relu")),
    Operation("clamp", 1, 1, ("min", "max")),
    Operation("matmul", 2, 2),
    Operation("cat", 1, ANY_NUMBER, ("dim",)),
    Operation("stack", 1, ANY_NUMBER, ("dim",)),
    Operation("slice", 1, 1, ("dim", "start", "stop", "step")),
    Operation("select", 1, 1, ("dim", "index")),
    Operation("reshape", 1, 1, ("shape",)),
    Operation("transpose", 1, 1, ("dim0", "dim1")),
    Operation("permute", 1, 1, ("dims",)),
    Operation("squeeze", 1, 1, ("dim",)),
    Operation("unsqueeze", 1, 1, ("dim",)),
    Operation("expand", 1, 1, ("shape",)),
    Operation("softmax", 1, 1, ("dim",)),
    Operation("log_softmax", 1, 1, ("dim",)),
    Operation("layer_norm", 1, 3, ("shape", "eps", "weight", "bias")),
    Operation("sum", 1, ANY_NUMBER, ("dim", "keepdim")),
    *_reduction("mean", "max", "min", "amax", "amin"),
    Operation("generic", 0, ANY_NUMBER, ("function", "index", "constants", "shape", "dtype")),
]

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _TABLE}
"""Every operation that a plan may name."""


@dataclass(frozen=True)
class Line:
    """A parsed line, definition (1)."""

    name: str
    operation: str
    operands: tuple[str | Number, ...]
    """Names of variables and shared values, and numbers."""
    attributes: tuple[tuple[str, Attribute], ...] = ()
    """In the order of the text."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The operands that are names, repeats kept."""
        return tuple(operand for operand in self.operands if isinstance(operand, str))

    @property
    def outputs(self) -> tuple[int, ...]:
        """Which outputs of the cell the value is, definition (3)."""
        value = dict(self.attributes).get("output", ())
        numbers = value if isinstance(value, tuple) else (value,)
        return tuple(k for k in numbers if isinstance(k, int))

    def __str__(self) -> str:
        arguments = [operand if isinstance(operand, str) else repr(operand) for operand in self.operands]
        arguments += [f"{key}={_value_text(value)}" for key, value in self.attributes]
        return f"{self.name} = {self.operation}({', '.join(arguments)})"


def _value_text(value: Attribute) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        items = ", ".join(map(_value_text, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    return repr(value)


_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_NUMBER = r"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,25})?(?:e[+-]?[0-9]{1,3})?"
_STRING = r'"[ !#-\[\]-~]*"'
_ITEM = rf"(?:{_NUMBER}|{_STRING})"
_TUPLE = rf"\((?:{_ITEM},|{_ITEM}(?:, {_ITEM})+)?\)"
_VALUE = rf"(?:{_NUMBER}|{_STRING}|true|false|{_TUPLE})"
_HEAD = re.compile(rf"({_NAME}) = ({_NAME})\(")
_ARGUMENT = re.compile(rf"(?:({_NAME})=({_VALUE})|({_NAME})|({_NUMBER}))(?=, |\))")
_ITEMS = re.compile(_ITEM)


def parse_line(text: str) -> Line:
    """The line that `text` states. O(length of the text).

    Raises ValueError with the reason, fit to follow "expected `name = operation(...)`, got ...: ".

    >>> parse_line("y = slice(x, dim=0, start=4)").attributes
    (('dim', 0), ('start', 4))
    """
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("it does not begin with 'name = operation('")
    name, operation = head.groups()
    operands, attributes = _parse_arguments(text, head.end())
    line = Line(name, operation, operands, attributes)
    _check_against_table(line)
    if str(line) != text:
        raise ValueError(f"a number is not in its shortest form; write {shorten(str(line))}")
    return line


def _parse_arguments(text: str, start: int) -> tuple[tuple[str | Number, ...], tuple[tuple[str, Attribute], ...]]:
    operands: list[str | Number] = []
    attributes: list[tuple[str, Attribute]] = []
    position = start
    while not text.startswith(")", position):
        if position > start:
            position += len(", ")
        argument = _ARGUMENT.match(text, position)
        if argument is None:
            raise ValueError(f"column {position + 1} is neither an operand nor attribute=value")
        key, value, variable, number = argument.groups()
        if key is not None:
            attributes.append((key, _parse_value(value)))
        elif attributes:
            raise ValueError(f"operand at column {position + 1} follows an attribute")
        else:
            operands.append(variable if variable is not None else _parse_number(number))
        position = argument.end()
    if position != len(text) - 1:
        raise ValueError(f"text follows the closing parenthesis at column {position + 1}")
    return tuple(operands), tuple(attributes)


def _parse_value(text: str) -> Attribute:
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("("):
        return tuple(map(_parse_item, _ITEMS.findall(text)))
    return _parse_item(text)


def _parse_item(text: str) -> Number | str:
    return text[1:-1] if text.startswith('"') else _parse_number(text)


def _parse_number(text: str) -> Number:
    value = int(text) if text.lstrip("-").isdigit() else float(text)
    if not math.isfinite(value) or (abs(value) > LARGEST_INTEGER and isinstance(value, int)):
        raise ValueError(f"the number {text} is too large")
    return value


def _check_against_table(line: Line) -> None:
    operation = OPERATIONS.get(line.operation)
    if operation is None:
        raise ValueError(f"{shorten(line.operation)} is no operation{_suggestion(line.operation, OPERATIONS)}")
    if not operation.least <= len(line.operands) <= operation.most:
        raise ValueError(f"{operation.name} takes {operation.arity} operands, not {len(line.operands)}")
    known = (*operation.attributes, "output")
    keys = [key for key, _ in line.attributes]
    for key in keys:
        if key not in known:
            raise ValueError(f"{operation.name} has no attribute {shorten(key)}{_suggestion(key, known)}")
        if keys.count(key) > 1:
            raise ValueError(f"attribute {shorten(key)} is given twice")
    _check_output(dict(line.attributes).get("output", 0))


def _check_output(value: Attribute) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    if not all(type(k) is int and k >= 0 for k in numbers) or not numbers:
        raise ValueError("attribute 'output' is an output's number, or a tuple of them")


def _suggestion(word: str, known: dict[str, Operation] | tuple[str, ...]) -> str:
    close = get_close_matches(word[:100], known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
