"""Generated kernels against eager and against the reference: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import copy
import linecache
from typing import Any

import pytest
import torch
from bound import RandomTreeModel, plan_for, random_trees
from devices import DEVICE, NINE, needs_triton, on_device, opened, paths, require_parity, zoo_net
from rounding import round_as_a_device
from torch import nn
from zoo_names import DYNAMIC

from edbc.base.operations import OPERATIONS as TABLE
from edbc.capture.code.mark import cell
from edbc.cells.parts import SplitCell
from edbc.cells.values.evaluate import MAPS
from edbc.run.cuda import compiled
from edbc.run.cuda.compiled import FUNCTIONS, KEPT, function_of, missing
from edbc.run.cuda.tritonops import OPERATIONS
from edbc.run.passes import chunks, eagerparts
from edbc.schedule.checker import check_schedule

pytestmark = needs_triton
OTHERS = [name for name in DYNAMIC if name not in NINE]


@pytest.fixture(autouse=True)
def _device_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter rounds as a device does."""
    if DEVICE.type == "cpu":
        round_as_a_device(monkeypatch)


@pytest.mark.parametrize("name", ["tree_lstm", "tree_gru", "mv_rnn", "child_sum_tree_lstm"])
def test_equals_eager_in_float32(name: str) -> None:
    """One model per kind of cell: gates, two products deep, a row's own matrices, sums; all of it in Triton."""
    net, instances = zoo_net(name, torch.float32, count=2)
    require_parity(net, instances)

    assert set(paths(net, instances).values()) == {"triton"}


def test_cells_in_parts_equal_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are batches of their own, whose steps nobody knew when the cells were scheduled; with the least room eager
    parts of one type share memory, and wait for what reads it."""
    monkeypatch.setattr(SplitCell, "gain", lambda self, *_: 1.0)
    monkeypatch.setattr(chunks, "SHARE", 1e6)
    monkeypatch.setattr(eagerparts, "find_room", lambda needs, _: {need.kind: need.least for need in needs})
    net, instances = zoo_net("lattice_lstm", torch.float32, count=2)
    schedule = net.prepare(instances).schedule

    check_schedule(schedule.graph, schedule)
    assert any(schedule.graph.types[kind].transient for kind in schedule.batch_type)
    require_parity(net, instances)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*NINE, *OTHERS])
def test_the_whole_zoo_equals_eager(name: str, dtype: torch.dtype) -> None:
    """Every model in three element types, with memory poisoned before each run; the nine workloads wholly in Triton."""
    net, instances = zoo_net(name, dtype, count=2)
    require_parity(net, instances)
    if name in NINE:
        assert set(paths(net, instances).values()) == {"triton"}


@pytest.mark.parametrize("name", ["tree_lstm", "mv_rnn"])
def test_bfloat16_equals_eager(name: str) -> None:
    """Elements of two bytes, sums and activations in float32, one rounding per stored value."""
    net, instances = zoo_net(name, torch.bfloat16, count=2)
    require_parity(net, instances)

    assert set(paths(net, instances).values()) == {"triton"}


@pytest.mark.parametrize("seed", range(3))
def test_random_cells_equal_eager_in_float64(seed: int) -> None:
    """Products after products, slices, maxima, parameters in maps, sums of many children; sizes that fill no tile."""
    instances = random_trees(seed, 2)
    model = RandomTreeModel(seed, 19)
    net = on_device(plan_for(model, instances), model)
    require_parity(net, instances)

    assert set(paths(net, instances).values()) == {"triton"}


def test_torch_runs_what_triton_does_not_know() -> None:
    """A function without a kernel between cells: both work on the same arenas, and each type says which is its own."""
    instances = random_trees(3, 4)
    model = RandomTreeModel(3, 6, mixed=True)
    net = on_device(plan_for(model, instances), model)
    require_parity(net, instances)

    assert set(paths(net, instances).values()) == {"triton", "torch"}


def test_edges_of_a_mini_batch() -> None:
    """No instances, one instance of one node, values that are results without being computed."""
    model = RandomTreeModel(1, 4)
    net = on_device(plan_for(model, random_trees(1, 6)), model)

    assert net([]) == []
    require_parity(net, [3])
    require_parity(net, [(1,), 2, (4, 4, 4)])


MAPPED = [op for op in OPERATIONS if op in TABLE]


class EveryMap(nn.Module):
    """A cell with every element-wise operation of the table."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        positive = x.abs() + 2.0
        pairs = dict.fromkeys(("log", "log1p", "sqrt", "reciprocal"), (positive,)) | {"div": (x, positive)}
        return (*(MAPS[op](*pairs.get(op, (x, y))[: TABLE[op].operands]) for op in MAPPED), x + y + x)


EXPONENTIALS = [op for op in MAPPED if "exp" in TABLE[op].formula or "sigmoid" in TABLE[op].formula]


