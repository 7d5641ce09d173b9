"""Packed weights: parameters in the order that a program's products want, refreshed when a parameter changes.

What was packed is replaced, never written to: who holds a `Pack` may go on using it while another thread refreshes. A
parameter counts as changed when its storage's address, its strides, its version counter or its object differs from when
it was packed: `load_state_dict`, an optimiser's step, `.data = ...`, `.to()` and assignment of a new parameter are all
seen. The objects and storages that were packed are kept until then, so that nothing new can stand at their addresses.
Fused steps of optimisers, which do not count versions, begin a new generation (`runtime.changes`). What is written
through `.data`, which counts nothing, is told from a sample of the words of parameters on the CPU.

Parameters are compared, and do not become views of packed storage: one parameter is packed several times (its type
whole, split and in reverse, each in the order of that program), tied weights belong to several types, and a view of a
packed matrix would be a parameter with other strides, which breaks `view(-1)` in user code and files of weights. The
comparison costs 0.4 microseconds per parameter and mini-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.program import Map, Packed, Placed, Program
from edbc.errors import ModelError, StaleError
from edbc.run.cuda.streams import Origin, origin
from edbc.run.weights.fingerprint import fingerprint, places
from edbc.run.weights.touched import generation

if TYPE_CHECKING:
    from edbc.cells.kernels.microkernel import Shape
    from edbc.run.weights.packing import Moves

Key = tuple[int, list[int], list[int], list[tuple[int, ...]], list[int]]


@dataclass(frozen=True, eq=False)
class Pack:
    """For each Packed of a program a matrix (in, out), or its panels (`microkernel.Shape`), and a bias (out,) or None;
    and parameters that maps read, flat."""

    matrices: tuple[torch.Tensor, ...]
    biases: tuple[torch.Tensor | None, ...]
    vectors: dict[SharedRef, torch.Tensor]
    origin: Origin | None = None
    """Set on devices with streams."""
    transposed: dict[int, torch.Tensor] = field(default_factory=dict)
    """Matrices as backward passes read them, once one has asked for them."""

    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        return [*self.matrices, *(bias for bias in self.biases if bias is not None), *self.vectors.values()]


@dataclass(frozen=True, eq=False)
class _Packing:
    """A pack and the parameters that it was made of, as they were: replaced as one value, so that threads never see
    half of a change."""

    key: Key
    kept: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """The parameters, and their storages as tensors."""
    places: NDArray[np.int64]
    print: int
    pack: Pack


class PackedWeights:
    """The weights of one program on one device."""

    def __init__(self, program: Program, view: ModelView, dtype: torch.dtype, device: torch.device,
                 others: Iterable[SharedRef] = (), shape: Shape | None = None):  # fmt: skip
        self.program = program
        self.view = view
        self.dtype = None if program.widths else dtype
        """Of all of them; in a program of several dtypes each has its own."""
        self.device = device
        self.shape = shape
        """Of the panels in which matrices are packed, flat; None: as they are."""
        maps = [step for step in program.steps if isinstance(step, Map)]
        mapped = (s for step in maps for s in step.sources if isinstance(s, SharedRef))
        self._refs = tuple(dict.fromkeys((*mapped, *others)))
        placed = [p for packed in program.weights for p in (*packed.blocks, *packed.biases)]
        self._packed_refs = tuple(dict.fromkeys(p.block.ref for p in placed))
        self._moves: Moves | None = None
        self._names = tuple(
            dict.fromkeys(n for ref in [*(p.block.ref for p in placed), *self._refs] for n in ref.names)
        )
        self._homes = [_home(view.model, name) for name in self._names]
        self._whole = [None if ref.views else self._names.index(ref.name) for ref in self._packed_refs]
        """Which of the tensors each packed ref is, where it is one as it stands."""
        self._packing: _Packing | None = None

    @property
    def pack(self) -> Pack:
        """The weights as the parameters are now. One comparison per parameter when none has changed."""
        tensors = [home[name] for home, name in self._homes]
        key = (generation(), *_state(tensors))
        packing = self._packing
        if packing is None or key != packing.key or fingerprint(packing.places) != packing.print:
            packing = self._packing = self._packing_of(tensors, key)
        pack = packing.pack
        if pack.origin is not None:
            pack.origin.follow(pack.tensors)
        return pack

    def _packing_of(self, tensors: Sequence[torch.Tensor], key: Key) -> _Packing:
        """What changes from here on differs from `key` or from the fingerprint, which are therefore taken first."""
        before = self._packing
        if before is not None and before.key[1:4] == key[1:4]:
            kept, words = before.kept, before.places
        else:
            kept = tuple((tensor, tensor.detach()) for tensor in tensors)
            words = places(storage for _, storage in kept)
        self._require_memory(kept)
        printed = fingerprint(words)
        packed = self._packed_natively(tensors) or [self._panels(*self._packed(p)) for p in self.program.weights]
        vectors = {ref: self._tensor(ref).reshape(-1).clone() for ref in self._refs}
        pack = Pack(tuple(m for m, _ in packed), tuple(b for _, b in packed), vectors, origin(self.device))
        return _Packing(key, kept, words, printed, pack)

    def _require_memory(self, kept: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Raise StaleError for a parameter that has moved to another device, or whose storage was taken away: native
        code reads at addresses."""
        for name, (_, now) in zip(self._names, kept, strict=True):
            if now.device.type != self.device.type:
                raise StaleError(
                    f"{name} of the model was on {self.device} when it was bound and is on {now.device} now; bind the "
                    "model again"
                )
            if not now.is_meta:
                require_storage(now, name)

    def _packed_natively(self, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """The same in one native call, nothing where that cannot be."""
        if self.device.type != "cpu" or self.dtype is None:
            return []
        from edbc.run.weights.packing import can_move, moves_of

        read = [
            self._tensor(ref) if number is None or tensors[number].dtype != self.dtype else tensors[number]
            for ref, number in zip(self._packed_refs, self._whole, strict=True)
        ]
        if not can_move(read):
            return []
        if self._moves is None:
            shapes = {ref: tuple(t.shape) for ref, t in zip(self._packed_refs, read, strict=True)}
            self._moves = moves_of(self.program.weights, shapes, self.shape)
        return self._moves.pack(read)

    def _panels(self, matrix: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.shape is None:
            return matrix, bias
        missing = self.shape.padded(matrix.shape[1]) - matrix.shape[1]
        return self.shape.pack(matrix), None if bias is None else torch.nn.functional.pad(bias, (0, missing))

    def _packed(self, packed: Packed) -> tuple[torch.Tensor, torch.Tensor | None]:
        dtype = self.dtype or torch_dtype(packed.dtype)
        with torch.no_grad():
            matrix = torch.zeros(packed.rows, packed.columns, dtype=dtype, device=self.device)
            for placed in packed.blocks:
                block = self._block(placed)
                matrix[placed.row : placed.row + block.shape[0], placed.column : placed.column + block.shape[1]] += (
                    block
                )
            if not packed.biases:
                return matrix, None
            bias = torch.zeros(packed.columns, dtype=dtype, device=self.device)
            for placed in packed.biases:
                rows = placed.block.rows
                bias[placed.column : placed.column + rows[1] - rows[0]] += self._tensor(placed.block.ref)[slice(*rows)]
            return matrix, bias

    def _tensor(self, ref: SharedRef) -> torch.Tensor:
        return self.view.shared(ref).detach().to(device=self.device, dtype=self.dtype)

    def _block(self, placed: Placed) -> torch.Tensor:
        """The block as (in, out)."""
        block = placed.block
        whole = self._tensor(block.ref)
        if not block.transposed:
            whole = whole.t()
        assert block.columns is not None
        return whole[slice(*block.columns), slice(*block.rows)]


def _home(model: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary that holds a tensor, and its key there. Modules of a bound model stay, what they hold may
    change."""
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    homes = (module._parameters, module._buffers, module.__dict__)
    return next(home for home in homes if last in home), last


def require_storage(tensor: torch.Tensor, name: str) -> None:
    """Raise ModelError for a tensor whose storage does not hold all of its elements (`storage.resize_(0)`), or none."""
    if tensor.is_meta:
        raise ModelError(f"{name} of the model: expected numbers, got a tensor on the meta device; load weights again")
    count = tensor.numel()
    extent = count - 1
    if not tensor.is_contiguous():
        extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    last = tensor.storage_offset() + extent
    held = tensor.untyped_storage().nbytes()
    if count and (last + 1) * tensor.itemsize > held:
        raise ModelError(
            f"{name} of the model: expected {(last + 1) * tensor.itemsize:,} bytes of memory, got {held:,}: its "
            "storage was resized; give it its memory back before the call"
        )


def _state(tensors: list[torch.Tensor]) -> tuple[list[int], list[int], list[tuple[int, ...]], list[int]]:
    """Of every tensor its identity, address, strides and version, in half the time of asking tensor by tensor."""
    one = torch.Tensor
    versions = [tensor._version for tensor in tensors]
    return [*map(id, tensors)], [*map(one.data_ptr, tensors)], [*map(one.stride, tensors)], versions
