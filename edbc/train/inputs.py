"""What of a mini-batch can have a gradient: parameters of the types that run, tables that are looked up, data.

Definitions.

(1) The *inputs* of a mini-batch are the parameters (with the views taken of them) that its nodes and externals read,
    and the constants of its instances that require a gradient. Parameters that it does not read are none of them, so
    autograd leaves their `.grad` alone, as eager does.
(2) An input is a tensor of the user's own autograd graph: a leaf, or what a parametrization or a view of one computes.
    Autograd carries its gradient on from there, once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from edbc.capture.code.shadow import ModelView
from edbc.capture.forward.build import Capture
from edbc.capture.forward.carried import Carried
from edbc.capture.record.table import SharedRef
from edbc.train.dependence import Dependence
from edbc.train.reach import Bools, Longs


@dataclass(frozen=True, eq=False)
class Inputs:
    """Definition (1), in a fixed order: parameters, then constants."""

    refs: tuple[SharedRef, ...]
    parameters: dict[SharedRef, torch.Tensor]
    constants: dict[tuple[int, int], torch.Tensor]
    """By source and index."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them."""
        return (*(self.parameters[ref] for ref in self.refs), *self.constants.values())

    def only(self, refs: Collection[SharedRef], constants: Collection[tuple[int, int]]) -> Inputs:
        """These of the inputs, all parameters still at hand."""
        kept = {key: tensor for key, tensor in self.constants.items() if key in constants}
        return Inputs(tuple(ref for ref in self.refs if ref in refs), self.parameters, kept)

    def require(self, ref: SharedRef) -> bool:
        """True when a parameter requires a gradient."""
        return self.parameters[ref].requires_grad

    def externals(self, capture: Capture) -> Bools:
        """For every external, whether it requires a gradient."""
        of_source = np.zeros(len(capture.sources), np.bool_)
        for number, source in enumerate(capture.sources):
            of_source[number] = source.ref in self.parameters and self.require(source.ref)
        required = of_source[capture.external_source]
        for external in self.constant_externals(capture).values():
            required[external] = True
        return required

    def constant_externals(self, capture: Capture) -> dict[tuple[int, int], Longs]:
        """The externals that are each of the constants."""
        found: dict[tuple[int, int], list[int]] = {key: [] for key in self.constants}
        if found:
            pairs = zip(capture.external_source.tolist(), capture.external_index.tolist(), strict=True)
            for external, key in enumerate(pairs):
                if key in found:
                    found[key].append(external)
        return {key: np.array(externals, np.int64) for key, externals in found.items()}


def sources_of(capture: Capture, of: Bools | None = None) -> list[int]:
    """The numbers of the sources of externals, of some or of all."""
    numbers = capture.external_source if of is None else capture.external_source[of]
    return np.flatnonzero(np.bincount(numbers)).tolist()


class Parameters(dict[SharedRef, torch.Tensor]):
    """Leaves of a graph of their own in the place of inputs; others of the model's, which no output depends on (inside
    `.detach()`), as constants. Made when they are asked for."""

    def __init__(self, view: ModelView, inputs: Mapping[SharedRef, torch.Tensor]):
        super().__init__()
        self._view, self._inputs = view, inputs

    def __missing__(self, ref: SharedRef) -> torch.Tensor:
        given = self._inputs.get(ref)
        leaf = self._view.shared(ref).detach() if given is None else given.detach().requires_grad_(given.requires_grad)
        return self.setdefault(ref, leaf)


def inputs_of(capture: Capture, dependences: Sequence[Dependence | None], view: ModelView) -> Inputs:
    """The inputs of a mini-batch; `dependences[t]` is None for types without nodes."""
    refs = [ref for dependence in dependences if dependence is not None for ref in dependence.refs]
    for number in sources_of(capture):
        ref = capture.sources[number].ref
        if ref is not None:
            refs.append(ref)
    known = tuple(dict.fromkeys(refs))
    return Inputs(known, {ref: view.shared(ref) for ref in known}, _constants(capture))


def _constants(capture: Capture) -> dict[tuple[int, int], torch.Tensor]:
    """Those that require a gradient, of those that are read: of a segment's mini-batch, other segments read others."""
    pools = {source: pool for source, pool in capture.constants.items() if not isinstance(pool, torch.Tensor)}
    if not any(map(_requires_grad, pools.values())):
        return {}
    pairs = dict.fromkeys(zip(capture.external_source.tolist(), capture.external_index.tolist(), strict=True))
    read = ((pair, pools[pair[0]][pair[1]]) for pair in pairs if pair[0] in pools)
    return {pair: tensor for pair, tensor in read if tensor.requires_grad}


def _requires_grad(pool: Carried | list[torch.Tensor]) -> bool:
    return pool.requires_grad if isinstance(pool, Carried) else any(tensor.requires_grad for tensor in pool)
