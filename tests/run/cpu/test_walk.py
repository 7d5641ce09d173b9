"""The native walk against its plain-Python twin, on random small programs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from bound import RandomTreeModel, net_for, random_trees
from helpers import bound, model_file
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from torch import nn
from walk_reference import walk_reference

from edbc.cells.rows.choice import COMPARISONS, ComparisonKernel
from edbc.cells.rows.choiceloop import chosen
from edbc.run.cpu import cpubackend
from edbc.run.cpu.walk import ONE_ROW, ROWS, Memory, bind_tables, record_of_memory
from edbc.run.reference import ProgramKernel
from edbc.run.session import Net

pytestmark = pytest.mark.compiled


def both(net: Net, instances: list[Any], block: int) -> tuple[dict[str, int], list[np.ndarray], list[np.ndarray]]:
    """How many batches ran how, and all values of all classes after the native walk and after its twin."""
    prepared = net.prepare(instances)
    found: list[list[np.ndarray]] = []
    calls = {"native": 0, "twin": 0}
    native = cpubackend.walk

    def counting(name: str, function: Any) -> Any:
        def call(begin: int, end: int, _: int, *rest: Any) -> None:
            calls[name] += end - begin
            function(begin, end, block, *rest)

        return call

    for name, function in (("native", native), ("twin", walk_reference(net.kernel))):
        cpubackend.walk = counting(name, function)
        try:
            found.append(values(net, prepared))
        finally:
            cpubackend.walk = native
    return calls, *found


def values(net: Net, prepared: Any) -> list[np.ndarray]:
    """Every output of every node after executing, by class."""
    from edbc.run.passes.boundary import load_externals

    placement = prepared.placement
    with torch.no_grad():
        arenas = net.backend.arenas(prepared.segment, prepared.demand)
        load_externals(prepared.capture, prepared.boundary.lookups, arenas, net.view)
        net.backend.execute(prepared.segment, arenas, net.kernel)
        first, rows = placement.class_externals, placement.class_rows
        found = [arenas.rows(c, np.arange(first[c], rows[c])).numpy() for c in range(len(rows))]
        arenas.release()
    return found


@settings(derandomize=True, deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 3, 8]), block=st.sampled_from([1, 3, 256]))
@pytest.mark.long
def test_random_programs(seed: int, size: int, block: int) -> None:
    """Random cells over random trees, sums and products between, in blocks of any number of rows: every value of every
    node to 1e-12."""
    instances = random_trees(seed, 3)
    calls, native, twin = both(net_for(RandomTreeModel(seed, size), instances), instances, block)

    assert calls["native"] == calls["twin"] > 0
    for ours, theirs in zip(native, twin, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


class Pooled(nn.Module):
    """Every reduction over lists of every length, and products of rows' own matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6)
        self.matrices = nn.Parameter(torch.randn(5, 6, 6))

    def forward(self, words: list[int]) -> list[torch.Tensor]:
        rows = [torch.tanh(self.table.weight[i]) for i in words]
        stack = torch.stack(rows)
        pooled = [stack.sum(0), stack.mean(0), stack.amax(0), stack.amin(0)]
        return pooled + [self.matrices[i % 5] @ self.matrices[(i + 1) % 5] for i in words]


def test_reductions_and_matrices_of_rows() -> None:
    """Sum, mean, max and min over one to nine items, and matrix by matrix, in float64."""
    torch.manual_seed(0)
    rng = random.Random(0)
    instances = [[rng.randrange(12) for _ in range(1 + n % 9)] for n in range(12)]
    net = bound(Pooled().double().eval(), instances)
    calls, native, twin = both(net, instances, 4)

    assert calls["native"] == calls["twin"] > 4
    for ours, theirs in zip(native, twin, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


class Taken(nn.Module):
    """Rows and elements of matrices of several sizes, recorded and looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.matrices = nn.Parameter(torch.randn(5, 4, 3))

    def forward(self, rows: torch.Tensor) -> list[torch.Tensor]:
        matrix = torch.tanh(self.linear(rows))
        taken = [*matrix, self.matrices[len(rows) % 5][2], *matrix[: len(rows) // 2 + 1].unbind()]
        return [torch.relu(row) * row[1] for row in taken]


def test_excerpts() -> None:
    """Of outputs and of externals, of every class in one batch."""
    torch.manual_seed(0)
    instances = [torch.randn(n, 3, dtype=torch.float64) for n in (1, 2, 5, 12)]
    net = bound(Taken().double().eval(), instances)
    calls, native, twin = both(net, instances, 4)

    assert calls["native"] == calls["twin"] > 3
    for ours, theirs in zip(native, twin, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


class Choosing(nn.Module):
    """Largest and smallest elements, of rows in order and of scattered ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 37)

    def forward(self, rows: torch.Tensor) -> list[torch.Tensor]:
        scores = [self.linear(row) for row in rows]
        return [torch.stack([s.argmax(), torch.argmin(s, dim=-1), (s * 0).argmax(0)]) for s in scores[::-1]]


