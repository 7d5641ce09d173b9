"""What values must be, said once more than `Values` makes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edbc.base.operations import FORMULAS
from edbc.cells.values.value import LEAVES, REDUCTIONS, TRANSPOSED, V, in_order


def verify(outputs: Sequence[V], operands: Sequence[int], weights: Sequence[tuple[int, int]]) -> None:
    """No value that is none of definition (1), or reads beyond what there is: `operands` are the sizes of rows,
    `weights` rows and columns."""
    for v in in_order(outputs):
        fault = _fault(v, operands, weights)
        assert not fault, f"value {v.op}[{v.arg}] of {v.size} elements: expected {fault}"


def _fault(v: V, operands: Sequence[int], weights: Sequence[tuple[int, int]]) -> str:
    sizes = [source.size for source in v.sources]
    if v.op == "load":
        operand, offset = v.arg
        is_inside = 0 <= operand < len(operands) and offset >= 0 and offset + v.size <= operands[operand]
        return "" if is_inside else "elements of an operand's row"
    if v.op in LEAVES:
        return "" if not sizes else "no sources"
    if v.op == "part":
        return "" if len(sizes) == 1 and v.arg >= 0 and v.arg + v.size <= sizes[0] else "a part of its source"
    if v.op == "cat":
        return "" if sum(sizes) == v.size else "as many elements as its pieces have"
    if v.op == "product":
        rows, columns = weights[v.arg[0]][:: -1 if v.arg[1] == TRANSPOSED else 1]
        fits = sizes[0] == rows and {columns, *sizes[1:]} == {v.size}
        return "" if fits else f"{rows} elements and {columns} columns"
    if v.op == "matmul":
        m, k, n = v.arg
        return "" if (*sizes, v.size) == (m * k, k * n, m * n) else "matrices of its sizes"
    if v.op in REDUCTIONS or v.op == "spread":
        outer, n, inner = v.arg
        wide, narrow = (sizes[0], v.size) if v.op in REDUCTIONS else (v.size, sizes[0])
        return "" if (wide, narrow) == (math.prod(v.arg), outer * inner) else "elements of its sizes"
    if v.op == "call":
        return "" if sizes == [span.size for span, _ in v.arg.sources] else "operands of its sizes"
    if v.op == "cast":
        return "" if sizes == [v.size] else "a value of its size"
    if v.op == "turned":
        return "" if sizes == [v.size] and math.prod(v.arg) == v.size else "a matrix of its sizes"
    fits = v.op in FORMULAS and len(sizes) == len(FORMULAS[v.op].names) and set(sizes) == {v.size}
    return "" if fits else "an operation of the table on values of one size"
