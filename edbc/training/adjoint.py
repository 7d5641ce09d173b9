"""The adjoint of a program: what its backward pass keeps, computes again and multiplies, as data for native code.

Definitions.

(1) A *slot* names memory that a row of a batch works in, an offset counts elements in it (`SLOTS`, then one slot per
    operand, per output, per operand's gradient, per output's gradient). The *workspace* has a row per node of a block,
    the *scratch row* is one for all.
(2) The *delta* of a product is the gradient of its result. All deltas of a node stand side by side; they are written
    over what the forward pass saved, once it has been used.
(3) A value that a derivative reads is read where it stands (an operand, an output), or computed again from such values
    by element-wise operations, or *saved* by the forward pass. What a product reads and neither operand nor output
    holds is *kept*: its weight's gradient needs it after the deltas have overwritten what was saved.
(4) A *phase* runs for a whole block: a product of deltas with a transposed weight, or a *pass* of instructions row by
    row. Every gradient is complete before it is read.
(5) After all batches, the gradient of a weight is one product over all nodes: deltas transposed with what the product
    read, gathered again. `inputs` says where that stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edbc.cells.program import Copy, Program, Span, Store
from edbc.training.atoms import Atom, Atoms, Source, Vector, atoms_of
from edbc.training.derivatives import PASS, ZERO, rule
from edbc.training.instructions import (
    DELTA,
    FIRST_OPERAND,
    KEPT,
    SAVED,
    SCRATCH,
    SHARED,
    VECTORS,
    WORKSPACE,
    BackProduct,
    Instruction,
    Phase,
    Place,
    joined,
)


@dataclass(frozen=True)
class WeightProduct:
    """Definition (5) for one product: deltas `delta` to `delta + columns`, inputs `column` to `column + rows`."""

    weight: int
    delta: int
    columns: int
    column: int
    rows: int


@dataclass(frozen=True)
class Input:
    """Definition (5): `size` elements at a place go to column `column` of the gathered inputs."""

    place: Place
    size: int
    column: int


@dataclass(frozen=True)
class Adjoint:
    """See the module's docstring. Sizes are in elements."""

    program: Program
    """The forward program with what is saved and kept as two more outputs."""
    num_operands: int
    num_outputs: int
    saved: int
    kept: int
    width: int
    scratch: int
    phases: tuple[Phase, ...]
    weights: tuple[WeightProduct, ...]
    inputs: tuple[Input, ...]
    input_width: int
    shared: tuple[Vector | tuple[float, int], ...]
    """What stands in slot SHARED, one after the other: parameters, and numbers so many times."""
    vectors: tuple[Vector, ...]
    """Whose gradients stand in slot VECTORS, one after the other."""


def adjoint_of(program: Program) -> Adjoint | None:
    """The adjoint of a program, or None when a step has no rule."""
    atoms = atoms_of(program) if program.dtype in ("f32", "f64") else None
    if atoms is None or any(a.kind == "map" and rule(a.op, 0) is None for a in atoms.atoms):
        return None
    return _Building(program, atoms).adjoint()


@dataclass
class _Event:
    """An instruction or a product, with what it reads and writes, so that it can be put in order."""

    item: Instruction | BackProduct
    reads: frozenset[tuple[str, object]]
    writes: frozenset[tuple[str, object]]
    values: tuple[int, ...] = ()
    """Atoms whose values it reads."""


_Goal = tuple[tuple[object, int], tuple[str, object], bool]
"""A place, what an event that writes there is known to write, and whether it adds."""


@dataclass
class _Column:
    """A piece of a row that grows."""

    width: int = 0
    place_of: dict[object, int] = field(default_factory=dict)

    def of(self, key: object, size: int) -> int:
        """The offset of a piece, put behind the others when it is new."""
        if key not in self.place_of:
            self.place_of[key] = self.width
            self.width += size
        return self.place_of[key]


