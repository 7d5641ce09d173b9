"""Model files that do what nobody should: each gives one clear line and the right exit code, never a wrong number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from chains import MODEL
from helpers import bound, captured
from torch import nn

from edbc.errors import CheckFailed, ModelError, UnsupportedError
from edbc.run.modelfile import hash_model_file, hashed_files, import_model_file
from edbc.run.session import Net
from edbc.tools.parity import Parity

NET = MODEL.replace('{"h": [h]} if length else {}', "self.last(h)").replace(
    "class Chain(nn.Module):\n", "class Chain(nn.Module):\n    def last(self, h):\n        return h\n\n"
)
MISTAKES: dict[str, tuple[str, int, str]] = {
    "exits at import": ("import sys\nsys.exit(0)\n", 3, "importing it raised SystemExit: 0"),
    "exits in build": ("def build(): raise SystemExit\n", 3, "build raised SystemExit"),
    "exits in sample": ("def sample(count, seed): exit(0)\n", 3, "sample raised SystemExit: 0"),
    "exits in forward": ("import sys\nChain.last = lambda self, h: sys.exit(0)\n", 3,
                         "forward raised SystemExit: 0 (while recording instance"),
    "raises what is no Exception": ("class Odd(BaseException): pass\nraise Odd('odd')\n", 3, "raised Odd: odd"),
    "raises what has no text": ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n", 3,
                                "raised E: (its text raises too)"),
    "raises many lines": ("raise ValueError('a\\nb\\x1b[31m')\n", 3, "raised ValueError: a b\\x1b[31m"),
    "samples nothing": ("def sample(count, seed): return None\n", 3, "sample raised TypeError"),
    "samples without end": ("def sample(count, seed):\n    while True: yield 1\n", 3,
                            "expected sample to make 32 instances, got more"),
    "a config that no plan can hold": ("def build(size=8, drop=None): return Chain(size)\n", 3,
                                       "build's 'drop': expected a finite number, true, false or a text"),
    "expressions too deep": (f"x = {'-' * 200_000}1\n", 3, "expected Python, got expressions nested too deep"),
    "returns itself": ("def last(self, h):\n    h = [h]\n    h.append(h)\n    return h\nChain.last = last\n",
                       5, "in a circle"),
    "returns a deep nest": ("def last(self, h):\n    for _ in range(3000): h = [h]\n    return h\nChain.last = last\n",
                            5, "deeper than Python's limit"),
    "compiled by torch": ("def build(): return torch.compile(Chain(8), backend='eager')\n", 5, "one of torch.compile"),
    "a sample that fails late": ("def sample(count, seed):\n    yield 1\n    raise OSError('gone')\n", 3,
                                 "sample raised OSError: gone"),
    "meta": ("def build():\n    with torch.device('meta'): return Chain(8)\n", 3, "on the meta device"),
    "complex": ("def build():\n    net = Chain(8)\n    net.z = nn.Parameter(torch.ones(8, dtype=torch.complex64))\n"
                "    return net\n", 5, "z of the model is complex64"),
    "returns a set": ("Chain.last = lambda self, h: {h}\n", 5, "forward returned a set"),
    "returns a generator": ("Chain.last = lambda self, h: (x for x in [h])\n", 5, "forward returned a generator"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_a_model_file(mistake: str, edbc, tmp_path: Path) -> None:
    """The line says what is wrong, the code is never 0, and no plan is written."""
    addition, code, words = MISTAKES[mistake]
    path = tmp_path / "net.py"
    path.write_text(NET + addition)
    result = edbc("compile", path, "-o", tmp_path / "net.yaml", "--policy", "critical", "--quiet")

    assert result.exit_code == code, result.output
    assert words in result.stderr.splitlines()[-1]
    assert not (tmp_path / "net.yaml").exists()


def test_what_a_model_prints_is_not_the_report(edbc, tmp_path: Path) -> None:
    """With --format json stdout is one JSON object, whatever the model file writes there; that goes to stderr."""
    path, plan = tmp_path / "net.py", tmp_path / "net.yaml"
    path.write_text(MODEL + "print('loaded')\n")
    assert edbc("compile", path, "-o", plan, "--policy", "critical", "--quiet").exit_code == 0
    for command in (("run", plan, "--limit", 2), ("check", plan), ("explain", plan), ("run", tmp_path / "no.yaml")):
        for name in [name for name in sys.modules if name.startswith("edbc_model_net_")]:
            del sys.modules[name]  # commands are processes of their own
        result = edbc(*command, "--format", "json")
        assert json.loads(result.stdout)["schema"] == 1
        assert ("loaded" in result.stderr) == (command[1] == plan)


def test_a_sibling_takes_no_library_away(tmp_path: Path) -> None:
    """A file beside the model named like a loaded library leaves that library where it is for everybody else; one named
    like a sibling of another model is that model's own."""
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "numpy.py").write_text("raise RuntimeError('not the library')\n")
        (tmp_path / folder / "beside.py").write_text(f"VALUE = {value}\n")
        (tmp_path / folder / "net.py").write_text("import beside\n" + MODEL)
        file = import_model_file(tmp_path / folder / "net.py")
        assert value == file.module.beside.VALUE
    again = import_model_file(tmp_path / "a" / "net.py")
    assert again.module.beside.VALUE == 1
    assert sys.modules["beside"] is again.module.beside

    import numpy

    assert numpy is np


