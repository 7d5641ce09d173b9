"""What of a mini-batch depends on company: types whose results have other bits beside other instances.

Native code computes a row by itself: sums have one order, whatever number of rows there is (`kernels.microkernel`,
`kernels.formulas`), and reductions go through a node's items in their order. What is left:

(1) Types that torch runs, whose library takes other paths for other numbers of rows; not functions of runs
    (`cells.rows.segmented`), which compute a node by itself.
(2) Cells that may run in parts (`cells.parts`). The eager half is the beginning of the sum that the whole cell
    computes, and the core goes on from there: the same bits, where the eager operand comes first in its product. Where
    it does not, parts add in another order, and whether a cell runs in parts depends on the mini-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from edbc.base.graph import NodeType
from edbc.cells.program import Copy, Product, Program, Span
from edbc.cells.rows.segmented import RunKernel
from edbc.run.backend import Backend
from edbc.run.passes.eagerparts import Splittable


def of_backend(backend: Backend) -> str | None:
    """Why everything that a back end computes depends on company; None where only some types may."""
    if backend.name == "cpu":
        return None
    return f"back end {backend.name}: last bits of all products may depend on the mini-batch"


def in_torch(backend: Backend, types: Sequence[tuple[NodeType, Any]]) -> Iterator[str]:
    """A line for every type that torch runs, of types and their kernels."""
    for node_type, kernel in types:
        if not backend.runs_natively(node_type, kernel) and not isinstance(kernel, RunKernel):
            yield f"{node_type.name} runs in torch: its last bits may depend on the mini-batch"


def adds_in_another_order(planned: Splittable, program: Program) -> bool:
    """True when a product reads an eager operand behind one that is not: definition (2)."""
    eager = {load.span for load in program.loads if load.operand in planned.eager_operands}
    others = {load.span for load in program.loads} - eager
    for product in (step for step in program.steps if isinstance(step, Product)):
        first = _places(product.source, eager, program)
        rest = _places(product.source, others, program)
        if first and rest and max(first) > min(rest):
            return True
    return False


def _places(source: Span, spans: Collection[Span], program: Program) -> list[int]:
    """Where in a product's operand spans stand, or copies of them."""
    copies = [step.result for step in program.steps if isinstance(step, Copy) and step.source in spans]
    found = [*spans, *copies]
    return [span.offset for span in found if span.size and source.offset <= span.offset and span.stop <= source.stop]
