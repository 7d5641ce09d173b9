"""Splitting a cell: what waits for no other node runs before the schedule.

Xu et al., "Cavs: An Efficient Runtime System for Dynamic Neural Networks" (USENIX ATC 2018, section 3.4) call such
operations eager. There they are found in the vertex function; here they depend on the mini-batch too, because whether
an operand is a look-up or a state is told by the graph. (What no other node waits for, Cavs runs after the schedule, as
lazy operations; here it runs with its node.)

Definitions, for one type in one mini-batch.

(1) An operand is *eager* when it is external in every node of the type. An operation is eager when all its operands
    are eager operands or results of eager operations.
(2) All other operations are the *core*. An affine of the core with some eager factors is cut in two: `W x + U h + b`
    becomes the *half* `W x + b`, which is eager, and `U h` with the half as its addend.
(3) The eager part runs for many nodes of the type at once, those of a *chunk* (`edbc.run.passes.chunks`), so that a
    product over x is one product for many words. The core runs where the schedule has the node. Schedule and policy
    never see the parts.
(4) What the eager part computes for the core goes there as one row of memory per node, its *hand-over*: the variables
    side by side, halves first, in the order of the batches and within a batch in the order of the layout. So the halves
    of a product's results are one span, which the product adds to.
(5) Where nodes have equal eager operands (the same rows of the same tables), they may *share* one eager part: it is
    one node, which the cores of all of them read. Words repeat, so most products over x can be shared.

A part keeps the batches and the order of the plan's layout as far as they speak of it; eager affines of the same
factors, which the core had to compute one after the other, become one product. (Cavs runs eager operators in a second
stream beside the others, which a single processor does not have; here they are one batch, which also makes them fast.)

When it pays. A product over few rows is bound by reading its weights, so a batch costs as much as some more rows of
the product would. Halves take K multiplications per element out of every batch but one per chunk, and out of every node
that shares another's; they cost a write and a read of each element for every node, a copy of it where parts are shared,
preparing a graph with more nodes, and a fixed amount per mini-batch. `SplitCell.pays` weighs them with constants taken
from measurements (docs/performance-execution.md), for weights in a cache: an LSTM of hidden size 128 gains below some
10 rows per batch, once it has enough batches, and with any number of rows once half of its products are shared; one of
256 below some 30. Weights of more than NEAR_BYTES count more. Where products are slower beside everything else, parts
gain more than the rule says. It reads sizes and counts only, never a clock. On a device others hold (`ON_DEVICE`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from edbc.base.graph import ValueClass
from edbc.cells.lower import batch_key, lower
from edbc.cells.opgraph import NUMBERED, CellGraph, CellOp, Source
from edbc.cells.program import Load, Placed, Program, Span, Store

EAGER, CORE = "eager", "core"
PARTS = (EAGER, CORE)
NEAR_BYTES, FAR = 3 << 19, 2
"""Weights of more bytes than this do not stay in a cache of 2 MB beside what is computed with them; reading them again
for every batch then costs FAR times as much."""
MULTIPLICATIONS_PER_NODE = 5_500
"""What preparing one node in parts costs, in the same unit: some 190 ns."""
MULTIPLICATIONS_PER_TYPE = 2_000_000
"""What splitting the nodes of a type costs, in the same unit: some 70 us."""


@dataclass(frozen=True)
class Origin:
    """Operand or output `index` of the whole cell (`part` None), or output `index` of a part of the same node."""

    part: str | None
    index: int


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a split cell: a cell of its own to everything that runs it."""

    program: Program
    operands: tuple[Origin, ...]
    outputs: tuple[ValueClass, ...]
    handed_over: int
    """Elements of the hand-over, which is the last output where there is one."""

    @cached_property
    def multiplications(self) -> int:
        """Of its products, for one node."""
        return sum(_area(packed.blocks) for packed in self.program.weights)


@dataclass
class Rates:
    """What parts save and cost where cells run, in multiplications that a batch's weights cost on a CPU beside those of
    its rows: one takes some 0.035 ns."""

    weights: float
    """A multiplication that a batch need not do."""
    batch: float
    """A batch that has fewer of them."""
    row: float
    """A multiplication of one row's product: rows are many, and weights then in cache."""
    element: float
    """Handing over one element."""
    shared_element: float
    """What it costs beside that where the core must not write over it, because others read it too."""
    chunk: float
    """A batch of eager parts, beside its rows and weights."""


ON_CPU = Rates(1.0, 0.0, 0.24, 7.0, 3.0, 250_000.0)
ON_DEVICE = Rates(0.0, 18_500.0, 0.0054, 0.0, 0.0, 116_000.0)
"""A device multiplies so fast that what counts is preparing more nodes, which the host does: lattices and translation
of hidden size 128 in mini-batches of 32 took longer in parts though the device took less time, lattices of hidden size
512 in mini-batches of 256 did not (docs/performance-execution.md)."""


