"""LLVM's text, line by line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from edbc.native.machinecode import pointer

Index = str | int
"""A value's name, or a number that is known."""
Carried = Sequence[tuple[str, str]]
Turn = Callable[[Index, Sequence[str]], Sequence[str] | None]


class Body:
    """Lines of a function's body; `new` names a result, and `block` is the label of the block that lines go to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.block = ""
        self._names = self._labels = 0

    def new(self, line: str) -> str:
        """A line with a result, and the result's name."""
        self._names += 1
        self.lines.append(f"%v{self._names} = {line}")
        return f"%v{self._names}"

    def add(self, *lines: str) -> None:
        """Lines without results."""
        self.lines += lines

    def sum(self, a: str, b: str | int) -> str:
        """Of two integers."""
        return self.new(f"add i64 {a}, {b}")

    def times(self, a: str, b: str | int) -> str:
        """Of two integers."""
        return self.new(f"mul i64 {a}, {b}")

    def load(self, address: str, kind: str = "i64", align: int = 8) -> str:
        """What stands at an address."""
        at = self.new(f"inttoptr i64 {address} to {pointer(kind)}")
        return self.new(f"load {kind}, {pointer(kind)} {at}, align {align}")

    def store(self, address: str, kind: str, value: str, align: int) -> None:
        """Write to an address."""
        at = self.new(f"inttoptr i64 {address} to {pointer(kind)}")
        self.add(f"store {kind} {value}, {pointer(kind)} {at}, align {align}")

    def field(self, of: str, number: int) -> str:
        """A field of a step or of a piece."""
        return self.load(self.sum(of, 8 * number))

    def begin(self, label: str) -> None:
        """What follows stands in a block of that name."""
        self.lines.append(f"{label}:")
        self.block = label

    def label(self) -> str:
        """A name that no block has."""
        self._labels += 1
        return f"b{self._labels}"

    def smaller(self, a: str, b: str | int) -> str:
        """Of two integers that are not negative."""
        return self.new(f"select i1 {self.new(f'icmp ult i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def shifted(self, i: Index, by: int) -> Index:
        """An index further on."""
        return i + by if isinstance(i, int) else self.sum(i, by) if by else i

    def either(self, test: str, kinds: Sequence[str], then: Callable[[], Sequence[str]],
               otherwise: Callable[[], Sequence[str]]) -> list[str]:  # fmt: skip
        """What the one or the other leaves, values of these types."""
        yes, no, behind = self.label(), self.label(), self.label()
        self.add(f"br i1 {test}, label %{yes}, label %{no}")
        left: list[tuple[str, Sequence[str]]] = []
        for label, lines in ((yes, then), (no, otherwise)):
            self.begin(label)
            values = lines()
            left.append((self.block, values))
            self.add(f"br label %{behind}")
        self.begin(behind)
        (a, xs), (b, ys) = left
        return [self.new(f"phi {kind} [ {x}, %{a} ], [ {y}, %{b} ]") for kind, x, y in zip(kinds, xs, ys, strict=True)]

    def choose(self, number: str, lines: Mapping[int, str]) -> None:
        """The line of a number."""
        behind, labels = self.label(), {i: self.label() for i in lines}
        cases = " ".join(f"i64 {i}, label %{label}" for i, label in labels.items())
        self.add(f"switch i64 {number}, label %{behind} [ {cases} ]")
        for i, line in lines.items():
            self.begin(labels[i])
            self.add(line, f"br label %{behind}")
        self.begin(behind)

    def counted(self, count: Index, step: int, carried: Carried, turn: Turn) -> Sequence[str]:
        """A loop for 0, step, ... below `count`, at least one turn: `turn` takes the index and what the turn before
        left, (type, initial value) at first, and gives what it leaves, if anything. Returns what the last one left."""
        if isinstance(count, int) and count <= step:
            return turn(0, [initial for _, initial in carried]) or ()
        before, head, behind = self.block, self.label(), self.label()
        self.add(f"br label %{head}")
        self.begin(head)
        at = len(self.lines)
        names = [f"%{head}.{i}" for i in range(len(carried))]
        left = turn(f"%{head}.i", names) or ()
        following = self.sum(f"%{head}.i", step)
        phis = [f"%{head}.i = phi i64 [ 0, %{before} ], [ {following}, %{self.block} ]"]
        for name, (kind, initial), value in zip(names, carried, left, strict=True):
            phis.append(f"{name} = phi {kind} [ {initial}, %{before} ], [ {value}, %{self.block} ]")
        self.lines[at:at] = phis
        more = self.new(f"icmp slt i64 {following}, {count}")
        self.add(f"br i1 {more}, label %{head}, label %{behind}")
        self.begin(behind)
        return left

    def repeated(self, count: str, step: int, carried: Carried, turn: Turn) -> Sequence[str]:
        """As `counted`, for a count that may be 0."""
        return self.either(self.new(f"icmp sgt i64 {count}, 0"), [kind for kind, _ in carried],
                           lambda: self.counted(count, step, carried, turn),
                           lambda: [initial for _, initial in carried])  # fmt: skip

    def in_parts(self, count: int, size: int, inside: Callable[[int, Index], None]) -> None:
        """`inside` for each part of so many, and for what is left: how many it has, and its first one's number."""

        def turn(begin: int, has: int, i: Index, _: Sequence[str]) -> None:
            inside(has, self.shifted(i, begin))

        whole = count // size * size
        for begin, end, has in ((0, whole, size), (whole, count, count - whole)):
            if begin < end:
                self.counted(end - begin, has, [], partial(turn, begin, has))

    def over_rows(self, first: str, size: Index, inside: Callable[[], None]) -> None:
        """The rest of a function: for `%n` rows of so many bytes, from an address on, what is done with `%row`."""
        self.add("br label %head")
        self.begin("head")
        self.add("%r = phi i64 [ 0, %entry ], [ %r_next, %behind ]",
                 f"%row = phi i64 [ {first}, %entry ], [ %row_next, %behind ]",
                 "%more = icmp slt i64 %r, %n", "br i1 %more, label %body, label %done")  # fmt: skip
        self.begin("body")
        inside()
        self.add("br label %behind")
        self.begin("behind")
        self.add("%r_next = add i64 %r, 1", f"%row_next = add i64 %row, {size}", "br label %head")
        self.begin("done")
        self.add("ret void")


def function(head: str, body: Body) -> str:
    """A whole function."""
    return "\n".join([f"define {head} {{", *body.lines, "}"])


def named(kind: str, arguments: str, body: Body, declared: Iterable[str]) -> tuple[str, str]:
    """A function's name, made of its text, and its text with what it declares; equal names mean equal texts."""
    text = "\n".join([*sorted(declared), function(f"void @{kind}({arguments})", body)])
    name = f"edbc_{kind}_{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    return name, text.replace(f"@{kind}(", f"@{name}(", 1)
