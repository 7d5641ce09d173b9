"""From the trace of a cell to its operation graph in canonical form.

`cells.translate` reads the trace: products with parameters become affines, element-wise functions and concatenations
what they are, torch's recurrent cells what they consist of. The rewrites here follow in this order; each keeps the
value of every output (up to the rounding of a reordered sum):

(0) a concatenation of which a cast is read                                     -->  a concatenation of casts
(1) additions that are read once, by an addition, as its first term            -->  one sum
(2) sums of affines that are read once, and of parameters                      -->  one affine (and a sum of the rest)
(3) affine over cat(a, b)                                                      -->  affine over a, b, W's columns cut
(4) an affine of which only slices are read, by `gates.chunk(4)` for example   -->  an affine per slice, W's rows cut
(5) operations whose result nobody reads                                       -->  gone

Rewrites (1) to (3) join variables of one dtype only: in another they are rounded where the user's code rounds them.
"""

from __future__ import annotations

from dataclasses import replace

from edbc.base.graph import ValueClass
from edbc.capture.code.shadow import CellTrace, ModelView
from edbc.cells.opgraph import Block, CellGraph, CellOp, Source
from edbc.cells.translate import translate


def cell_graph(trace: CellTrace, view: ModelView, prefix: str = "") -> CellGraph:
    """The canonical operation graph of a traced cell, module or function. Parameters' names lose `prefix` in text."""
    return canonicalise(translate(trace, view, prefix))


def canonicalise(cell: CellGraph) -> CellGraph:
    """Rewrites (0) to (5)."""
    for rewrite in (_cast_parts, _chain_sums, _merge_affines, _open_cats, _split_slices, _merge_affines, _drop_dead):
        cell = rewrite(cell)
    return cell


def _uses(cell: CellGraph) -> dict[str, int]:
    """How often each variable is read, being an output counted."""
    count = dict.fromkeys(cell.classes(), 0)
    for name in [*(n for op in cell.ops for n in op.inputs), *cell.outputs]:
        count[name] += 1
    return count


def _cast_parts(cell: CellGraph) -> CellGraph:
    """Rewrite (0)."""
    cats = {op.name: op for op in cell.ops if op.op == "cat"}
    classes = cell.classes()
    ops: dict[str, CellOp] = {}
    casts = {(op.inputs[0], op.result.dtype): op for op in cell.ops if op.is_cast}
    for op in cell.ops:
        cat = cats.get(op.inputs[0]) if op.is_cast else None
        if cat is None:
            ops[op.name] = op
            continue
        parts: list[Source] = []
        for source in cat.sources:
            name = source.variable or ""
            wanted = replace(classes[name], dtype=op.result.dtype)
            if wanted == classes[name]:
                parts.append(source)
                continue
            new = replace(op, name=f"{op.name}_{name}", sources=(source,), result=wanted)
            cast = casts.setdefault((name, wanted.dtype), new)
            ops.setdefault(cast.name, cast)
            parts.append(Source(cast.name))
        ops[op.name] = replace(cat, name=op.name, sources=tuple(parts), result=op.result)
    return replace(cell, ops=tuple(ops.values()))


def _chain_sums(cell: CellGraph) -> CellGraph:
    """Rewrite (1). Only first terms are taken in, so that the order of summation stays the user's."""
    uses = _uses(cell)
    ops: dict[str, CellOp] = {}
    for op in cell.ops:
        if op.op != "add" or any(s.number is not None for s in op.sources):
            ops[op.name] = op
            continue
        first = ops.get(op.sources[0].variable or "")
        terms = op.sources
        if first is not None and first.op == "sum" and uses[first.name] == 1 and first.result.dtype == op.result.dtype:
            del ops[first.name]
            terms = (*first.sources, *op.sources[1:])
        ops[op.name] = replace(op, op="sum", sources=terms)
    return replace(cell, ops=tuple(ops.values()))