def write_package(folder: Path, value: int) -> Path:
    """A model file that imports from two packages beside it, by all kinds of import statements; where it is."""
    files = {
        "layers/__init__.py": "from . import kinds\n",
        "layers/kinds.py": f"from .deep.cells import VALUE\nfrom layers.deep import unused\nassert VALUE == {value}\n",
        "layers/deep/cells.py": "from ..sizes import VALUE\n",
        "layers/deep/unused.py": "",
        "layers/sizes.py": f"VALUE = {value}\n",
        "layers/other.py": "",
        "data/__init__.py": "",
        "net.py": "import data, layers.kinds\n" + MODEL,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "net.py"


def test_packages_beside_a_model_are_its_own(tmp_path: Path) -> None:
    """Two model files, each with a package of the same name: each gets its own, the first again when asked again."""
    for folder, value in (("a", 1), ("b", 2), ("a", 1)):
        path = tmp_path / folder / "net.py" if (tmp_path / folder).exists() else write_package(tmp_path / folder, value)
        assert value == import_model_file(path).module.layers.kinds.VALUE
        assert value == sys.modules["layers.sizes"].VALUE


def test_the_hash_covers_what_is_imported_from_packages(tmp_path: Path) -> None:
    """A module of a package is part of the model, whatever statement imports it; one that nobody imports is none."""
    path = write_package(tmp_path, 1)
    used = ["data/__init__.py", "layers/__init__.py", "layers/deep/cells.py", "layers/deep/unused.py",
            "layers/kinds.py", "layers/sizes.py"]  # fmt: skip
    assert list(hashed_files(path)) == ["net.py", *used]
    before = hash_model_file(path)
    for name in used:
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text + "# changed\n")
        assert hash_model_file(path) != before
        (tmp_path / name).write_text(text)
    assert hash_model_file(path) == before


def test_what_runs_is_what_was_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the same length, written in the same second: Python keeps its byte code."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file, found = tmp_path / "twice.py", []
    for number in (1, 2):
        file.write_text(f"def build():\n    return {number}\n\n\ndef sample(count, seed):\n    return []\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        found.append(import_model_file(file).module.build())

    assert found == [1, 2]


def test_the_hash_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Two packages have files of one name; their order is not that of a set."""
    path = write_package(tmp_path, 1)
    code = f"from edbc.run.modelfile import hash_model_file; print(hash_model_file({str(path)!r}))"
    told = {
        subprocess.check_output(
            [sys.executable, "-c", code], text=True, env={**os.environ, "PYTHONHASHSEED": str(seed)}
        )
        for seed in range(4)
    }
    assert told == {hash_model_file(path) + "\n"}


class Returns(nn.Module):
    """A chain whose last state goes through a function."""

    def __init__(self, last) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.Linear(4, 4)
        self.start = nn.Parameter(torch.ones(4))
        self.last = last

    def forward(self, length: int):
        h = self.start
        for _ in range(length):
            h = torch.tanh(self.cell(h))
        return self.last(h)


def test_queues_are_lists() -> None:
    """What forward returns in a deque is compared with eager like what it returns in a list."""
    net = bound(Returns(lambda h: deque([h, h + 1])), [2, 3])
    with torch.no_grad():
        ours, theirs = net([2])[0], net.model(2)
    parity = Parity()
    parity.add(ours, theirs, theirs)
    parity.require()
    parity.add([ours[0], ours[1] + 1], theirs, theirs)
    assert not parity.holds


def test_both_parts_of_complex_outputs_count() -> None:
    """A result that differs in its imaginary part alone is not equal."""
    exact = torch.complex(torch.ones(3), torch.ones(3))
    parity = Parity()
    parity.add(exact, exact, exact.to(torch.complex128))
    parity.require()
    assert not parity.unstable
    parity.add(exact.conj(), exact, exact.to(torch.complex128))
    with pytest.raises(CheckFailed):
        parity.require()


def test_binding_refuses_tensors_without_numbers() -> None:
    """As compiling does: a net of a model on the meta device, or with complex weights, is never made."""
    model = Returns(lambda h: h)
    plan = bound(model, [2]).plan
    model.to("meta")
    with pytest.raises(ModelError, match=r"of the model: expected numbers, got a tensor on the meta device"):
        Net(plan, model)
    model = Returns(lambda h: h)
    model.register_buffer("phase", torch.ones(2, dtype=torch.complex128))
    with pytest.raises(UnsupportedError, match="phase of the model is complex128"):
        captured(model, [2])


def test_another_thread_may_draw_random_numbers() -> None:
    """While a mini-batch is recorded: that is not forward drawing them."""
    drawn: list[torch.Tensor] = []

    def last(h):
        if len(drawn) < 2:
            thread = threading.Thread(target=lambda: drawn.append(torch.rand(1)))
            thread.start()
            thread.join()
        return h

    model = Returns(last)
    graph = captured(model, [2, 3]).graph
    assert len(drawn) == 2
    assert graph.num_nodes == captured(model, [2, 3]).graph.num_nodes


@pytest.mark.parametrize("load", ["load = iter", "load = str", "load = lambda path: iter('\u00e9')"])
def test_characters_of_a_path_are_no_instances(load: str, tmp_path: Path) -> None:
    """A load that does not open the file is told so."""
    text = f"from torch import nn\nbuild = nn.Identity\nsample = lambda count, seed: [1] * count\n{load}\n"
    (tmp_path / "model.py").write_text(text)
    (tmp_path / "data.txt").write_text("1\n")
    file = import_model_file(tmp_path / "model.py")

    with pytest.raises(ModelError, match=r"model.py: load: expected instances, got the characters of a string; open"):
        list(file.load([tmp_path / "data.txt"], {}))