@dataclass(frozen=True, eq=False)
class SplitCell:
    """Both parts, and where the whole cell's outputs come from."""

    parts: Mapping[str, Part]
    homes: tuple[Origin, ...]
    shares: bool = False
    """True when nodes may share eager parts, definition (5)."""

    @cached_property
    def lasts(self) -> bool:
        """True when what the eager part computes is needed to the end, as outputs of the cell."""
        return any(home.part == EAGER for home in self.homes)

    def pays(self, nodes: int, batches: int, chunks: int = 1, rows: int | None = None, weight_bytes: int = 0,
             rates: Rates = ON_CPU) -> bool:  # fmt: skip
        """True when splitting is worth it for so many nodes in so many batches, with so many rows of the eager part,
        one per node where it is not shared, in so many chunks, where all types of the mini-batch together have so many
        bytes of weights: see the module's docstring."""
        return self.gain(nodes, batches, chunks, rows, weight_bytes, rates) > 0

    def gain(self, nodes: int, batches: int, chunks: int = 1, rows: int | None = None, weight_bytes: int = 0,
             rates: Rates = ON_CPU) -> float:  # fmt: skip
        """Multiplications that splitting saves, costs taken off; see `pays`."""
        eager = self.parts[EAGER]
        far = FAR if weight_bytes > NEAR_BYTES else 1
        saved = (batches - chunks) * (rates.batch + far * rates.weights * eager.multiplications)
        cost = rates.element * eager.handed_over + MULTIPLICATIONS_PER_NODE
        if self.shares:
            rows = nodes if rows is None else rows
            saved += rates.row * (nodes - rows) * eager.multiplications
            cost += rates.shared_element * eager.handed_over
        return saved - nodes * cost - chunks * rates.chunk - MULTIPLICATIONS_PER_TYPE


def assign_parts(cell: CellGraph, eager: Collection[str]) -> dict[str, str]:
    """The part of every operation, definitions (1) and (2). `eager` are operands."""
    ready = set(eager)
    part: dict[str, str] = {}
    for op in cell.ops:
        part[op.name] = EAGER if op.inputs and ready.issuperset(op.inputs) else CORE
        if part[op.name] == EAGER:
            ready.add(op.name)
    return part


def split_cell(cell: CellGraph, batches: Sequence[Sequence[str]], order: Sequence[str], eager: Collection[str],
               where: str = "cell", shares: bool = False) -> SplitCell | None:  # fmt: skip
    """The parts of a cell whose batches and order are a plan's; None when there is nothing to split off or no core, or
    where truth values or numbers of elements would cross, which are no part of a row. With `shares` nodes may share
    eager parts.

    Raises LayoutError as `lower` does.
    """
    splitting = _Splitting(cell, batches, order, assign_parts(cell, eager), set(eager))
    classes = cell.classes()
    crosses = any(classes[name].dtype in NUMBERED for name in splitting.handed[EAGER] if name in classes)
    return splitting.result(where, shares) if all(splitting.ops.values()) and not crosses else None


def splittable(cell: CellGraph, batches: Sequence[Sequence[str]], order: Sequence[str],
               external: Sequence[bool]) -> tuple[str, ...]:  # fmt: skip
    """Names of the operands from which it can pay to split products off, by what is known of the mini-batches compiled
    on: which operands are external in every node."""
    if not cell.is_uniform():
        return ()
    names = [name for name, _ in cell.operands]
    split = split_cell(cell, batches, order, [n for n, known in zip(names, external, strict=False) if known])
    if split is None or not split.parts[EAGER].multiplications:
        return ()
    return tuple(names[origin.index] for origin in split.parts[EAGER].operands)