class _Building:
    def __init__(self, program: Program, atoms: Atoms):
        self.program = program
        self.graph = atoms
        self.atoms = atoms.atoms
        self.active = self._active()
        self.saved, self.kept = _Column(), _Column()
        self.workspace, self.scratch = _Column(), _Column()
        self.shared, self.vectors = _Column(), _Column()
        self.stands: dict[int, Place] = {}
        self.events: list[_Event] = []
        self.written: set[int] = set()
        self.alias: dict[int, Place] = {}
        self.output_home: dict[int, Place] = {}
        for j, output in enumerate(atoms.outputs):
            for number, offset in self._offsets(output):
                self.output_home.setdefault(number, (self._output_gradient(j), offset))

    # --- slots -----------------------------------------------------------------------------------------------------

    def _operand(self, k: int) -> int:
        return FIRST_OPERAND + k

    def _output(self, j: int) -> int:
        return FIRST_OPERAND + self.graph.num_operands + j

    def _operand_gradient(self, k: int) -> int:
        return self._output(len(self.graph.outputs)) + k

    def _output_gradient(self, j: int) -> int:
        return self._operand_gradient(self.graph.num_operands) + j

    # --- what is kept ----------------------------------------------------------------------------------------------

    def _active(self) -> set[int]:
        """Atoms that an output depends on."""
        active = {number for output in self.graph.outputs for number in output}
        for atom in reversed(self.atoms):
            if atom.number in active and atom.kind in ("map", "matmul"):
                active |= {s for s in atom.sources if isinstance(s, int)}
            elif atom.number in active and atom.kind == "product":
                active |= set(self.graph.products[atom.index].sources)
        return active

    def _products(self) -> Iterator[int]:
        """Products that an output depends on."""
        yield from (p for p, product in enumerate(self.graph.products) if self.active & set(product.results))

    def _place_values(self) -> None:
        """Definition (3)."""
        for atom in self.atoms:
            if atom.kind == "load":
                self.stands[atom.number] = (self._operand(atom.index), atom.offset)
        for j, output in enumerate(self.graph.outputs):
            for number, offset in self._offsets(output):
                self.stands.setdefault(number, (self._output(j), offset))
        for p in self._products():
            for number in self.graph.products[p].sources:
                if number not in self.stands:
                    self.stands[number] = (KEPT, self.kept.of(number, self.atoms[number].size))
        for number in sorted(self._needed()):
            if not self._is_at_hand(number):
                self.stands[number] = (SAVED, self.saved.of(number, self.atoms[number].size))

    def _needed(self) -> set[int]:
        """Atoms whose values a derivative reads."""
        found: set[int] = set()
        for atom in self.atoms:
            if atom.number in self.active and atom.kind == "matmul":
                found |= {v for v in atom.sources if isinstance(v, int)}
            elif atom.number in self.active and atom.kind == "map":
                for operand in range(len(atom.sources)):
                    found |= {v for v in self._reads(atom, operand) if isinstance(v, int)}
        return found

    def _reads(self, atom: Atom, operand: int) -> list[Source]:
        """What the derivative with respect to one operand reads beside the gradient."""
        if isinstance(atom.sources[operand], float):
            return []
        known = rule(atom.op, operand)
        assert known is not None
        return [atom.number if read < 0 else atom.sources[read] for read in known.reads]

    def _is_at_hand(self, number: int) -> bool:
        """True when a value stands somewhere or follows from such values element by element."""
        atom = self.atoms[number]
        return number in self.stands or (
            atom.kind == "map" and all(self._is_at_hand(s) for s in atom.sources if isinstance(s, int))
        )

    def _offsets(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        offset = 0
        for number in numbers:
            yield number, offset
            offset += self.atoms[number].size

    # --- gradients -------------------------------------------------------------------------------------------------

    def _emit(self) -> None:
        """Events from the last atom to the first."""
        for p in self._products():
            self.workspace.of(("delta", p), self.graph.size(self.graph.products[p].results))
        self._seed()
        for atom in reversed(self.atoms):
            if atom.number not in self.active:
                continue
            if atom.kind == "map":
                for operand, source in enumerate(atom.sources):
                    self._differentiate(atom, operand, source)
            elif atom.kind == "matmul":
                self._differentiate_matmul(atom)
            elif atom.kind == "product" and atom.number == self._first_active(atom.index):
                self._back_product(atom.index)

    def _first_active(self, p: int) -> int:
        return min(n for n in self.graph.products[p].results if n in self.active)

    def _seed(self) -> None:
        """Gradients of outputs that are not accumulated where they come in: products' and operands', and repeats."""
        for j, output in enumerate(self.graph.outputs):
            for number, offset in self._offsets(output):
                if self._home(number) != (self._output_gradient(j), offset):
                    self._add(number, PASS, ((self._output_gradient(j), offset),), ())

    def _home(self, number: int) -> Place | None:
        """Where an atom's gradient is added up, if that is not in memory of this pass alone."""
        atom = self.atoms[number]
        if atom.kind == "load":
            return self._operand_gradient(atom.index), atom.offset
        if atom.kind == "product":
            return WORKSPACE, self.workspace.place_of["delta", atom.index] + atom.offset
        return self.output_home.get(number) or self.alias.get(number)

    def _differentiate(self, atom: Atom, operand: int, source: Source) -> None:
        if isinstance(source, float):
            return
        known = rule(atom.op, operand)
        assert known is not None
        reads = self._reads(atom, operand)
        gradient = self._home(atom.number) or ("gradient", atom.number)
        values = tuple(("value", v) if isinstance(v, int) else self._constant(v, atom.size) for v in reads)
        numbers = tuple(v for v in reads if isinstance(v, int))
        self._add(source, known.op, (gradient, *values), numbers, atom)  # type: ignore[arg-type]

    def _constant(self, source: Source, size: int) -> Place:
        if isinstance(source, Vector):
            return SHARED, self.shared.of(source, source.size)
        assert isinstance(source, float)
        return SHARED, self.shared.of((source, size), size)

    def _differentiate_matmul(self, atom: Atom) -> None:
        """The gradients of both matrices; the right one's atoms are rows of it, definition (4) of `training.atoms`."""
        (m, k, n), (a, *rows) = atom.shape, atom.sources
        goal = self._goal(a)
        column = 0
        for b in rows:
            size = self._size(b)
            shape = (m, size // n, n, k)
            self._matrix_gradient("left", atom, a, goal, b, shape, column, 0)
            self._matrix_gradient("right", atom, b, self._goal(b), a, shape, 0, column)
            column += size // n

    def _matrix_gradient(self, op: str, atom: Atom, to: Source, goal: _Goal, other: Source, shape: tuple[int, ...],
                         shift: int, of_other: int) -> None:  # fmt: skip
        """One gradient, from column `shift` of its target on, that reads the other matrix from `of_other` on."""
        target, key, adds = goal
        gradient = self._home(atom.number) or ("gradient", atom.number)
        slot, offset = ("value", other) if isinstance(other, int) else self._constant(other, self._size(other))
        values = (other,) if isinstance(other, int) else ()
        item = Instruction(op, self._size(to), (*target, shift), (gradient, (slot, offset, of_other)), adds,  # type: ignore[arg-type]
                           shape=shape)  # fmt: skip
        self.events.append(_Event(item, frozenset([("gradient", atom.number)]), frozenset([key]), values))

    def _add(self, to: Source, op: str, sources: tuple[Place, ...], values: tuple[int, ...],
             of: Atom | None = None) -> None:  # fmt: skip
        """An instruction that adds to the gradient of an atom or a parameter."""
        target, key, adds = self._goal(to)
        reads = {("gradient", of.number)} if of is not None else set()
        item = Instruction(op, self._size(to), target, sources, adds)  # type: ignore[arg-type]
        self.events.append(_Event(item, frozenset(reads), frozenset([key]), values))

    def _size(self, source: Source) -> int:
        assert not isinstance(source, float)
        return source.size if isinstance(source, Vector) else self.atoms[source].size

    def _goal(self, to: Source) -> _Goal:
        """Where the next piece of the gradient of an atom or a parameter goes."""
        if isinstance(to, Vector):
            return (VECTORS, self.vectors.of(to, to.size)), ("vector", to), True
        assert isinstance(to, int)
        key = ("gradient", to)
        target: tuple[object, int] = self._home(to) or key
        adds = to in self.written or (isinstance(target[0], int) and target[0] > WORKSPACE)
        self.written.add(to)
        return target, key, adds

    def _back_product(self, p: int) -> None:
        product = self.graph.products[p]
        delta = self.workspace.place_of["delta", p]
        for number, offset in self._offsets(product.results):
            if number not in self.written:
                zero = Instruction(ZERO, self.atoms[number].size, (WORKSPACE, delta + offset), ())
                self.events.append(_Event(zero, frozenset(), frozenset([("gradient", number)])))
        target = self.workspace.of(("inputs", p), self.graph.size(product.sources))
        results = frozenset(("gradient", n) for n in product.results)
        self.events.append(_Event(BackProduct(product.weight, delta, target), results, frozenset([("inputs", p)])))
        for number, offset in self._offsets(product.sources):
            place = (WORKSPACE, target + offset)
            if self._home(number) is None and number not in self.written:
                self.alias[number] = place
                self.written.add(number)
                moved = Instruction("none", 0, place, ())
            else:
                home = self._home(number)
                goal = home or ("gradient", number)
                adds = number in self.written or (home is not None and home[0] != WORKSPACE)
                moved = Instruction(PASS, self.atoms[number].size, goal, (place,), adds)  # type: ignore[arg-type]
                self.written.add(number)
            self.events.append(_Event(moved, frozenset([("inputs", p)]), frozenset([("gradient", number)])))

    # --- phases ----------------------------------------------------------------------------------------------------

    def adjoint(self) -> Adjoint:
        self._place_values()
        self._emit()
        groups = list(self._grouped())
        pass_of = {id(event): number for number, group in enumerate(groups) for event in group}
        local = self._local_gradients(pass_of)
        phases = [self._phase(group, local) for group in groups]
        phases.append((self._store_deltas(),) if self._delta_width() else ())
        columns, inputs, input_width = self._inputs()
        weights = tuple(
            WeightProduct(product.weight, self.workspace.place_of["delta", p], self.graph.size(product.results),
                          columns[p], self.graph.size(product.sources))
            for p, product in enumerate(self.graph.products) if p in columns
        )  # fmt: skip
        return Adjoint(
            self._forward(), self.graph.num_operands, len(self.graph.outputs), self._saved_width(), self.kept.width,
            self.workspace.width, self.scratch.width, tuple(joined(phases)), weights, tuple(inputs), input_width,
            tuple(self.shared.place_of), tuple(self.vectors.place_of),  # type: ignore[arg-type]
        )  # fmt: skip

    def _delta_width(self) -> int:
        return sum(self.graph.size(self.graph.products[p].results) for p in self._products())

    def _saved_width(self) -> int:
        return max(self.saved.width, self._delta_width())

    def _store_deltas(self) -> Instruction:
        return Instruction("copy", self._delta_width(), (DELTA, 0), ((WORKSPACE, 0),), is_gradient=False)

    def _grouped(self) -> Iterator[list[_Event]]:
        """Products as soon as what they read is complete, then all instructions that are ready, and so on."""
        waiting = list(self.events)
        while waiting:
            products = [e for e in waiting if isinstance(e.item, BackProduct)]
            ready = [e for e in products if not _blocked(e, waiting)]
            if ready:
                yield [ready[0]]
                waiting.remove(ready[0])
                continue
            group: list[_Event] = []
            while found := next((e for e in waiting if not isinstance(e.item, BackProduct)
                                 and not _blocked(e, waiting)), None):  # fmt: skip
                group.append(found)
                waiting.remove(found)
            yield group

    def _local_gradients(self, pass_of: dict[int, int]) -> dict[int, Place]:
        """Places of gradients that live in this pass alone: the scratch row within a pass, else the workspace."""
        used: dict[int, set[int]] = {}
        for event in self.events:
            for kind, number in (*event.reads, *event.writes):
                if kind == "gradient" and isinstance(number, int) and self._home(number) is None:
                    used.setdefault(number, set()).add(pass_of[id(event)])
        return {
            number: (SCRATCH, self.scratch.of(("gradient", number), self.atoms[number].size)) if len(passes) == 1
            else (WORKSPACE, self.workspace.of(("gradient", number), self.atoms[number].size))
            for number, passes in used.items()
        }  # fmt: skip

    def _phase(self, group: Sequence[_Event], local: dict[int, Place]) -> Phase:
        first = group[0].item
        if isinstance(first, BackProduct):
            return first
        again: dict[int, list[Instruction]] = {}
        for event in group:
            for number in event.values:
                self._compute_again(number, again)
        items = [e.item for e in group if isinstance(e.item, Instruction) and e.item.op != "none"]
        first_computed = [item for computed in again.values() for item in computed]
        return (*first_computed, *(self._resolved(item, local) for item in items))

    def _resolved(self, item: Instruction, local: dict[int, Place]) -> Instruction:
        def place(of: Any) -> Place:
            known = of[:2]
            if of[0] == "gradient":
                known = self._home(of[1]) or local[of[1]]
            elif of[0] == "value":
                known = self._value(of[1])
            return known[0], known[1] + sum(of[2:])

        return replace(item, target=place(item.target), sources=tuple(place(s) for s in item.sources))

    def _value(self, number: int) -> Place:
        known = self.stands.get(number)
        return known or (SCRATCH, self.scratch.of(("value", number), self.atoms[number].size))

    def _compute_again(self, number: int, again: dict[int, list[Instruction]]) -> None:
        """Instructions for a value that stands nowhere, after those for what it is computed of."""
        if number in self.stands or number in again:
            return
        atom = self.atoms[number]
        for source in atom.sources:
            if isinstance(source, int):
                self._compute_again(source, again)
        places = [self._value(s) if isinstance(s, int) else self._constant(s, atom.size) for s in atom.sources]
        target = self._value(number)
        if atom.op != "sum":
            again[number] = [Instruction(atom.op, atom.size, target, tuple(places), is_gradient=False)]
            return
        lefts = (places[0], *(target for _ in places[2:]))
        again[number] = [
            Instruction("add", atom.size, target, (left, right), is_gradient=False)
            for left, right in zip(lefts, places[1:], strict=True)
        ]

    # --- the forward pass, and inputs of weights --------------------------------------------------------------------

    def _forward(self) -> Program:
        """The program with what is saved, and what is kept, copied side by side and given out."""
        width, steps, stores = self.program.width, list(self.program.steps), list(self.program.stores)
        first = len(self.graph.outputs)
        for number, (column, size) in enumerate(((self.saved, self._saved_width()), (self.kept, self.kept.width))):
            for atom, offset in column.place_of.items():
                span = self.graph.span_of[int(atom)]  # type: ignore[call-overload]
                steps.append(Copy(span, Span(width + offset, span.size)))
            if size:
                stores.append(Store(first + (number if self._saved_width() else 0), Span(width, size)))
            width += size
        return replace(self.program, width=width, steps=tuple(steps), stores=tuple(stores), cell=None)

    def _inputs(self) -> tuple[dict[int, int], list[Input], int]:
        """Columns of the gathered inputs: products that read the same share them, as do those that read a part."""
        columns: dict[int, int] = {}
        inputs: list[Input] = []
        laid: list[tuple[tuple[int, ...], int]] = []
        width = 0
        for p in sorted(self._products(), key=lambda p: -len(self.graph.products[p].sources)):
            sources = self.graph.products[p].sources
            inside = (
                start + self.graph.size(row[:i])
                for row, start in laid
                for i in range(len(row) - len(sources) + 1)
                if row[i : i + len(sources)] == sources
            )
            shared = next(inside, None)
            if shared is None:
                shared = width
                laid.append((sources, width))
                for number, offset in self._offsets(sources):
                    inputs.append(Input(self.stands[number], self.atoms[number].size, width + offset))
                width += self.graph.size(sources)
            columns[p] = shared
        return columns, inputs, width


def _blocked(event: _Event, waiting: Sequence[_Event]) -> bool:
    """True when an earlier event that still waits must come first."""
    for other in waiting:
        if other is event:
            return False
        if other.writes & (event.reads | event.writes) or other.reads & event.writes:
            return True
    return False
