"""A Program as rows of integers, for native code that knows no cell.

Definitions, beside slots, the workspace, the scratch row and phases (`edbc.runtime.phases`).

(1) An *atom* is a smallest span of columns that no load, step or store of the program cuts. Copies make no instruction
    where their result need not stand in the workspace: the result's atoms are the source's.

Programs assign every column once, so where an atom stands is decided once. What products write stays as adjacent in the
workspace as the plan's layout made it; operands are read where they are, by maps and products alike, and a result that
is an output is written where it belongs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from edbc.cells.program import Call, Copy, Map, Product, Program, Span
from edbc.runtime.phases import (
    FIRST_OPERAND,
    SCRATCH,
    WORKSPACE,
    Constant,
    Encoded,
    Instruction,
    Multiply,
    Phase,
    Piece,
    Place,
)  # fmt: skip
from edbc.runtime.rowcall import RESULT, RowCall, ShapeOf, row_call
from edbc.runtime.rowproduct import RowProduct, row_product


def encode(program: Program, shape_of: ShapeOf) -> Encoded | None:
    """See the module's docstring; None when a step is not in the native operation table. `shape_of` tells parameters'
    shapes."""
    if program.dtype not in ("f32", "f64"):
        return None
    steps = [
        row_product(step) or row_call(step, shape_of) if isinstance(step, Call) else step for step in program.steps
    ]
    known = [step for step in steps if step is not None]
    return _Encoding(program, known).encoded() if len(known) == len(steps) else None


_Step = Product | Map | Copy | RowProduct | RowCall


@dataclass
class _Atom:
    span: Span
    defined_in: int = -1
    last_read_in: int = -1
    place: Place | None = None
    outputs: list[Place] = field(default_factory=list)


class _Encoding:
    """Steps are in groups: a product alone, or maps and copies that make one pass. Spans that are to stand `together`
    have columns of the workspace, as results of products have."""

    def __init__(self, program: Program, steps: Sequence[_Step], together: Sequence[Span] = ()):
        self.program = program
        self.steps = steps
        self.together = together
        self.atoms = {offset: _Atom(Span(offset, stop - offset)) for offset, stop in _cut(program, steps)}
        self.groups = self._grouped()
        self.products = [step for step in steps if isinstance(step, Product)]
        self.direct = {id(step) for step in self.products if self._is_output(step)}
        self.onto = {id(step) for step in self.products if self._adds_onto_operand(step)}
        self.column_of, self.width = self._workspace_columns()
        self.alias: dict[int, int] = {}
        self.scratch = 0

    def encoded(self) -> Encoded | None:
        """Decide where every atom stands, then write the phases."""
        first_output = FIRST_OPERAND + len(self.program.loads)
        for store in self.program.stores:
            for atom in self._atoms(store.span):
                atom.outputs.append((first_output + store.output, atom.span.offset - store.span.offset))
        self._find_aliases()
        self._find_lifetimes()
        self._place_atoms()
        cut = [span for span in self._matrices() if not self._is_whole(span)]
        if cut:
            return None if self.together else _Encoding(self.program, self.steps, cut).encoded()
        phases: list[Phase] = [tuple(self._gathered())]
        for group in self.groups:
            if isinstance(group[0], Product):
                phases.append(self._multiply(group[0]))
            else:
                phases.append(tuple(i for step in group for i in self._instructions(step)))
        late = tuple(self._late_copies())
        if phases and isinstance(phases[-1], tuple):
            late = (*phases.pop(), *late)  # type: ignore[misc]
        kept = tuple(phase for phase in (*phases, late) if phase != ())
        return Encoded(self.width, self.scratch, kept, len(self.program.loads), len(self.program.stores))

    def _grouped(self) -> list[list[_Step]]:
        """Every product as soon as its source is there, then all maps that are ready, and so on: the fewest passes."""
        done = {atom.span.offset for load in self.program.loads for atom in self._atoms(load.span)}
        groups: list[list[_Step]] = []
        waiting = list(self.steps)

        def take(products: bool) -> list[_Step]:
            taken: list[_Step] = []
            for step in list(waiting):
                needed = {atom.span.offset for span in _sources(step) for atom in self._atoms(span)}
                if isinstance(step, Product) is products and needed <= done:
                    taken.append(step)
                    waiting.remove(step)
                    done.update(atom.span.offset for atom in self._atoms(step.result))
            return taken

        while waiting:
            groups += [[product] for product in take(True)]
            if maps := take(False):
                groups.append(maps)
        return groups

    # --- where atoms stand -----------------------------------------------------------------------------------------

    def _atoms(self, span: Span) -> Iterator[_Atom]:
        offset = span.offset
        while offset < span.stop:
            atom = self.atoms[offset]
            yield atom
            offset = atom.span.stop

    def _root(self, atom: _Atom) -> _Atom:
        """The atom that holds this atom's value."""
        while atom.span.offset in self.alias:
            atom = self.atoms[self.alias[atom.span.offset]]
        return atom

    def _is_output(self, product: Product) -> bool:
        """True when the result is one whole output, so that it is computed in its place."""
        return any(store.span == product.result for store in self.program.stores)

    def _adds_onto_operand(self, product: Product) -> bool:
        """True when the result may take the place of its addend in an operand's rows: see Load.is_last."""
        addend = product.addend
        if addend is None or id(product) in self.direct or self.program.weights[product.weight].biases:
            return False
        if any(_overlap(span, addend) for span in self.together):
            return False
        others = [span for step in self.steps if step is not product for span in _sources(step)]
        others += [store.span for store in self.program.stores]
        read = any(_overlap(span, addend) for span in others)
        loaded = any(load.is_last and load.span.offset <= addend.offset and addend.stop <= load.span.stop
                     for load in self.program.loads)  # fmt: skip
        return loaded and not read

    def _workspace_columns(self) -> tuple[dict[int, int], int]:
        """Columns for the results of products and what stands together, touching spans side by side; by the offset of
        the atom."""
        spans = [step.result for step in self.products if id(step) not in self.direct | self.onto]
        spans += self.together
        column_of: dict[int, int] = {}
        width = end = 0
        for span in sorted(spans, key=lambda s: s.offset):
            start = max(span.offset, end)
            for atom in self._atoms(Span(start, max(span.stop - start, 0))):
                column_of[atom.span.offset] = width
                width += atom.span.size
            end = max(end, span.stop)
        return column_of, width

    def _find_aliases(self) -> None:
        whole = {
            atom.span.offset
            for span in self._matrices() for atom in self._atoms(span)
        }  # fmt: skip
        for step in self.steps:
            if not isinstance(step, Copy):
                continue
            for source, result in zip(self._atoms(step.source), self._atoms(step.result), strict=True):
                if result.span.offset not in self.column_of and result.span.offset not in whole:
                    self.alias[result.span.offset] = source.span.offset
                    self._root(source).outputs += result.outputs

    def _find_lifetimes(self) -> None:
        for number, group in enumerate(self.groups):
            for step in group:
                for atom in (a for span in _sources(step) for a in self._atoms(span)):
                    self._root(atom).last_read_in = number
                for atom in self._atoms(step.result):
                    atom.defined_in = number

    def _place_atoms(self) -> None:
        """Operands where they are, results of products and what stands together in the workspace, outputs where they
        go, the rest in the scratch row or, when a later phase reads it, in the workspace."""
        gathered = {atom.span.offset for span in self.together for atom in self._atoms(span)}
        operands = {
            atom.span.offset: (FIRST_OPERAND + load.operand, atom.span.offset - load.span.offset)
            for load in self.program.loads for atom in self._atoms(load.span)
        }  # fmt: skip
        for step in self.products:
            if id(step) in self.onto and step.addend is not None:
                slot, first = operands[step.addend.offset]
                for atom in self._atoms(step.result):
                    operands[atom.span.offset] = (slot, first + atom.span.offset - step.result.offset)
        for offset, atom in self.atoms.items():
            if offset in operands and offset not in gathered:
                atom.place = operands[offset]
            elif offset in self.column_of:
                atom.place = (WORKSPACE, self.column_of[offset])
            elif atom.outputs:
                atom.place = atom.outputs[0]
            elif atom.last_read_in > atom.defined_in:
                atom.place = (WORKSPACE, self.width)
                self.width += atom.span.size
            elif offset not in self.alias:
                atom.place = (SCRATCH, self.scratch)
                self.scratch += atom.span.size

    def _matrices(self) -> Iterator[Span]:
        """Spans that have to stand in one piece: what a RowProduct or a RowCall reads or writes, products' results and
        addends."""
        for step in self.steps:
            if isinstance(step, RowCall):
                yield from (*_sources(step), step.result)
            elif isinstance(step, RowProduct):
                yield from (span for span in (step.a, step.result) if isinstance(span, Span))
                if isinstance(step.b, Span) and not self._is_cut_by_rows(step):
                    yield step.b
            elif isinstance(step, Product):
                yield from (step.result, *([] if step.addend is None else [step.addend]))

    def _is_cut_by_rows(self, step: RowProduct) -> bool:
        """True when borders inside the right matrix are borders of its rows: then its parts may stand anywhere, for the
        product is the sum of the products of the left one's columns with them. (A concatenation costs no copy so.)"""
        span = step.b
        if not isinstance(span, Span) or not step.n:
            return False
        return all((atom.span.offset - span.offset) % step.n == 0 for atom in self._atoms(span))

    def _is_whole(self, span: Span) -> bool:
        """True when the span's atoms stand one after the other."""
        places = [(self._place(atom), atom.span.size) for atom in self._atoms(span)]
        return all((a[0], a[1] + size) == b for ((a, size), (b, _)) in itertools.pairwise(places))

    def _place(self, atom: _Atom) -> Place:
        place = self._root(atom).place
        assert place is not None
        return place

    # --- phases ----------------------------------------------------------------------------------------------------

    def _gathered(self) -> Iterator[Instruction]:
        """Copies of what of operands is to stand together with other spans."""
        moved = []
        for load in self.program.loads:
            for atom in self._atoms(load.span):
                if atom.span.offset in self.column_of:
                    place = FIRST_OPERAND + load.operand, atom.span.offset - load.span.offset
                    moved.append((place, self._place(atom), atom.span.size))
        yield from _copies(moved)

    def _multiply(self, step: Product) -> Multiply:
        target = next((self._place(atom) for atom in self._atoms(step.result)), (WORKSPACE, 0))
        addend = None if step.addend is None else next((self._place(a) for a in self._atoms(step.addend)), None)
        pieces = [Piece(*place, size) for place, _, size in self._runs(step.source)]
        return Multiply(tuple(pieces), target, step.weight, addend)

    def _runs(self, span: Span) -> list[tuple[Place, int, int]]:
        """Stretches of a span that stand in one piece: places, first elements and sizes."""
        runs: list[tuple[Place, int, int]] = []
        for atom in self._atoms(span):
            place, at = self._place(atom), atom.span.offset - span.offset
            if runs and (runs[-1][0][0], runs[-1][0][1] + runs[-1][2]) == place:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + atom.span.size)
            else:
                runs.append((place, at, atom.span.size))
        return runs

    def _instructions(self, step: _Step) -> Iterator[Instruction]:
        if isinstance(step, Copy):
            moved = [
                (atom, source) for source, atom in zip(self._atoms(step.source), self._atoms(step.result), strict=True)
                if atom.span.offset not in self.alias
            ]  # fmt: skip
            yield from _copies([(self._place(source), self._place(atom), atom.span.size) for atom, source in moved])
        elif isinstance(step, RowProduct):
            if step.m * step.n:
                yield from self._matrix_instructions(step)
        elif isinstance(step, RowCall):
            yield from self._parts(step)
        elif isinstance(step, Map) and step.result.size:
            for piece in _merged(self._pieces(step)):
                yield from _expanded(step.op, piece)

    def _parts(self, step: RowCall) -> Iterator[Instruction]:
        slot, first = self._at(step.result, 0)
        for part in step.parts:
            sources: list[Place | Constant] = []
            for source in part.sources:
                if not isinstance(source, tuple):
                    sources.append(Constant(source, 0, 1 if part.op == "normalise" else part.size))
                    continue
                number, offset = source
                found = step.result if number == RESULT else step.sources[number]
                size = part.shape[0] * part.shape[2] if part.op == "spread" else part.size
                sources.append(self._at(found, offset) if isinstance(found, Span) else Constant(found, offset, size))
            yield Instruction(part.op, part.size, (slot, first + part.target), tuple(sources), part.shape)

    def _matrix_instructions(self, step: RowProduct) -> Iterator[Instruction]:
        """One product for each stretch of the right matrix that stands in one piece."""
        target, op = self._at(step.result, 0), "matmul"
        for b, at, size in self._stretches(step):
            column, inner = at // step.n, size // step.n
            if isinstance(step.a, Span):
                slot, first = self._at(step.a, 0) if step.a.size else (SCRATCH, 0)
                a: Place | Constant = (slot, first + column)
            else:
                a = Constant(step.a, column, step.m * step.k - column)
            yield Instruction(op, step.n, target, (a, b), (step.m, inner, step.k))
            op = "matmul_add"

    def _stretches(self, step: RowProduct) -> Iterator[tuple[Place | Constant, int, int]]:
        """Where stretches of the right matrix stand, their first elements and sizes."""
        span, size = step.b, step.k * step.n
        if not isinstance(span, Span):
            yield Constant(span, 0, size), 0, size
            return
        yield from self._runs(span) or [((SCRATCH, 0), 0, 0)]

    def _pieces(self, step: Map) -> Iterator[Instruction]:
        """The map cut at every border of an atom in the result or in a source."""
        spans = [step.result, *(s for s in step.sources if isinstance(s, Span))]
        borders = sorted({atom.span.offset - span.offset for span in spans for atom in self._atoms(span)})
        for start, stop in zip(borders, [*borders[1:], step.result.size], strict=True):
            sources = tuple(
                self._at(s, start) if isinstance(s, Span) else Constant(s, start, stop - start) for s in step.sources
            )
            yield Instruction(step.op, stop - start, self._at(step.result, start), sources)

    def _at(self, span: Span, offset: int) -> Place:
        """The place of an element of a span."""
        for atom in self._atoms(span):
            inside = span.offset + offset - atom.span.offset
            if inside < atom.span.size:
                slot, first = self._place(atom)
                return slot, first + inside
        raise AssertionError("an offset inside the span")

    def _late_copies(self) -> Iterator[Instruction]:
        """Outputs whose value stands elsewhere: passed-through operands, spans of products, one value for two
        outputs."""
        moved = []
        for atom in self.atoms.values():
            if atom.span.offset not in self.alias:
                moved += [(self._place(atom), place, atom.span.size) for place in atom.outputs if place != atom.place]
        yield from _copies(moved)