def _merge_affines(cell: CellGraph) -> CellGraph:
    """Rewrite (2), for sums with at least one affine and another term that an affine can take in."""
    uses = _uses(cell)
    ops: dict[str, CellOp] = {}
    for op in cell.ops:
        parts = [_affine_part(s, ops, uses, op.result) for s in op.sources] if op.op == "sum" else []
        taken = [part for part in parts if part is not None]
        if len(taken) < 2 or not any(part.weights for part in taken):
            ops[op.name] = op
            continue
        for part in taken:
            ops.pop(part.name, None)
        rest = tuple(s for s, part in zip(op.sources, parts, strict=True) if part is None)
        affine = CellOp(f"{op.name}_affine" if rest else op.name, "affine", tuple(s for p in taken for s in p.sources),
                        op.result, tuple(w for p in taken for w in p.weights),
                        tuple(b for p in taken for b in p.biases))  # fmt: skip
        ops[affine.name] = affine
        if rest:
            ops[op.name] = replace(op, sources=(Source(affine.name), *rest))
    return replace(cell, ops=tuple(ops.values()))


def _affine_part(source: Source, ops: dict[str, CellOp], uses: dict[str, int], result: ValueClass) -> CellOp | None:
    """What a term adds to a merged affine: the affine that it is, when nobody else reads it, or a bias."""
    if source.shared is not None:
        return CellOp(
            "", "affine", (), result, (), (Block(source.shared, (0, result.size), None, total_rows=result.size),)
        )
    op = ops.get(source.variable or "")
    if op is None or op.op != "affine" or uses[op.name] != 1 or op.result.dtype != result.dtype:
        return None
    return op


def _open_cats(cell: CellGraph) -> CellGraph:
    """Rewrite (3); an affine is opened again while one of its operands is still a concatenation."""
    sizes = cell.sizes()
    classes = cell.classes()
    cats = {op.name: op for op in cell.ops if op.op == "cat" and len({classes[n].dtype for n in op.inputs}) == 1}

    def opened(op: CellOp) -> CellOp:
        sources: list[Source] = []
        weights: list[Block] = []
        for source, block in zip(op.sources, op.weights, strict=True):
            cat = cats.get(source.variable or "")
            if cat is None:
                sources.append(source)
                weights.append(block)
                continue
            assert block.columns is not None
            start = block.columns[0]
            for part in cat.sources:
                size = sizes[part.variable or ""]
                sources.append(part)
                weights.append(replace(block, columns=(start, start + size)))
                start += size
        result = replace(op, sources=tuple(sources), weights=tuple(weights))
        return opened(result) if any(name in cats for name in result.inputs) else result

    return _drop_dead(replace(cell, ops=tuple(opened(op) if op.op == "affine" else op for op in cell.ops)))


def _split_slices(cell: CellGraph) -> CellGraph:
    """Rewrite (4)."""
    users = cell.users()
    split = {
        op.name: op
        for op in cell.ops
        if op.op == "affine" and op.name not in cell.outputs and all(u.op == "slice" for u in users[op.name])
    }
    ops = [
        _rows_of(split[op.inputs[0]], op) if op.op == "slice" and op.inputs[0] in split else op
        for op in cell.ops
        if op.name not in split or not users[op.name]
    ]
    return replace(cell, ops=tuple(ops))


def _rows_of(op: CellOp, part: CellOp) -> CellOp:
    """The affine that computes a slice of another one."""
    start, stop = map(int, part.attributes.split(":"))

    def cut(block: Block) -> Block:
        return replace(block, rows=(block.rows[0] + start, block.rows[0] + stop))

    return replace(op, name=part.name, result=part.result, weights=tuple(map(cut, op.weights)),
                   biases=tuple(map(cut, op.biases)))  # fmt: skip


def _drop_dead(cell: CellGraph) -> CellGraph:
    """Rewrite (5)."""
    needed = set(cell.outputs)
    kept = []
    for op in reversed(cell.ops):
        if op.name in needed:
            needed.update(op.inputs)
            kept.append(op)
    return replace(cell, ops=tuple(kept[::-1]))
