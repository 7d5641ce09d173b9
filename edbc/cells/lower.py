"""Lowering: a cell's operation graph, its batches and its memory order become a Program.

Order and batches come from the plan alone; any permutation of the variables gives a correct program, a bad one a slower
one. What a batch becomes:

(1) A batch of affines with the same inputs is one product when the inputs are adjacent and the results are adjacent, in
    whatever orders the layout has: rows and columns of the packed weight follow them. Inputs that are not adjacent are
    copied side by side first, and so are addends; results that are not adjacent are copied to their places afterwards.
(2) A batch of element-wise operations is one map when every operand is adjacent in the order of the results; otherwise
    it falls into the longest runs for which that holds.
(3) Any other operation is a call of its own.
(4) Of a cell of several dtypes, the variables of each stand in a workspace of their own, in the order of the layout. A
    cast is a copy from one to another; where nothing else reads an operand, it is loaded as what it is cast to.
"""

from __future__ import annotations

from collections.abc import Sequence

from edbc.base.operations import ELEMENTWISE
from edbc.capture.record.table import SharedRef
from edbc.cells.opgraph import NUMBERED, CellGraph, CellOp, Source
from edbc.cells.program import Call, Copy, Load, Map, Packed, Placed, Product, Program, Span, Step, Store
from edbc.errors import LayoutError


def lower(cell: CellGraph, batches: Sequence[Sequence[str]], order: Sequence[str], where: str = "cell") -> Program:
    """The program of a cell. Raises LayoutError when `order` or `batches` do not fit the cell."""
    check_order(cell, order, where)
    check_batches(cell, batches, where)
    lowering = _Lowering(cell, order)
    for batch in batches:
        lowering.batch([lowering.ops[name] for name in batch])
    return lowering.program()


def check_order(cell: CellGraph, order: Sequence[str], where: str = "cell") -> None:
    """Every variable exactly once, or LayoutError."""
    variables = cell.classes()
    missing, unknown = variables.keys() - set(order), set(order) - variables.keys()
    if missing or unknown or len(order) != len(variables):
        fault = (
            f"{min(missing)!r} is missing"
            if missing
            else f"{min(unknown)!r} is no variable"
            if unknown
            else "a variable is repeated"
        )
        raise LayoutError(
            f"{where}: expected a layout with each of {len(variables)} variables once, got one where "
            f"{fault}; run 'edbc compile' again"
        )


def check_batches(cell: CellGraph, batches: Sequence[Sequence[str]], where: str = "cell") -> None:
    """Every operation in one batch, after what it reads, and one kind of operation per batch, or LayoutError."""
    ops = {op.name: op for op in cell.ops}
    done = {name for name, _ in cell.operands}
    for number, batch in enumerate(batches):
        if not batch or len({batch_key(ops[name]) for name in batch if name in ops}) != 1:
            raise LayoutError(
                f"{where}: batch {number} ({', '.join(batch)}): expected operations of one kind; run "
                "'edbc compile' again"
            )
        for name in batch:
            if name not in ops or name in done or not done.issuperset(ops[name].inputs):
                raise LayoutError(
                    f"{where}: batch {number}: {name!r} is unknown, repeated or read before it is "
                    "computed; run 'edbc compile' again"
                )
        done.update(batch)
    if missing := ops.keys() - done:
        raise LayoutError(f"{where}: {min(missing)!r} is in no batch; run 'edbc compile' again")


def batch_key(op: CellOp) -> tuple[object, ...]:
    """Operations of one cell with equal keys may run as one batch: the cell's types, in ED-Batch's sense."""
    if op.op == "affine":
        return ("affine", op.factors, op.addend is None)
    if op.op in ELEMENTWISE:
        constants = tuple(s.number if s.shared is None else ("parameter", op.name) for s in op.sources)
        return (op.op, constants)
    return ("alone", op.name)


