"""Why two types do not batch together: the difference of their signatures, in words.

A type is a signature (`edbc.graph`, definition 1), so two types never batch. That `leaf` and `internal` do not is no
news; what a reader wants to know is which types *nearly* do. Definitions, on a signature
`op(operands) {constants} -> outputs`:

(1) Two types are *near* when they have the same op, or ops that are of one family (`sum`, `sum.2`), or ops that are
    modules or cells of equal operand and output classes.
(2) The *reason* of a near pair is the first of these that differs: op (then only weights keep them apart), number of
    operands, class of an operand, constants, outputs.

All of it is worked out from the text in the plan, so it needs no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from edbc.plan.plan import PlanType

_SIGNATURE = re.compile(r"(?P<op>[^(]+)\((?P<operands>.*?)\)(?: \{(?P<constants>.*)\})? -> (?P<outputs>.*)")
_CLASS = re.compile(r"[a-z]+\d*\[[^\]]*\]")
_OWN_WEIGHTS = ("cell ", "module ")


@dataclass(frozen=True)
class Signature:
    """The parts of a signature's text."""

    op: str
    operands: tuple[str, ...]
    constants: str
    outputs: tuple[str, ...]
    variadic: bool

    @property
    def has_own_weights(self) -> bool:
        """True for a cell or a module, whose op is its name."""
        return self.op.startswith(_OWN_WEIGHTS)


@dataclass(frozen=True)
class Difference:
    """A near pair, definition (1), and its reason, definition (2)."""

    first: str
    second: str
    reason: str


def parse_signature(text: str) -> Signature:
    """The parts of a signature; text of another form is all op.

    >>> parse_signature("cell leaf(f32[8]) -> f32[8], f32[8]").outputs
    ('f32[8]', 'f32[8]')
    """
    match = _SIGNATURE.fullmatch(text)
    if match is None:
        return Signature(text, (), "", (), False)
    operands = match["operands"]
    return Signature(
        match["op"],
        tuple(_CLASS.findall(operands)),
        match["constants"] or "",
        tuple(_CLASS.findall(match["outputs"])),
        operands.endswith("..."),
    )


def near_pairs(types: Sequence[PlanType]) -> Iterator[Difference]:
    """Every near pair in the order of the types. O(types squared)."""
    parsed = [(kind.name, parse_signature(kind.signature)) for kind in types]
    for (first, a), (second, b) in combinations(parsed, 2):
        if _is_near(a, b):
            yield Difference(first, second, reason(a, b))


def _is_near(a: Signature, b: Signature) -> bool:
    if a.has_own_weights and b.has_own_weights:
        return a.operands == b.operands and a.outputs == b.outputs
    return a.op.split(".")[-1] == b.op.split(".")[-1]


def reason(a: Signature, b: Signature) -> str:
    """The first part that differs, in words.

    >>> reason(parse_signature("sum(f32[8]...) -> f32[8]"), parse_signature("sum(f32[4]...) -> f32[4]"))
    'operand 1 is f32[8] in one and f32[4] in the other'
    """
    if a.op != b.op and a.has_own_weights:
        return f"same shapes, but {_article(a.op)} and {_article(b.op)} have their own weights"
    if a.op != b.op:
        return f"one runs {a.op}, the other {b.op}"
    if len(a.operands) != len(b.operands):
        return f"one has {len(a.operands)} operands, the other {len(b.operands)}"
    for number, (x, y) in enumerate(zip(a.operands, b.operands, strict=True), 1):
        if x != y:
            return f"operand {number} is {x} in one and {y} in the other"
    if a.constants != b.constants:
        return f"constants are {a.constants or 'none'} in one and {b.constants or 'none'} in the other"
    if a.outputs != b.outputs:
        return f"the result is {', '.join(a.outputs)} in one and {', '.join(b.outputs)} in the other"
    return "they differ in what is looked up or shared, which the signature's text does not show"


def _article(op: str) -> str:
    return f"the {op}"
