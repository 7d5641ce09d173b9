"""Families of types: what is one, and that no command prints a line for each of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import command as edbc
from torch import nn

from edbc.base.families import family, fold_names, grouped, leads
from edbc.plan.plan import PlanType
from edbc.tools.explain.foundcells import cell_notes, fused_families


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("module layers.3(f32[16]) -> f32[16]", "module layers.17(f32[24]) -> f32[24]", True),
        ("torch.mul(f32[4]) {_, 0.5} -> f32[4]", "torch.mul(f32[4]) {_, 3} -> f32[4]", True),
        ("torch.stack(f32[4], f32[4]) {[_, _]}", "torch.stack(f32[9], f32[9], f32[9]) {[_, _, _]}", True),
        ("module a.3(f32[16]) -> f32[16]", "module b.3(f32[16]) -> f32[16]", False),
        ("torch.tanh(f32[16]) -> f32[16]", "torch.tanh(f64[16]) -> f64[16]", False),
        ("torch.sum(f32[3,8]) -> f32[8]", "torch.sum(f32[8]) -> f32[8]", False),
    ],
)
def test_types_of_one_family_differ_in_numbers_only(one: str, other: str, alike: bool) -> None:
    """Sizes, indices and constants are numbers; dtypes, names and numbers of dimensions are not."""
    assert (family(one) == family(other)) == alike


def test_few_stay_apart_and_keep_their_order() -> None:
    """Three are told one by one where they stood; four are one where the first of them stood."""
    assert grouped("abacab", str) == [["a"], ["b"], ["a"], ["c"], ["a"], ["b"]]
    assert grouped("abacada", str) == [["a"] * 4, ["b"], ["c"], ["d"]]
    assert fold_names(["x.1", "y", "x.2", "x.3", "x.14"]) == ["x.1 +3", "y"]
    assert leads({"a": "f(f32[1])", "b": "g()"}) == {"a": "a", "b": "b"}


MODEL = '''"""Words, a layer for each."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(40))
        self.start = nn.Parameter(torch.ones(size))

    def forward(self, words):
        h = self.start
        for word in words:
            h = torch.tanh(self.layers[word](h))
        return torch.stack([h] * len(words)).logcumsumexp(0)


def build(size: int = 4):
    return Model(size)


def sample(count, seed):
    return [[(3 * seed + 2 * i + j) % 40 for j in range(1 + i % 7)] for i in range(count)]
'''


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of MODEL, which has no `load`."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "words.py").write_text(MODEL)
    result = edbc("compile", folder / "words.py", "-o", folder / "words.yaml", "--policy", "critical", "--profile")
    assert result.exit_code == 0, result.output
    assert re.search(r"layers_\d+ \+39: 1 operation in ", result.stdout)
    assert re.search(r"layers_\d+ \+39: [\d.]+ to [\d.]+ \+ ", result.stdout)
    assert len(result.stdout.splitlines()) < 25
    return folder / "words.yaml"


def test_explaining_shows_families_and_json_all_types(plan: Path, tmp_path: Path) -> None:
    """Text and page have one row for forty layers, with their nodes in sum; the schedule's picture too."""
    text = edbc("explain", plan).stdout
    content = json.loads(edbc("explain", plan, "--format", "json").stdout)
    assert edbc("explain", plan, "--html", tmp_path / "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text()
    layers = [t for t in content["types"] if t["name"].startswith("layers_")]

    assert len(layers) == 40
    row = next(line.split() for line in text.splitlines() if line.startswith("  layers_"))
    assert row[1] == "+39"
    assert int(row[2]) == sum(t["nodes"] for t in layers)
    assert len(set(re.findall(r"layers_\d+", text))) == len(set(re.findall(r"layers_\d+", page))) == 1
    assert "+N after a type" in text
    assert len(set(re.findall(r"layers_\d+", edbc("explain", plan, "--static").stdout))) == 1


def test_checking_and_comparing_tell_a_family_once(plan: Path, tmp_path: Path) -> None:
    """Forty cells that are not the plan's are one finding, and one change."""
    other = plan.with_name("other.yaml")
    other.write_text(plan.read_text().replace("    layout: [input, v1]\n", "    layout: [v1, input]\n"))
    found = edbc("check", other)
    compared = edbc("diff", plan, other).stdout

    assert found.exit_code == 1
    assert len(re.findall(r"cell layers_\d+ \+39: compiling again gives other layout", found.output)) == 1
    assert len(re.findall(r"layers_\d+", compared)) == 1
    assert "(+39 alike)" in compared


def test_running_tells_families(plan: Path) -> None:
    """What no native code runs, and what the plan has not seen, by families."""
    output = edbc("run", plan, "--limit", 8, "--set", "size=5", "--backend", "reference").output

    assert "+39" in output or len(re.findall(r"layers_\d+", output)) <= 1, output


def test_without_load_there_is_nothing_to_read_files_with(plan: Path, tmp_path: Path) -> None:
    """One line that says what is missing, exit 3; `edbc models` lists the file all the same."""
    words = tmp_path / "words.txt"
    words.write_text("1 2 3\n")
    for command in (("run", plan), ("explain", plan), ("compile", plan.with_suffix(".py"), "-o", tmp_path / "p.yaml")):
        result = edbc(*command, "--input", words)

        assert result.exit_code == 3
        assert result.stderr.splitlines()[-1] == (
            f"Error: words.py: expected a function 'load' to read {words} with, got none; define load(*paths), or "
            "leave --input away and sample makes instances up [E0204]"
        )
    assert "words.py" in edbc("models", plan.parent).stdout


@pytest.mark.parametrize("missing", ["build", "sample"])
def test_a_file_without_build_or_sample_is_no_model_file(missing: str, tmp_path: Path) -> None:
    """Those two every model file has."""
    (tmp_path / "words.py").write_text(MODEL.replace(f"def {missing}(", "def other("))
    result = edbc("compile", tmp_path / "words.py", "-o", tmp_path / "words.yaml")

    assert result.exit_code == 3
    assert f"expected a function '{missing}', got none" in result.stderr


def test_patterns_that_differ_in_a_size_are_told_as_one() -> None:
    """By compiling and explaining: each length may have its own type of a pattern."""
    fused = {f"mul_tanh.{n}": (f"v0 = mul.{n}(x0, x1)", f"v1 = tanh.{n}(v0)") for n in range(2, 8)} | {
        "add_tanh": ("",)
    }
    types = [PlanType(name, f"graph {name.partition('.')[0]}(f32[{n},3])", "a.py:1") for n, name in enumerate(fused)]
    plan: Any = SimpleNamespace(fused=fused, types=types, automatic={})
    observed: Any = SimpleNamespace(construction_seconds=0.0, num_nodes=0, steps=())

    assert [len(names) for names in fused_families(plan)] == [6, 1]
    first, second = cell_notes(plan, nn.Identity(), observed)
    assert first == "mul_tanh.2 +5 is mined: v0 = mul.2(x0, x1); v1 = tanh.2(v0) (a.py:1)"
    assert second.startswith("add_tanh is mined")
