"""Launches as data, executed here in plain torch: every job of every launch, against the reference back end."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from bound import RandomTreeModel, net_for, random_trees
from devices import NINE, zoo_net
from hypothesis import given, settings
from hypothesis import strategies as st
from random_values import Case, viewed

from edbc.cells.parts import SplitCell
from edbc.cells.program import Call, Load, Map, Product, Program, Span, Store
from edbc.cells.values.evaluate import evaluate
from edbc.cells.values.value import V
from edbc.run.cuda.launches import MADE, Job, Launches, launches_of, launches_of_values
from edbc.run.cuda.tritonsource import CONSTANTS, kernels_of, row_tile
from edbc.run.reference import ProgramKernel
from edbc.run.session import Net
from edbc.run.weights.packed import PackedWeights


class Execution:
    """The memory of one batch, not-a-number where nothing was written yet."""

    def __init__(self, launches: Launches, operands: list[torch.Tensor], parameter: Any, weights: Any):
        self.launches, self.operands, self.parameter, self.weights = launches, operands, parameter, weights
        count = len(operands[0]) if operands else 3
        self.work = torch.full((count, launches.workspace), torch.nan, dtype=torch.float64)
        self.outputs = [torch.full((count, size), torch.nan, dtype=torch.float64) for size in launches.output_sizes]
        self.read: dict[V, V] = {}

    def in_memory(self, v: V) -> V:
        """The value with made ones loaded from the workspace."""
        if v not in self.read:
            place = len(self.operands), self.launches.places.get(v, 0)
            is_made = v.op in MADE
            self.read[v] = V("load", (), place, v.size) if is_made else self.of(v)
        return self.read[v]

    def of(self, v: V) -> V:
        """A value of what is in memory."""
        return V(v.op, tuple(map(self.in_memory, v.sources)), v.arg, v.size)

    def run(self) -> list[torch.Tensor]:
        """All launches; within a launch jobs run in reverse, since they may not depend on each other."""
        for jobs in self.launches.jobs:
            for job in reversed(jobs):
                self.job(job)
        return self.outputs

    def job(self, job: Job) -> None:
        assert {store.v for store in job.stores} == {job.v} or all(
            store.v.op not in MADE and (store.first, store.size) == (0, job.v.size) for store in job.stores
        )
        rows = [*self.operands, self.work]
        results = evaluate([self.of(store.v) for store in job.stores], rows, self.parameter, self.weights)
        for store, result in zip(job.stores, results, strict=True):
            target = self.work if store.output is None else self.outputs[store.output]
            place = target[:, store.offset : store.offset + store.size]
            assert place.isnan().all()
            place.copy_(result[:, store.first : store.first + store.size])


def launched(net: Net, program: Program) -> Launches | None:
    """The launches of a program of a net."""
    return launches_of(program, lambda ref: net.view.shared(ref).shape)


def programs(net: Net, instances: list[Any]) -> list[Program]:
    """Every program that a mini-batch needs."""
    graph = net.mini_batch(instances).graph
    found = [net.program(kind) for kind, t in enumerate(graph.types) if not t.variadic]
    return [program for program in found if program is not None]


def assert_launches_equal_steps(net: Net, program: Program) -> None:
    """The jobs' result is the steps' result, to the parity of float64."""
    launches = launched(net, program)
    assert launches is not None
    cpu = torch.device("cpu")
    pack = PackedWeights(program, net.view, torch.float64, cpu, launches.parameters).pack
    torch.manual_seed(0)
    operands = [torch.rand(5, size, dtype=torch.float64) + 0.1 for size in launches.operand_sizes]
    weights = list(zip(pack.matrices, pack.biases, strict=True))
    ours = Execution(launches, operands, pack.vectors.__getitem__, weights).run()
    expected = [torch.empty_like(output) for output in ours]
    kernel = ProgramKernel(program, net.view, torch.float64, cpu)
    kernel.run([(operand, 0) for operand in operands], len(expected[0]), expected)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 100_000))
def test_jobs_compute_random_values(seed: int) -> None:
    """Reductions, spreads, parts, concatenations, products of rows' own matrices, of each other."""
    case = Case(seed, adds=False)
    launches = launches_of_values(case.outputs, tuple(case.sizes), "f64")
    ours = Execution(launches, case.rows, viewed(case.parameter), case.weights).run()
    for a, b in zip(ours, case.exact(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 4, 19]))