class _Lowering:
    def __init__(self, cell: CellGraph, order: Sequence[str]):
        self.cell = cell
        self.ops = {op.name: op for op in cell.ops}
        self.sizes = cell.sizes()
        self.classes = cell.classes()
        self.spans: dict[str, Span] = {}
        self.is_uniform = cell.is_uniform()
        self.widths: dict[str, int] = {}
        for name in order:
            self.spans[name] = self._allocate(self.sizes[name], self._dtype(name))
        self.direct = self._cast_at_once()
        self.steps: list[Step] = []
        self.weights: list[Packed] = []

    def _dtype(self, name: str) -> str:
        return "" if self.is_uniform else self.classes[name].dtype

    def _allocate(self, size: int, dtype: str) -> Span:
        span = Span(self.widths.get(dtype, 0), size, dtype)
        self.widths[dtype] = span.stop
        return span

    def _cast_at_once(self) -> dict[str, CellOp]:
        """Definition (4): the casts of operands that nothing else reads."""
        users = self.cell.users()
        operands = [name for name, _ in self.cell.operands if name not in self.cell.outputs]
        return {n: users[n][0] for n in operands if len(users[n]) == 1 and users[n][0].is_cast}

    def program(self) -> Program:
        names = [self.direct[name].name if name in self.direct else name for name, _ in self.cell.operands]
        loads = [Load(i, self.spans[name]) for i, name in enumerate(names)]
        stores = [Store(i, self.spans[name]) for i, name in enumerate(self.cell.outputs)]
        dtype = next(c.dtype for c in self.classes.values() if c.dtype not in NUMBERED) if self.is_uniform else ""
        widths = () if self.is_uniform else tuple(self.widths.items())
        return Program(sum(self.widths.values()), tuple(loads), tuple(self.steps), tuple(stores), tuple(self.weights),
                       dtype, self.cell, widths)  # fmt: skip

    def batch(self, ops: list[CellOp]) -> None:
        """Append the steps of one batch."""
        in_memory_order = sorted(ops, key=lambda op: self.spans[op.name].offset)
        if ops[0].op == "affine":
            self._products(in_memory_order)
        elif ops[0].op in ELEMENTWISE:
            self._maps(in_memory_order)
        else:
            for op in ops:
                self._single(op)

    def _joined(self, spans: Sequence[Span]) -> Span | None:
        """The span that adjacent spans make together, in this order."""
        for left, right in zip(spans, spans[1:], strict=False):
            if not _adjacent(left, right):
                return None
        return Span(spans[0].offset, spans[-1].stop - spans[0].offset, spans[0].dtype)

    def _products(self, ops: list[CellOp]) -> None:
        inputs = sorted(dict.fromkeys(ops[0].factors), key=lambda name: self.spans[name].offset)
        source = self._side_by_side(inputs)
        addends = [op.addend for op in ops if op.addend is not None]
        addend = self._side_by_side(addends) if addends else None
        result = self._joined([self.spans[op.name] for op in ops])
        scattered = result is None
        if result is None:
            result = self._allocate(sum(self.sizes[op.name] for op in ops), self._dtype(ops[0].name))
        self.steps.append(Product(source, result, len(self.weights), addend))
        self.weights.append(self._pack(ops, inputs))
        if scattered:
            self._copy_all([self.spans[op.name] for op in ops], result, into=False)

    def _side_by_side(self, names: Sequence[str]) -> Span:
        """The span of variables in this order, copied together where they are not adjacent."""
        spans = [self.spans[name] for name in names]
        span = self._joined(spans)
        if span is None:
            span = self._allocate(sum(s.size for s in spans), spans[0].dtype)
            self._copy_all(spans, span, into=True)
        return span

    def _copy_all(self, spans: Sequence[Span], whole: Span, into: bool) -> None:
        """Copy spans to consecutive places in `whole`, or back; spans that are adjacent go together."""
        offset = whole.offset
        for span in self._runs(spans):
            place = Span(offset, span.size, whole.dtype)
            self.steps.append(Copy(span, place) if into else Copy(place, span))
            offset += span.size

    def _runs(self, spans: Sequence[Span]) -> list[Span]:
        runs: list[Span] = []
        for span in spans:
            if runs and _adjacent(runs[-1], span):
                runs[-1] = Span(runs[-1].offset, runs[-1].size + span.size, span.dtype)
            else:
                runs.append(span)
        return runs

    def _pack(self, ops: list[CellOp], inputs: list[str]) -> Packed:
        """Rows in the order of the inputs, columns in the order of the results."""
        row_of, rows = {}, 0
        for name in inputs:
            row_of[name] = rows
            rows += self.sizes[name]
        blocks: list[Placed] = []
        biases: list[Placed] = []
        column = 0
        for op in ops:
            for name, block in zip(op.factors, op.weights, strict=True):
                blocks.append(Placed(block, row_of[name], column))
            biases += [Placed(block, 0, column) for block in op.biases]
            column += self.sizes[op.name]
        return Packed(rows, column, tuple(blocks), tuple(biases), self._dtype(ops[0].name))

    def _maps(self, ops: list[CellOp]) -> None:
        run: list[CellOp] = []
        for op in ops:
            if run and not self._extends(run[-1], op):
                self._map(run)
                run = []
            run.append(op)
        self._map(run)

    def _extends(self, left: CellOp, right: CellOp) -> bool:
        """True when `right` stands directly after `left` in the result and in every operand."""
        if not _adjacent(self.spans[left.name], self.spans[right.name]):
            return False
        for a, b in zip(left.sources, right.sources, strict=True):
            if a.shared is not None or b.shared is not None:
                return False
            if (
                a.variable is not None
                and b.variable is not None
                and not _adjacent(self.spans[a.variable], self.spans[b.variable])
            ):
                return False
        return True

    def _map(self, run: list[CellOp]) -> None:
        def joined(position: int) -> Span | SharedRef | float | int:
            source: Source = run[0].sources[position]
            if source.variable is None:
                constant = source.shared if source.shared is not None else source.number
                assert constant is not None
                return constant
            span = self._joined([self.spans[op.sources[position].variable or ""] for op in run])
            assert span is not None
            return span

        result = self._joined([self.spans[op.name] for op in run])
        assert result is not None
        sources = tuple(joined(position) for position in range(len(run[0].sources)))
        self.steps.append(Map(run[0].op, result, sources, tuple(op.name for op in run)))

    def _single(self, op: CellOp) -> None:
        if op.op == "cat":
            self._copy_all([self.spans[name] for name in op.inputs], self.spans[op.name], into=True)
        elif op.op == "slice":
            start = int(op.attributes.split(":")[0])
            whole = self.spans[op.inputs[0]]
            result = self.spans[op.name]
            self.steps.append(Copy(Span(whole.offset + start, result.size, whole.dtype), result))
        elif op.is_cast:
            if self.direct.get(op.inputs[0]) is not op:
                self.steps.append(Copy(self.spans[op.inputs[0]], self.spans[op.name]))
        else:
            sources = tuple((self.spans[name], self.classes[name]) for name in op.inputs)
            self.steps.append(Call(op, sources, self.spans[op.name]))


def _adjacent(left: Span, right: Span) -> bool:
    return left.stop == right.offset and left.dtype == right.dtype
