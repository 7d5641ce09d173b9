"""The results of a mini-batch as autograd sees them: groups of rows, and how results are made of them.

Definitions.

(1) A *group* is one tensor that the mini-batch's function returns, of its `shape`: `(rows, ...)`, or what the result is
    where it is the only one, so that nothing stands between the function and the user's tensor. Whether the loss uses a
    result is known group by group, so groups decide how exactly `.grad` stays None.
(2) The rows of a stack (what one instance pushed under one name, say) are a group.
(3) Of others, each result is a group of its own where there are at most `SINGLES`; of more, those that the same output
    of the same type made are one group, because autograd takes microseconds per tensor. In such a group a result whose
    gradient is zero throughout counts as one that the loss does not use; on a device, where looking would be waiting,
    as one that it uses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from edbc.capture.forward.build import Capture
from edbc.run.passes.arenas import Arenas
from edbc.run.passes.boundary import arrange, distinct, pieces, share_rows
from edbc.run.passes.placement import Longs, Placement
from edbc.train.reach import Bools

SINGLES = 64
"""See definition (3)."""


@dataclass(frozen=True, eq=False)
class Group:
    """Definition (1)."""

    which: Longs
    """The results that it holds, by their numbers in the capture."""
    class_index: int
    rows: Longs
    """Where they stand in the arena of their class."""
    requires_grad: bool
    is_exact: bool
    """False for a group of several results, see definition (3)."""
    shape: tuple[int, ...]

    def used(self, gradient: torch.Tensor) -> Longs:
        """The results that a loss uses which gave this gradient, `(rows, size)`."""
        if self.is_exact or gradient.device.type != "cpu":
            return self.which
        return self.which[nonzero_rows(gradient)]


_GLANCE = 16


def nonzero_rows(gradient: torch.Tensor) -> Bools:
    """Which rows are not zero throughout. Nearly every such row shows it in its first elements; all of the others is
    read (62 MB of gradients: 12 ms)."""
    found = gradient[:, :_GLANCE].any(1)
    zero = torch.nonzero(~found).squeeze(1)
    if len(zero):
        found[zero] = gradient[zero].any(1)
    return found.numpy()


ClassGradient = tuple[int, Longs, torch.Tensor]
"""A class, rows of it and their gradient."""


def used_results(values: Longs, used: Sequence[tuple[Group, torch.Tensor]]) -> tuple[Longs, list[ClassGradient]]:
    """Of groups with the gradients that a loss gave: the values of the results that it uses, given the value of every
    result; and the gradients, class by class and group by group in them."""
    which = [group.used(gradient) for group, gradient in used]
    found = []
    for c in sorted({group.class_index for group, _ in used}):
        of_class = [(group.rows, gradient) for group, gradient in used if group.class_index == c]
        rows, gradients = zip(*of_class, strict=True)
        together = gradients[0] if len(gradients) == 1 else torch.cat(gradients)  # read only
        found.append((c, np.concatenate(rows), together))
    return values[np.concatenate([np.zeros(0, np.int64), *which])], found


def as_rows(groups: Sequence[Group], gradients: Sequence[torch.Tensor | None]) -> list[tuple[Group, torch.Tensor]]:
    """The groups that have a gradient, with it as `(rows, size)`."""
    given = [(group, gradient) for group, gradient in zip(groups, gradients, strict=True) if gradient is not None]
    return [(group, g.reshape(len(group.rows), g.numel() // len(group.rows))) for group, g in given]


Gather = tuple[int, Longs, list[tuple[int, ...]], list[int]]
"""A class, its rows that neighbouring groups hold, the shape of each group, and how many of the rows belong to it."""


def gathers_of(groups: Sequence[Group]) -> list[Gather]:
    """What `tensors_of` will read, known before anything executes."""
    gathers = []
    for c, neighbours in itertools.groupby(groups, lambda group: group.class_index):
        rows, shapes = zip(*[(group.rows, group.shape) for group in neighbours], strict=True)
        gathers.append((c, np.concatenate(rows), list(shapes), [len(r) for r in rows]))
    return gathers


def tensors_of(gathers: Sequence[Gather], arenas: Arenas) -> list[torch.Tensor]:
    """A tensor per group, each with memory of its own and no view: results may be changed in place."""
    tensors: list[torch.Tensor] = []
    for c, rows, shapes, sizes in gathers:
        together = arenas.rows(c, rows)
        if len(shapes) == 1:
            tensors.append(together.resize_(shapes[0]))
        else:
            parts = together.split(sizes)
            tensors += [part.view(shape).clone() for part, shape in zip(parts, shapes, strict=True)]
    return tensors


def groups_of(capture: Capture, placement: Placement, requires: Bools) -> list[Group]:
    """Definitions (2) and (3); `requires` says of every result whether it requires a gradient."""
    rows, classes, _ = placement.value_places(capture.graph.node_type, capture.result_node, capture.result_output)
    parts, num_stacks = _parts(capture, classes, requires)
    if not parts:
        return []
    ends = np.cumsum([0, *map(len, parts)])
    together, begin = np.concatenate(parts), ends[:-1]
    required = np.logical_or.reduceat(requires[together], begin).tolist()
    which_class = classes[together[begin]].tolist()
    shapes = [capture.result_slots[first].base.shape for first in together[begin].tolist()]
    return [
        Group(which, c, rows[which], required[i], i < num_stacks or len(which) == 1,
              (len(which), *shape) if i < num_stacks or len(which) > 1 else shape)
        for i, (which, c, shape) in enumerate(zip(parts, which_class, shapes, strict=True))
    ]  # fmt: skip


def _parts(capture: Capture, classes: Longs, requires: Bools) -> tuple[list[Longs], int]:
    """The results in each group, those of stacks first, and how many these are."""
    stacks = [np.arange(start, stop) for start, stop in capture.stacks]
    first, sizes = pieces(capture)
    alone = first[sizes == 0]
    node, output = capture.result_node[alone], capture.result_output[alone]
    keys = np.arange(len(node))
    if len(node) > SINGLES:
        kind = np.full(len(node), -1, np.int64)
        kind[node >= 0] = capture.graph.node_type[node[node >= 0]]
        for part in (output, _shapes(capture)[alone], classes[alone], requires[alone]):  # one number per combination
            kind = kind * (int(part.max()) + 1) + part
        keys = kind
    order = np.argsort(keys, kind="stable")
    others = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(order) else []
    return [*stacks, *(alone[which] for which in others)], len(stacks)


def _shapes(capture: Capture) -> Longs:
    """For each result a number that says the shape of its class."""
    slots = capture.result_slots
    if not share_rows(distinct(slots)):
        return np.zeros(len(slots), np.int64)
    number: dict[tuple[int, ...], int] = {}
    return np.array([number.setdefault(slot.base.shape, len(number)) for slot in slots], np.int64)


def restore(capture: Capture, groups: Sequence[Group], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """What each instance's forward returned, from a tensor per group."""
    num_stacks = len(capture.stacks)
    if not num_stacks and len(groups) == 1 and len(groups[0].which) > 1:  # all results, in their order
        return arrange(capture, list(tensors[0].unbind(0)))
    results: list[Any] = [None] * len(capture.result_node)
    for number, (group, tensor) in enumerate(zip(groups, tensors, strict=True)):
        parts = tensor.unbind(0) if number >= num_stacks and len(group.which) > 1 else (tensor,)
        for i, part in zip(group.which.tolist(), parts, strict=False):
            results[i] = part
    return arrange(capture, results)
