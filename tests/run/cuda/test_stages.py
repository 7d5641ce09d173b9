"""Stages as data, executed here in plain torch: every job of every stage, against the reference back end."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from bound import RandomTreeModel, net_for, random_trees
from devices import NINE, zoo_net
from helpers import bound
from hypothesis import given, settings
from hypothesis import strategies as st
from random_values import Case, evaluate, viewed
from torch import nn

import edbc
from edbc.cells.parts import SplitCell
from edbc.cells.program import Call, Load, Map, Product, Program, Span, Store
from edbc.cells.values.value import V, Values
from edbc.run.cuda.stages import MADE, Job, Stages, stages_of, stages_of_values
from edbc.run.cuda.tritonsource import CONSTANTS, branches_of, step_kernel
from edbc.run.reference import ProgramKernel
from edbc.run.session import Net
from edbc.run.weights.packed import PackedWeights


class Execution:
    """The memory of one batch, not-a-number where nothing was written yet."""

    def __init__(self, stages: Stages, operands: list[torch.Tensor], parameter: Any, weights: Any):
        self.stages, self.operands, self.parameter, self.weights = stages, operands, parameter, weights
        count = len(operands[0]) if operands else 3
        self.work = torch.full((count, stages.workspace), torch.nan, dtype=torch.float64)
        self.outputs = [torch.full((count, size), torch.nan, dtype=torch.float64) for size in stages.output_sizes]
        self.read: dict[V, V] = {}

    def in_memory(self, v: V) -> V:
        """The value with made ones loaded from the workspace."""
        if v not in self.read:
            place = len(self.operands), self.stages.places.get(v, 0)
            self.read[v] = V("load", (), place, v.size) if v in self.stages.places else self.of(v)
        return self.read[v]

    def of(self, v: V) -> V:
        """A value of what is in memory."""
        return V(v.op, tuple(map(self.in_memory, v.sources)), v.arg, v.size)

    def run(self) -> list[torch.Tensor]:
        """All of them; within a stage jobs run in reverse, since they may not depend on each other."""
        for jobs in self.stages.jobs:
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


def staged(net: Net, program: Program) -> Stages | None:
    """The stages of a program of a net."""
    return stages_of(program, lambda ref: net.view.shared(ref).shape)


class BestTwo(nn.Module):
    """What torch picks of equal elements is its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).topk(2).values * 2


def programs(net: Net, instances: list[Any]) -> list[Program]:
    """Every program that a mini-batch needs."""
    graph = net.mini_batch(instances).graph
    found = [net.program(kind) for kind, t in enumerate(graph.types) if not t.variadic]
    return [program for program in found if program is not None]


def assert_stages_equal_steps(net: Net, program: Program) -> None:
    """The jobs' result is the steps' result, to the parity of float64."""
    stages = staged(net, program)
    assert stages is not None
    cpu = torch.device("cpu")
    pack = PackedWeights(program, net.view, torch.float64, cpu, stages.parameters).pack
    torch.manual_seed(0)
    operands = [torch.rand(5, size, dtype=torch.float64) + 0.1 for size in stages.operand_sizes]
    weights = list(zip(pack.matrices, pack.biases, strict=True))
    ours = Execution(stages, operands, pack.vectors.__getitem__, weights).run()
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
    stages = stages_of_values(case.outputs, tuple(case.sizes), "f64")
    ours = Execution(stages, case.rows, viewed(case.parameter), case.weights).run()
    for a, b in zip(ours, case.exact(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 4, 19]))
def test_jobs_compute_what_the_steps_compute(seed: int, size: int) -> None:
    """Random cells: products after products, gates, slices, concatenations, parameters in maps."""
    instances = random_trees(seed, 4)
    net = net_for(RandomTreeModel(seed, size), instances, "reference")
    for program in programs(net, instances):
        assert_stages_equal_steps(net, program)


@pytest.mark.parametrize("name", ["lattice_lstm", "lattice_gru", "bilstm_tagger", "lstm_nmt"])
def test_parts_of_split_cells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves, and cores that add them: no more stages than the whole cell, and the steps' numbers."""
    monkeypatch.setattr(SplitCell, "pays", lambda *_: True)
    net, instances = zoo_net(name, torch.float64, use_triton=False)
    net.model.cpu()
    net.prepare(instances)
    parts = list(net._splitter.programs.values())
    assert any(isinstance(step, Product) and step.addend is not None for part in parts for step in part.steps)
    for part in parts:
        stages = staged(net, part)
        assert stages is not None
        assert len(stages.jobs) <= 3
        assert_stages_equal_steps(net, part)


