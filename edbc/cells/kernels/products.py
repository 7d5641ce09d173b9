"""What multiplies rows with packed weights on the CPU: a kernel of our own, or the library inside torch.

Both are functions of one form (`microkernel.address_of_product`) over the same steps; they differ in how weights are
packed, and in the bits of what they compute. One back end uses one of them for everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edbc.cells.kernels.library import address_of_library_outer, address_of_multiply
from edbc.cells.kernels.microkernel import Shape, address_of_product, shape_of
from edbc.cells.kernels.outer import FRAME, address_of_outer


@dataclass(frozen=True)
class Products:
    """See the module's docstring."""

    name: str
    shape: Callable[[int], Shape | None]
    """By an element's bytes, how weights are packed; None: as matrices."""
    address: Callable[[int], int]
    """By an element's bytes, what multiplies."""
    outer: Callable[[int], int]
    """By an element's bytes, what adds up outer products (`edbc.cells.kernels.outer`)."""

    def scratch(self, rows: int, row_bytes: int) -> int:
        """Bytes that the product of so many rows takes beside its operands."""
        return 0 if self is OWN else 8 * FRAME + rows * row_bytes


OWN = Products("own", shape_of, address_of_product, address_of_outer)
LIBRARY = Products("library", lambda width: None, address_of_multiply, address_of_library_outer)
NAMES = (OWN.name, LIBRARY.name)


def best() -> Products:
    """Our own where there is a kernel for this processor."""
    return LIBRARY if shape_of(4) is None else OWN


def products_of(name: str) -> Products:
    """By its name."""
    return LIBRARY if name == LIBRARY.name else best()
