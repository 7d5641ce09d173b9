"""Functions of whole runs of rows: attention over a sentence, a cumulative sum, a sort.

Definitions.

(1) A *run function* (`capture.ragged.whole.function`) takes tensors whose leading size n differs from node to node, one
    for each field of a node's items, and gives one tensor: of n rows (a *segmented* type, `base.graph` definition (4)),
    or one value (a reduction).
(2) Items of a batch stand node by node, so a field of a node is a slice of the batch's matrix, and the results of a
    segmented type stand as its items do.

By torch a batch is one call for each node: right for every function, and the reference. What loops over arrays know
(`edbc.cells.arrays`) runs all nodes of a batch in one native call, but for nodes that would take more than MOST_BYTES
inside: torch has functions that store less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.kept import Kept
from edbc.capture.record.table import Operation
from edbc.capture.semantics.shapes import of_rows
from edbc.cells.arrays.kernel import Field, Loops, forward_loops, gradient_loops

Longs = NDArray[np.int64]
MOST_BYTES = 1 << 28
"""Of a node inside."""
_LOOPS: Kept[Any, dict[Any, Loops | None]] = Kept(1_000)
"""Of all models: compiling one asks for a function in every recording that is tried, and binding it asks again."""
_DTYPES = {torch.float32: "f32", torch.float64: "f64"}
"""Of loops, all of one."""


class RunKernel:
    """A RunFunction: in loops where they know it, and all lengths that they are right for; node by node in torch."""

    def __init__(self, operation: Operation, segmented: bool):
        function: Any = operation.call
        self.function, self.segmented = function, segmented
        self.slots = operation.slots[: len(function.places) + function.has_marks]
        seen = tuple([(slot.base, slot.views) for slot in self.slots])
        self._loops = _LOOPS.of((function.text, function.root.functions, seen, torch.get_default_dtype()), dict)

    @property
    def is_native(self) -> bool:
        """Whether native code runs it on the CPU."""
        is_double = any(slot.base.dtype == "f64" for slot in self.slots)
        return self._forward(torch.float64 if is_double else torch.float32) is not None

    def run(self, items: Sequence[torch.Tensor], ptr: Sequence[int], output: torch.Tensor) -> None:
        """`items[f][ptr[v]:ptr[v + 1]]` is field f of node v, `(items, size)`."""
        loops = self._forward(output.dtype) if output.is_cpu and len(ptr) > 1 else None
        alone: Sequence[int] = range(len(ptr) - 1)
        if loops is not None:
            alone = self._in_loops(loops, items, ptr, [(output, self.segmented)])
        fields = self._seen(items) if alone else ()
        for v in alone:
            result = self.function(*[x[ptr[v] : ptr[v + 1]] for x in fields])
            if self.segmented:
                output[ptr[v] : ptr[v] + len(result)] = result.reshape(len(result), -1)
            else:
                output[v] = result.reshape(-1)

    def gradient(self, items: Sequence[torch.Tensor], ptr: Sequence[int], given: torch.Tensor,
                 wanted: Sequence[bool]) -> list[torch.Tensor | None]:  # fmt: skip
        """Gradients of the fields that are `wanted`, given that of the outputs."""
        found = [torch.zeros_like(x) if w else None for x, w in zip(items, wanted, strict=True)]
        loops = self._backward(given.dtype, tuple(wanted)) if given.is_cpu and len(ptr) > 1 and any(wanted) else None
        alone: Sequence[int] = range(len(ptr) - 1)
        if loops is not None:
            results = [(x, True) for x in found if x is not None]
            alone = self._in_loops(loops, items, ptr, [(given.contiguous(), self.segmented), *results])
        for v in alone:
            begin, end = ptr[v], ptr[v + 1]
            with torch.enable_grad():
                fields = [x[begin:end].detach().requires_grad_(w) for x, w in zip(items, wanted, strict=True)]
                result = self.function(*self._seen(fields))
            if not result.requires_grad:
                continue
            sought = [x for x in fields if x.requires_grad]
            of_node = given[begin : begin + len(result)] if self.segmented else given[v]
            gradients = torch.autograd.grad(result, sought, of_node.reshape(result.shape), allow_unused=True)
            for gradient, field in zip(gradients, (f for f in found if f is not None), strict=True):
                if gradient is not None:
                    field[begin:end] = gradient
        return found

    # --- in loops --------------------------------------------------------------------------------------------------

    def _in_loops(self, loops: Loops, items: Sequence[torch.Tensor], ptr: Sequence[int],
                  others: Sequence[tuple[torch.Tensor, bool]]) -> list[int]:  # fmt: skip
        """Run nodes on their fields and what stands beside them, by item or by node; the other nodes."""
        begin, lengths = np.array(ptr[:-1], np.int64), self.lengths(items, ptr)
        takes = loops.bytes_of(lengths)
        fits = (lengths >= np.array(loops.program.least)).all(1) & (takes <= MOST_BYTES)
        nodes = np.arange(len(fits)) if fits.all() else np.flatnonzero(fits)
        if len(nodes) < len(fits):
            begin, lengths, takes = begin[nodes], lengths[nodes], takes[nodes]
        fields = [x.to(loops.dtype).contiguous() for x in items[: len(self.function.places)]]
        given = [x.data_ptr() + (begin if by_item else nodes) * (x.stride(0) * x.element_size())
                 for x, by_item in [*[(x, True) for x in fields], *others]]  # fmt: skip
        loops.run(lengths, given, int(takes.max(initial=0)))
        return np.flatnonzero(~fits).tolist() if len(nodes) < len(fits) else []

    def lengths(self, items: Sequence[torch.Tensor], ptr: Sequence[int]) -> Longs:
        """Of each symbol, `(nodes, symbols)`."""
        begin = np.array(ptr, np.int64)
        if not self.function.has_marks:
            return np.diff(begin)[:, None]
        marks = np.concatenate([items[-1].numpy().reshape(-1), [0]])
        found = np.stack([np.add.reduceat(marks >> s & 1, begin[:-1]) for s in range(self._symbols)], 1)
        return np.where(np.diff(begin)[:, None] > 0, found, 0)

    def _forward(self, dtype: torch.dtype) -> Loops | None:
        return self._known(
            dtype, lambda fields: forward_loops(self._of, fields, self._symbols, dtype, self.function.products)
        )

    def _backward(self, dtype: torch.dtype, wanted: tuple[bool, ...]) -> Loops | None:
        return self._known(
            dtype, lambda fields: gradient_loops(self._of, fields, wanted[: len(fields)], self._symbols,
                                                 dtype, self.function.products), wanted
        )  # fmt: skip

    def _known(self, dtype: torch.dtype, new: Callable[[list[Field]], Loops | None], key: Any = None) -> Loops | None:
        if (dtype, key) not in self._loops:
            fields = self._fields(dtype)
            self._loops[dtype, key] = None if fields is None else new(fields)
        return self._loops[dtype, key]

    @property
    def _symbols(self) -> int:
        return max(self.function.symbols) + 1

    def _fields(self, dtype: torch.dtype) -> list[Field] | None:
        """None where loops do not know the dtype of one."""
        bases = [slot.base for slot in self.slots[: len(self.function.places)]]
        if dtype not in _DTYPES or not {base.dtype for base in bases} <= {"bool", _DTYPES[dtype]}:
            return None
        return [Field(base.size, symbol, torch.bool if base.dtype == "bool" else dtype)
                for base, symbol in zip(bases, self.function.symbols, strict=True)]  # fmt: skip

    def _of(self, lengths: Sequence[int], fields: Sequence[torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = self.function.at_lengths(lengths, self._seen(fields))
        return result

    def _seen(self, fields: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Fields as the slots show them."""
        seen = []
        for field, slot in zip(fields, self.slots, strict=False):
            value = field.view(len(field), *slot.base.shape)
            for step in slot.views:
                value = of_rows(step.apply, value)
            seen.append(value)
        return seen


def borders_of(segment: Longs, count: int) -> list[int]:
    """Where the items of each of `count` nodes begin, and where the last ones end."""
    return np.searchsorted(segment, np.arange(count + 1)).tolist()
