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

from edbc.cells.program import Call, Map, Product, Program, Span, Store
from edbc.cells.split import SplitCell
from edbc.runtime.cuda.launches import (
    Apply,
    Computed,
    Launches,
    MapJob,
    Number,
    Operand,
    Parameter,
    Piece,
    ProductJob,
    RowProductJob,
    Value,
    Written,
    launches_of,
)  # fmt: skip
from edbc.runtime.cuda.source import CONSTANTS, kernels_of, row_tile
from edbc.runtime.reference import MAPS, ProgramKernel
from edbc.runtime.session import Net
from edbc.runtime.weights import Pack, PackedWeights


class Execution:
    """The memory of one batch, not-a-number where nothing was written yet."""

    def __init__(self, launches: Launches, operands: list[torch.Tensor], pack: Pack):
        self.launches, self.operands, self.pack = launches, operands, pack
        count = len(operands[0]) if operands else 3
        self.work = torch.full((count, launches.workspace), torch.nan, dtype=torch.float64)
        self.outputs = [torch.full((count, size), torch.nan, dtype=torch.float64) for size in launches.output_sizes]

    def value(self, value: Value, size: int) -> torch.Tensor:
        """`size` elements per row."""
        if isinstance(value, Apply):
            sources = [self.value(source, size) for source in value.sources]
            return sum(sources) if value.op == "sum" else MAPS[value.op](*sources)  # type: ignore[return-value]
        if isinstance(value, Number):
            return torch.full((1, 1), value.value, dtype=torch.float64)
        if isinstance(value, Parameter):
            return self.pack.vectors[value.ref][None, value.offset : value.offset + size]
        return self.memory(value)[:, value.offset : value.offset + size]

    def memory(self, place: Operand | Computed | Written) -> torch.Tensor:
        if isinstance(place, Operand):
            return self.operands[place.operand]
        return self.work if isinstance(place, Computed) else self.outputs[place.output]

    def pieces(self, pieces: tuple[Piece, ...]) -> torch.Tensor:
        values = [self.value(piece.value, piece.size).expand(len(self.work), piece.size) for piece in pieces]
        return torch.cat(values, 1) if values else torch.zeros(len(self.work), 0, dtype=torch.float64)

    def run(self) -> list[torch.Tensor]:
        """All launches; within a launch jobs run in reverse, since they may not depend on each other."""
        for jobs in self.launches.jobs:
            for job in reversed(jobs):
                self.job(job)
        return self.outputs

    def job(self, job: Any) -> None:
        if isinstance(job, MapJob):
            for target, value in job.targets:
                self.memory(target)[:, target.offset : target.offset + job.size] = self.value(value, job.size)
            return
        if isinstance(job, ProductJob):
            result = self.pieces(job.pieces) @ self.pack.matrices[job.weight][:, job.column : job.column + job.columns]
            bias = self.pack.biases[job.weight]
            result = result if bias is None else result + bias[job.column : job.column + job.columns]
        else:
            assert isinstance(job, RowProductJob)
            left = self.pieces((job.a,)).view(-1, job.m, job.k)
            result = (left @ self.pieces(job.b).view(-1, job.k, job.n)).flatten(1)
        self.memory(job.target)[:, job.target.offset : job.target.offset + result.shape[1]] = result


def programs(net: Net, instances: list[Any]) -> list[Program]:
    """Every program that a mini-batch needs."""
    graph = net.capture(instances).graph
    found = [net.program(kind) for kind, t in enumerate(graph.types) if not t.variadic]
    return [program for program in found if program is not None]


def assert_launches_equal_steps(net: Net, program: Program) -> None:
    """The jobs' result is the steps' result, to the parity of float64."""
    launches = launches_of(program)
    assert launches is not None
    cpu = torch.device("cpu")
    pack = PackedWeights(program, net.view, torch.float64, cpu, launches.parameters).pack
    torch.manual_seed(0)
    operands = [torch.rand(5, size, dtype=torch.float64) + 0.1 for size in launches.operand_sizes]
    ours = Execution(launches, operands, pack).run()
    expected = [torch.empty_like(output) for output in ours]
    kernel = ProgramKernel(program, net.view, torch.float64, cpu)
    kernel.run([(operand, 0) for operand in operands], len(expected[0]), expected)
    for a, b in zip(ours, expected, strict=True):
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
        launches = launches_of(part)
        assert launches is not None
        assert len(launches.jobs) <= 3
        assert_launches_equal_steps(net, part)


@pytest.mark.parametrize("name", NINE)
def test_at_most_three_launches_per_batch(name: str) -> None:
    """Every cell of the nine workloads takes one to three launches, and computes what its steps compute."""
    net, instances = zoo_net(name, torch.float64, use_triton=False)
    net.model.cpu()
    for program in programs(net, instances):
        launches = launches_of(program)
        assert launches is not None
        assert 1 <= len(launches.jobs) <= 3
        assert_launches_equal_steps(net, program)


def test_an_lstm_is_two_launches_and_a_projection_one() -> None:
    """Products and gates of a tree-LSTM's inner cell; a product that is an output is written in place."""
    net, instances = zoo_net("tree_lstm", torch.float64, use_triton=False)
    types = [t.name for t in net.capture(instances).graph.types]
    jobs = {name: launches_of(net.program(kind)).jobs for kind, name in enumerate(types)}  # type: ignore[arg-type]

    assert [[type(job) for job in launch] for launch in jobs["internal"]] == [[ProductJob] * 3, [MapJob]]
    assert [[job.target for job in launch] for launch in jobs["out"]] == [[Written(0, 0)]]


def test_texts_are_python_with_the_arguments_that_they_use() -> None:
    """Every text parses; its arguments are those named, then the constants; names in it are arguments or local."""
    net, instances = zoo_net("mv_rnn", torch.float64, use_triton=False)
    for program in programs(net, instances):
        launches = launches_of(program)
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
    """A power, a constant that is no number, and a call that is no matrix product."""
    x, y = Span(0, 2), Span(2, 2)

    def program(*steps: Any) -> Program:
        return Program(4, (), steps, (Store(0, y),), (), "f32")

    assert launches_of(program(Map("pow", y, (x, 2)))) is None
    assert launches_of(program(Map("mul", y, (3.0, float("inf"))))) is None
    net, instances = zoo_net("neural_module_network", torch.float64, use_triton=False)
    refused = [p for p in programs(net, instances) if launches_of(p) is None]
    assert refused
    assert all(any(isinstance(step, Call) for step in program.steps) for program in refused)
