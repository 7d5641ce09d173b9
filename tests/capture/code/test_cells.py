"""Cells of every kind: what they take, return and contain."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from helpers import bound, counts, graph_of, require_eager, require_parity, seeded
from test_structures import SIZE
from torch import nn
from torch.nn import functional as F

import edbc
from edbc.capture.record.signature import call_type
from edbc.errors import UnsupportedError
from edbc.plan.schema import TYPE_NAME
from edbc.run.cpu.cpubackend import CellKernel


class Around(nn.Module):
    """A model that applies one cell to rows of a table; `use` says how."""

    def __init__(self, inner: nn.Module, use: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(20, SIZE)
        self.inner = edbc.cell(inner)
        self.start = nn.Parameter(torch.randn(SIZE))
        self._use = use

    def forward(self, ids: list[int]) -> Any:
        return self._use(self, ids)

    def row(self, i: int) -> Any:
        return self.table.weight[i]


IDS = [[i % 20, (3 * i + 1) % 20, (7 * i) % 20][: 1 + i % 3] for i in range(32)]


def lstm(net: Any, ids: list[int]) -> Any:
    h = c = net.start
    for i in ids:
        h, c = net.inner(net.row(i), (h, c))
    return h, c


def recurrent(net: Any, ids: list[int]) -> Any:
    h = net.start
    for i in ids:
        h = net.inner(net.row(i), h)
    return h


def from_nothing(net: Any, ids: list[int]) -> Any:
    state = None
    for i in ids:
        state = net.inner(net.row(i), state)
    return state


def batch_of_one(net: Any, ids: list[int]) -> Any:
    h = net.start.unsqueeze(0)
    for i in ids:
        h = net.inner(net.table(torch.tensor([i])), h)
    return h


def each(net: Any, ids: list[int]) -> Any:
    return [net.inner(net.row(i)) for i in ids]


RECURRENT = {
    "lstm": (lambda: nn.LSTMCell(SIZE, SIZE), lstm),
    "lstm-no-bias": (lambda: nn.LSTMCell(SIZE, SIZE, bias=False), lstm),
    "lstm-from-zeros": (lambda: nn.LSTMCell(SIZE, SIZE), from_nothing),
    "gru": (lambda: nn.GRUCell(SIZE, SIZE), recurrent),
    "gru-batch-of-one": (lambda: nn.GRUCell(SIZE, SIZE), batch_of_one),
    "gru-from-zeros": (lambda: nn.GRUCell(SIZE, SIZE), lambda net, ids: [net.inner(net.row(i)) for i in ids]),
    "rnn": (lambda: nn.RNNCell(SIZE, SIZE), recurrent),
    "rnn-relu": (lambda: nn.RNNCell(SIZE, SIZE, nonlinearity="relu", bias=False), recurrent),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_wrapped_recurrent_cells_lower_like_written_ones(name: str) -> None:
    """nn.LSTMCell and its like are one node, equal to eager, of affines and element-wise operations."""
    make, use = RECURRENT[name]
    model = seeded(lambda: Around(make(), use))

    net = require_parity(model, IDS)

    for kind, entry in net.table.operation_of_type.items():
        if net.table.types[kind].op == "cell inner":
            ops = {op.op for op in net.cell(entry).ops if op.attributes != "whole" and "constant" not in op.attributes}
            assert "affine" in ops
            assert "generic" not in ops


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_recurrent_cells_of_several_rows_are_no_cell_of_one_long_row(kind: Any, rows: int) -> None:
    """A cell's call on all nodes of a graph gives each row its own step."""

    def all_at_once(net: Any, ids: list[int]) -> Any:
        xs = net.table(torch.tensor(ids[:1] * rows))
        return net.inner(xs, (xs, xs) if kind is nn.LSTMCell else xs)

    require_parity(seeded(lambda: Around(kind(SIZE, SIZE), all_at_once)), IDS)


