"""Vertex functions: the second front end, for instances that are arrays.

    def vertices(self):                                    # on the model: vertex type -> vertex function
        return {"leaf": self.leaf_vertex, "internal": self.internal_vertex}

    net = edbc.load("plan.yaml").bind(model)
    outputs = net([VertexInstance(types, edge_ptr, edges, {"word": words}), ...])

See docs/vertex-functions.md. Importing this package imports neither torch nor numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edbc.capture.vertex.vertexinstance import VertexInstance

if TYPE_CHECKING:
    from edbc.capture.vertex.vertexfunction import Vertex, VertexFunction, run_eagerly

__all__ = ["Vertex", "VertexFunction", "VertexInstance", "run_eagerly"]


def __getattr__(name: str) -> Any:
    if name in ("Vertex", "VertexFunction", "run_eagerly"):
        import edbc.capture.vertex.vertexfunction

        return getattr(edbc.capture.vertex.vertexfunction, name)
    raise AttributeError(f"module 'edbc.vertex' has no attribute {name!r}")
