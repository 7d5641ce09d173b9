"""A type's gradient as stages of steps: values of the forward pass and their adjoint, computed together.

Nothing is saved: a batch's operands and the gradients of its outputs are read, and one list of stages
(`edbc.run.cuda.stages`) computes what gradients need of the forward pass again, on its way to the gradients of
operands, of parameters that are read element by element, and to the deltas of products (`edbc.cells.values.adjoint`)
beside what these read. After all batches, the gradient of a weight is one product of the last two over all nodes, that
of a bias a sum of deltas: their order is that of the schedule, so gradients are the same bits in every run.

A type with a derivative that the device's table lacks is recomputed under autograd (`edbc.train.backward.recompute`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.program import Packed, Program
from edbc.cells.rows.written import Parameters, Tensors
from edbc.cells.values.adjoint import added, gradients_of
from edbc.cells.values.read import values_of
from edbc.cells.values.value import V, Values, root_of
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.stages import is_known, stages_of_values
from edbc.run.cuda.tritonsource import branches_of
from edbc.run.weights.packed import PackedWeights
from edbc.train.backward.unpack import turned_back


@dataclass(frozen=True, eq=False)
class StepGradient:
    """See the module's docstring. Operands of the kernel: those of the type, then the gradients of its outputs.
    Outputs: gradients of `operands`, then of `parameters`, then a delta and what is read for each of `products`."""

    program: Program
    kernel: TritonKernel
    operands: tuple[int, ...]
    parameters: tuple[SharedRef, ...]
    products: tuple[int, ...]
    """Numbers of packed weights."""

    def of_parameters(self, rows: Tensors, parameters: Parameters) -> dict[SharedRef, torch.Tensor]:
        """Gradients of those that require one, of all rows that the kernel gave but operands' gradients."""
        into, given = _Into(parameters), iter(rows)
        for ref in self.parameters:
            into.add(ref, next(given).sum(0))
        for weight in self.products:
            into.add_packed(self.program.weights[weight], next(given), next(given))
        return into.found


class _Into:
    """Gradients of parameters that require one."""

    def __init__(self, parameters: Parameters):
        self.parameters = parameters
        self.found: dict[SharedRef, torch.Tensor] = {}

    def _of(self, ref: SharedRef) -> torch.Tensor | None:
        parameter = self.parameters[ref]
        if ref not in self.found and parameter.requires_grad:
            self.found[ref] = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        return self.found.get(ref)

    def add(self, ref: SharedRef, gradient: torch.Tensor) -> None:
        """Add to the gradient of a parameter, of which it may be read transposed."""
        first, gradient = turned_back(ref, 0, gradient)
        whole = self._of(root_of(ref))
        if whole is not None:
            whole.view(-1)[first : first + len(gradient)] += gradient

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


def step_gradient(program: Program, view: ModelView, device: torch.device) -> StepGradient | None:
    """The gradient of a type that runs in steps; None where the table has not all that its derivatives are made of.
    O(values)."""
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
    stages = stages_of_values(computed, read, program.dtype)
    weights = PackedWeights(program, view, torch_dtype(program.dtype), device, stages.parameters)
    kernel = TritonKernel(branches_of(stages), program.dtype, program, stages, weights)
    products = tuple(product.arg[0] for product in found.deltas)
    return StepGradient(program, kernel, tuple(found.operands), tuple(found.parameters), products)