def _cut(program: Program, steps: Sequence[_Step]) -> list[tuple[int, int]]:
    """Definition (1): borders of all spans, carried through copies until nothing changes."""
    spans = [load.span for load in program.loads] + [store.span for store in program.stores]
    spans += [span for step in steps for span in (*_sources(step), step.result)]
    borders = {0, program.width, *(span.offset for span in spans), *(span.stop for span in spans)}
    copies = [step for step in steps if isinstance(step, Copy)]
    known = 0
    while len(borders) != known:
        known = len(borders)
        for copy in copies:
            shift = copy.result.offset - copy.source.offset
            borders |= {b + shift for b in borders if copy.source.offset <= b <= copy.source.stop}
            borders |= {b - shift for b in borders if copy.result.offset <= b <= copy.result.stop}
    ordered = sorted(borders)
    return list(zip(ordered, ordered[1:], strict=False))


def _sources(step: _Step) -> list[Span]:
    """The spans that a step reads."""
    parts: tuple[object, ...] = (step.source,) if isinstance(step, Copy) else ()
    if isinstance(step, RowProduct):
        parts = (step.a, step.b)
    elif isinstance(step, RowCall | Map):
        parts = step.sources
    elif isinstance(step, Product):
        parts = (step.source, step.addend)
    return [part for part in parts if isinstance(part, Span)]


