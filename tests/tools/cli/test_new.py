"""`edbc new` and `edbc models`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_the_file_compiles_and_runs_as_it_is(edbc, tmp_path: Path) -> None:
    """From `edbc new` to outputs that equal eager ones without an edit, from made-up trees and from a text file."""
    model, plan = tmp_path / "my_model.py", tmp_path / "plans" / "my_model.yaml"
    text = tmp_path / "sentences.txt"
    text.write_text("one two three\n\nfour\n")

    assert edbc("new", model).exit_code == 0
    assert edbc("compile", model, "-o", plan, "--encoding", "sort", "--quiet").exit_code == 0
    run = edbc("run", plan, "--verify", "--limit", 40)
    from_file = edbc("run", plan, "--verify", "--input", text, "--format", "json")

    assert run.exit_code == 0, run.output
    assert "equal to eager" in run.output
    assert json.loads(from_file.stdout)["nodes"] == 2 + 2


def test_a_file_is_never_replaced(edbc, tmp_path: Path) -> None:
    """A name that is taken exits 3 and leaves the file as it was."""
    model = tmp_path / "mine.py"
    model.write_text("precious")
    result = edbc("new", tmp_path / "mine")

    assert result.exit_code == 3
    assert model.read_text() == "precious"


@pytest.mark.parametrize("name", ["my-model", "2trees", "class", "random", "torch"])
def test_names_that_python_cannot_import_are_refused(edbc, tmp_path: Path, name: str) -> None:
    """A name that is no identifier, or that is Python's or torch's own, is a usage error and writes nothing."""
    result = edbc("new", tmp_path / name)

    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_models_lists_the_zoo_with_its_settings(edbc, repository: Path) -> None:
    """Every model file of the zoo is listed with its first line and its config; helper modules are not."""
    content = json.loads(edbc("models", repository / "models", "--format", "json").stdout)
    names = {Path(model["path"]).stem for model in content["models"]}

    assert names == {p.stem for p in (repository / "models").glob("*.py") if not p.stem.startswith("_")}
    assert all(model["summary"].endswith(".") for model in content["models"])
    tree = next(m for m in content["models"] if m["path"].endswith("tree_lstm.py"))
    assert "hidden_size" in tree["config"]


def test_models_executes_nothing(edbc, tmp_path: Path) -> None:
    """A file that would fail to import is listed from its text alone; a file that is no model is not."""
    functions = "def build(size=3): ...\ndef load(*paths): ...\ndef sample(count, seed): ...\n"
    (tmp_path / "evil.py").write_text(f'"""Bad."""\nraise SystemExit(9)\n{functions}')
    (tmp_path / "other.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def (\n")
    result = edbc("models", tmp_path)

    assert result.exit_code == 0
    assert result.output.splitlines() == [str(tmp_path / "evil.py"), "  Bad.", "  --set size=3"]


def test_a_folder_without_models_is_refused(edbc, tmp_path: Path) -> None:
    """An empty folder, and none at all, exit 3."""
    assert edbc("models", tmp_path).exit_code == 3
    assert edbc("models", tmp_path / "missing").exit_code == 3


CLASS = '''from torch import nn
class Net(nn.Module):
    """A net."""
    def __init__(self, words: int, size: int = 8, act="tanh"):
        super().__init__()
        self.words, self.act = nn.Embedding(words, size), act
    def forward(self, x):
        return self.words.weight[x] * 2
def sample(count, seed):
    return [i % 40 for i in range(count)]
'''


def test_a_file_around_a_class_compiles(edbc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`new --from` builds the class by its constructor's arguments, and what the module lacks says what to write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "around_this.py").write_text(CLASS)

    assert edbc("new", "net", "--from", "around_this:Net").exit_code == 0
    result = edbc("compile", "net.py", "-o", "net.yaml", "--set", "words=40", "--quiet")

    assert result.exit_code == 0, result.output
    text = (tmp_path / "net.py").read_text()
    assert 'def build(words: int, size: int = 8, act: str = "tanh") -> nn.Module:' in text
    assert "from around_this import Net, sample" in text
    assert "yield the instances of these files" in text
    assert text.startswith('"""Net of around_this: A net.')


def test_a_class_that_says_nothing_is_not_described_by_another(
    edbc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base class's text is not its own; commands stand in columns."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "around_those.py").write_text(CLASS.replace('    """A net."""\n', ""))
    edbc("new", "net", "--from", "around_those:Net")
    lines = (tmp_path / "net.py").read_text().splitlines()

    assert lines[0] == '"""Net of around_those.'
    assert len({line.rindex("    ") for line in lines[2:5]}) == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("around_that:Nut", "it has: Net"),
        ("missing_module:Net", "must stand in the folder"),
        ("no module", "expected MODULE:CLASS"),
    ],
)
def test_what_is_no_class_is_told(
    edbc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    """A class or module that is not there exits 3, with what is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "around_that.py").write_text(CLASS)
    result = edbc("new", "net", "--from", source)

    assert result.exit_code == 3
    assert message in result.output
    assert not (tmp_path / "net.py").exists()