class _Splitting:
    def __init__(self, cell: CellGraph, batches: Sequence[Sequence[str]], order: Sequence[str],
                 part_of: Mapping[str, str], eager: set[str]):  # fmt: skip
        self.cell = cell
        self.part_of = part_of
        self.ready = eager | {name for name, part in part_of.items() if part == EAGER}
        self.half_of = self._halves()
        self.order = order
        self.batches = {part: self._batches_of(part, batches) for part in PARTS}
        self.ops = {part: self._ops_of(part) for part in PARTS}
        self.batches[EAGER] = _merged(self.ops[EAGER], self.batches[EAGER])
        outputs = dict.fromkeys(self.cell.outputs)
        self.outputs = {part: tuple(n for n in outputs if self.part_of.get(n, CORE) == part) for part in PARTS}
        self.handed = {EAGER: self._handed(), CORE: ()}

    def _halves(self) -> dict[str, str]:
        """Names for the halves of the core's affines, definition (2)."""
        taken = set(self.cell.classes())
        names: dict[str, str] = {}
        for op in self.cell.ops:
            if self.part_of[op.name] == CORE and op.op == "affine" and self.ready.intersection(op.factors):
                name = f"{op.name}_eager"
                while name in taken:
                    name += "_"
                taken.add(name)
                names[op.name] = name
        return names

    def _batches_of(self, part: str, batches: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
        kept = []
        for batch in batches:
            names = [name for name in batch if self.part_of[name] == part]
            if part == EAGER:
                names += [self.half_of[name] for name in batch if name in self.half_of]
            if names:
                kept.append(tuple(names))
        return kept

    def _ops_of(self, part: str) -> tuple[CellOp, ...]:
        found = []
        for op in self.cell.ops:
            if op.name in self.half_of:
                found.append(self._half(op, part))
            elif self.part_of[op.name] == part:
                found.append(op)
        return tuple(found)

    def _half(self, op: CellOp, part: str) -> CellOp:
        """Definition (2)."""
        half, is_eager = self.half_of[op.name], part == EAGER
        pairs = [(s, w) for s, w in zip(op.sources, op.weights, strict=True) if (s.variable in self.ready) == is_eager]
        sources, weights = tuple(s for s, _ in pairs), tuple(w for _, w in pairs)
        if is_eager:
            return replace(op, name=half, sources=sources, weights=weights)
        return replace(op, sources=(*sources, Source(half)), weights=weights, biases=())

    def _reads(self, part: str) -> set[str]:
        return {name for op in self.ops[part] for name in op.inputs}

    def _handed(self) -> tuple[str, ...]:
        """Definition (4)."""
        read = self._reads(CORE) & {op.name for op in self.ops[EAGER]}
        halves = {half: name for name, half in self.half_of.items()}
        number = {name: i for i, batch in enumerate(self.batches[CORE]) for name in batch}
        place = {name: i for i, name in enumerate(self.order)}

        def key(name: str) -> tuple[int, int]:
            whole = halves.get(name)
            return (len(number), place[name]) if whole is None else (number[whole], place[whole])

        return tuple(sorted(read, key=key))

    def result(self, where: str, shares: bool) -> SplitCell:
        parts = {part: self._part(part, where) for part in PARTS}
        homes = [
            Origin(part, self.outputs[part].index(name))
            for name in self.cell.outputs for part in [self.part_of.get(name, CORE)]
        ]  # fmt: skip
        return SplitCell(parts, tuple(homes), shares)

    def _part(self, part: str, where: str) -> Part:
        classes = {**self.cell.classes(), **{half: self.cell.classes()[name] for name, half in self.half_of.items()}}
        rows = self._operand_rows(part)
        handed = self.handed[part]
        operands = tuple((name, classes[name]) for _, names in rows for name in names)
        outputs = (*self.outputs[part], *handed)
        graph = CellGraph(operands, self.ops[part], outputs, self.cell.prefix)
        first = [name for origin, names in rows if origin.part is not None for name in names]
        first += [name for name in handed if name not in first]
        rest = [name for name in self.order if name in graph.classes() and name not in first]
        program = lower(graph, self.batches[part], [*first, *rest], f"{where}, {part} part")
        output_classes = [classes[name] for name in self.outputs[part]]
        size = sum(classes[name].size for name in handed)
        if handed:
            output_classes.append(ValueClass((size,), program.dtype))
        row_sizes = [len(names) for _, names in rows]
        store_sizes = [1] * len(self.outputs[part]) + [len(handed)] * bool(handed)
        program = _joined(program, row_sizes, store_sizes)
        return Part(program, tuple(o for o, _ in rows), tuple(output_classes), size)

    def _operand_rows(self, part: str) -> list[tuple[Origin, tuple[str, ...]]]:
        """What the nodes of a part read, and the variables that each row holds."""
        read = self._reads(part)
        if part == CORE:
            read |= set(self.outputs[CORE])
        rows: list[tuple[Origin, tuple[str, ...]]]
        rows = [(Origin(None, i), (name,)) for i, (name, _) in enumerate(self.cell.operands) if name in read]
        if part == CORE and read.intersection(self.handed[EAGER]):
            rows.append((Origin(EAGER, len(self.outputs[EAGER])), self.handed[EAGER]))
        return rows


def _merged(ops: Sequence[CellOp], batches: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Affines of the same factors in one batch, the first of theirs."""
    op_of = {op.name: op for op in ops}
    merged: dict[object, tuple[str, ...]] = {}
    for number, batch in enumerate(batches):
        key = batch_key(op_of[batch[0]])
        key = key if key[0] == "affine" else (number,)
        merged[key] = (*merged.get(key, ()), *batch)
    return list(merged.values())


def _joined(program: Program, row_sizes: Sequence[int], store_sizes: Sequence[int]) -> Program:
    """The program with its loads and stores, one per variable, put together to one per row of memory."""
    loads = [Load(number, span) for number, span in enumerate(_hulls(program.loads, row_sizes))]
    stores = [Store(number, span) for number, span in enumerate(_hulls(program.stores, store_sizes))]
    return replace(program, loads=tuple(loads), stores=tuple(stores), cell=None)


def _hulls(items: Sequence[Load | Store], sizes: Sequence[int]) -> Iterator[Span]:
    """The spans of so many items each, which are adjacent."""
    for last, size in zip(accumulate(sizes), sizes, strict=True):
        first = items[last - size].span.offset
        yield Span(first, items[last - 1].span.stop - first)


def _area(blocks: Iterable[Placed]) -> int:
    blocks_of = [placed.block for placed in blocks]
    return sum((b.rows[1] - b.rows[0]) * (b.columns[1] - b.columns[0]) for b in blocks_of if b.columns is not None)
