"""What a vertex function handles, and vertex functions run one vertex after the other in plain PyTorch.

The model's `vertices()` returns a dict from vertex type to *vertex function*: a function of one `Vertex`, whose four
verbs are those of Cavs (Xu et al., USENIX ATC 2018, section 3.1).

- `gather` reads what a predecessor scattered, or a default where there is no such predecessor.
- `pull` reads the vertex's external input: a row of a table, or the input's own row.
- `scatter` gives values to the vertices that have this one as a predecessor.
- `push` gives a value to the caller.

A vertex function may use everything that a model's `forward` may (cells, modules, torch functions, Python over the
list of predecessors), and is a function of its vertex alone. One departure from Cavs: there, `gather` and `scatter`
address concatenated vectors; here they pass tuples of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from edbc.capture.vertex.vertexinstance import VertexInstance
from edbc.errors import InputError, ModelError

VertexFunction = Callable[["Vertex"], None]

Read = Callable[[str, Any], Any]
"""How a pull is answered: input name and table (or None) to value."""


class Vertex:
    """One vertex while its function runs."""

    __slots__ = ("_read", "gathered", "pushed", "scattered")

    def __init__(self, gathered: Sequence[tuple[Any, ...]], read: Read):
        self.gathered = gathered
        """What each predecessor scattered, in order."""
        self._read = read
        self.scattered: tuple[Any, ...] | None = None
        self.pushed: list[tuple[str, Any]] = []

    @property
    def num_predecessors(self) -> int:
        """How many vertices this one gathers from."""
        return len(self.gathered)

    def gather(self, position: int, default: Any = None) -> Any:
        """What predecessor `position` scattered: a tensor, or a tuple where it scattered several.

        Without such a predecessor, `default`. Raises InputError when that is None too.
        """
        if not 0 <= position < len(self.gathered):
            if default is None:
                raise InputError(
                    f"gather({position}): expected a predecessor {position}, got {len(self.gathered)} predecessors; "
                    "correct the instance's edges or give gather a default"
                )
            return default
        values = self.gathered[position]
        if not values:
            raise ModelError(f"gather({position}): expected values, got a predecessor that scatters none")
        return values[0] if len(values) == 1 else values

    def gather_all(self) -> list[Any]:
        """What every predecessor scattered, in order."""
        return [self.gather(position) for position in range(len(self.gathered))]

    def pull(self, name: str, table: Any = None) -> Any:
        """The row of `table` that this vertex's integer input `name` tells; without a table, the input's own row."""
        return self._read(name, table)

    def scatter(self, *values: Any) -> None:
        """Give values to the vertices that have this one as a predecessor; at most once."""
        if self.scattered is not None:
            raise ModelError("scatter: expected one call in a vertex function, got two; scatter all values at once")
        self.scattered = values

    def push(self, name: str, value: Any) -> None:
        """Give the caller a value: the next row of the output `name`."""
        self.pushed.append((name, value))


def vertex_functions(model: nn.Module) -> dict[str, VertexFunction]:
    """The model's vertex functions by vertex type. Raises ModelError when it offers none."""
    offer = getattr(model, "vertices", None)
    functions = offer() if callable(offer) else None
    if not isinstance(functions, dict) or not functions:
        raise ModelError(
            f"{type(model).__name__}: expected a method vertices() that returns a dict of vertex functions, got "
            f"{'none' if functions is None else repr(functions)}; see docs/vertex-functions.md"
        )
    return functions


def run_eagerly(model: nn.Module, instance: VertexInstance) -> dict[str, list[Any]]:
    """Run the vertex functions of one instance in plain PyTorch: the pushed values by name, in vertex order.

    The meaning of vertex functions, and a whole `forward` for a model that has no other.
    """
    functions = list(vertex_functions(model).values())
    scattered: list[tuple[Any, ...]] = []
    outputs: dict[str, list[Any]] = {}
    for number, kind in enumerate(instance.types.tolist()):
        if kind >= len(functions):
            raise unknown_type(f"vertex {number}", kind, len(functions))
        vertex = Vertex([scattered[u] for u in instance.predecessors(number)], _reader(instance, number))
        functions[kind](vertex)
        scattered.append(vertex.scattered or ())
        for name, value in vertex.pushed:
            outputs.setdefault(name, []).append(value)
    return outputs


def unknown_type(where: str, kind: int, num_types: int) -> InputError:
    """The error for a vertex whose type the model does not have."""
    return InputError(
        f"{where}: expected a vertex type in 0..{num_types - 1}, got {kind}; the model's vertices() has {num_types}"
    )


def missing_input(name: str, instance: VertexInstance) -> InputError:
    """The error for an input that a vertex function pulls and the instance lacks."""
    known = ", ".join(instance.inputs) or "no inputs"
    return InputError(f"input {name!r}: expected an array, got none; the instance has {known}")


def _reader(instance: VertexInstance, number: int) -> Read:
    def read(name: str, table: Any) -> Any:
        if name not in instance.inputs:
            raise missing_input(name, instance)
        row = instance.inputs[name][number]
        if table is not None:
            return table[int(row)]
        value = torch.as_tensor(row)
        return value.to(torch.get_default_dtype()) if value.is_floating_point() else value

    return read
