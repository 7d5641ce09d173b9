"""A backward pass in steps of a device: the batches in reverse, by the same kind of table as the forward pass.

Definitions.

(1) The gradient of a value is the sum of its *contributions* (`edbc.train.backward.contributions`). A batch's gradient
    takes one step that sums up those of its outputs, live node by live node, then the stages of its type's gradient
    (`edbc.train.backward.devicegradient`), which read operands and these sums and write the contributions to what the
    batch read. The gradient of a sum or a mean is a copy; that of a maximum or minimum finds the items that are it.
(2) So no two programs ever add to one place, nothing must be zero beforehand, and the order of every sum is that of the
    schedule: gradients are the same bits in every run.
(3) A batch's first step is the one behind all that passes on to it; batches of several types share steps, as forwards.
(4) Rows of tables, whole parameters and constants are summed up in one last step, a row per row of the table that was
    looked up. Weights' gradients are products over all nodes of a type, as before.

Everything is known before the first step, so one copy goes up and nothing comes down. Where a type has no gradient in
steps, or the schedule is cut, `edbc.train.backward.reverse` runs the whole mini-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.forward.build import Capture
from edbc.capture.record.lookup import look_up_of
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.run.backend import Segment
from edbc.run.cuda.cudabackend import ELEMENTS, CudaBackend
from edbc.run.cuda.devicearenas import CudaArenas
from edbc.run.cuda.issue import Operations
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.table import Longs, work_places
from edbc.run.cuda.upload import Part, Upload
from edbc.train.backward import contributions as native
from edbc.train.backward.devicegradient import StepGradient
from edbc.train.backward.recompute import ReductionGradient
from edbc.train.backward.reverse import sum_dtype
from edbc.train.inputs import Inputs, sources_of
from edbc.train.reach import Bools, Reach
from edbc.train.results import ClassGradient

if TYPE_CHECKING:
    from edbc.train.backward.reverse import TypeGradient

COPIES = {"sum": "copy", "mean": "mean"}
"""Reductions whose gradient is a copy, item by item, and what copies; that of any other is found node by node."""
Told = Mapping[str, Any]
"""What the branches of some operations ask for, by name: a number for all of them, or one each."""


def runs_in_steps(segment: Segment, gradients: Mapping[int, TypeGradient]) -> bool:
    """True when all gradients of a mini-batch do."""
    types = segment.graph.types
    classes = {c.dtype for kind in gradients for c in (*types[kind].operands, *types[kind].outputs)}
    return bool(gradients) and len(classes & set(ELEMENTS)) == 1 and all(
        not types[kind].transient and (isinstance(g, StepGradient) or (isinstance(g, ReductionGradient)
                                       and {c.dtype for c in types[kind].outputs} <= set(ELEMENTS)))
        for kind, g in gradients.items()
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Group:
    """Operations of one kernel."""

    kernel: TritonKernel
    count: Longs
    step: Longs
    told: Told


@dataclass(frozen=True, eq=False)
class _Table:
    """Rows of externals to be summed up: the gradient of a parameter that is looked up or read whole, or of a
    constant."""

    key: SharedRef | tuple[int, int]
    class_index: int
    rows: Longs
    """Of externals, numbered as `contributions` numbers them; those of one row of the table stand together."""
    sizes: Longs
    index: Longs | None
    """Which rows of the table; None: it is one."""


class StepReversal:
    """One backward pass; see the module's docstring."""

    def __init__(self, backend: CudaBackend, segment: Segment, arenas: CudaArenas,
                 gradients: Mapping[int, TypeGradient], reach: Reach, reached: Bools, given: Bools):  # fmt: skip
        self.backend, self.segment, self.arenas = backend, segment, arenas
        self.gradients, self.reach, self.reached, self.given = gradients, reach, reached, given
        self.placement, self.schedule, self.graph = segment.placement, segment.schedule, segment.graph
        self.extremes = {k: g.op for k, g in gradients.items() if isinstance(g, ReductionGradient)
                         and g.op not in COPIES}  # fmt: skip
        self.dtypes = self.placement.dtypes
        self.class_first = np.concatenate([[0], np.cumsum(self.placement.class_rows)]).astype(np.int64)

    def run(self, results: Sequence[ClassGradient], capture: Capture, inputs: Inputs,
            parameters: Mapping[SharedRef, torch.Tensor]) -> tuple[dict[SharedRef, torch.Tensor],
                                                                   dict[tuple[int, int], torch.Tensor]]:  # fmt: skip
        """Gradients of parameters, and of constants that are reached."""
        self._find(results)
        self._allocate(results)
        self.upload = Upload(self.arenas.device)
        tables = list(self._tables(capture, inputs))
        groups = [*self._sums(), *self._of_types(), *self._copies(), *self._of_tables(tables)]
        self._issue([group for group in groups if len(group.count)])
        found: dict[SharedRef, torch.Tensor] = {}
        constants: dict[tuple[int, int], torch.Tensor] = {}
        for gradient, given in self.late:
            for ref, tensor in gradient.of_parameters(given, parameters).items():
                _add(found, ref, tensor)
        for table, rows, where in self.of_tables:
            if isinstance(table.key, SharedRef):
                _add(found, table.key, _table_gradient(table.key, parameters[table.key], where, rows))
            else:
                constants[table.key] = rows.view(inputs.constants[table.key].shape)
        return {ref: gradient.to(parameters[ref].dtype) for ref, gradient in found.items()}, constants

    # --- rows ------------------------------------------------------------------------------------------------------

    def _find(self, results: Sequence[ClassGradient]) -> None:
        """What native code finds: live nodes, contributions, steps."""
        graph, schedule, placement, reach = self.graph, self.schedule, self.placement, self.reach
        kind, ptr, nodes = schedule.batch_type, schedule.batch_ptr, schedule.nodes
        operand_class, output_class = (np.ascontiguousarray(c[: graph.num_types])
                                       for c in (placement.operand_class, placement.output_class))  # fmt: skip
        arity = np.array([len(t.operands) for t in graph.types], np.int64)
        variadic = np.array([t.variadic for t in graph.types], np.bool_)
        copied = variadic & ~np.array([k in self.extremes for k in range(graph.num_types)])
        passes, stages = np.zeros(operand_class.shape, np.bool_), np.ones(graph.num_types, np.int64)
        for k, gradient in self.gradients.items():
            if isinstance(gradient, StepGradient):
                passes[k, list(gradient.operands)] = True
                stages[k] = len(gradient.kernel.branches)
            else:
                passes[k, : arity[k]] = True
        depends = np.zeros((graph.num_types, output_class.shape[1], operand_class.shape[1]), np.bool_)
        seen = reach.depends[:, : depends.shape[1], : depends.shape[2]]
        depends[:, : seen.shape[1], : seen.shape[2]] = seen
        of_externals = np.flatnonzero(self.given & (placement.external_row >= 0))
        given = self.class_first[placement.external_class[of_externals]] + placement.external_row[of_externals]
        wanted = native.wanted_rows(kind, ptr, nodes, placement.output_row, output_class, reach.first_value,
                                    self.reached, self.class_first, given)  # fmt: skip
        self.live_ptr, self.live = native.live_nodes(ptr, nodes, reach.first_value, self.reached)
        result_row = [self.class_first[c] + rows for c, rows, _ in results]
        result_count = np.zeros(len(placement.classes) + 1, np.int64)
        for c, rows, _ in results:
            result_count[c + 1] += len(rows)
        (self.ptr, self.items, self.total, self.first, self.count, self.gradient_row, self.gradient_rows, self.x_start,
         self.x) = native.contributions(
            kind, ptr, nodes, placement.rows, placement.segment, placement.start, placement.items, operand_class,
            output_class, arity, variadic, copied, passes, depends, reach.first_value, self.reached, self.class_first,
            wanted, self.live_ptr, self.live, np.concatenate([_EMPTY, *result_row]), np.cumsum(result_count),
        )  # fmt: skip
        self.begin, self.item, self.borders = native.borders_of_outputs(
            kind, ptr, placement.output_row, output_class, self.class_first, self.live_ptr, self.live, self.ptr
        )
        self.step, self.steps = native.reverse_steps(
            kind, ptr, nodes, graph.operand_ptr, graph.operands, placement.batch_of, stages, self.live_ptr, self.live
        )  # fmt: skip
        self.live_count = np.diff(self.live_ptr)
        self.batches = {k: np.flatnonzero((kind == k) & (self.live_count > 0)) for k in self.gradients}

    def _allocate(self, results: Sequence[ClassGradient]) -> None:
        """Arenas of contributions and of gradients, the loss's contributions in their place."""
        device, classes = self.arenas.device, self.placement.classes
        self.passed, self.given_arenas = (
            [torch.empty(int(n), c.size, dtype=dtype, device=device)
             for n, c, dtype in zip(rows, classes, self.dtypes, strict=True)]
            for rows in (self.total, self.gradient_rows)
        )  # fmt: skip
        for c, rows, gradient in results:
            self.passed[c][: len(rows)] = gradient.reshape(len(rows), -1)
        most = max(int(self.gradient_rows.max(initial=1)), 1)
        self.counting = torch.arange(most, dtype=torch.int32, device=device)

    # --- operations ------------------------------------------------------------------------------------------------

    def _sums(self) -> Iterator[_Group]:
        """Of the contributions to the outputs of every batch."""
        items, borders = self.upload.indices(self.items), self.upload.indices(self.borders)
        for kind, batches in self.batches.items():
            for j, c in enumerate(self._classes(kind, self.placement.output_class)):
                yield _Group(
                    self._copy(c, "sum"), self.live_count[batches], self.step[batches],
                    {"a0": self.passed[c], "at0": _At(items, 4 * self.item[batches, j]), "o0": self.given_arenas[c],
                     "seg": _At(borders, 4 * self.begin[batches, j]), "row0": self.gradient_row[batches, j]},
                )  # fmt: skip

    def _of_types(self) -> Iterator[_Group]:
        """The stages of each type's gradient."""
        x, self.late = self.upload.indices(self.x), list[tuple[StepGradient, list[torch.Tensor]]]()
        for kind, gradient in self.gradients.items():
            batches = self.batches[kind]
            if not isinstance(gradient, StepGradient) or not len(batches):
                continue
            stages, count = gradient.kernel.stages, self.live_count[batches]
            assert stages is not None
            told: dict[str, Any] = {"work": None}
            operands = self._classes(kind, self.placement.operand_class)
            for k, c in enumerate(operands):
                told[f"a{k}"] = self.arenas.tensors[c]
                told[f"at{k}"] = _At(x, 4 * (self.x_start[batches] + k * count))
            for j, c in enumerate(self._classes(kind, self.placement.output_class)):
                told[f"a{len(operands) + j}"] = self.given_arenas[c]
                told[f"at{len(operands) + j}"] = self.counting.data_ptr() + 4 * self.gradient_row[batches, j]
            late_row, rows = np.cumsum(count) - count, int(count.sum())
            dtype = torch_dtype(gradient.kernel.dtype)
            late = [torch.empty(rows, size, dtype=dtype, device=self.arenas.device)
                    for size in stages.output_sizes[len(gradient.operands) :]]  # fmt: skip
            for j, k in enumerate(gradient.operands):
                told |= {f"o{j}": self.passed[operands[k]], f"row{j}": self.first[batches, k]}
            for j, tensor in enumerate(late, len(gradient.operands)):
                told |= {f"o{j}": tensor, f"row{j}": late_row}
            self.late.append((gradient, late))
            yield _Group(gradient.kernel, count, self.step[batches] + 1, told)

    def _copies(self) -> Iterator[_Group]:
        """Gradients of reductions."""
        kinds = [k for k, gradient in self.gradients.items() if isinstance(gradient, ReductionGradient)]
        x, placement = self.upload.indices(self.x[: self.x_start[-1] if kinds else 0]), self.placement
        for kind in kinds:
            batches, gradient = self.batches[kind], self.gradients[kind]
            assert isinstance(gradient, ReductionGradient)
            seg, ends = native.item_ends(batches, self.schedule.batch_ptr, placement.segment, placement.start,
                                         placement.items, self.live_ptr, self.live)  # fmt: skip
            of_items = self.upload.indices(ends)
            is_copied, op = kind not in self.extremes, COPIES.get(gradient.op, gradient.op)
            for f, c in enumerate(self._classes(kind, placement.operand_class)):
                count, given = self.count[batches], self.given_arenas[c]
                yield _Group(
                    self._copy(c, op), count if is_copied else self.live_count[batches], self.step[batches] + 1,
                    {"a0": given if is_copied else self.arenas.tensors[c], "a1": given,
                     "at0": _At(x, 4 * (self.x_start[batches] + f * count)),
                     "o0": self.passed[c], "row0": self.first[batches, f], "row1": self.gradient_row[batches, f],
                     "seg": _At(of_items, 4 * seg)},
                )  # fmt: skip

    def _of_tables(self, tables: Sequence[_Table]) -> Iterator[_Group]:
        """Definition (4)."""
        self.of_tables: list[tuple[_Table, torch.Tensor, Part | None]] = []
        for table in tables:
            joined, each = native.joined_items(table.rows, self.ptr, self.items)
            ends = each[np.concatenate([[0], np.cumsum(table.sizes)])]
            items, borders = self.upload.indices(joined), self.upload.indices(ends)
            value_class, c = self.placement.classes[table.class_index], table.class_index
            rows = torch.empty(len(table.sizes), value_class.size, dtype=self.dtypes[c], device=self.arenas.device)
            where = None if table.index is None else self.upload.indices(table.index)
            self.of_tables.append((table, rows, where))
            told = {"a0": self.passed[c], "at0": _At(items, 0), "o0": rows, "seg": _At(borders, 0), "row0": 0}
            yield _Group(self._copy(c, "sum"), np.array([len(table.sizes)]), np.array([self.steps]), told)

    def _classes(self, kind: int, table: Longs) -> list[int]:
        return [int(c) for c in table[kind] if c >= 0]

    def _copy(self, class_index: int, op: str) -> TritonKernel:
        value_class = self.placement.classes[class_index]
        return self.backend.copies(value_class.size, value_class.dtype, op)

    def _tables(self, capture: Capture, inputs: Inputs) -> Iterator[_Table]:
        """What the externals that are reached belong to; of one source they are of one class."""
        placement, given = self.placement, self.given & (self.placement.external_row >= 0)
        row = self.class_first[placement.external_class] + placement.external_row
        for number in sources_of(capture, given):
            source = capture.sources[number]
            if source.ref is None:
                continue
            which = np.flatnonzero(given & (capture.external_source == number))
            c = int(placement.external_class[which[0]])
            if source.kind == "whole":
                yield _Table(source.ref, c, row[which], np.array([len(which)]), None)
                continue
            look_up = look_up_of(source.ref)
            if look_up is not None and look_up.padding_index is not None:
                which = which[capture.external_index[which] != look_up.padding_index]
            which = which[np.argsort(capture.external_index[which], kind="stable")]
            index, sizes = np.unique(capture.external_index[which], return_counts=True)
            yield _Table(source.ref, c, row[which], sizes, index)
        for key, externals in inputs.constant_externals(capture).items():
            which = externals[given[externals]]
            if len(which):
                yield _Table(key, int(placement.external_class[which[0]]), row[which], np.array([len(which)]), None)

    # --- steps -----------------------------------------------------------------------------------------------------

    def _issue(self, groups: Sequence[_Group]) -> None:
        """All groups as one stretch."""
        issuer = self.backend.backward
        numbers = np.array(issuer.library.numbers([group.kernel for group in groups]), np.int64)
        sizes = [len(group.count) for group in groups]
        count = np.concatenate([_EMPTY, *(group.count for group in groups)])
        step = np.concatenate([_EMPTY, *(group.step for group in groups)])
        kernel = np.repeat(numbers, sizes)
        tables, steps = issuer.library.tables, self.steps + bool(self.of_tables)
        place, room = work_places(step, tables.stages[kernel], tables.work[kernel] * count, steps)
        work = torch.empty(int(room), dtype=torch.uint8, device=self.arenas.device)

        def vectors(out: Longs) -> None:
            at = 0
            for group, number, size in zip(groups, numbers.tolist(), sizes, strict=True):
                for i, name in enumerate(group.kernel.names):
                    if name == "work":
                        out[at : at + size, i] = work.data_ptr() + place[at : at + size]
                    elif name in group.told:
                        out[at : at + size, i] = _number(group.told[name])
                    else:
                        out[at : at + size, i] = tables.constants[number, i]
                at += size

        issuer.issue(self.upload, [Operations(kernel, count, step, steps)] if groups else [], vectors, self.upload.send)