class Maps(nn.Module):
    """The cell on rows of a table that reach from tiny to large."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(0)
        scale = torch.logspace(-8, 1.3, 40, dtype=torch.float64)[:, None]
        self.table = nn.Parameter((torch.randn(40, 7, dtype=torch.float64) * scale).to(dtype))
        self.every = cell(EveryMap())

    def forward(self, pair: tuple[int, int]) -> Any:
        return self.every(self.table[pair[0]], self.table[pair[1]])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 6e-7), (torch.float64, 1e-13)], ids=str)
def test_every_operation_is_accurate_at_every_size(dtype: torch.dtype, tolerance: float) -> None:
    """Relative to each single result, not to the largest: tanh of 1e-8 is 1e-8; at most what a rounded argument costs
    more, which for exp is |x| units (2 ** (x log2(e)) is how a device computes it). gelu alone cancels, as torch's
    does: relative to its argument."""
    model = Maps(dtype)
    pairs = [(i, (7 * i + 3) % 40) for i in range(40)]
    net = on_device(plan_for(model, pairs), model)
    results = net(pairs)
    exact = copy.deepcopy(model).cpu().double()
    for pair, ours in zip(pairs, results, strict=True):
        for number, (a, b) in enumerate(zip(ours, exact(pair), strict=True)):
            x = exact.table[pair[0]].abs()
            op = MAPPED[number] if number < len(MAPPED) else "sum"
            scale = x if op == "gelu" else b.abs() * (1 + x) if op in EXPONENTIALS else b.abs()
            assert ((a.cpu().double() - b).abs() <= tolerance * scale).all(), op

    assert {*MAPPED, "sum"} <= set(operations_in(net, pairs))
    assert set(paths(net, pairs).values()) == {"triton"}


class Attending(nn.Module):
    """A cell of functions along dimensions: four rows of memory, read by what they are like, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        memory, asked = x.view(4, 6), self.query(h)
        weights = torch.softmax((memory * asked).sum(1), 0)
        read = self.norm((memory * weights.unsqueeze(1)).sum(0) + h)
        return read, torch.log_softmax(memory, 1), torch.logsumexp(memory, (0, 1)), memory.amax(0), memory.mean()


class Chain(nn.Module):
    """The cell along a list of rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.start = nn.Parameter(torch.randn(12, 24)), nn.Parameter(torch.randn(6))
        self.attend = cell(Attending())

    def forward(self, words: list[int]) -> Any:
        results, h = [], self.start
        for word in words:
            h, *others = self.attend(self.table[word], h)
            results.append(others)
        return h, results


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_functions_along_dimensions_equal_eager(dtype: torch.dtype) -> None:
    """Attention, softmax, layer norm, largest elements and means, wholly in Triton."""
    model, lists = Chain().to(dtype), [[1], [2, 4, 5], [3, 6]]
    net = on_device(plan_for(model, lists), model)
    require_parity(net, lists)

    assert set(paths(net, lists).values()) == {"triton"}


def operations_in(net: Any, instances: list[Any]) -> list[str]:
    """Names of the maps of the first type."""
    net.mini_batch(instances)
    return [step.op for step in net.program(0).steps]


class Reductions(nn.Module):
    """All reductions over lists, with not-a-number among the rows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        table = torch.randn(12, size)
        table[3, 0] = torch.nan
        self.table = nn.Parameter(table)

    def forward(self, words: list[int]) -> Any:
        rows = torch.stack([self.table[word] for word in words])
        return rows.sum(0), rows.mean(0), rows.amax(0), rows.amin(0)


@pytest.mark.parametrize("size", [5, 300])
def test_reductions_equal_eager(size: int) -> None:
    """Sums, means, maxima and minima over one to nine items; not-a-number goes through; wider than a tile."""
    model = Reductions(size)
    lists = [[1], [2, 4], [3, 5, 6], [7, 3], list(range(9))]
    net = on_device(plan_for(model, lists), model)
    require_parity(net, lists)

    assert set(paths(net, lists).values()) == {"triton"}


def test_a_plan_serves_other_sizes() -> None:
    """Texts hold sizes, so another hidden size makes other kernels from the same plan."""
    file, config = opened("tree_lstm")
    instances = file.sample(1, 3, config)
    plan = plan_for(file.build(config, 0), instances)
    file, config = opened("tree_lstm", hidden_size=40)
    net = on_device(plan, file.build(config, 0).bfloat16())
    require_parity(net, instances)


def test_what_is_told_of_a_text_goes_with_its_function() -> None:
    """A function that is forgotten leaves no source behind for tracebacks."""
    texts = [f"import triton\n\n\n@triton.jit\ndef step(x):\n    return x + {i}\n" for i in range(KEPT + 1)]
    before = len(linecache.cache)
    functions = [function_of(text) for text in texts]

    assert len(linecache.cache) - before <= KEPT == len(FUNCTIONS)
    assert function_of(texts[-1]) is functions[-1]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU needs no interpreter")
def test_without_the_interpreter_a_cpu_has_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the switch."""
    assert missing("cpu") is None
    missing.cache_clear()
    monkeypatch.setenv("TRITON_INTERPRET", "0")

    assert "TRITON_INTERPRET=1" in (compiled.missing("cpu") or "")
    missing.cache_clear()