class Several(nn.Module):
    """Keywords, None, numbers, nested tuples; returns an operand, a parameter, one tensor twice, None."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(SIZE, SIZE)
        self.bias = nn.Parameter(torch.randn(SIZE))

    def forward(self, x: Any, pair: Any, scale: float = 1.0, other: Any = None, mode: str = "a") -> Any:
        a, (b, *_) = pair
        h = torch.tanh(self.w(x) * scale + a - b)
        if other is not None:
            h = h + other["y"]
        return {"h": h, "again": (h, h), "x": x, "bias": self.bias, "none": None, "mode": mode, "list": [b.sum()]}


def several(net: Any, ids: list[int]) -> Any:
    rows = [net.row(i) for i in ids]
    first = net.inner(rows[0], (rows[-1], [net.start, None]), scale=0.5)
    second = net.inner(first["h"], (first["bias"], (first["x"],)), other={"y": rows[0]}, mode="b")
    assert second["mode"] == "b"
    assert first["none"] is None
    return [*first["again"], first["x"], first["bias"], second["h"], *second["list"]]


def test_arguments_and_results_of_every_form() -> None:
    """Keywords, None, constants, nests; a parameter, an operand and one tensor twice as results."""
    model = seeded(lambda: Around(Several(), several))

    require_parity(model, IDS)

    assert len(counts(graph_of(model, IDS))) == 2


class Numbers(nn.Module):
    """A function of a number."""

    def forward(self, x: Any, weight: float) -> Any:
        return torch.sin(x * weight)


def test_numbers_that_differ_from_node_to_node_are_operands() -> None:
    """BUGS 13: an edge's weight given as a Python float does not make a type per value, in cells and operations."""
    weights = [0.37 * i + 0.01 for i in range(300)]

    def use(net: Any, ids: list[int]) -> Any:
        return [net.inner(net.row(i), weights[37 * i % 300]) * weights[11 * i % 300] + 1.5 for i in (*ids, *range(20))]

    model = seeded(lambda: Around(Numbers(), use))

    assert len(counts(graph_of(model, IDS))) < 30
    net = require_parity(model, IDS, sizes=(7, 32))
    _, prepared = net.run(IDS[::-1])
    assert all(c == 0 for c in prepared.capture.graph.counts()[net.table.num_known :])


class ArgMax(nn.Module):
    """An arg-max used as an index inside the cell."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(SIZE, 4))

    def forward(self, x: Any) -> Any:
        best = x.argmax(-1)
        return self.values[best], x.gather(0, best.unsqueeze(0)), torch.where(x > 0, x, -x), best


class Position(nn.Module):
    """Integers as operands and results."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, SIZE)

    def forward(self, x: Any) -> Any:
        where = (x > 0).long().sum() % 5
        return self.table(where) + x, where


class Normalised(nn.Module):
    """Buffers and normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(SIZE)
        self.layer = nn.LayerNorm(SIZE)
        self.register_buffer("shift", torch.randn(SIZE))
        with torch.no_grad():
            self.batch.running_mean.normal_()

    def forward(self, x: Any) -> Any:
        return self.layer(self.batch(x.unsqueeze(0)).squeeze(0) + self.shift)


class Convolution(nn.Module):
    """An image per node."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(1, 3, 3, padding=1)
        self.two = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return F.max_pool2d(self.two(F.relu(self.one(x.view(1, 2, 3)))), 2)