def _overlap(a: Span, b: Span) -> bool:
    return a.offset < b.stop and b.offset < a.stop


def _copies(moves: Sequence[tuple[Place, Place, int]]) -> list[Instruction]:
    return _merged(Instruction("copy", size, target, (source,)) for source, target, size in moves)


def _merged(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Neighbours in every operand become one instruction."""
    merged: list[Instruction] = []
    for item in instructions:
        if merged and _continues(merged[-1], item):
            last = merged.pop()
            sources = tuple(
                Constant(s.value, s.offset, s.size + item.size) if isinstance(s, Constant) else s for s in last.sources
            )
            item = Instruction(last.op, last.size + item.size, last.target, sources)
        merged.append(item)
    return merged


def _continues(left: Instruction, right: Instruction) -> bool:
    pairs = zip((left.target, *left.sources), (right.target, *right.sources), strict=True)
    return all(
        a.value == b.value if isinstance(a, Constant) and isinstance(b, Constant)
        else (a[0], a[1] + left.size) == b if not isinstance(a, Constant) else False
        for a, b in pairs
    )  # fmt: skip


def _expanded(op: str, piece: Instruction) -> Iterator[Instruction]:
    """A sum of any number of terms by additions of two and three, from the left."""
    if op != "sum":
        yield piece
        return
    total, rest = piece.sources[0], piece.sources[1:]
    while rest:
        taken, rest = rest[:2], rest[2:]
        yield Instruction("add3" if len(taken) == 2 else "add", piece.size, piece.target, (total, *taken))
        total = piece.target