def test_jobs_compute_what_the_steps_compute(seed: int, size: int) -> None:
    """Random cells: products after products, gates, slices, concatenations, parameters in maps."""
    instances = random_trees(seed, 4)
    net = net_for(RandomTreeModel(seed, size), instances, "reference")
    for program in programs(net, instances):
        assert_launches_equal_steps(net, program)


@pytest.mark.parametrize("name", ["lattice_lstm", "lattice_gru", "bilstm_tagger", "lstm_nmt"])
def test_parts_of_split_cells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves, cores that add them and lazy parts: no more launches than the whole cell, and the steps' numbers."""
    monkeypatch.setattr(SplitCell, "pays", lambda *_: True)
    net, instances = zoo_net(name, torch.float64, use_triton=False)
    net.model.cpu()
    net.prepare(instances)
    parts = list(net._splitter.programs.values())
    assert any(isinstance(step, Product) and step.addend is not None for part in parts for step in part.steps)
    for part in parts:
        launches = launched(net, part)
        assert launches is not None
        assert len(launches.jobs) <= 3
        assert_launches_equal_steps(net, part)


@pytest.mark.parametrize("name", NINE)
def test_at_most_three_launches_per_batch(name: str) -> None:
    """Every cell of the nine workloads takes one to three launches, and computes what its steps compute."""
    net, instances = zoo_net(name, torch.float64, use_triton=False)
    net.model.cpu()
    for program in programs(net, instances):
        launches = launched(net, program)
        assert launches is not None
        assert 1 <= len(launches.jobs) <= 3
        assert_launches_equal_steps(net, program)


def test_an_lstm_is_two_launches_and_a_projection_one() -> None:
    """Products and gates of a tree-LSTM's inner cell; a product that is an output is written in place."""
    net, instances = zoo_net("tree_lstm", torch.float64, use_triton=False)
    types = [t.name for t in net.mini_batch(instances).graph.types]
    jobs = {name: launched(net, net.program(kind)).jobs for kind, name in enumerate(types)}  # type: ignore[union-attr]
    (products, maps), ((out,),) = jobs["internal"], jobs["out"]

    assert [job.v.op for job in products] == ["product"] * 3
    assert [[store.output for store in job.stores] for job in maps] == [[0, 1]]
    assert [(store.output, store.offset, store.size) for store in out.stores] == [(0, 0, out.v.size)]


def test_texts_are_python_with_the_arguments_that_they_use() -> None:
    """Every text parses; its arguments are those named, then the constants; names in it are arguments or local."""
    net, instances = zoo_net("mv_rnn", torch.float64, use_triton=False)
    for program in programs(net, instances):
        launches = launched(net, program)
        assert launches is not None
        for kernel in kernels_of(launches):
            function = next(node for node in ast.parse(kernel.text).body if isinstance(node, ast.FunctionDef))
            assert tuple(a.arg for a in function.args.args) == (*kernel.names, *CONSTANTS)
            stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            loaded = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            assert loaded - stored <= {*kernel.names, *CONSTANTS, "tl", "triton", "range"}
            assert set(kernel.names) <= loaded
            assert kernel.programs(1, row_tile(1, "f32")) <= kernel.programs(100, row_tile(100, "f32"))


def test_what_no_kernel_knows_is_left_to_torch() -> None:
    """A power, and a call that is no value."""
    x, y = Span(0, 2), Span(2, 2)
    power = Program(4, (Load(0, x),), (Map("pow", y, (x, 2)),), (Store(0, y),), (), "f32")

    assert launches_of(power, lambda _: ()) is None
    net, instances = zoo_net("neural_module_network", torch.float64, use_triton=False)
    refused = [p for p in programs(net, instances) if launched(net, p) is None]
    assert refused
    assert all(any(isinstance(step, Call) for step in program.steps) for program in refused)
