"""Cost of recording, per node: a cell's call, a leaf module, a torch function; eager's time beside it.

    python benchmarks/capture.py [--nodes 2000] [--repeat 9]

Prints medians of processor time in microseconds per node, after warm-up, for hidden size 8, so that eager's time
is mostly its own overhead. `build` is the time from the recording to the frozen graph.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import edbc
from edbc.base.garbage import NoGarbageCollection
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import build
from edbc.capture.forward.forward import record
from edbc.capture.record.table import TypeTable

SIZE = 8


@edbc.cell
class Cell(nn.Module):
    """One product and one function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(a) + b)


def cell_calls(net: Any, count: int) -> Any:
    a = b = net.start
    for _ in range(count):
        a, b = net.cell(a, b), a
    return a


def lstm_calls(net: Any, count: int) -> Any:
    h = c = net.start
    for _ in range(count):
        h, c = net.lstm(h, (h, c))
    return h


def leaf_modules(net: Any, count: int) -> Any:
    h = net.start
    for _ in range(count):
        h = net.linear(h)
    return h


def functions(net: Any, count: int) -> Any:
    h = net.start + net.table.weight[0]
    for _ in range(count):
        h = torch.tanh(h)
    return h


def methods(net: Any, count: int) -> Any:
    h = net.start + net.table.weight[0]
    for _ in range(count // 2):
        h = h.sigmoid() * h
    return h


def concatenations(net: Any, count: int) -> Any:
    h = net.start + net.table.weight[0]
    for _ in range(count // 2):
        h = torch.cat([h, h], dim=-1)[:SIZE] * 0.5
    return h


def sums(net: Any, count: int) -> Any:
    states = [net.cell(net.start, net.table.weight[i % 100]) for i in range(count // 3)]
    return [sum(states[i : i + 3]) for i in range(len(states))]


def stacks(net: Any, count: int) -> Any:
    states = [net.cell(net.start, net.table.weight[i % 100]) for i in range(count // 2)]
    return [torch.stack(states[i : i + 3]).mean(0) for i in range(len(states))]


def look_ups(net: Any, count: int) -> Any:
    rows = net.table(torch.arange(count) % 100)
    return [net.linear(row) for row in rows]


def constants(net: Any, count: int) -> Any:
    h = net.start
    for features in net.features[:count]:
        h = net.cell(features, h)
    return h


OF_MODULES = (cell_calls, lstm_calls, leaf_modules, look_ups, constants)
WORKLOADS = (*OF_MODULES, functions, methods, concatenations, sums, stacks)


class Model(nn.Module):
    """All that the workloads use."""

    def __init__(self, run: Callable[[Any, int], Any]) -> None:
        super().__init__()
        self.cell = Cell()
        self.lstm = edbc.cell(nn.LSTMCell(SIZE, SIZE))
        self.linear = nn.Linear(SIZE, SIZE)
        self.table = nn.Embedding(100, SIZE)
        self.start = nn.Parameter(torch.randn(SIZE))
        self.features = list(torch.randn(20_000, SIZE))
        self._run = run

    def forward(self, count: int) -> Any:
        return self._run(self, count)


def median_us(function: Callable[[], object], nodes: int, repeat: int) -> float:
    """Median over repeats of the microseconds per node, after two runs to warm up."""
    times = []
    for _ in range(repeat + 2):
        started = time.process_time_ns()
        function()
        times.append((time.process_time_ns() - started) / 1000 / nodes)
    return statistics.median(times[2:])


def main() -> None:
    """Measure every workload."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'workload':16} {'nodes':>6} {'record':>8} {'build':>8} {'eager':>8}   microseconds per node")
    for workload in WORKLOADS:
        nodes, *times = measure(workload, options.nodes, options.repeat)
        print(f"{workload.__name__:16} {nodes:6.0f} " + " ".join(f"{us:8.2f}" for us in times))


def measure(workload: Callable[[Any, int], Any], count: int, repeat: int) -> tuple[float, float, float, float]:
    """Nodes, and microseconds per node of recording, building and eager execution."""
    model = Model(workload).eval()
    shadow, recorder = recording_shadow(ModelView(model), TypeTable())
    nodes = build(record(shadow, recorder, [count])).graph.num_nodes
    with NoGarbageCollection():
        of_record = median_us(lambda: record(shadow, recorder, [count]), nodes, repeat)
        recording = record(shadow, recorder, [count])
        of_build = median_us(lambda: build(recording), nodes, repeat)
    with torch.no_grad():
        of_eager = median_us(lambda: model(count), nodes, repeat)
    return nodes, of_record, of_build, of_eager


if __name__ == "__main__":
    main()
