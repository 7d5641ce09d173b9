"""Steps: values in the order in which a batch computes them, with places for those that stand in memory.

Definitions.

(1) A *slot* names memory that a batch works in; a place is a slot's base, which moves from row to row, plus an offset
    in elements. Slot 0 is the workspace, slot 1 the scratch row, then one slot per operand and one per output (slot 2,
    whose base is 0, is no place). The *workspace* has a row per node of a block, with what lives from one step to a
    later one. The *scratch row* is one for all rows: what a pass computes and uses stays in cache.
(2) A *step* runs for a whole batch: a `Multiply`, which reads its pieces where they are, or a *pass*, a function that
    goes from row to row and runs all its loops on each. A value's *level* is the number of products that follow each
    other before it; pass k stands behind the products of level k and before those of level k + 1: the fewest passes.
(3) A value is *stored* when it is an output, a product or what one reads, a reduction or a product of matrices, when
    something reads it that needs memory (a spread, a part, a matrix), or when it is costly and several loops need it.
    Any other value is computed where it is read, once per loop.
(4) A *loop* computes stored values of one *domain*, a chain of sizes whose product is their number of elements, such
    that a spread has one stride along each. Loops of a pass stand in an order in which each finds what it reads; their
    place in it is their *depth*.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from edbc.base.operations import FORMULAS, parse
from edbc.cells.values.value import REDUCTIONS, V, in_order, pieces_of

WORKSPACE, SCRATCH, SHARED, FIRST_OPERAND = 0, 1, 2, 3
Place = tuple[int, int]
"""Slot and offset in elements."""


@dataclass(frozen=True)
class Piece:
    """`size` elements of a slot's rows from `offset` on."""

    slot: int
    offset: int
    size: int


@dataclass(frozen=True)
class Multiply:
    """`target = pieces @ weight (+ bias) (+ addend)`, where the pieces make one row, one after the other."""

    pieces: tuple[Piece, ...]
    target: Place
    weight: int
    addend: Place | None = None


class Store(NamedTuple):
    """A value goes to a place, or is added to what is there."""

    place: Place
    v: V
    adds: bool = False


