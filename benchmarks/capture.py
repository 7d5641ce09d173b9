"""Cost of recording, per node: a cell's call, a leaf module, a torch function; eager's time beside it.

    python benchmarks/capture.py [--nodes 2000] [--repeat 9] [--calls]

Prints medians of processor time in microseconds per node, after warm-up, for hidden size 8, so that eager's time
is mostly its own overhead. `build` is the time from the recording to the frozen graph. With `--calls` one line of code
after the other as people write it, per call, the slowest beside eager first.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
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


CALLS = """
torch.tanh(h); h.sigmoid(); F.relu(h); torch.softmax(h, -1); F.softmax(h, dim=0); h.exp(); h ** 2; h.pow(2)
h + g; h * 0.5; 1 - h; h / 3; h @ g; (h * g).sum(); torch.max(h, g); torch.where(h > 0, h, g); h.clamp(min=0)
torch.outer(h, g); h.norm(); F.linear(h, net.linear.weight, net.linear.bias); torch.matmul(net.linear.weight, h)
net.linear(h); net.linear(h.unsqueeze(0)).squeeze(0); net.lstm(h, (g, g)); torch.cat([h, g])
torch.cat((h, g), dim=-1); torch.cat([h.unsqueeze(0), g.unsqueeze(0)]); torch.stack(hs); torch.stack(hs).mean(0)
torch.sum(torch.stack(hs), 0); torch.max(torch.stack(hs), dim=0)[0]; sum(hs); h.unsqueeze(0); h[None]
h.view(1, -1); h.squeeze(); h.view(2, 4).t(); h[:4]; h[5]; h.chunk(2); h.split(4); h.expand(3, -1); h.repeat(2)
h.size(0); h.detach(); h.clone(); rows[0]; rows.unsqueeze(1); rows.mean(0); net.table.weight[3]
net.table(torch.tensor(3)); net.table(torch.tensor([3])); torch.zeros(8); torch.zeros_like(h); h.new_zeros(8)
torch.tensor([1.0, 2.0]); torch.tensor([[0.5]]); F.mse_loss(h, g); F.cross_entropy(h, torch.tensor(3))
F.log_softmax(h, 0)[3]; F.binary_cross_entropy_with_logits(h, torch.ones(8)); F.normalize(h, dim=0)
F.cosine_similarity(h, g, dim=0); torch.einsum("i,i->", h, g)
"""


def calls(file: Path) -> dict[str, nn.Module]:
    """A model for each line of CALLS, in a file: recording runs copies of such a forward."""
    texts = [text.strip() for text in CALLS.replace("\n", ";").split(";") if text.strip()]
    lines = ["import torch", "import torch.nn.functional as F", "from __main__ import Model", ""]
    for number, text in enumerate(texts):
        lines += [f"class Call{number}(Model):", "    def forward(net, count):",
                  "        h = torch.tanh(net.table.weight[0])",
                  "        g, rows = torch.sigmoid(h), net.table(torch.tensor([1, 2, 3]))", "        hs = [h, g, h]",
                  "        for _ in range(count):", f"            {text}", "        return h", ""]  # fmt: skip
    file.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return {text: getattr(module, f"Call{number}")(functions) for number, text in enumerate(texts)}


def print_calls(count: int, repeat: int) -> None:
    """The table of `--calls`."""
    rows = []
    with TemporaryDirectory() as folder:
        for text, model in calls(Path(folder) / "calls.py").items():
            nodes, of_record, _, of_eager = measure(model, count, repeat)
            rows.append((of_record / of_eager, text, of_record * nodes / count, of_eager * nodes / count))
    print(f"{'call':50} {'record':>8} {'eager':>8} {'ratio':>6}   microseconds per call")
    for ratio, text, of_record, of_eager in sorted(rows, reverse=True):
        print(f"{text:50} {of_record:8.2f} {of_eager:8.2f} {ratio:6.2f}")


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
    parser.add_argument("--calls", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.calls:
        print_calls(options.nodes, options.repeat)
        return
    print(f"{'workload':16} {'nodes':>6} {'record':>8} {'build':>8} {'eager':>8}   microseconds per node")
    for workload in WORKLOADS:
        nodes, *times = measure(Model(workload), options.nodes, options.repeat)
        print(f"{workload.__name__:16} {nodes:6.0f} " + " ".join(f"{us:8.2f}" for us in times))


def measure(model: nn.Module, count: int, repeat: int) -> tuple[float, float, float, float]:
    """Nodes, and microseconds per node of recording, building and eager execution."""
    model.eval()
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