_EMPTY = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class _At:
    """Addresses in a part of an upload, known when that has its memory."""

    part: Part
    offsets: Any


def _number(told: Any) -> Any:
    if isinstance(told, _At):
        return told.part.address + told.offsets
    return told.data_ptr() if isinstance(told, torch.Tensor) else told


def _add(found: dict[SharedRef, torch.Tensor], ref: SharedRef, gradient: torch.Tensor) -> None:
    """To the gradient of a parameter; of short floats in float32."""
    gradient = gradient if gradient.is_sparse else gradient.to(sum_dtype(gradient.dtype))
    found[ref] = found[ref] + gradient if ref in found else gradient


def _table_gradient(ref: SharedRef, table: torch.Tensor, where: Part | None, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a table that were looked up, each summed up already, as the gradient of the table."""
    if where is None:
        return rows.view(table.shape)
    index, look_up = where.tensor.long(), look_up_of(ref)
    rows = rows.view(len(index), *table.shape[1:])
    if look_up is not None and look_up.sparse:
        return torch.sparse_coo_tensor(index[None], rows, table.shape, check_invariants=False)
    return torch.zeros_like(table, dtype=sum_dtype(table.dtype), requires_grad=False).index_copy_(
        0, index, rows.to(sum_dtype(table.dtype))
    )
