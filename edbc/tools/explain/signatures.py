"""Why two types do not batch together: the difference of their signatures, in words.

A type is a signature (`edbc.base.graph`, definition 1), so two types never batch. That `leaf` and `internal` do not is
no news; what a reader wants to know is which types *nearly* do. Definitions, on a signature
`op(operands) {constants} -> outputs`:

(1) Cells and modules of equal operand and output classes are *near*: their weights keep them apart, or their
    operations, which the plan's cells tell. All types of such a group are told together, one for each module.
(2) Types of one module are near when their classes are equal: it was called with other constants or slices.
(3) Other types are near when they run the same op. Each is told beside the first of them, with the first part that
    differs: number of operands, class of an operand, constants, outputs.

All of it is worked out from the text in the plan, so it needs no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from edbc.plan.oplines import Line, parse_line
from edbc.plan.plan import PlanCell, PlanType

_SIGNATURE = re.compile(r"(?P<op>[^(]+)\((?P<operands>.*?)\)(?: \{(?P<constants>.*)\})? -> (?P<outputs>.*)")
_CLASS = re.compile(r"[a-z]+\d*\[[^\]]*\]")
_OWN_WEIGHTS = ("cell ", "module ")
_WEIGHTS = ("weight", "bias", "table")
"""Attributes of operations that name parameters."""
_NOT_SHOWN = "is looked up or shared, which the signature's text does not show"


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
        *others, last = self.types
        return f"{', '.join(others)} and {last}" if others else last


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
        if group[0][1].has_own_weights:
            yield from _near_modules(group, cells or {})
        else:
            (first, signature), others = group[0], group[1:]
            yield from (Difference((first, name), reason(signature, other)) for name, other in others)


def _near_modules(group: Sequence[tuple[str, Signature]], cells: Mapping[str, PlanCell]) -> Iterator[Difference]:
    """Definitions (1) and (2)."""
    modules: dict[str, list[tuple[str, Signature]]] = {}
    for name, signature in group:
        modules.setdefault(signature.op, []).append((name, signature))
    for calls in modules.values():
        if len(calls) > 1:
            yield Difference(tuple(name for name, _ in calls), _calls_reason(calls, cells))
    if len(modules) > 1:
        names = tuple(calls[0][0] for calls in modules.values())
        yield Difference(names, _modules_reason(names, cells))


def _calls_reason(calls: Sequence[tuple[str, Signature]], cells: Mapping[str, PlanCell]) -> str:
    """Why calls of one module are apart: their constants, or the first operation in which two differ."""
    (first, signature), (second, other) = calls[:2]
    if signature.constants != other.constants:
        here, there = (f"({constants or 'no constants'})" for constants in (signature.constants, other.constants))
        return f"one module, but with other slices or constants: {here} in {first}, {there} in {second}"
    for name, _ in calls[1:]:
        for ours, theirs in zip_longest(_lines(cells, first), _lines(cells, name), fillvalue="nothing"):
            if ours != theirs:
                return f"one module, but {ours} in {first} where {name} has {theirs}"
    return f"one module, but they differ in what {_NOT_SHOWN}"


def _lines(cells: Mapping[str, PlanCell], name: str) -> Sequence[str]:
    return cells[name].operations if name in cells else ()


def _modules_reason(names: Sequence[str], cells: Mapping[str, PlanCell]) -> str:
    """Why modules of equal classes are apart: the first operation in which they differ, or their weights."""
    sequences = {name: [parse_line(line) for line in cells[name].operations] for name in names if name in cells}
    for name, sequence in list(sequences.items())[1:]:
        first, own = next(iter(sequences.items()))
        pairs = zip_longest(
            (line.operation for line in own), (line.operation for line in sequence), fillvalue="nothing"
        )
        for ours, theirs in pairs:
            if ours != theirs:
                return f"same shapes, but other operations: {ours} in {first} where {name} has {theirs}"
    if sequences and not any(_has_weights(line) for sequence in sequences.values() for line in sequence):
        return "same shapes and no weights, but each is a module of its own: one called in all places would batch"
    return "same shapes, but each is a module with weights of its own"


def _has_weights(line: Line) -> bool:
    return line.operation == "parameter" or any(key in _WEIGHTS for key, _ in line.attributes)


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
    return f"they differ in what {_NOT_SHOWN}"