def test_choices() -> None:
    """Of elements of both types; the first of several wins."""
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        instances = [torch.randn(n, 3, dtype=dtype) for n in (1, 2, 5, 12)]
        net = bound(Choosing().to(dtype).eval(), instances)
        calls, native, twin = both(net, instances, 4)

        assert calls["native"] == calls["twin"] > 0
        assert not any(isinstance(net.kernel(kind), ProgramKernel) for kind in range(net.table.num_known)
                       if "arg" in net.table.types[kind].op)  # fmt: skip
        for ours, theirs in zip(native, twin, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


class Comparing(nn.Module):
    """Every comparison, with another row and with numbers, among them those that float32 does not have."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__()
        self.linear, self.numbers = nn.Linear(3, 5), numbers

    def forward(self, rows: torch.Tensor) -> list[torch.Tensor]:
        made, found = [self.linear(row) for row in rows], []
        for name in COMPARISONS:
            compare = getattr(torch, name)
            found += [compare(h, other) for h, other in zip(made[::-1], [*made[1:], made[0] * 1], strict=True)]
            found += [compare(h[0], number) for h in made for number in self.numbers]
        return found


def comparison_kernels(net: Net) -> list[type]:
    """The classes of what runs comparisons."""
    return [type(net.kernel(k)) for k, of in enumerate(net.table.types) if of.op.split(".")[-1] in COMPARISONS]


def test_comparisons() -> None:
    """All run natively, and hold where torch's hold: of not-a-number, infinities, both zeros and near numbers."""
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        instances = [torch.randn(n, 3, dtype=dtype) for n in (1, 2, 5)]
        instances[2][:, 0] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
        model = Comparing([0.1, 0, -0.0, 16777217, float("inf"), float("nan"), 1e-46, 1e300]).to(dtype).eval()
        nn.init.zeros_(model.linear.weight)
        model.linear.weight.data[:, 0], model.linear.bias.data[:] = 1, 0
        net = bound(model, instances)
        calls, native, twin = both(net, instances, 4)

        assert calls["native"] == calls["twin"] > 0
        assert {*comparison_kernels(net)} == {ComparisonKernel}
        assert len(comparison_kernels(net)) > len(COMPARISONS)
        for ours, theirs in zip(native, twin, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for instance, outputs in zip(instances, net(instances), strict=True):
            assert all(map(torch.equal, outputs, model(instance)))


@njit
def chosen_of(address, n, width, sign):  # type: ignore[no-untyped-def]
    return chosen(address, n, width, sign)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_chosen_is_torchs_choice(data: st.DataObject, dtype: torch.dtype) -> None:
    """Among not-a-number of either sign, infinities, both zeros and ties."""
    special = st.sampled_from([float("nan"), -float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 1e-40])
    row = torch.tensor(data.draw(st.lists(special | st.floats(-2, 2, width=32), min_size=1, max_size=80)), dtype=dtype)

    for sign, choose in ((1, torch.argmax), (-1, torch.argmin)):
        assert chosen_of(row.data_ptr(), len(row), row.itemsize, sign) == int(choose(row))


@pytest.mark.parametrize("name", ["tree_lstm", "lattice_gru", "mv_rnn"])
def test_programs_of_the_zoo(name: str) -> None:
    """Cells with planned layouts, in float32: to what our own tanh and exp differ from torch's."""
    file = model_file(name)
    torch.manual_seed(0)
    instances = list(file.sample(3, 0))
    net = bound(file.build(hidden_size=8).eval(), instances)
    calls, native, twin = both(net, instances, 5)

    assert calls["native"] == calls["twin"] > 0
    for ours, theirs in zip(native, twin, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=25)
def test_binding_externals(data: st.DataObject) -> None:
    """Addresses of rows of a table, written where their externals stand; what else is there stays."""
    num, classes = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 3))
    rows = np.array(data.draw(st.permutations(range(num))), np.int64)
    externals = np.array(data.draw(st.lists(st.integers(0, num - 1), unique=True)), np.int64)
    index = np.array([data.draw(st.integers(0, 9)) for _ in externals], np.int64)
    c, address = data.draw(st.integers(0, classes - 1)), data.draw(st.integers(0, 1 << 40))
    longs = np.zeros(classes, np.int64)
    stride, start = 4 * np.arange(1, classes + 1), num * np.arange(classes)
    none = np.zeros((1, 1), np.int64)
    memory = Memory(stride, longs, start, none, none, longs, np.zeros(num * classes, np.int64))
    record = record_of_memory(memory)
    is_one = data.draw(st.booleans())
    middle = len(externals) // 2
    tables = [(c, 0, middle, address, ONE_ROW if is_one else ROWS), (c, middle, len(externals), address + 8, ROWS)]
    bind_tables(rows[externals], index, np.array(tables, np.int64), record, 0)

    expected = np.zeros((classes, num), np.int64)
    for place, (external, i) in enumerate(zip(externals, index, strict=True)):
        of_table = address + 8 if place >= middle else address
        expected[c, rows[external]] = of_table + (0 if is_one and place < middle else i * stride[c])
    np.testing.assert_array_equal(record[-num * classes :], expected.reshape(-1))
    np.testing.assert_array_equal(record[: -num * classes], record_of_memory(memory)[: -num * classes])
