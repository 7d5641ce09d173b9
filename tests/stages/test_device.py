"""Programs of streams, and units as a device issues them, on the host: every order that a program allows gives eager's
numbers, and nothing reads what another stream may have overwritten."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from events import require_program
from networks import TINY, sequential, tiny, tiny_images
from test_execution import eager_of, merging, scheduled

from edbc.stages.cuda.kernels import HOWS
from edbc.stages.cuda.measure import DeviceMeasurement
from edbc.stages.cuda.net import DeviceNet
from edbc.stages.cuda.program import Program, program_of
from edbc.stages.cuda.streams import Streams
from edbc.stages.graph import block_of
from edbc.stages.net import StaticModel
from edbc.stages.table import CONCURRENT, MERGE, Schedule
from edbc.tools.parity import Parity

pytestmark = pytest.mark.usefixtures("one_thread")


class ShuffledStreams(Streams):
    """A device that does what was issued later: in any order, but one after the other on each stream and behind the
    points that a stream waits for. What is let go is overwritten when its stream goes on."""

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self._queued: list[tuple[int, Callable[[], None], set[int]]] = []
        self._waits: dict[int, set[int]] = {}

    def on(self, stream: int, call: Callable[[], None]) -> None:
        self._queued.append((stream, call, self._waits.pop(stream, set())))

    def record(self, stream: int) -> Any:
        return {i for i, (other, *_) in enumerate(self._queued) if other == stream} | self._waits.get(stream, set())

    def wait(self, stream: int, point: Any) -> None:
        self._waits.setdefault(stream, set()).update(point)

    def run(self, issue: Callable[[], None]) -> None:
        issue()
        done: set[int] = set()
        while len(done) < len(self._queued):
            first: dict[int, int] = {}
            for i, (stream, *_) in enumerate(self._queued):
                if i not in done:
                    first.setdefault(stream, i)
            ready = [i for i in first.values() if self._queued[i][2] <= done]
            chosen = self._rng.choice(ready)
            self._queued[chosen][1]()
            done.add(chosen)
        self._queued.clear()
        self._waits.clear()

    def capture(self, issue: Callable[[], None], shares: bool = False) -> Callable[[], None]:
        return lambda: self.run(issue)


def overwritten(values: dict[int, Any], unit: int) -> None:
    """In place of letting a value go."""
    values.pop(unit).fill_(float("nan"))


@pytest.fixture(scope="module", params=sorted(TINY))
def network(request: pytest.FixtureRequest) -> StaticModel:
    """Each of the four networks, small, in float32."""
    return StaticModel(tiny(request.param), tiny_images(request.param, 1)[0], request.param)


def schedules(network: StaticModel) -> list[tuple[Schedule, bool]]:
    """Of every form, and whether with barriers."""
    mixed, wide = scheduled(network), [(groups, CONCURRENT) for groups, _ in scheduled(network)]
    merged = merging(network)
    return [
        (sequential(network.graph), True),
        *((s, barriers) for s in (mixed, wide, merged) for barriers in (True, False)),
    ]


def test_every_form_gives_eager_numbers(network: StaticModel) -> None:
    """One unit after the other, in stages, merged, and without barriers, for one image and three, in both layouts."""
    for batch in (1, 3):
        images = tiny_images(network.name, batch)
        for number, (schedule, barriers) in enumerate(schedules(network)):
            how, parity = [*HOWS.values()][number % 4], Parity()
            with DeviceNet(network, schedule, 4, barriers, how=how) as net:
                for results in zip(net(images), *eager_of(network, batch), strict=True):
                    parity.add(*results)
            parity.require()


@pytest.mark.parametrize("streams", [1, 2, 8])
def test_no_race(network: StaticModel, streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order the device does what the program leaves open, with values overwritten when they are let go, the
    results are the same bits."""
    image = tiny_images(network.name, 1)[0]
    with DeviceNet(network, sequential(network.graph), 1) as net:
        expected = net.batch(image)
    monkeypatch.setattr("edbc.stages.cuda.streams.let_go", overwritten)
    for schedule, barriers in schedules(network)[3:5]:
        for seed in range(2):
            with DeviceNet(network, schedule, streams, barriers, streams=ShuffledStreams(seed)) as net:
                assert torch.equal(net.batch(image), expected)


def test_shuffling_finds_what_does_not_wait(network: StaticModel) -> None:
    """The race test is one: without waits some order reads what is not there, or gives other bits."""
    image, found = tiny_images(network.name, 1)[0], 0
    with DeviceNet(network, sequential(network.graph), 1) as net:
        expected = net.batch(image)
    for seed in range(4):
        with DeviceNet(network, schedules(network)[4][0], 4, streams=ShuffledStreams(seed)) as net:
            hasty = [replace(op, waits=(), frees=()) for op in net.program.operations]
            net.program = Program(tuple(hasty))
            try:
                found += not torch.equal(net.batch(image), expected)
            except KeyError:
                found += 1
    assert found


