"""A type's gradient as launches on a device: values of the forward pass and their adjoint, computed together.

Nothing is saved: a batch's operands and the gradients of its outputs are read, and one list of launches
(`edbc.run.cuda.launches`) computes what gradients need of the forward pass again, on its way to the gradients of
operands, of parameters that are read element by element, and to the deltas of products (`edbc.cells.values.adjoint`)
beside what these read. After all batches, the gradient of a weight is one product of the last two over all nodes, that
of a bias a sum of deltas: their order is that of the schedule, so gradients are the same bits in every run.

A type with a derivative that the device's table lacks is recomputed under autograd (`edbc.train.backward.recompute`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.program import Packed, Program
from edbc.cells.rows.evaluation import BlockRows, Longs, Parameters, Tensors
from edbc.cells.values.adjoint import added, gradients_of
from edbc.cells.values.read import values_of
from edbc.cells.values.value import V, Values
from edbc.run.cuda.cudabackend import CudaBackend, TritonKernel
from edbc.run.cuda.launches import is_known, launches_of_values
from edbc.run.cuda.tritonsource import kernels_of
from edbc.run.weights.packed import PackedWeights
from edbc.train.backward.recompute import Gradients, MaybeTensors


@dataclass(frozen=True, eq=False)
class LaunchGradient:
    """See the module's docstring. Outputs of the launches: gradients of `operands`, then of `parameters`, then a delta
    and what is read for each of `products`."""

    backend: CudaBackend
    program: Program
    kernel: TritonKernel
    operands: tuple[int, ...]
    parameters: tuple[SharedRef, ...]
    products: tuple[int, ...]
    """Numbers of packed weights."""

    def blocks(self, rows: Sequence[Longs], count: int) -> Iterator[BlockRows]:
        """All rows of a batch at once."""
        yield _AllRows(count)

    def record(self, block: BlockRows, operands: Tensors, wanted: Sequence[bool], parameters: Parameters) -> Given:
        """What the launches read."""
        return Given(self, operands)

    def run(self, operands: Tensors, outputs: Tensors) -> Iterator[torch.Tensor]:
        """The launches' outputs, `(rows, size)`, of operands' rows and the gradients of outputs."""
        launches, weights = self.kernel.launches, self.kernel.weights
        assert launches is not None
        assert weights is not None
        like, count = outputs[0], len(outputs[0])
        work = torch.float64 if launches.dtype == "f64" else torch.float32
        values: dict[str, Any] = {"ix": torch.arange(count, dtype=torch.int32, device=like.device), "count": count}
        values |= {"work": like.new_empty(count * launches.workspace, dtype=work), **self.kernel.shared(weights.pack)}
        for k, rows in enumerate([*operands, *outputs]):
            values |= {f"a{k}": rows.contiguous(), f"at{k}": 0}
        found = [like.new_empty(count, size) for size in launches.output_sizes]
        for j, output in enumerate(found):
            values |= {f"o{j}": output, f"row{j}": 0}
        self.backend.start(self.kernel, count, values)
        return iter(found)

    def of_parameters(self, rows: Tensors, parameters: Parameters) -> dict[SharedRef, torch.Tensor]:
        """Gradients of those that require one, of all that the launches gave but operands' gradients."""
        into, given = _Into(parameters), iter(rows)
        for ref in self.parameters:
            into.add(ref, next(given).sum(0).view(parameters[ref].shape))
        for weight in self.products:
            into.add_packed(self.program.weights[weight], next(given), next(given))
        return into.found


@dataclass(frozen=True, eq=False)
class Given:
    """A block with its operands, in the place of what autograd records."""

    gradient: LaunchGradient
    operands: Tensors

    def gradients(self, wanted: Sequence[bool], outputs: MaybeTensors, keeps_graph: bool) -> Gradients:
        """As `edbc.train.backward.recompute.Recorded`'s, as often as one likes."""
        gradient, sizes = self.gradient, [store.span.size for store in self.gradient.program.stores]
        like = next(output for output in outputs if output is not None)
        given = [like.new_zeros(len(like), n) if o is None else o for o, n in zip(outputs, sizes, strict=True)]
        found = gradient.run(self.operands, given)
        of_operands: MaybeTensors = [None] * len(self.operands)
        for k in gradient.operands:
            rows = next(found)
            of_operands[k] = rows if wanted[k] else None
        late = tuple(found)
        return Gradients(of_operands, {}, (gradient, late) if late else None)


class _Into:
    """Gradients of parameters that require one."""

    def __init__(self, parameters: Parameters):
        self.parameters = parameters
        self.found: dict[SharedRef, torch.Tensor] = {}

    def _of(self, ref: SharedRef) -> torch.Tensor | None:
        parameter = self.parameters[ref]
        if ref not in self.found and parameter.requires_grad:
            self.found[ref] = torch.zeros_like(parameter, requires_grad=False)
        return self.found.get(ref)

    def add(self, ref: SharedRef, gradient: torch.Tensor) -> None:
        """Add to the gradient of a parameter."""
        whole = self._of(ref)
        if whole is not None:
            whole += gradient

    def add_packed(self, packed: Packed, delta: torch.Tensor, read: torch.Tensor) -> None:
        """Add to the gradients of the blocks of a packed weight, (in, out) = read transposed times delta."""
        product = read.t() @ delta
        for placed in packed.blocks:
            block, whole = placed.block, self._of(placed.block.ref)
            assert block.columns is not None
            if whole is not None:
                seen = (whole if block.transposed else whole.t())[slice(*block.columns), slice(*block.rows)]
                seen += product[placed.row :, placed.column :][: len(seen), : seen.shape[1]]
        total = delta.sum(0) if packed.biases else None
        for placed in packed.biases:
            whole, (first, stop) = self._of(placed.block.ref), placed.block.rows
            if whole is not None and total is not None:
                whole[first:stop] += total[placed.column : placed.column + stop - first]


class _AllRows(BlockRows):
    """Nothing is distinct or spread."""

    def __init__(self, count: int) -> None:
        self.positions = np.arange(count)

    def taken(self, operand: int) -> Longs:
        """See BlockRows."""
        return self.positions


def launch_gradient(backend: CudaBackend, program: Program, view: ModelView,
                    device: torch.device) -> LaunchGradient | None:  # fmt: skip
    """The gradient of a type whose forward pass is launches; None where its derivatives are none. O(values)."""
    outputs = values_of(program, lambda ref: view.shared(ref).shape, adds=False)
    assert outputs is not None
    values, first = Values(), len(program.loads)
    given = [values.load(first + j, 0, v.size) for j, v in enumerate(outputs)]
    found = gradients_of(values, outputs, given)
    sizes = dict(sorted((load.operand, load.span.size) for load in program.loads))
    computed: list[V] = [added(values, pieces, sizes[k]) for k, pieces in found.operands.items()]
    for ref, pieces in found.parameters.items():
        computed.append(added(values, pieces, view.shared(ref).numel()))
    for product, delta in found.deltas.items():
        computed += [delta, product.sources[0]]
    if not is_known(computed):
        return None
    read = (*sizes.values(), *(v.size for v in outputs))
    launches = launches_of_values(computed, read, program.dtype)
    weights = PackedWeights(program, view, torch_dtype(program.dtype), device, launches.parameters)
    kernel = TritonKernel(kernels_of(launches), program.dtype, program, launches, weights)
    return LaunchGradient(backend, program, kernel, tuple(found.operands), tuple(found.parameters),
                          tuple(product.arg[0] for product in found.deltas))  # fmt: skip
