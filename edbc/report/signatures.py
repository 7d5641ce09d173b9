"""Why two types do not batch together: the difference of their signatures, in words.

A type is a signature (`edbc.graph`, definition 1), so two types never batch. That `leaf` and `internal` do not is no
news; what a reader wants to know is which types *nearly* do. Definitions, on a signature
`op(operands) {constants} -> outputs`:

(1) Cells and modules of equal operand and output classes are *near*: their weights keep them apart, or their
    operations, which the plan's cells tell. All types of such a group are told together.
(2) Other types are near when they run the same op. Each is told beside the first of them, with the first part that
    differs: number of operands, class of an operand, constants, outputs.

All of it is worked out from the text in the plan, so it needs no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from edbc.plan.operations import parse_line
from edbc.plan.plan import PlanCell, PlanType

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
    """Near types and what keeps them apart."""

    types: tuple[str, ...]
    reason: str

    @property
    def names(self) -> str:
        """`a, b and c`."""
        return f"{', '.join(self.types[:-1])} and {self.types[-1]}"


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


def near_types(types: Sequence[PlanType], cells: Mapping[str, PlanCell] | None = None) -> Iterator[Difference]:
    """Every group of near types in the order of the types; `cells` by type. O(types)."""
    groups: dict[tuple[object, ...], list[tuple[str, Signature]]] = {}
    for kind in types:
        signature = parse_signature(kind.signature)
        shapes = (signature.operands, signature.outputs)
        key = ("weights", shapes) if signature.has_own_weights else ("op", signature.op)
        groups.setdefault(key, []).append((kind.name, signature))
    for group in groups.values():
        (first, signature), others = group[0], group[1:]
        if others and signature.has_own_weights:
            names = (first, *(name for name, _ in others))
            yield Difference(names, _modules_reason(names, cells or {}))
        else:
            yield from (Difference((first, name), reason(signature, other)) for name, other in others)


def _modules_reason(names: Sequence[str], cells: Mapping[str, PlanCell]) -> str:
    """Why modules of equal classes are apart: the first operation in which they differ, or their weights."""
    sequences = {
        name: [parse_line(line).operation for line in cells[name].operations] for name in names if name in cells
    }
    for name, sequence in list(sequences.items())[1:]:
        first, own = next(iter(sequences.items()))
        for ours, theirs in zip_longest(own, sequence, fillvalue="nothing"):
            if ours != theirs:
                return f"same shapes, but other operations: {ours} in {first} where {name} has {theirs}"
    return "same shapes, but each is a module with weights of its own"


def reason(a: Signature, b: Signature) -> str:
    """The first part that differs between two signatures of one op, in words.

    >>> reason(parse_signature("sum(f32[8]...) -> f32[8]"), parse_signature("sum(f32[4]...) -> f32[4]"))
    'operand 1 is f32[8] in the first and f32[4] in the second'
    """
    if len(a.operands) != len(b.operands):
        return f"the first has {len(a.operands)} operands, the second {len(b.operands)}"
    for number, (x, y) in enumerate(zip(a.operands, b.operands, strict=True), 1):
        if x != y:
            return f"operand {number} is {x} in the first and {y} in the second"
    if a.constants != b.constants:
        return f"constants are {a.constants or 'none'} in the first and {b.constants or 'none'} in the second"
    if a.outputs != b.outputs:
        return f"the result is {', '.join(a.outputs)} in the first and {', '.join(b.outputs)} in the second"
    return "they differ in what is looked up or shared, which the signature's text does not show"
