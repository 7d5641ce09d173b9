"""A backward pass in native code, torch for the batches that it does not know.

Definitions.

(1) A type is differentiated natively when it ran natively forward, its program has an adjoint (`training.adjoint`), or
    it is a sum or mean. A maximal run of such batches of one element type is one call of `walk_back`; other batches are
    recomputed under autograd in between (`training.reverse`).
(2) Gradients of outputs stand in one buffer with the rows of the arenas. Gradients of externals are added where they
    belong at once: to a row of the gradient of their table, to that of a parameter, or, when nobody asks for them, to a
    row of *trash*.
(3) Deltas overwrite what the forward pass saved, unless autograd keeps the graph; then they have memory of their own,
    but where the schedule is cut, as what was saved is then computed again.
(4) *Lazy products* are one product per weight over the nodes of all batches, after the walk (Cavs's lazy batching).
    Where the schedule is cut, rows of a block that is not full wait for the segment before, so that the products are
    the same.
(5) Gradients of *short* values, of bfloat16 and float16 in a model of several dtypes, stand in torch's arenas, as in
    `training.reverse`: no native batch reads or makes such values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from edbc.capture.forward.build import Capture
from edbc.capture.record.lookup import look_up_of
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.kernels.outer import address_of_outer
from edbc.native.pool import ALIGNMENT, Pool, aligned
from edbc.run.backend import Segment
from edbc.run.cpu.cpubackend import CpuArenas, block_of, stretches_of
from edbc.run.cpu.team import TEAM
from edbc.run.cpu.walk import gather_rows, record_of_memory
from edbc.run.cpu.walktables import NativeKernel, address_of_parameter
from edbc.run.passes.placeloops import count_work
from edbc.run.passes.placement import Longs
from edbc.train.backward.backtables import BLOCK, WEIGHT_BLOCK, TypeTables, product_bytes
from edbc.train.backward.backwalk import Adjoints, Reversed, Rows, Weights, add_rows, walk_back, weight_products
from edbc.train.backward.contributions import live_nodes
from edbc.train.backward.reverse import Reversal, sum_dtype
from edbc.train.backward.unpack import Part, Range, turned_back
from edbc.train.dependence import has_gradient
from edbc.train.externals import constant_gradients, parameter_gradients
from edbc.train.inputs import Inputs, sources_of

_LIKE = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


@dataclass(eq=False)
class NativeReversal(Reversal):
    """See the module's docstring."""

    capture: Capture
    inputs: Inputs
    tables: TypeTables
    pool: Pool
    """Definition (4); 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.arenas, CpuArenas)
        assert self.arenas.snapshot is not None
        self._packs = self.arenas.snapshot.packs  # the weights with which the forward pass ran
        self._kernels = self.arenas.snapshot.kernels
        self._work_of_types = self.arenas.snapshot.work
        self._alive: list[torch.Tensor] = []
        self._sparse: dict[SharedRef, tuple[Longs, torch.Tensor]] = {}
        self.constants: dict[tuple[int, int], torch.Tensor] = {}
        schedule, placement = self.segment.schedule, self.segment.placement
        live_ptr, live = live_nodes(schedule.batch_ptr, schedule.nodes, self.reach.first_value, self.reached)
        self.batches = Reversed(schedule.batch_type, schedule.batch_ptr, placement.start, placement.items,
                                placement.rows, placement.segment, placement.origin, placement.output_row, live_ptr,
                                live)  # fmt: skip
        memory = self.arenas.memory
        self.values = Rows(memory.base, memory.stride, memory.externals, memory.external_start,
                           memory.external_address)  # fmt: skip
        self.dtypes = placement.dtypes
        short = [has_gradient(c) and d not in _LIKE for c, d in zip(placement.classes, self.dtypes, strict=True)]
        self._short = np.array(short, np.bool_)
        self._segments = self.segment.segments()
        self._buffer, self._starts = self._gradient_memory()
        self.rows_of_gradients = Rows(self._starts, memory.stride, memory.externals, memory.external_start,
                                      self._external_addresses())  # fmt: skip
        gradients = memory._replace(base=self._starts, external_address=self.rows_of_gradients.external_address)
        self._record = record_of_memory(gradients)
        self.weights, self._weight_gradients = self._weight_memory()
        self.arrays = self._with_weights()
        self._products = self._products_by_dtype()

    # --- memory ----------------------------------------------------------------------------------------------------

    def _gradient_memory(self) -> tuple[torch.Tensor, Longs]:
        """Definitions (2) and (3): a buffer of zeros, and the address at which row 0 of each class would stand."""
        placement, values = self.segment.placement, self.values
        hidden = self._hidden_classes()
        rows = placement.class_rows - placement.class_externals
        has_rows = np.array(
            [has_gradient(c) and (self.keeps_graph or c not in hidden) for c in placement.classes], np.bool_
        )
        sizes = np.where(has_rows & ~self._short, rows * values.stride, 0)
        start = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(-(-sizes // ALIGNMENT) * ALIGNMENT, out=start[1:])
        buffer = self.pool.take(int(start[-1]) + self._workspace_bytes() + ALIGNMENT)
        first = aligned(buffer.data_ptr()) - buffer.data_ptr()
        buffer[first : first + int(start[-1])].zero_()
        kept = (placement.class_kept - placement.class_externals) * values.stride
        self._of_segment = [
            buffer[first + begin + from_row : first + begin + size]
            for begin, from_row, size in zip(start[:-1].tolist(), kept.tolist(), sizes.tolist(), strict=True)
            if from_row < size
        ]
        address = buffer.data_ptr() + first
        self._workspace = address + int(start[-1])
        base = address + start[:-1] - placement.class_externals * values.stride
        for number, value_class in enumerate(placement.classes):
            if value_class in hidden and not self.keeps_graph:
                base[number] = values.base[number]
        return buffer, base

    def clear(self) -> None:
        super().clear()
        for rows in self._of_segment:
            rows.zero_()

    def _hidden_classes(self) -> set[Any]:
        types = self.segment.graph.types
        return {c for kind, a in self.tables.adjoints.items() for c in types[kind].outputs[a.slots.outputs :]}

    def _workspace_bytes(self) -> int:
        """What the walk, and after it the products of weights, take for the widest of the types. Where the schedule is
        cut, the products of each type have memory of their own, in which rows wait: definition (4)."""
        products = waiting = 0
        self._product_offset: dict[int, int] = {}
        stride = max((adjoint.rendered.stride for adjoint in self.tables.adjoints.values()), default=0)
        self._block = block_of(stride, BLOCK)
        walk = self._block * stride
        for kind, adjoint in self.tables.adjoints.items():
            self._product_offset[kind] = waiting
            products = max(products, product_bytes(adjoint))
            waiting += product_bytes(adjoint)
        self._scratch = walk
        if len(self._segments) == 1:
            self._product_offset = dict.fromkeys(self.tables.adjoints, 0)
            return aligned(max(walk + self.tables.scratch, products))
        own = aligned(walk + self.tables.scratch)
        self._product_offset = {kind: own + offset for kind, offset in self._product_offset.items()}
        return own + waiting

    def release(self) -> None:
        """Give the memory back."""
        self.pool.give(self._buffer)

    def _external_addresses(self) -> Longs:
        placement = self.segment.placement
        widest = max((c.size * d.itemsize for c, d in zip(placement.classes, self.dtypes, strict=True)), default=0)
        trash = self._kept(torch.zeros(widest, dtype=torch.uint8))
        addresses = np.full(len(self.values.external_address), trash, np.int64)
        slot = self.values.external_start[placement.external_class] + placement.external_row
        for which, address in self._parameter_addresses():
            addresses[slot[which]] = address
        for which, one in self._constant_addresses():
            addresses[slot[which]] = one
        return addresses

    def _kept(self, tensor: torch.Tensor) -> int:
        self._alive.append(tensor)
        return tensor.data_ptr()

    def _parameter_addresses(self) -> Iterator[tuple[Longs, Longs]]:
        """Externals that are parameters or rows of them, and where their gradients are added up."""
        capture, placement = self.capture, self.segment.placement
        given = self.given & (placement.external_row >= 0)
        for number in sources_of(capture, given):
            source = capture.sources[number]
            if source.ref is None or torch_dtype(source.value_class.dtype) not in _LIKE:
                continue
            which = np.flatnonzero(given & (capture.external_source == number))
            index = capture.external_index[which] if source.kind == "row" else np.zeros(len(which), np.int64)
            stride = source.value_class.size * torch_dtype(source.value_class.dtype).itemsize
            look_up = look_up_of(source.ref)
            if look_up is not None and look_up.padding_index is not None:
                kept = index != look_up.padding_index
                which, index = which[kept], index[kept]
            dtype = torch_dtype(source.value_class.dtype)
            if look_up is not None and look_up.sparse:
                rows = torch.zeros(len(which), source.value_class.size, dtype=dtype)
                self._sparse[source.ref] = (index, rows)
                yield which, rows.data_ptr() + np.arange(len(which)) * stride
                continue
            yield which, self._gradient_of(source.ref).data_ptr() + index * stride

    def _gradient_of(self, ref: SharedRef) -> torch.Tensor:
        """The gradient of a parameter as a contiguous tensor, zeros at first."""
        known = self.found.get(ref)
        if known is None:
            like = self.parameters[ref]
            known = self.found[ref] = torch.zeros(like.shape, dtype=sum_dtype(like.dtype))
        return known

    def _constant_addresses(self) -> Iterator[tuple[Longs, int]]:
        placement = self.segment.placement
        for key, externals in self.inputs.constant_externals(self.capture).items():
            which = externals[self.given[externals] & (placement.external_row[externals] >= 0)]
            if len(which) and self.inputs.constants[key].dtype in _LIKE:
                tensor = self.constants[key] = torch.zeros(self.inputs.constants[key].shape,
                                                           dtype=self.inputs.constants[key].dtype)  # fmt: skip
                yield which, tensor.data_ptr()

    # --- weights ---------------------------------------------------------------------------------------------------

    def _weight_memory(self) -> tuple[Weights, dict[int, list[torch.Tensor | None]]]:
        """Memory for their gradients where a part of them is sought (`Part.source`), by the first of types with the
        same weights."""
        num_types, num_products = len(self.segment.graph.types), len(self.tables.arrays.products)
        vectors = np.zeros(num_types, np.int64)
        gradient, bias = np.zeros((2, num_products), np.int64)
        found: dict[int, list[torch.Tensor | None]] = {}
        for kind, first in self.tables.first_product.items():
            adjoint, leader = self.tables.adjoints[kind], self.tables.leaders[kind]
            if leader != kind:
                theirs, count = self.tables.first_product[leader], len(adjoint.weights)
                vectors[kind] = vectors[leader]
                for addresses in (gradient, bias):
                    addresses[first : first + count] = addresses[theirs : theirs + count]
                continue
            dtype = torch_dtype(adjoint.program.dtype)
            sought = {part.source for part in self.tables.parts[kind] if self._is_sought(part)}
            tensors: list[torch.Tensor | None] = [None]
            if adjoint.vectors:
                tensors[0] = torch.zeros(sum(v.size for v in adjoint.vectors), dtype=dtype)
                vectors[kind] = tensors[0].data_ptr()  # type: ignore[union-attr]
            for k, product in enumerate(adjoint.weights):
                shapes = (gradient, (product.columns, product.rows)), (bias, (product.columns,))
                for source, (addresses, shape) in enumerate(shapes, 2 * k + 1):
                    tensor = torch.zeros(shape, dtype=dtype) if source in sought else None
                    addresses[first + k] = 0 if tensor is None else tensor.data_ptr()
                    tensors.append(tensor)
            found[kind] = tensors
        return Weights(vectors, gradient, bias), found

    def _with_weights(self) -> Adjoints:
        """The tables with the addresses of weights, those with which the forward pass ran."""
        steps, pieces = self.tables.steps.filled(
            lambda kind, weight: (self._transposed(kind, weight), 0),
            lambda kind, parameter: address_of_parameter(self._packs[kind], parameter),
        )
        return self.tables.arrays._replace(steps=steps, pieces=pieces)

    def _transposed(self, kind: int, weight: int) -> int:
        kernel = self._kernels[kind]
        assert isinstance(kernel, NativeKernel)
        return self._kept(kernel.transposed(self._packs[kind], weight))

    def _products_by_dtype(self) -> dict[torch.dtype, tuple[Longs, Longs, Longs]]:
        """The types with weights, the workspace of each, and how many rows wait there: definition (4)."""
        kinds: dict[torch.dtype, list[int]] = {}
        for kind, adjoint in self.tables.adjoints.items():
            if adjoint.weights:
                kinds.setdefault(torch_dtype(adjoint.program.dtype), []).append(kind)
        return {
            dtype: (np.array(of), np.array([self._workspace + self._product_offset[k] for k in of]),
                    np.zeros(len(of), np.int64))
            for dtype, of in kinds.items()
        }  # fmt: skip

    def _is_sought(self, part: Part) -> bool:
        return self.parameters[part.ref].requires_grad

    def _unpack(self, kind: int) -> None:
        """Gradients of packed weights, biases and vectors to the parameters that they are blocks of."""
        packed = self._weight_gradients[kind]
        for part in self.tables.parts[kind]:
            tensor = packed[part.source]
            if tensor is not None and self._is_sought(part):
                self._add_part(part, tensor)

    def _add_part(self, part: Part, packed: torch.Tensor) -> None:
        """Definition (2) of `training.unpack`."""
        parameter = self.parameters[part.ref]
        piece, first = _between(packed, part.rows, part.columns), part.of_rows[0]
        if part.read_as is not None:
            first, piece = turned_back(part.read_as, first, piece)
        if part.ref not in self.found and part.is_alone and not part.transposed and piece.numel() == parameter.numel():
            self.found[part.ref] = (
                piece
                if piece is packed and packed.shape == parameter.shape
                else piece.contiguous().view(parameter.shape)
            )
            return
        whole = self._gradient_of(part.ref)
        if part.of_columns is None:
            whole.view(-1)[first : first + len(piece)] += piece
        elif part.transposed:
            whole[slice(*part.of_columns), slice(*part.of_rows)] += piece.t()
        else:
            whole[slice(*part.of_rows), slice(*part.of_columns)] += piece

    # --- the pass --------------------------------------------------------------------------------------------------

    def take(self, class_index: int, rows: Longs) -> torch.Tensor:
        if self._short[class_index]:
            return super().take(class_index, rows)
        size = self.segment.placement.classes[class_index].size
        result = torch.empty(len(rows), size, dtype=self.dtypes[class_index])
        gather_rows(result.data_ptr(), rows, class_index, self._record)
        return result

    def add(self, class_index: int, rows: Longs, gradient: torch.Tensor) -> None:
        if self._short[class_index]:
            super().add(class_index, rows, gradient)
            return
        if gradient._is_zerotensor():  # zeros that have no memory, as those of `sgn`
            return
        dtype = self.dtypes[class_index]
        source = gradient.reshape(len(rows), -1).to(dtype).resolve_neg().contiguous()
        add_rows(source.data_ptr(), dtype.itemsize, rows, class_index, self.rows_of_gradients, _LIKE[dtype])

    def add_parameter(self, ref: SharedRef, gradient: torch.Tensor) -> None:
        """See Reversal. In place: native code has the address."""
        if gradient.is_sparse and ref not in self.found:
            self.found[ref] = gradient
        else:
            self._gradient_of(ref).add_(gradient)

    def run(self, results: Any) -> None:
        super().run(results)
        for kind in self._weight_gradients:
            self._unpack(kind)
        for ref, (index, rows) in self._sparse.items():
            table = self.parameters[ref]
            self.add_parameter(ref, torch.sparse_coo_tensor(
                torch.from_numpy(index)[None], rows.view(len(index), *table.shape[1:]), table.shape,
                check_invariants=False))  # fmt: skip
        if self._short.any():
            self._add_short_externals()
        self.found = {ref: gradient.to(self.parameters[ref].dtype) for ref, gradient in self.found.items()}

    def _add_short_externals(self) -> None:
        """Definition (5)."""
        placement = self.segment.placement
        whole = self.capture, placement, self.inputs, self, self.given & self._short[placement.external_class]
        for ref, gradient in parameter_gradients(*whole):
            self.add_parameter(ref, gradient)
        self.constants.update(constant_gradients(*whole))

    def walk(self, segment: Segment) -> None:
        """See Reversal; rows of passes add to each other's gradients, and one thread runs them."""
        whole = self.batches, self.values, self.rows_of_gradients, self.arrays, self.weights
        for begin, end, dtype in reversed(list(self._stretches(segment))):
            if dtype is None:
                self.batch(begin)
            else:
                work = partial(count_work, begin, end, self.batches.batch_type, self.batches.batch_ptr,
                               self._work_of_types)  # fmt: skip
                with TEAM.helping(work, dtype.itemsize) as team:
                    walk_back(begin, end, self._block, self._workspace, self._workspace + self._scratch, dtype.itemsize,
                              *whole, _LIKE[dtype], team)  # fmt: skip
        for dtype, (kinds, workspaces, filled) in self._products.items():
            with TEAM.helping(self._work_of_weights, dtype.itemsize) as team:
                outer = address_of_outer(dtype.itemsize)
                weight_products(kinds, segment.begin, segment.stop, WEIGHT_BLOCK, workspaces, filled, outer, *whole,
                                _LIKE[dtype], team)  # fmt: skip

    def _work_of_weights(self) -> float:
        """Multiplications of the products over all nodes."""
        kinds = [kind for of, *_ in self._products.values() for kind in of.tolist()]
        return float(self.segment.graph.counts()[kinds] @ self._work_of_types[kinds])

    def _stretches(self, segment: Segment) -> Iterator[tuple[int, int, torch.dtype | None]]:
        """Runs of batches (begin, end, element type); single batches with None for torch."""
        elements: dict[int, torch.dtype | None] = dict.fromkeys(range(len(self.segment.graph.types)))
        for kind in (*self.tables.adjoints, *self.tables.reductions):
            elements[kind] = torch_dtype(self.segment.graph.types[kind].outputs[0].dtype)
        begin = segment.begin
        for first, last, dtype in stretches_of(segment.schedule.batch_type[begin : segment.stop], elements):
            yield begin + first, begin + last, dtype


def _between(packed: torch.Tensor, rows: Range, columns: Range | None) -> torch.Tensor:
    """Rows of a tensor, some columns of them where columns are given."""
    ends = (rows,) if columns is None else (rows, columns)
    for dim, (begin, end) in enumerate(ends):
        if end - begin != packed.shape[dim]:
            packed = packed.narrow(dim, begin, end - begin)
    return packed