class Attention(nn.Module):
    """Attention over a fixed number of operands."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(SIZE, 2)

    def forward(self, x: Any) -> Any:
        stack = torch.stack([x, x * 2, -x])
        out, weights = self.heads(stack, stack, stack)
        return out[0], weights


class Sorted(nn.Module):
    """Something that torch.vmap has no rule for."""

    def forward(self, x: Any) -> Any:
        return torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)), torch.histc(x, 3, -2, 2)


class Small(nn.Module):
    """Tensors without dimensions and without elements."""

    def forward(self, x: Any) -> Any:
        return x.sum(), x[:0], x[:0].sum() + x.mean(), x.view(2, 3)[:, 1:]


class Chunks(nn.Module):
    """Gates computed together and cut apart, and operands that are chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(SIZE, 4 * SIZE)
        self.part = nn.Linear(SIZE // 2, 2 * SIZE)

    def forward(self, x: Any) -> Any:
        left, right = x.chunk(2)
        i, f, o, g = (self.both(x) + torch.cat([self.part(left), self.part(right)])).chunk(4)
        r, z = (self.part(left) + self.part(right)).split(SIZE)
        low, high = torch.cat([r, z])[:3], z[3:]
        return torch.sigmoid(i) * torch.tanh(g) + f * o, r * z, low + high, left * right


CELLS = [ArgMax, Position, Normalised, Convolution, Attention, Sorted, Small, Chunks]


@pytest.mark.parametrize("cell", CELLS)
def test_cells_of_any_content(cell: Any) -> None:
    """Indices, buffers, convolutions, attention, tiny tensors, what vmap cannot: eager's numbers, one node each."""
    model = seeded(lambda: Around(cell(), each))

    require_parity(model, IDS)

    assert counts(graph_of(model, IDS)) == {"inner": sum(map(len, IDS))}


def test_an_arg_max_is_taken_per_row() -> None:
    """BUGS 13: an index computed in a cell is a tensor, batched per row."""
    model = seeded(lambda: Around(ArgMax(), each))
    net = bound(model, IDS)

    together = net(IDS)

    assert len({int(rows[0][3]) for rows in together}) > 1
    assert all(torch.equal(a[0][3], model(ids)[0][3]) for a, ids in zip(together, IDS, strict=True))


def test_what_vmap_cannot_batch_runs_row_by_row_and_is_told() -> None:
    """A function without a batching rule runs node after node instead of failing, and its kernel says so."""
    model = seeded(lambda: Around(Sorted(), each))
    net = bound(model, IDS)
    with torch.no_grad():
        net(IDS)

    kernels = [net.kernel(kind) for kind in range(net.table.num_known)]

    functions = [f for k in kernels if isinstance(k, CellKernel) for f in k.evaluation._functions.values()]
    assert {f.call.__name__ for f in functions if f.is_slow} == {"histc"}


def test_same_shape_of_result_is_not_same_type() -> None:
    """BUGS 4: operand shapes, dtypes and keywords are in the signature; equal results do not make equal types."""

    def use(net: Any, ids: list[int]) -> Any:
        x = net.row(ids[0])
        return [
            x[:3].sum(), x.sum(), x.double().sum(), torch.std(x), torch.std(x, correction=0), x.mean(),
            x[0], x[1] * x[0],
        ]  # fmt: skip

    model = seeded(lambda: Around(nn.Identity(), use))

    require_parity(model, IDS, sizes=(7,))

    types = [t for t in graph_of(model, IDS).types if t.op in ("torch.sum", "torch.std")]
    assert len({t.signature for t in types}) == len(types) == 5


class Twice(nn.Module):
    """Layers without names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Identity(), nn.Dropout(0.5), nn.Linear(SIZE, 2)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def test_containers_run_through_and_identities_are_no_nodes() -> None:
    """A Sequential is its layers; nn.Identity, and nn.Dropout in eval mode, are nothing."""
    model = seeded(Around, nn.Identity(), lambda net, ids: [net.layers(net.row(i)) for i in ids])
    model.layers = Twice().layers.eval()

    assert counts(graph_of(model, [[1, 2]])) == {"layers_0": 2, "layers_1": 2, "layers_4": 2}
    require_parity(model, IDS, sizes=(7,))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("internal", "internal"),
        ("encoder.internal", "internal"),
        ("head.0", "head_0"),
        ("stacks.1.layers.0", "layers_0"),
        ("gates.and gate", "and_gate"),
        ("gates.2-input", "gates_2_input"),
        ("0", "model_0"),
        ("", "model"),
    ],
)
def test_types_have_names_that_plans_can_hold(path: str, name: str) -> None:
    """Modules in lists and dictionaries, whose own names are numbers or any text, give types with names of plans."""
    named = call_type(path, "cell", ((), {}), (), ()).name

    assert named == name
    assert re.fullmatch(TYPE_NAME.pattern, named)


def test_variables_have_names_however_often_code_ran() -> None:
    """Python runs calls of builtins by another instruction once they are hot: a plan stays the model's."""

    class Adds(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            below = sum((torch.tanh(y),), x)
            return torch.sigmoid(below)

    model = Around(Adds(), lambda net, ids: net.inner(net.table.weight[ids[0]], net.start)).eval()
    net = bound(model, [[1]])
    for _ in range(50):
        model([2])

    assert any(line.startswith("below = ") for line in net.plan.cells["inner"].operations)
    type(net)(net.plan, model)([[1]])


class SetsModes(nn.Module):
    """A forward that puts modules into training or evaluation mode."""

    def __init__(self, rate: float, part: str, mode: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LSTM(SIZE, SIZE, 1), nn.Dropout(rate))
        self.rate, self.part, self.mode = rate, part, mode

    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
        self.get_submodule(self.part).train(self.mode)
        h = torch.zeros(2, 1, SIZE)
        for x in xs:
            h = self.inner[1](self.inner[0](h + x)[0])
        return h


def test_modes_that_forward_sets() -> None:
    """Forward may put into training mode what computes the same there, and a plan is of evaluation whatever it sets."""
    instances = [[torch.randn(SIZE) for _ in range(1 + i % 3)] for i in range(6)]
    model = seeded(SetsModes, 0.0, "", True).eval()
    net = edbc.compile(model, instances, force=True, policy="agenda", measure_gain=False)
    require_eager(net, instances)
    with pytest.raises(UnsupportedError, match=r"forward puts 'inner\.1', Dropout, into training mode"):
        bound(seeded(SetsModes, 0.5, "inner", True).eval(), instances)


def test_what_forward_keeps_from_training_does_not_drop() -> None:
    """A part that forward puts into evaluation mode is not run in the training mode that the model is in."""
    instances = [[torch.randn(SIZE) for _ in range(1 + i % 3)] for i in range(6)]
    model = seeded(SetsModes, 0.5, "inner", False).eval()
    net = bound(model, instances)
    model.train()
    with pytest.raises(UnsupportedError, match=r"forward puts 'inner\.1', Dropout, into evaluation mode"):
        net(instances)
