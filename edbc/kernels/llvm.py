"""LLVM's text, line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edbc.kernels.machinecode import pointer


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

    def counted(self, count: int, step: int, carried: Sequence[tuple[str, str]],
                turn: Callable[[str | int, Sequence[str]], Sequence[str]]) -> Sequence[str]:  # fmt: skip
        """A loop for 0, step, ... below `count`, at least one turn: `turn` takes the index and what the turn before
        left, (type, initial value) at first, and gives what it leaves. Returns what the last one left."""
        if count <= step:
            return turn(0, [initial for _, initial in carried])
        before, head, behind = self.block, self.label(), self.label()
        self.add(f"br label %{head}")
        self.begin(head)
        at = len(self.lines)
        names = [f"%{head}.{i}" for i in range(len(carried))]
        left = turn(f"%{head}.i", names)
        following = self.sum(f"%{head}.i", step)
        phis = [f"%{head}.i = phi i64 [ 0, %{before} ], [ {following}, %{self.block} ]"]
        for name, (kind, initial), value in zip(names, carried, left, strict=True):
            phis.append(f"{name} = phi {kind} [ {initial}, %{before} ], [ {value}, %{self.block} ]")
        self.lines[at:at] = phis
        more = self.new(f"icmp slt i64 {following}, {count}")
        self.add(f"br i1 {more}, label %{head}, label %{behind}")
        self.begin(behind)
        return left


    def smaller(self, a: str, b: str | int) -> str:
        """Of two integers that are not negative."""
        return self.new(f"select i1 {self.new(f'icmp ult i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def repeated(self, count: str, step: int, carried: Sequence[tuple[str, str]],
                 turn: Callable[[str, Sequence[str]], Sequence[str]]) -> Sequence[str]:  # fmt: skip
        """As `counted`, for a count that is known when it runs, and may be 0."""
        before, head, inside, behind = self.block, self.label(), self.label(), self.label()
        self.add(f"br label %{head}")
        self.begin(head)
        at = len(self.lines)
        names = [f"%{head}.{i}" for i in range(len(carried))]
        self.add(f"%{head}.more = icmp slt i64 %{head}.i, {count}",
                 f"br i1 %{head}.more, label %{inside}, label %{behind}")  # fmt: skip
        self.begin(inside)
        left = turn(f"%{head}.i", names)
        following = self.sum(f"%{head}.i", step)
        phis = [f"%{head}.i = phi i64 [ 0, %{before} ], [ {following}, %{self.block} ]"]
        for name, (kind, initial), value in zip(names, carried, left, strict=True):
            phis.append(f"{name} = phi {kind} [ {initial}, %{before} ], [ {value}, %{self.block} ]")
        self.lines[at:at] = phis
        self.add(f"br label %{head}")
        self.begin(behind)
        return names


def function(head: str, body: Body) -> str:
    """A whole function."""
    return "\n".join([f"define {head} {{", *body.lines, "}"])
