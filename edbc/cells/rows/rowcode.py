"""A cell's operations on one row, written out as Python: what batches of few rows run by.

Types that depend on a size have batches of few rows. Together their rows cost what `rows.evaluation` takes to find
equal operands, batched forms and blocks: 50 to 200 microseconds, where torch's own function takes 2 to 10. Written out,
a row costs a microsecond beside it: nothing is looked up, and no template is filled.

Operands come in the shapes of their variables, in memory of their own as in eager (some functions ask where memory
begins), and so do results, of whatever strides.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import memmove

import torch

from edbc.capture.standins.standin import torch_dtype
from edbc.cells.opgraph import CellGraph
from edbc.cells.rows.written import Writer, bytes_of


def row_code(cell: CellGraph) -> Callable[..., None]:
    """`run(parameters, count, *operands, *outputs)`: parameters as a mapping by SharedRef, operands and outputs as
    lists of the addresses of `count` rows."""
    writer, classes = Writer(cell), cell.classes()
    writer.scope |= {"empty": torch.empty, "memmove": memmove}
    for i, (_, value_class) in enumerate(cell.operands):
        shape, dtype = writer.constant(value_class.shape), writer.constant(torch_dtype(value_class.dtype))
        writer.lines.append(f"x{i} = empty({shape}, dtype={dtype})")
        writer.lines.append(f"memmove(x{i}.data_ptr(), in{i}[row], {bytes_of(value_class)})")
    writer.operations()
    is_complex = any(torch_dtype(value_class.dtype).is_complex for value_class in classes.values())
    as_it_is = ".resolve_conj().resolve_neg()" if is_complex else ""  # torch conjugates in name, not in memory
    for i, name in enumerate(cell.outputs):
        writer.lines.append(f"y = {writer.local[name]}{as_it_is}.contiguous()")
        writer.lines.append(f"memmove(out{i}[row], y.data_ptr(), {bytes_of(classes[name])})")
    operands = [f"in{i}" for i in range(len(cell.operands))]
    outputs = [f"out{i}" for i in range(len(cell.outputs))]
    return writer.function(["parameters", "count", *operands, *outputs], "for row in range(count):")


FEW, FEW_BYTES = 8, 64 << 10
"""Rows of a batch, and bytes of their variables, up to which they run one after the other. Where they are more, what
rows share is worth computing once, and calls of torch are few beside it."""


class RowKernel:
    """Rows of a batch one after the other, found by their addresses."""

    def __init__(self, cell: CellGraph):
        self.run = row_code(cell)
        self._bytes = sum(map(bytes_of, cell.classes().values()))

    def pays(self, count: int) -> bool:
        """Whether so many rows are few."""
        return count == 1 or (count <= FEW and count * self._bytes <= FEW_BYTES)