@pytest.mark.parametrize("name", NINE)
def test_at_most_two_stages_per_batch(name: str) -> None:
    """Every cell of the nine workloads takes one or two stages, and computes what its steps compute."""
    net, instances = zoo_net(name, torch.float64, use_triton=False)
    net.model.cpu()
    for program in programs(net, instances):
        stages = staged(net, program)
        assert stages is not None
        assert 1 <= len(stages.jobs) <= 2
        assert_stages_equal_steps(net, program)


def test_a_tree_lstm_is_one_stage_and_a_gru_two() -> None:
    """A tile multiplies for its columns of every gate and goes on with the sums; a projection is written in place."""
    net, instances = zoo_net("tree_lstm", torch.float64, use_triton=False)
    types = [t.name for t in net.mini_batch(instances).graph.types]
    jobs = {name: staged(net, net.program(kind)).jobs for kind, name in enumerate(types)}  # type: ignore[union-attr]
    ((maps,),), ((out,),) = jobs["internal"], jobs["out"]

    assert {product.op for product, _ in maps.sums} == {"product"}
    assert sum(len(firsts) for _, firsts in maps.sums) >= 4
    assert [store.output for store in maps.stores] == [0, 1]
    assert [(store.output, store.offset, store.size) for store in out.stores] == [(0, 0, out.v.size)]
    assert not out.sums
    net, instances = zoo_net("lattice_gru", torch.float64, use_triton=False)
    found = [staged(net, program) for program in programs(net, instances)]
    assert sorted(len(stages.jobs) for stages in found if stages is not None) == [1, 2, 2]


def test_what_is_read_otherwise_is_not_taken_in() -> None:
    """A product that an output has as it stands, that a reduction reads, that two jobs read; and too many parts."""
    known = Values()
    x = known.load(0, 0, 8)
    product = known.product(x, 0, 16, True)
    gate = known.map("tanh", [known.part(product, 0, 8)])

    def sums(outputs: list[V]) -> int:
        return sum(len(job.sums) for jobs in stages_of_values(outputs, (8,), "f32").jobs for job in jobs)

    assert sums([gate]) == 1
    assert sums([gate, product]) == 0
    assert sums([gate, known.reduce("total", product, (1, 16, 1))]) == 0
    assert sums([gate, known.map("exp", [known.part(product, 0, 4)])]) == 0
    assert sums([gate, known.map("exp", [known.part(product, 8, 4)])]) == 2
    halves = [known.map("exp", [known.part(product, at, 2)]) for at in range(0, 16, 2)]
    assert sums([known.map("sum", halves)]) == 1
    assert sums([known.map("sum", [known.map("exp", [known.part(product, at, 1)]) for at in range(16)])]) == 0


def test_texts_are_python_with_the_arguments_that_they_use() -> None:
    """Every step kernel parses; names in a branch are its arguments, what it reads of its record, or local."""
    net, instances = zoo_net("mv_rnn", torch.float64, use_triton=False)
    for program in programs(net, instances):
        stages = staged(net, program)
        assert stages is not None
        branches = [branch for jobs in branches_of(stages) for variants in jobs for branch in variants]
        functions = [n for n in ast.parse(step_kernel(branches, 32)).body if isinstance(n, ast.FunctionDef)]
        assert [f.name for f in functions] == [*(f"branch{i}" for i in range(len(branches))), "step"]
        for function in functions:
            given = {a.arg for a in function.args.args}
            assert (
                {"PROGRAMS", "PRECISION"}
                <= given
                <= {"words", "start", "tiles", "cursor", "number", "waits", "ahead", *CONSTANTS}
            )
            stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            loaded = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            known = {*given, "tl", "triton", "range", *(f.name for f in functions)}
            assert loaded - stored <= known
        for branch, function in zip(branches, functions, strict=False):
            assert set(branch.names) <= {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            assert branch.tiles(1) <= branch.tiles(100)


def test_what_no_kernel_knows_is_left_to_torch() -> None:
    """A power, and a call that is no value."""
    x, y = Span(0, 2), Span(2, 2)
    power = Program(4, (Load(0, x),), (Map("pow", y, (x, 2)),), (Store(0, y),), (), "f32")

    assert stages_of(power, lambda _: ()) is None
    vectors = [torch.arange(4.0), torch.arange(4.0).flip(0)]
    net = bound(nn.Sequential(edbc.cell(BestTwo())), vectors)
    refused = [p for p in programs(net, vectors) if staged(net, p) is None]
    assert refused
    assert all(any(isinstance(step, Call) for step in program.steps) for program in refused)