def test_programs_are_verified(network: StaticModel) -> None:
    """Whatever is left out of a program is found: a unit, a wait, and the time for which memory stays."""
    graph = network.graph
    for schedule, barriers in schedules(network):
        program = program_of(graph, schedule, 3, barriers)
        require_program(graph, program)
        assert program.streams <= 3
        operations = program.operations
        with pytest.raises(AssertionError, match="every unit once"):
            require_program(graph, Program(operations[:-1]))

    program = program_of(graph, [(groups, CONCURRENT) for groups, _ in scheduled(network)], 3, barriers=False)
    for number, op in enumerate(program.operations):
        if op.waits:
            changed = [*program.operations]
            changed[number] = replace(op, waits=op.waits[1:])
            with pytest.raises(AssertionError, match=r"no order between them|memory to stay"):
                require_program(graph, Program(tuple(changed)))
    early = list(frees_too_early(program))
    for changed in early[:: len(early) // 10 + 1]:
        with pytest.raises(AssertionError, match="memory to stay"):
            require_program(graph, changed)
    assert early


def frees_too_early(program: Program) -> Iterator[Program]:
    """The program with one value let go before another operation of its stream than the first that can: behind what
    writes it, or while others may still read it."""
    for freed, op in enumerate(program.operations):
        for unit in op.frees:
            writer = next(n for n, other in enumerate(program.operations) if unit in other.units)
            for n in range(writer + 1, freed):
                if program.operations[n].stream == op.stream:
                    changed = [replace(o, frees=tuple(u for u in o.frees if u != unit)) for o in program.operations]
                    changed[n] = replace(changed[n], frees=(*changed[n].frees, unit))
                    yield Program(tuple(changed))


def test_memory_is_let_go(network: StaticModel) -> None:
    """One unit after the other, a value goes when the last one that reads it has run."""
    graph = network.graph
    program = program_of(graph, sequential(graph), 1)
    for number, op in enumerate(program.operations):
        for unit in op.frees:
            readers = [n for n, other in enumerate(program.operations) if unit in graph.units[other.units[0]].reads]
            assert max([unit, *readers]) == number - 1
    assert sum(len(op.frees) for op in program.operations) >= len(graph.units) - 2 - len(graph.results)


def test_groups_are_streams(network: StaticModel) -> None:
    """The groups of a stage stand on streams of their own; a merged stage is one operation."""
    for groups, run in scheduled(network):
        program = program_of(network.graph, [(groups, run)], 8)
        if run == MERGE:
            assert [op.units for op in program.operations] == [tuple(u for g in groups for u in g)]
        else:
            stream_of = {unit: op.stream for op in program.operations for unit in op.units}
            assert sorted(tuple(u for u in stream_of if stream_of[u] == s) for s in range(len(groups))) == sorted(
                groups
            )
            assert not any(op.waits for op in program.operations)


def test_relu_joins_convolutions(network: StaticModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution with a relu behind it is one call where a device has one, merged or not, of eager's numbers."""
    calls: list[int] = []

    def fused(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *sizes: Any) -> torch.Tensor:
        calls.append(len(bias))
        return F.relu(F.conv2d(x, weight, bias, *sizes))

    monkeypatch.setattr("edbc.stages.cuda.kernels.can_fuse", lambda weight: True)
    monkeypatch.setattr("edbc.stages.cuda.kernels.convolution_relu", fused)
    model = tiny(network.name)
    static = StaticModel(model, tiny_images(network.name, 1)[0], network.name)
    for schedule in (sequential(static.graph), merging(static)):
        calls.clear()
        parity = Parity()
        with DeviceNet(static, schedule, 2) as net:
            for results in zip(net(tiny_images(network.name, 2)), *eager_of(network, 2), strict=True):
                parity.add(*results)
        parity.require()
        joined = [
            u for u, unit in enumerate(static.graph.units) if unit.kind == "conv" and static.bound.ends_in_relu(u)
        ]
        assert bool(calls) == bool(joined)
        assert sum(calls) / 2 >= sum(static.graph.units[u].shape[1] for u in joined if u in static.bound.layers) / 2


def test_sizes_are_captured_once_and_bounded(network: StaticModel) -> None:
    """A size that comes again is replayed, at most four are kept, and results own their memory."""
    captured: list[int] = []

    class Counted(Streams):
        def capture(self, issue: Callable[[], None], shares: bool = False) -> Callable[[], None]:
            captured.append(1)
            return issue

    with DeviceNet(network, sequential(network.graph), 1, streams=Counted()) as net:
        first = net.batch(tiny_images(network.name, 1)[0])
        kept = first.clone()
        for batch in (1, 2, 3, 4, 5, 2, 1):
            net(tiny_images(network.name, batch, seed=1))
        assert len(captured) == 6
        assert len(net._ready) == 4
    assert torch.equal(first, kept)


def test_weights_stay_with_a_graph(network: StaticModel) -> None:
    """What a graph reads beside values, packed and folded weights, lives as long as it."""

    class Once(Streams):
        def capture(self, issue: Callable[[], None], shares: bool = False) -> Callable[[], None]:
            issue()
            return lambda: None

    static = StaticModel(network.model, network.example, network.name)
    with DeviceNet(static, merging(static), 2, streams=Once()) as net:
        net.batch(network.example)
        held = len(static.bound._runners)
        assert held >= sum(len(stage[0]) == 1 for stage in merging(static)) / 4
    del net
    gc.collect()
    assert not static.bound._runners


def test_the_benchmark_runs_dry(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks/gpu_stages.py` runs every step where there is no GPU, and again from the tables of a call."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import gpu_stages

    monkeypatch.setattr(gpu_stages, "TURNS", 0.0)
    monkeypatch.setattr(gpu_stages.subprocess, "Popen", lambda *_: SimpleNamespace(wait=lambda: 0))
    monkeypatch.setattr("edbc.stages.timing.ROUNDS", 2)
    options = ["squeezenet", "--dry", "--seconds", "140", "--profile-seconds", "0", "--batches", "1", "--out"]
    gpu_stages.main([*options, str(tmp_path / "first")])
    tables = str(tmp_path / "first" / "tables.tar.gz")
    again = ["--tables", tables, "--gap", "1", "--steps", "profile", "--others", "2"]
    gpu_stages.main([*options, str(tmp_path / "second"), *again])
    first, second = (json.loads((tmp_path / name / "stages.json").read_text()) for name in ("first", "second"))
    for record in (first, second):
        found = record["networks"]["squeezenet 1"]
        assert "failed" not in found
    assert set(first["networks"]["squeezenet 1"]["forms_ms"]) == set(gpu_stages.FORMS)
    assert len(first["networks"]["squeezenet 1"]["kernels_ms"]) == 4
    assert first["networks"]["squeezenet 1"]["busy_ms"] > 0
    assert len(second["networks"]["squeezenet 2"]["specialised_ms"]) == 3
    assert first["networks"]["squeezenet 1"]["table_ms"] == second["networks"]["squeezenet 1"]["table_ms"]


def test_what_compiles_beside_it(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process says when it has compiled and measures when it is told; one that is late or fails costs no other."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import gpu_stages

    program = tmp_path / "program"
    ends = "case $2 in late) sleep 60;; bad) exit 1;; esac"
    program.write_text(f"#!/bin/sh\n{ends}\necho compiled\nread x\necho 2\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu_stages.sys, "executable", str(program))
    options = SimpleNamespace(out=str(tmp_path), networks=["late", "good", "bad"], compile=1.0, batches=[1], dry=True,
                              precision="default", seconds=1e9)  # fmt: skip
    record = gpu_stages.Record(options)
    record.compiled()
    found = record.found["networks"]
    assert found["good 1"]["torch_compile_ms"] == 2
    assert record.failed == ["compile late", "run compiled bad"]


def test_stages_are_measured(network: StaticModel) -> None:
    """Any stage can be measured before others have run, in a repeated capture, and leaves the values as they were."""
    measurement = DeviceMeasurement(network, 2, 4)
    block = block_of(network.graph, range(len(network.graph.units)))
    before = dict(measurement.values)
    for groups, run in (*merging(network)[:4], *scheduled(network)[-3:]):
        cost = measurement.stage(block, groups, run)
        assert cost.median > 0
    assert measurement.overhead() > 0
    assert measurement.values == before


def test_values_do_not_stand_in_their_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that gives its operand's own memory is copied: its home is another stream."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.sin(x)
            z = y.to(torch.float32)
            return torch.cos(z) + torch.exp(y)

    image = torch.randn(1, 3, 5, 5)
    static = StaticModel(Net(), image, "net")
    monkeypatch.setattr("edbc.stages.cuda.streams.let_go", lambda values, unit: None)
    with DeviceNet(static, sequential(static.graph), 1) as net:
        assert torch.allclose(net.batch(image), static.model(image))
        [ready] = net._ready.values()
        held = [value.untyped_storage().data_ptr() for number, value in ready.values.items() if number >= 0]
        assert len(held) == len(static.graph.units) == len({*held})
