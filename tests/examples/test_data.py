"""Examples of docs/data.md: instances as libraries have them, against the real packages (extra `examples`)."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import imported
from torch import Tensor

import edbc
from edbc.errors import InputError
from edbc.run.workers import CapturedBatch

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
QUICK = {"trials": 20, "measure_gain": False}
DATA = {"pyg_data": "torch_geometric", "networkx_graphs": "networkx", "nltk_trees": "nltk", "dataset_rows": "datasets"}
LOOPS = {"lightning_loop": "lightning", "accelerate_loop": "accelerate"}
QUIET = pytest.mark.filterwarnings("ignore")  # what these packages warn of is theirs


def example(name: str, needs: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example's file, imported; skips where its package is absent."""
    pytest.importorskip(needs, reason=f"docs/examples/{name}.py needs {needs}: pip install edbc[examples]")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return imported(EXAMPLES / f"{name}.py", name, partial(monkeypatch.setitem, sys.modules))


def require_same(net: Any, model: torch.nn.Module, instances: list[Any]) -> None:
    """Plain, captured, and captured as one mini-batch, instances give eager's numbers, and keep what they are."""
    model.eval()
    batch = edbc.collate(net)(instances)
    assert type(batch) is CapturedBatch
    with torch.no_grad():
        eager = [model(instance) for instance in instances]
        for given in (instances, net.capture_all(instances), batch, batch.to("cpu")):
            for ours, theirs in zip(net(given), eager, strict=True):
                torch.testing.assert_close(ours, theirs)


@QUIET
@pytest.mark.parametrize("name", DATA)
def test_instances_of_libraries_equal_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of the real package compile, run and are captured as they are."""
    net, model, instances = example(name, DATA[name], monkeypatch).main(**QUICK)

    require_same(net, model, instances)


class DocumentedGraph:
    """The part of `dgl.DGLGraph` that DGL documents and the example uses; ids are tensors, as there."""

    def __init__(self, edges: list[tuple[int, int]], x: Tensor):
        self.edges, self.ndata = edges, {"x": x}

    def num_nodes(self) -> int:
        """Nodes."""
        return len(self.ndata["x"])

    def predecessors(self, v: int) -> Tensor:
        """Sources of edges into v."""
        return torch.tensor([a for a, b in self.edges if b == v], dtype=torch.int64)

    def successors(self, v: int) -> Tensor:
        """Targets of edges out of v."""
        return torch.tensor([b for a, b in self.edges if a == v], dtype=torch.int64)

    def in_degrees(self) -> Tensor:
        """Edges into each node."""
        return torch.tensor([len(self.predecessors(v)) for v in range(self.num_nodes())])


def documented(seed: int) -> DocumentedGraph:
    """A made-up graph whose node numbers are in no topological order."""
    generator = torch.Generator().manual_seed(seed)
    size = int(torch.randint(2, 9, (), generator=generator))
    order = torch.randperm(size, generator=generator).tolist()
    edges = [(order[a], order[b]) for b in range(1, size) for a in {b - 1, b // 2} if a != b]
    return DocumentedGraph(edges, torch.randn(size, 4, generator=generator))


def test_graphs_as_dgl_documents_them_equal_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """DGL has no package for current torch: an object with its documented methods stands for its graphs."""
    model = example("dgl_graphs", "networkx", monkeypatch).TopoEncoder()

    net = edbc.compile(model, [documented(seed) for seed in range(40)], **QUICK)

    require_same(net, model, [documented(seed) for seed in range(100, 108)])


@QUIET
@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_libraries_train(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A net trains in the loop, on lists and on captured mini-batches: the loss falls."""
    torch.manual_seed(0)
    options = {"folder": str(tmp_path)} if name == "lightning_loop" else {}

    losses = example(name, LOOPS[name], monkeypatch).main(**options, epochs=6, **QUICK)

    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


@QUIET
def test_a_loop_gives_the_losses_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Accelerate, the same steps by the model itself give the same losses."""
    module = example("accelerate_loop", "accelerate", monkeypatch)
    torch.manual_seed(3)
    ours = module.main(epochs=2, **QUICK)

    torch.manual_seed(3)
    model = module.TreeClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    eager = []
    for _ in range(2):
        for trees, labels in module.loader(module.labelled(64)):
            loss = module.F.cross_entropy(torch.stack([model(tree) for tree in trees]), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            eager.append(float(loss.detach()))
    assert ours == pytest.approx(eager, rel=1e-4)


def test_a_captured_mini_batch_moves_to_devices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """`.to(dtype)` is refused, as the dtype is part of what was captured."""
    module = example("dgl_graphs", "networkx", monkeypatch)
    net = edbc.compile(module.TopoEncoder(), [documented(seed) for seed in range(8)], **QUICK)
    batch = edbc.collate(net)([documented(9)])

    with pytest.raises(InputError, match="expected a device to move to, got a dtype"):
        batch.to(torch.float64)


def test_the_page_shows_what_runs() -> None:
    """Every line of code in docs/data.md is a line of an example."""
    page = (EXAMPLES.parent / "data.md").read_text()
    lines = {line.strip() for path in EXAMPLES.glob("*.py") for line in path.read_text().splitlines()}
    shown = [line.strip() for block in re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
             for line in block.splitlines()]  # fmt: skip

    assert len(shown) > 20
    assert [line for line in shown if line and line not in lines] == []
