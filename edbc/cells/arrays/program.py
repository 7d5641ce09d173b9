"""Loops for all lengths: the lines of tapes at some lengths, as one.

Definitions.

(1) Tapes at different lengths *agree* when they have the same lines, whose whole numbers are the same polynomials of
    the lengths (`cells.arrays.sizes`), and whose other numbers are equal.
(2) Sizes of 1 are left out, and neighbouring sizes are one where all accesses of a line go on from one to the other.
(3) Neighbouring maps of equal sizes are one *nest*: what one writes and a later one reads at the same place stays in a
    register. What nobody else reads is not written.
(4) A right matrix whose rows do not stand side by side is copied first.
(5) Buffers made on the way take the place of equally large ones that nobody reads any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from edbc.base.operations import Formula
from edbc.cells.arrays.sizes import Fit, Lengths, Poly, const, with_products
from edbc.cells.arrays.tape import Access, Fold, Line, Map, NotInLoops, Product, Scan, Tape
from edbc.cells.kernels.elements import IS, Made, Number, Place, Statement

_ONE = const(1)


class Nest(NamedTuple):
    """Statements for all elements of these sizes."""

    sizes: tuple[Poly, ...]
    statements: tuple[Statement, ...]


Step = Nest | Fold | Scan | Product


@dataclass(frozen=True)
class Program:
    """Steps in order, of buffers of these sizes: the first ones are given; of others it says where they begin in the
    memory that a node works in, and how much that is, all in elements."""

    given: int
    symbols: int
    steps: tuple[Step, ...]
    sizes: tuple[Poly, ...]
    begins: tuple[Poly, ...]
    room: tuple[Poly, ...]
    least: tuple[int, ...]
    """The least length of each symbol for which it is right."""


def program_of(given: int, symbols: int, dtype: torch.dtype, taped: Callable[[Lengths], Tape],
               products: Sequence[tuple[int, int, int]] = ()) -> Program:  # fmt: skip
    """What `taped` says at lengths of so many symbols, some of which are products. Raises NotInLoops. O(lines x lengths
    that are tried)."""
    fit = Fit(symbols, products)
    tapes = [taped(lengths) for lengths in fit.lengths]
    if len({(len(tape.lines), len(tape.sizes)) for tape in tapes}) > 1:
        raise NotInLoops("other lines at other lengths")
    lines = [_fitted(fit, [tape.lines[i] for tape in tapes]) for i in range(len(tapes[0].lines))]
    sizes = [_fitted(fit, [tape.sizes[i] for tape in tapes]) for i in range(len(tapes[0].sizes))]
    least = _least(symbols, products, lambda lengths: _agree(lines, sizes, taped, lengths))
    narrow, sizes = _with_copies(map(_narrow, lines), sizes)
    steps = [*_as_nests(narrow, given)]
    found = Program(given, symbols, tuple(map(_merged, steps)), tuple(sizes), *_placed(steps, sizes, given), least)
    for lengths in (*fit.lengths, with_products(least, products)):
        require_inside(found, lengths)
    return found


def _least(symbols: int, products: Sequence[tuple[int, int, int]], agree: Callable[[Lengths], bool]) -> Lengths:
    """For each symbol 1 where what was told also holds at that length, whatever others are that are 1; else 2."""
    right = {
        ones: agree(with_products(tuple([1 if k in ones else 3 for k in range(symbols)]), products))
        for count in range(1, symbols + 1)
        for ones in itertools.combinations(range(symbols), count)
    }
    parts = [[part for n in range(1, len(of) + 1) for part in itertools.combinations(of, n)] for of in right]
    fitting = [of for of, every in zip(right, parts, strict=True) if all(right[part] for part in every)]
    most = max(fitting, key=len, default=())
    return with_products(tuple([1 if k in most else 2 for k in range(symbols)]), products)


def _fitted(fit: Fit, items: Sequence[Any]) -> Any:
    """Definition (1): parts that are whole numbers as polynomials, and numbers that are 2 over one so."""
    first = items[0]
    if isinstance(first, Number) and all(type(x.value) is float and x.value for x in items) and len(set(items)) > 1:
        over = [round(2 / x.value) for x in items]
        if [2 / x if x else None for x in over] == [x.value for x in items]:
            return Number(const(2), _fitted(fit, over))
    if any(type(x) is int or x is None for x in items):
        if all(type(x) is int or x is None for x in items) and (found := fit.of(items)) is not None:
            return found
    elif isinstance(first, tuple) and all(type(x) is type(first) and len(x) == len(first) for x in items):
        if isinstance(first, Formula):
            if all(x == first for x in items):
                return first
        else:
            parts = [_fitted(fit, of) for of in zip(*items, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    elif all(x == first for x in items):
        return first
    elif all(type(x) is float and x.is_integer() for x in items):
        return _fitted(fit, [*map(int, items)])
    raise NotInLoops("another function at other lengths")


def _agree(lines: Sequence[Any], sizes: Sequence[Any], taped: Callable[[Lengths], Tape], lengths: Lengths) -> bool:
    """Whether what was fitted is what a function does at these lengths."""
    try:
        tape = taped(lengths)
    except (NotInLoops, RuntimeError, IndexError, ValueError):
        return False

    def same(fitted: Any, told: Any) -> bool:
        if isinstance(fitted, Number) and isinstance(fitted.over, Poly) and isinstance(fitted.value, Poly):
            over = fitted.over.at(lengths)
            return type(told) is Number and over != 0 and fitted.value.at(lengths) / over == told.value / told.over
        if isinstance(fitted, Poly):
            return told is None or fitted.at(lengths) == told
        if isinstance(fitted, tuple) and not isinstance(fitted, Formula):
            return type(fitted) is type(told) and len(fitted) == len(told) and all(map(same, fitted, told))
        return bool(fitted == told)

    return same(tuple(sizes), tuple(tape.sizes)) and same(tuple(lines), tuple(tape.lines))


def require_inside(program: Program, lengths: Lengths) -> None:
    """Every access stays in its buffer, and no two buffers that a step sees are in the same place: a step that does not
    would write anywhere. Raises NotInLoops."""
    for step in program.steps:
        seen: dict[int, tuple[int, int]] = {}
        for x, sizes in _extents(step):
            ends = [(size.at(lengths) - 1) * stride.at(lengths) for size, stride in zip(sizes, x.strides, strict=True)]
            first = x.offset.at(lengths) + sum(min(end, 0) for end in ends)
            last = x.offset.at(lengths) + sum(max(end, 0) for end in ends)
            buffer = _number(x.buffer)
            if not 0 <= first <= last < program.sizes[buffer].at(lengths):
                raise NotInLoops(f"an access beyond its buffer at lengths {lengths}")
            if buffer >= program.given:
                begin = program.begins[buffer].at(lengths)
                seen[buffer] = begin, begin + program.sizes[buffer].at(lengths)
        borders = sorted(seen.values())
        if any(end > begin for (_, end), (begin, _) in pairwise(borders)):
            raise NotInLoops(f"buffers that overlap at lengths {lengths}")


def _extents(step: Step) -> list[tuple[Access, Sequence[Poly]]]:
    """Accesses, and how far each goes."""
    if isinstance(step, Product):
        b, m, k, n = step.sizes
        return [(step.left, (b, m, k)), (step.right, (b, k, n)), (step.target, (b, m, n))]
    return [(x, step.sizes) for x in accesses_of(step)]


# --- lines as steps -------------------------------------------------------------------------------------------------


def _narrow(line: Line) -> Line:
    """Definition (2): without sizes of 1."""
    if isinstance(line, Product):
        return line
    narrow: Line = _along(line, line.sizes, [d for d, size in enumerate(line.sizes) if size != _ONE], {})
    return narrow


def _along(of: Any, sizes: Sequence[Poly], kept: Sequence[int], strides: Mapping[Access, Sequence[Poly]]) -> Any:
    """A line or a step along some of its sizes, with other strides where such are told."""
    number = {d: i for i, d in enumerate(kept)}

    def part(item: Any) -> Any:
        if isinstance(item, Access):
            own = strides.get(item, item.strides)
            return item._replace(strides=tuple([own[d] for d in kept]))
        if isinstance(item, Place):
            return Place(number[_number(item.along)]) if _number(item.along) in number else Number(const(0))
        if isinstance(item, Statement):
            return item._replace(operands=part(item.operands), target=part(item.target))
        return tuple(map(part, item)) if type(item) is tuple else item

    changed: dict[str, Any] = {"sizes": tuple([sizes[d] for d in kept])}
    if isinstance(of, Map | Nest):
        return of._replace(**changed, **{name: part(getattr(of, name)) for name in of._fields[1:]})
    along: Any = of.along
    if isinstance(of, Fold):
        changed["along"] = tuple([number[d] for d in map(_number, along) if d in number])
    elif _number(along) in number:
        changed["along"] = number[_number(along)]
    if changed.get("along", ()) == ():
        return Map(changed["sizes"], IS, (part(of.source),), part(of.target))
    return of._replace(source=part(of.source), target=part(of.target), **changed)


def _number(x: Any) -> int:
    """Of a polynomial that says which."""
    found = x.number if isinstance(x, Poly) else x
    assert found is not None
    return int(found)


def _with_copies(lines: Iterator[Line], sizes: Sequence[Poly]) -> tuple[list[Line], list[Poly]]:
    """Definition (4)."""
    found: list[Line] = []
    known = [*sizes]
    for line in lines:
        if isinstance(line, Product) and line.right.strides[2] != _ONE and line.sizes[3] != _ONE:
            b, _, k, n = line.sizes
            copy = Access(const(len(known)), (k * n, n, _ONE), const(0))
            known.append(b * k * n)
            found += [_narrow(Map((b, k, n), IS, (line.right,), copy)), line._replace(right=copy)]
        else:
            found.append(line)
    return found, known


def _reads(line: Line) -> list[Access]:
    if isinstance(line, Map):
        return [x for x in line.operands if isinstance(x, Access)]
    return [line.left, line.right] if isinstance(line, Product) else [line.source]


def _as_nests(lines: Sequence[Line], given: int) -> Iterator[Step]:
    """Definition (3)."""
    group: list[Map] = []
    for i, line in enumerate([*lines, None]):
        if not isinstance(line, Map) or not _may_join(group, line):
            if group:
                yield _nest(group, lines[i:], given)
            group = []
        if isinstance(line, Map):
            group.append(line)
        elif line is not None:
            yield line


def _may_join(group: Sequence[Map], line: Map) -> bool:
    if not group or group[0].sizes != line.sizes:
        return False
    written = {x.target.buffer: x.target for x in group}
    if any(x.target.buffer == y.buffer and x.target != y for x in group for y in _reads(line)):
        return False
    is_apart = any(x.buffer == line.target.buffer and x != line.target for of in group for x in _reads(of))
    return not is_apart and written.get(line.target.buffer, line.target) == line.target


def _nest(group: Sequence[Map], later: Sequence[Line], given: int) -> Nest:
    made: dict[Access, int] = {}
    statements: list[Statement] = []
    for line in group:
        operands = tuple([Made(made[x]) if isinstance(x, Access) and x in made else x for x in line.operands])
        made[line.target] = len(statements)
        statements.append(Statement(line.formula, operands, line.target))
    read = {x.buffer for line in later for x in _reads(line)}
    for i, of in enumerate(statements):
        assert of.target is not None
        is_read = of.target.buffer in read or _number(of.target.buffer) < given
        if not is_read or made[of.target] != i:
            statements[i] = of._replace(target=None)
    return Nest(group[0].sizes, tuple(statements))


def _merged(step: Step) -> Step:
    """Definition (2): neighbouring sizes as one."""
    if isinstance(step, Product | Scan):
        return step
    statements = step.statements if isinstance(step, Nest) else ()
    places = {x.along for of in statements for x in of.operands if isinstance(x, Place)}
    along = set() if isinstance(step, Nest) else set(step.along)
    accesses = accesses_of(step)
    kept = [*range(len(step.sizes))]
    sizes, strides = [*step.sizes], {x: [*x.strides] for x in accesses}
    for d in range(len(sizes) - 2, -1, -1):
        e = kept[kept.index(d) + 1]
        if {d, e} & places or (d in along) != (e in along):
            continue
        if all(of[d] == of[e] * sizes[e] for of in strides.values()) and _degree(sizes[d] * sizes[e]) <= 2:
            sizes[d] = sizes[d] * sizes[e]
            for of in strides.values():
                of[d] = of[e]
            kept.remove(e)
    merged: Step = _along(step, sizes, kept, strides)
    return merged


def accesses_of(step: Step) -> list[Access]:
    """All of a step, once each."""
    if isinstance(step, Nest):
        found = [x for of in step.statements for x in (*of.operands, of.target) if isinstance(x, Access)]
    else:
        found = [*_reads(step), step.target]
    return [*dict.fromkeys(found)]


def _degree(of: Poly) -> int:
    return max((len(lengths) for lengths, _ in of.terms), default=0)


def _placed(steps: Sequence[Step], sizes: Sequence[Poly], given: int) -> tuple[tuple[Poly, ...], tuple[Poly, ...]]:
    """Definition (5): where buffers begin, and the rooms that are behind one another."""
    last = {_number(x.buffer): i for i, step in enumerate(steps) for x in accesses_of(step)}
    free: list[tuple[Poly, Poly]] = []
    begins: dict[int, Poly] = {}
    rooms: list[Poly] = []
    end = const(0)
    for i, step in enumerate(steps):
        for buffer in sorted({_number(x.buffer) for x in accesses_of(step)}):
            if buffer < given or buffer in begins:
                continue
            at = next((k for k, (size, _) in enumerate(free) if size == sizes[buffer]), None)
            if at is not None:
                begins[buffer] = free.pop(at)[1]
                continue
            begins[buffer] = end
            rooms.append(sizes[buffer])
            end = end + sizes[buffer]
        for buffer in [b for b in begins if last.get(b) == i]:
            free.append((sizes[buffer], begins[buffer]))
    return tuple([begins.get(b, const(0)) for b in range(len(sizes))]), tuple(rooms)