@dataclass(frozen=True)
class Loop:
    """Values of one domain and where they go; of a reduction or a product of matrices one alone. What it reads from
    memory, and where that stands, is in `places`; a parameter has none, also where products read a copy."""

    domain: tuple[int, ...]
    stores: tuple[Store, ...]
    places: dict[V, Place | None] = field(repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Pass:
    """Loops over one row, one after the other."""

    loops: tuple[Loop, ...]


Step = Multiply | Pass
STEP_FIELDS, PIECE_FIELDS = 11, 3


class StepField(IntEnum):
    """Fields of a step in the tables that native code reads, in bytes where they are offsets. All but `KERNEL`, `BEGIN`
    and `END` are a product's.

    A *kernel* is a function of seven integers: the address of a table with the address of every slot of every row; how
    many slots a row has; rows; the addresses of the step, of its first piece and of memory to work in; the last says
    nothing."""

    KERNEL = 0
    """Its address."""
    TARGET = 1
    """A slot; its offset is the next field."""
    ROWS = 3
    COLUMNS = 4
    WEIGHT = 5
    BIAS = 6
    """Addresses; 0 for no bias."""
    ADDEND = 7
    """A slot, -1 for none; its offset is the next field."""
    BEGIN = 9
    END = 10
    """Rows of the table of pieces: a product's (slot, offset, elements), or addresses of a pass' parameters."""


@dataclass(frozen=True, eq=False)
class Steps:
    """See the module's docstring; `width` and `scratch` are the lengths of definition (1), in elements."""

    width: int
    scratch: int
    steps: tuple[Step, ...]
    num_operands: int
    num_outputs: int

    @property
    def has_pairs(self) -> bool:
        """True when products can take the elements of every piece two at a time."""
        products = [step for step in self.steps if isinstance(step, Multiply)]
        return all(piece.size % 2 == 0 for step in products for piece in step.pieces)

    def passes(self) -> list[Pass]:
        """Those of the steps that are passes."""
        return [step for step in self.steps if isinstance(step, Pass)]

    def loops(self) -> list[Loop]:
        """Of all passes."""
        return [loop for step in self.passes() for loop in step.loops]


def steps_of(outputs: Sequence[V], num_operands: int, adds: Iterable[int] = (), late: Iterable[int] = ()) -> Steps:
    """The steps that compute outputs: those numbered in `adds` are added to what is there (which may be one place for
    several of them, and for several rows), `late` ones are written behind everything else, over what was read. O(values
    * loops) at most, for what is shared."""
    return _Lowering(outputs, num_operands, frozenset(adds), frozenset(late)).steps()


_BARRIERS = (*REDUCTIONS, "matmul", "turned")
"""What is complete before anything reads it."""
_IN_PLACE = ("load", "parameter", "number", "part", "product", *_BARRIERS)
"""What no loop computes on its way to something else."""
_Group = tuple[int, int, tuple[int, ...], V | None]
"""Level, depth and domain of a loop, and the value that has it alone."""


class _Lowering:
    def __init__(self, outputs: Sequence[V], num_operands: int, adds: frozenset[int], late: frozenset[int]):
        self.outputs, self.num_operands, self.adds, self.late = outputs, num_operands, adds, late
        self.order = in_order(outputs)
        self.level: dict[V, int] = {}
        for v in self.order:
            self.level[v] = (v.op == "product") + max((self.level[source] for source in v.sources), default=0)
        self.costly: set[V] = set()
        for v in self.order:
            if v.is_elementwise and (_calls(v.op) or not self.costly.isdisjoint(v.sources)):
                self.costly.add(v)
        self.stored: set[V] = set()
        self.whole: set[V] = set()
        """Stored values that loops read as memory, behind the one that computes them."""
        for v in self.order:
            self._demand(v)
        for number, output in enumerate(outputs):
            if number not in adds:
                self.stored |= {v for v in pieces_of(output) if v.op not in _IN_PLACE}
        self.ends = {v for number in adds for v in pieces_of(outputs[number])}
        """Values that loops compute though they need not stand anywhere."""
        self._find_depths()
        while self._share():
            self._find_depths()
        self.places: dict[V, Place] = {}
        self.targets: dict[V, list[Store]] = {}
        self.width = self.scratch = 0

    # --- definition (3) --------------------------------------------------------------------------------------------

    def _demand(self, v: V) -> None:
        """Store what `v` needs in memory, and `v` where that cannot be computed on the way to something else."""
        if v.op == "product":
            for piece in pieces_of(v.sources[0]):
                self._store(piece, is_whole=False)
            for addend in v.sources[1:]:
                self._store(addend)
        elif v.op == "matmul":
            pieces = pieces_of(v.sources[1])
            is_cut_by_rows = all(piece.size % v.arg[2] == 0 for piece in pieces)
            for operand in (v.sources[0], *(pieces if is_cut_by_rows else v.sources[1:])):
                self._store(operand, takes_parameters=True)
        elif v.op in ("spread", "part", "turned") or (v.op in REDUCTIONS and v.sources[0].op == "cat"):
            self._store(v.sources[0], takes_parameters=True)
        if v.op == "product" or v.op in _BARRIERS:
            self.stored.add(v)

    def _store(self, v: V, is_whole: bool = True, takes_parameters: bool = False) -> None:
        if v.op in ("load", "part") or (takes_parameters and v.op == "parameter"):
            return
        self.stored.add(v)
        if is_whole:
            self.whole.add(v)

    def _share(self) -> bool:
        """Store costly values that several loops compute, and spreads whose sizes are no chain with others'; True when
        there were any."""
        before = len(self.stored), len(self.whole)
        users: dict[V, set[_Group]] = {}
        computed = self._computed()
        for v in self.order:
            if v not in computed or v.op in ("product", "matmul", "turned", "cat"):
                continue
            inside = self._inside(v)
            group = self._group(v, inside)
            for u in (v, *inside):
                users.setdefault(u, set()).add(group)
            if not _is_chain(_sizes(v, inside)):
                apart = {u for u in inside if u.op == "spread"}
                self.stored |= apart
                self.whole |= apart
        shared = {u for u, groups in users.items() if len(groups) > 1 and u in self.costly}
        shared -= set(in_order([source for v in shared for source in v.sources]))
        for v in shared:
            self.stored.add(v)
            own = self._group(v)
            if any(group != own and group[0] == own[0] for group in users[v]):
                self.whole.add(v)
        return (len(self.stored), len(self.whole)) != before

    def _computed(self) -> set[V]:
        """What loops compute: also the pieces of concatenations that are stored, which stand nowhere else."""
        return self.stored | self.ends | {piece for v in self.stored if v.op == "cat" for piece in v.sources}

    # --- definition (4) --------------------------------------------------------------------------------------------

    def _find_depths(self) -> None:
        """Of every value, within the pass of its level: one more than that of what it reads as memory there."""
        self.depth: dict[V, int] = {}
        for v in self.order:
            before = [u for u in v.sources if self.level[u] == self.level[v] and u.op != "product"]
            waits = [u in self.whole or u.op in _BARRIERS for u in before]
            self.depth[v] = max((self.depth[u] + w for u, w in zip(before, waits, strict=True)), default=0)

    def _met(self, v: V) -> dict[V, bool]:
        """What the loop that computes `v`, or copies it, meets, and whether it reads that from memory; what a spread
        in it reads is not told."""
        found: dict[V, bool] = {}
        waiting = [*v.sources] if v.op in REDUCTIONS else []
        if v.op not in REDUCTIONS:
            found[v] = v.op in _IN_PLACE
            waiting += v.sources if v.is_elementwise else ()
        while waiting:
            u = waiting.pop()
            if u not in found:
                found[u] = self._is_memory(u, v)
                waiting += u.sources if u.is_elementwise and not found[u] else ()
        return found

    def _is_memory(self, u: V, v: V) -> bool:
        """True when the loop of `v` reads `u` from where it stands."""
        return u.op in _IN_PLACE or (u in self.stored and (self.level[u] < self.level[v] or u in self.whole))

    def _inside(self, v: V) -> list[V]:
        """What the loop of a value computes on its way, spreads among it."""
        return [u for u, is_memory in self._met(v).items() if not is_memory and u is not v]

    def _group(self, v: V, inside: Sequence[V] | None = None) -> _Group:
        if v.op == "turned":
            return self.level[v], self.depth[v], v.arg[::-1], v
        inside = self._inside(v) if inside is None else inside
        spreads = [u for u in (v, *inside) if u.op == "spread"]
        total = v.sources[0].size if v.op in REDUCTIONS else v.size
        alone = v if v.op in _BARRIERS else None
        return self.level[v], self.depth[v], _domain(_sizes(v, spreads), total), alone

    # --- places ----------------------------------------------------------------------------------------------------

    def steps(self) -> Steps:
        """Places first, then steps."""
        self._place_outputs()
        self._place_rest()
        steps: list[Step] = []
        for level in range(max(self.level.values(), default=0) + 1):
            steps += [self._multiply(v) for v in self.order if v.op == "product" and self.level[v] == level]
            loops = tuple(self._loops(level))
            if loops:
                steps.append(Pass(loops))
        loops = tuple(self._copies())
        return Steps(self.width, self.scratch, (*steps, *([Pass(loops)] if loops else [])), self.num_operands,
                     len(self.outputs))  # fmt: skip

    def _pieces(self, number: int) -> Iterator[tuple[Place, V]]:
        """Those of an output, and where they go."""
        at = 0
        for piece in pieces_of(self.outputs[number]):
            yield (FIRST_OPERAND + self.num_operands + number, at), piece
            at += piece.size

    def _place_outputs(self) -> None:
        """Each piece of an output goes there; the first such place is the home of a value that is stored, where nothing
        else is added to it."""
        for number in set(range(len(self.outputs))) - self.late:
            for place, piece in self._pieces(number):
                if number not in self.adds:
                    self._put(piece, place)
                elif piece.op != "number" or piece.arg != 0:
                    self.targets.setdefault(piece, []).append(Store(place, piece, adds=True))

    def _put(self, v: V, place: Place) -> None:
        """A value is to stand at a place, which is its home when it has none. Products write to their homes only, and
        a copy to one more place is a loop's."""
        is_home = v in self.stored and v not in self.places
        if is_home:
            self.places[v] = place
        if not (is_home and v.op == "product"):
            self.targets.setdefault(v, []).append(Store(place, v))

    def _place_rest(self) -> None:
        """Concatenations that are needed whole, in whose rows their pieces stand, then everything else. What only loops
        of its own pass read has a place in the scratch row."""
        for v in self.order:
            if v in self.stored and v.op == "cat":
                slot, at = self.places[v] = self._new(v, is_far=True)
                for piece in v.sources:
                    self._put(piece, (slot, at))
                    at += piece.size
        far = self._read_later()
        for v in self.order:
            if v in self.stored and v not in self.places:
                self._put(v, self._new(v, v in far))

    def _read_later(self) -> set[V]:
        """Stored values that a product or a later pass reads, and products."""
        found = {v for v in self.stored if v.op == "product"}
        for v in found.copy():
            found |= {u for source in v.sources for u in pieces_of(source)}
        found |= {v for number in self.late for v in pieces_of(self.outputs[number])}
        computed = self._computed()
        for v in self.order:
            if v in computed or v.op in _IN_PLACE:
                found |= {u for u in self._read_by(v) if self.level[u] < self.level[v]}
        return found | {v.sources[0] for v in found if v.op == "part"}

    def _read_by(self, v: V) -> Iterator[V]:
        """What the loop of a value reads from memory, `v` itself apart."""
        if v.op == "turned":
            yield from v.sources
            return
        if v.op == "matmul":
            yield v.sources[0]
            yield from pieces_of(v.sources[1]) if v.sources[1] not in self.stored else v.sources[1:]
            return
        for u, is_memory in self._met(v).items() if v.op not in ("product", "cat") else ():
            if u.op == "spread" and not is_memory:
                yield from u.sources
            elif is_memory and u is not v:
                yield u

    def _new(self, v: V, is_far: bool) -> Place:
        if is_far:
            self.width += v.size
            return WORKSPACE, self.width - v.size
        self.scratch += v.size
        return SCRATCH, self.scratch - v.size

    def _place(self, v: V) -> Place | None:
        """Where a value stands; None for parameters."""
        if v in self.places:
            return self.places[v]
        if v.op == "load":
            return FIRST_OPERAND + v.arg[0], v.arg[1]
        if v.op == "part":
            slot, offset = self._standing(v.sources[0])
            return slot, offset + v.arg
        return None

    def _standing(self, v: V) -> Place:
        place = self._place(v)
        assert place is not None, "products read rows, and no parameter has parts"
        return place

    # --- steps -----------------------------------------------------------------------------------------------------

    def _multiply(self, v: V) -> Multiply:
        pieces: list[Piece] = []
        for piece in pieces_of(v.sources[0]):
            slot, offset = self._standing(piece)
            last = pieces[-1] if pieces else None
            if last is not None and (last.slot, last.offset + last.size) == (slot, offset):
                pieces[-1] = Piece(slot, last.offset, last.size + piece.size)
            else:
                pieces.append(Piece(slot, offset, piece.size))
        addend = self._place(v.sources[1]) if len(v.sources) > 1 else None
        return Multiply(tuple(pieces), self.places[v], v.arg[0], addend)

    def _loops(self, level: int) -> Iterator[Loop]:
        """Those of a pass, by depth; copies to further places of what has a loop alone stand behind it."""
        groups: dict[_Group, list[Store]] = {}
        for v, targets in self.targets.items():
            if self.level[v] == level:
                group = self._group(v)
                alone = [Store(self.places[v], v)] if group[3] is not None else []
                copies = [target for target in targets if target not in alone]
                if alone:
                    groups[group] = alone
                    group = level, group[1] + 1, (v.size,), None
                if copies:
                    groups.setdefault(group, []).extend(copies)
        for group, stores in sorted(groups.items(), key=lambda item: item[0][1]):
            read = dict.fromkeys(u for store in stores for u in self._read_in(store.v, group[3]))
            yield self._loop(group[2], stores, read)

    def _copies(self) -> Iterator[Loop]:
        """What is written late."""
        for number in self.late:
            for place, v in self._pieces(number):
                yield self._loop((v.size,), [Store(place, v)], [v])

    def _loop(self, domain: tuple[int, ...], stores: Sequence[Store], read: Iterable[V]) -> Loop:
        places = {u: None if u.op == "parameter" else self._place(u) for u in read if u.op != "number"}
        return Loop(domain, tuple(stores), places)

    def _read_in(self, v: V, alone: V | None) -> Iterator[V]:
        """What a loop reads from memory to compute a value or, where it is another's alone, to copy it."""
        if v.op in _IN_PLACE and v is not alone:
            yield v
        else:
            yield from self._read_by(v)


def _sizes(v: V, spreads: Iterable[V]) -> list[tuple[int, int, int]]:
    """Those that the domain of a value's loop is made of."""
    return [u.arg for u in spreads if u.op == "spread"] + ([v.arg] if v.op in REDUCTIONS else [])


@cache
def _calls(op: str) -> bool:
    return any(isinstance(node, ast.Call | ast.Div | ast.Pow) for node in ast.walk(parse(FORMULAS[op].text)))


def _cuts(sizes: Iterable[tuple[int, int, int]]) -> list[int]:
    """How many elements lie behind each border between dimensions."""
    return sorted({inner for _, _, inner in sizes} | {n * inner for _, n, inner in sizes})


def _is_chain(sizes: Iterable[tuple[int, int, int]]) -> bool:
    return all(wide % narrow == 0 for narrow, wide in itertools.pairwise([1, *_cuts(sizes)]))


def _domain(sizes: Iterable[tuple[int, int, int]], total: int) -> tuple[int, ...]:
    """The chain of sizes, outermost first, without ones."""
    cuts = [1, *_cuts(sizes), total]
    found = [wide // narrow for narrow, wide in itertools.pairwise(cuts) if wide != narrow]
    return tuple(reversed(found)) or (1,)
