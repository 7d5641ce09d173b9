"""Bidirectional DAG-GRU over logic circuits: how likely each gate's output is to be true.

States flow from the inputs to the output and back, gate by gate (Thost and Chen, "Directed Acyclic Graph Neural
Networks", ICLR 2021; Li et al., "DeepGate", DAC 2022). A gate sums the states that it hears and updates its own with
the GRU cell of its kind; in reverse it hears the gates that read it. An instance is the cone of one output.

Input: circuits as `.bench` or binary `.aig` files, every output an instance.
Output: `logits`, a row of 1 per gate, operands before their users, the output's gate last.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from _circuits import KINDS, Circuit, read_cones, sample_circuits
from torch import Tensor, nn

import edbc
from edbc.vertex import Vertex, VertexFunction, VertexInstance

SOURCES = ("input", "false")


@edbc.cell
class GRUCell(nn.Module):
    """A gate's new state from what it hears and its state so far."""

    def __init__(self, size: int):
        super().__init__()
        self.r_m = nn.Linear(size, size)
        self.z_m = nn.Linear(size, size)
        self.c_m = nn.Linear(size, size)
        self.r_h = nn.Linear(size, size, bias=False)
        self.z_h = nn.Linear(size, size, bias=False)
        self.c_h = nn.Linear(size, size, bias=False)

    def forward(self, message: Tensor, h: Tensor) -> Tensor:
        r = torch.sigmoid(self.r_m(message) + self.r_h(h))
        z = torch.sigmoid(self.z_m(message) + self.z_h(h))
        c = torch.tanh(self.c_m(message) + self.c_h(r * h))
        return z * h + (1 - z) * c


class DAGGRU(nn.Module):
    """One pass along the wires, one pass against them, then a judgement of every gate."""

    def __init__(self, size: int):
        super().__init__()
        self.start = nn.Embedding(len(KINDS), size)
        self.asked = nn.Parameter(torch.randn(size))
        self.along = nn.ModuleDict({kind: GRUCell(size) for kind in KINDS if kind not in SOURCES})
        self.against = nn.ModuleDict({kind: GRUCell(size) for kind in KINDS})
        self.out = nn.Linear(size, 1)

    def forward(self, circuit: Circuit) -> dict[str, Tensor]:
        h: list[Tensor] = []
        for kind, operands in zip(circuit.kinds, circuit.operands, strict=True):
            state = self.start.weight[kind]
            if operands:
                state = self.along[KINDS[kind]](sum(h[operand] for operand in operands), state)
            h.append(state)
        users = circuit.users
        for gate in reversed(range(len(h))):
            message = sum(h[user] for user in users[gate]) if users[gate] else self.asked
            h[gate] = self.against[KINDS[circuit.kinds[gate]]](message, h[gate])
        return {"logits": torch.stack([self.out(state) for state in h])}

    def vertices(self) -> dict[str, VertexFunction]:
        along = {f"along {name}": partial(self.along_vertex, kind) for kind, name in enumerate(KINDS)}
        against = {f"against {name}": partial(self.against_vertex, kind) for kind, name in enumerate(KINDS)}
        return {**along, **against, "gate": lambda v: v.push("logits", self.out(v.gather(0)))}

    def along_vertex(self, kind: int, v: Vertex) -> None:
        state = self.start.weight[kind]
        if v.num_predecessors:
            state = self.along[KINDS[kind]](sum(v.gather_all()), state)
        v.scatter(state)

    def against_vertex(self, kind: int, v: Vertex) -> None:
        state, *heard = v.gather_all()
        v.scatter(self.against[KINDS[kind]](sum(heard) if heard else self.asked, state))


def build(hidden_size: int = 256, **config: Any) -> nn.Module:
    return DAGGRU(hidden_size)


def load(*paths: str, **config: Any) -> Iterator[Circuit]:
    for path in paths:
        yield from read_cones(path)


def sample(count: int, seed: int, **config: Any) -> list[Circuit]:
    return sample_circuits(count, seed)


def vertex_instance(circuit: Circuit, **config: Any) -> VertexInstance:
    """Every gate along the wires, then every gate against them, then every gate's judgement."""
    n = len(circuit.kinds)
    last = 2 * n - 1
    along = list(zip(circuit.kinds, circuit.operands, strict=True))
    users = circuit.users
    against = [
        (len(KINDS) + circuit.kinds[gate], (gate, *(last - user for user in users[gate])))
        for gate in reversed(range(n))
    ]
    gates = [(2 * len(KINDS), (last - gate,)) for gate in range(n)]
    return VertexInstance.build([*along, *against, *gates])
