"""Excerpts (`edbc.capture.record.excerpts`) in torch: where a batch's elements are taken of, class by class.

Native code copies from addresses; this is the reference, what runs on devices and what serves dtypes that native code
does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from edbc.run.backend import Segment
from edbc.run.passes.arenas import Arenas
from edbc.run.passes.placement import Longs


class ExcerptKernel:
    """What `kernel_of_type` gives for excerpts: the batch tells everything."""

    op = "excerpt"
    num_fields = 1


@dataclass(frozen=True, eq=False)
class Origin:
    """Those of a batch's nodes, at `positions`, that are taken of values of one class, in `rows`; and which `elements`
    of the value each of them is, `(positions, size)`."""

    class_index: int
    positions: torch.Tensor
    rows: Longs
    elements: torch.Tensor


def origins_of(batch: int, segment: Segment, arenas: Arenas, positions: Longs) -> Iterator[Origin]:
    """What some nodes of a batch of excerpts are taken of."""
    placement = segment.placement
    node_type = segment.graph.types[int(segment.schedule.batch_type[batch])]
    at, count = int(placement.start[batch]), int(placement.items[batch])
    offsets = arenas.rows(placement.class_index[node_type.operands[1]], placement.rows[at + count + positions])
    elements = offsets + torch.arange(node_type.outputs[0].size, device=offsets.device)
    classes = placement.origin[at + positions]
    for c in np.unique(classes).tolist():
        which = np.flatnonzero(classes == c)
        where = torch.from_numpy(which).to(offsets.device)
        yield Origin(c, where, placement.rows[at + positions[which]], elements.index_select(0, where))


def run_excerpts(batch: int, segment: Segment, arenas: Arenas, output: torch.Tensor) -> None:
    """A batch into its slice of an arena, `(count, size)`."""
    for origin in origins_of(batch, segment, arenas, np.arange(len(output))):
        values = arenas.rows(origin.class_index, origin.rows)
        output.index_copy_(0, origin.positions, values.gather(1, origin.elements))
