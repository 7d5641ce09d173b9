"""Patterns: connected parts of a dataflow graph with one exit, as values.

Definitions.

(1) A *pattern* is a list of *members*, types in topological order of which the last one is the *exit*. What a member
    reads is an output of an earlier member or an *operand* of the pattern; every member but the exit is read by later
    ones, and operands are numbered in the order in which members first read them. A member that sums is of a variadic
    type, with as many operands here as it has.
(2) A set of nodes of a graph *matches* where their types and what they read of each other are as the pattern says,
    equal operands are equal there too and none of them are values of the set, and nothing outside of it reads any of it
    but the exit.
(3) Two patterns of which one's exit is an operand of the other are one larger pattern: `grown`. Every pattern is made
    of single types so (Sennrich et al., "Neural machine translation of rare words with subword units", ACL 2016, merge
    pairs of symbols of a text in this way).

As a plan writes it, with the names of types for their signatures:

    v0 = linear(x0)
    v1 = sum(v0, x1)
    v2 = tanh(v1)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

MOST_MEMBERS, MOST_OPERANDS = 64, 32
Read = tuple[int, int]
"""Member and output; or OPERAND and the number of an operand."""
OPERAND = -1
_LINE = re.compile(r"v(\d+) = ([A-Za-z_][A-Za-z0-9_.]*)\((.*)\)")
_READ = re.compile(r"x(\d+)|v(\d+)(?:\.(\d+))?")


class Member(NamedTuple):
    """A node of a pattern: its type, by a name or a signature, and what it reads."""

    kind: str
    reads: tuple[Read, ...]


class Pattern(NamedTuple):
    """Definition (1)."""

    members: tuple[Member, ...]

    @property
    def num_operands(self) -> int:
        """Operands of a node of it."""
        return 1 + max((number for m in self.members for which, number in m.reads if which == OPERAND), default=-1)

    def lines(self) -> tuple[str, ...]:
        """As a plan has it."""
        return tuple(f"v{i} = {m.kind}({', '.join(map(_read_text, m.reads))})" for i, m in enumerate(self.members))

    def named(self, name_of: Callable[[str], str]) -> Pattern:
        """The same pattern of types that are called otherwise."""
        return Pattern(tuple(Member(name_of(kind), reads) for kind, reads in self.members))

    def fault(self) -> str | None:
        """What is wrong with a pattern that others wrote, definition (1); None for nothing. O(reads)."""
        if not 2 <= len(self.members) <= MOST_MEMBERS:
            return f"it has {len(self.members)} members, and a pattern 2 to {MOST_MEMBERS}"
        if self.num_operands > MOST_OPERANDS:
            return f"it has {self.num_operands} operands, and a pattern at most {MOST_OPERANDS}"
        numbered, read = 0, set()
        for i, member in enumerate(self.members):
            for which, number in member.reads:
                if which >= i:
                    return f"v{i} reads v{which}, which is none before it"
                if which == OPERAND and number > numbered:
                    return f"v{i} reads x{number}, and x{numbered} is the next"
                numbered += which == OPERAND and number == numbered
                read.add(which)
        unread = set(range(len(self.members) - 1)) - read
        return f"nothing reads v{min(unread)}" if unread else None


def _read_text(read: Read) -> str:
    which, number = read
    return f"x{number}" if which == OPERAND else f"v{which}.{number}" if number else f"v{which}"


def parse_pattern(lines: Sequence[str]) -> Pattern:
    """The pattern with these lines. Raises ValueError, with the reason, where there is none."""
    pattern = Pattern(tuple(_member(line, i) for i, line in enumerate(lines)))
    fault = pattern.fault()
    if fault is None and pattern.lines() != tuple(lines):
        fault = "it is not written as a plan writes it"
    if fault is not None:
        raise ValueError(fault)
    return pattern


def _member(line: str, number: int) -> Member:
    found = _LINE.fullmatch(line)
    if found is None or int(found[1]) != number:
        raise ValueError(f"expected 'v{number} = type(x0, ...)', got {line[:80]!r}")
    return Member(found[2], tuple(_read(text) for text in found[3].split(", ") if text))


def _read(text: str) -> Read:
    found = _READ.fullmatch(text)
    if found is None or len(text) > 20:
        raise ValueError(f"expected an operand such as x0, v1 or v1.1, got {text[:80]!r}")
    return (OPERAND, int(found[1])) if found[1] else (int(found[2]), int(found[3] or 0))


def single(kind: str, num_operands: int) -> Pattern:
    """A type as a pattern of one member, all of whose operands differ."""
    return Pattern((Member(kind, tuple((OPERAND, i) for i in range(num_operands))),))


def grown(reader: Pattern, producer: Pattern, outputs: Sequence[int | None], same: Sequence[int]) -> Pattern:
    """Definition (3): `outputs[i]` is which output of the producer operand i of the reader is, None for another value;
    `same` numbers the operands of both, the reader's first: equal numbers are equal operands."""
    first, count = len(producer.members), reader.num_operands

    def moved(read: Read) -> Read:
        which, number = read
        if which != OPERAND:
            return which + first, number
        output = outputs[number]
        return (OPERAND, same[number]) if output is None else (first - 1, output)

    members = [Member(kind, tuple((w, n) if w != OPERAND else (OPERAND, same[count + n]) for w, n in reads))
               for kind, reads in producer.members]  # fmt: skip
    members += [Member(kind, tuple(map(moved, reads))) for kind, reads in reader.members]
    return _numbered(members)


def _numbered(members: Sequence[Member]) -> Pattern:
    """Operands numbered anew, in the order in which they are read."""
    numbers: dict[int, int] = {}

    def renamed(reads: Sequence[Read]) -> Iterator[Read]:
        for which, number in reads:
            yield (OPERAND, numbers.setdefault(number, len(numbers))) if which == OPERAND else (which, number)

    return Pattern(tuple(Member(kind, tuple(renamed(reads))) for kind, reads in members))
