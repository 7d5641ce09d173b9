"""The patterns of a plan in a table of types: a type for each, once all of its members have been recorded.

A node of such a type computes what its members compute, one after the other: its `Operation` holds theirs, and tracing
it (`ModelView.trace`) runs them. So layout, kernels and gradients know it as they know a cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edbc.base.graph import NodeType, ValueClass
from edbc.base.pattern import OPERAND, Member, Pattern, parse_pattern

if TYPE_CHECKING:
    from edbc.capture.patterns.fuseloops import Matchers
    from edbc.capture.record.table import Operation, TypeTable

LONGEST_NAME = 60


class Planned(NamedTuple):
    """A pattern over signatures, and the number of its type in the plan; None where the type is new."""

    pattern: Pattern
    number: int | None = None


class Fused(NamedTuple):
    """What a node of a pattern computes: the operation of each member, None for a sum, what it reads, and the shapes
    of that."""

    operation: Operation | None
    reads: tuple[tuple[int, int], ...]
    shapes: tuple[tuple[int, ...], ...]


class Fusions:
    """See the module's docstring. `known` are indices of the plan's types by signature."""

    def __init__(self, table: TypeTable, planned: Iterable[Planned]):
        self._table = table
        self.planned = tuple(planned)
        self._members = [[table.index_of(m.kind) for m in p.pattern.members] for p in self.planned]
        self._types: list[int | None] = [None] * len(self.planned)
        self._of: tuple[Any, Matchers | None] = (None, None)

    def matchers(self) -> Matchers | None:
        """The patterns whose types have all been recorded, for the native loop; None for none."""
        if not self.planned:
            return None
        of = self._of
        if of[0] is not self._table.graph_types():
            with self._table.lock:
                self._admit()
                types = self._table.graph_types()
                known = [(p, t) for p, t in enumerate(self._types) if t is not None]
                of = self._of = types, self._arrays(known, len(types)) if known else None
        return of[1]

    def types(self) -> Iterator[tuple[Planned, int]]:
        """The patterns that are types by now."""
        return ((p, t) for p, t in zip(self.planned, self._types, strict=True) if t is not None)

    def _admit(self) -> None:
        """Make the types of patterns whose members are all known by now."""
        table = self._table
        for p, (pattern, number) in enumerate(self.planned):
            if self._types[p] is not None:
                continue
            members = self._members[p] = [
                table.index_of(m.kind) if i is None else i
                for i, m in zip(self._members[p], pattern.members, strict=True)
            ]
            kinds = [None if i is None else table.types[i] for i in members]
            if None not in kinds:
                self._types[p] = self._new_type(pattern, number, members, kinds)  # type: ignore[arg-type]

    def _new_type(self, pattern: Pattern, number: int | None, members: list[int], kinds: list[NodeType]) -> int | None:
        """The type of a pattern; None where it is none here: a member that draws has other operands in training."""
        from edbc.capture.record.table import Hole, Operation

        table = self._table
        if any(kind.drawn for kind in kinds):
            return None
        classes: dict[int, ValueClass] = {}
        for kind, member in zip(kinds, pattern.members, strict=True):
            for place, (which, operand) in enumerate(member.reads):
                if which == OPERAND:
                    classes.setdefault(operand, kind.operands[0 if kind.variadic else place])
        operands = tuple(classes[i] for i in range(len(classes)))
        draft = NodeType(_name_of(kinds), "graph", operands, kinds[-1].outputs, _text_of(pattern, kinds))
        sites = dict.fromkeys(site for kind in kinds for site in kind.sites)
        made = table.add_type(draft, sites) if number is None else table.add_planned(number, draft, sites)
        steps = tuple(
            Fused(
                None if kind.variadic else table.operation_of_type[i].operation,
                member.reads,
                tuple(c.shape for c in kind.operands) * (len(member.reads) if kind.variadic else 1),
            )
            for kind, i, member in zip(kinds, members, pattern.members, strict=True)
        )
        slots, outputs = tuple(map(table.slot, operands)), tuple(map(table.slot, draft.outputs))
        template: Any = (tuple(map(Hole, range(len(slots)))), {})
        operation = Operation("graph", draft.name, None, template, slots, members=steps)
        if made not in table.operation_of_type:
            table.add_entry(made, operation, outputs, tuple(map(Hole, range(len(outputs)))))
        return made

    def _arrays(self, known: Sequence[tuple[int, int]], num_types: int) -> Matchers:
        from edbc.capture.patterns.fuseloops import OUTPUTS, Matchers

        of_exit: list[list[int]] = [[] for _ in range(num_types)]
        by_size = sorted(range(len(known)), key=lambda k: -len(self.planned[known[k][0]].pattern.members))
        for k in by_size:
            of_exit[self._members[known[k][0]][-1] or 0].append(k)
        member_type: list[int] = []
        codes: list[list[int]] = []
        num_readers: list[int] = []
        for p, _ in known:
            members = self.planned[p].pattern.members
            last = len(members) - 1
            member_type += [i or 0 for i in reversed(self._members[p])]
            for i, member in reversed(list(enumerate(members))):
                codes.append([-1 - o if m == OPERAND else (last - m) * OUTPUTS + o for m, o in member.reads])
                num_readers.append(sum(m == i for other in members for m, _ in other.reads))
        sizes = [len(self.planned[p].pattern.members) for p, _ in known]
        return Matchers(
            _ints(accumulate(map(len, of_exit), initial=0)), _ints(k for each in of_exit for k in each),
            _ints(accumulate(sizes, initial=0)), _ints(member_type), _ints(num_readers),
            _ints(accumulate(map(len, codes), initial=0)), _ints(c for each in codes for c in each),
            _ints(t for _, t in known), _ints(self.planned[p].pattern.num_operands for p, _ in known),
        )  # fmt: skip


def _ints(values: Iterable[int]) -> Any:
    return np.array(list(values), np.int32)


def _name_of(kinds: Sequence[NodeType]) -> str:
    names = dict.fromkeys(kind.name.partition(".")[0] for kind in kinds)
    return "_".join(names)[:LONGEST_NAME].rstrip("_")


def _text_of(pattern: Pattern, kinds: Sequence[NodeType]) -> str:
    """What the members are, as a part of the signature."""

    def told(kind: NodeType) -> str:
        return kind.op + (f"{{{kind.constants}}}" if kind.constants else "")

    members = [Member(told(kind), member.reads) for kind, member in zip(kinds, pattern.members, strict=True)]
    return "; ".join(Pattern(tuple(members)).lines())


def patterns_of(types: Iterable[tuple[str, str]], fused: Mapping[str, Sequence[str]]) -> tuple[Planned, ...]:
    """The patterns of a plan with these types, names and signatures, as its lines (`Plan.fused`) say."""
    names = [name for name, _ in types]
    signature_of = dict(types)
    return tuple(
        Planned(parse_pattern(lines).named(signature_of.__getitem__), names.index(name))
        for name, lines in fused.items()
    )
