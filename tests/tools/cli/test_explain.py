"""`edbc explain`: its forms and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_text_json_and_page_tell_the_same(edbc, compiled: Path, tmp_path: Path) -> None:
    """The three forms agree on the number of batches; the page is written beside the text."""
    plan = compiled / "plans" / "tree_lstm.yaml"
    page = tmp_path / "page.html"
    text = edbc("explain", plan)
    content = json.loads(edbc("explain", plan, "--format", "json", "--html", page).stdout)
    batches = content["observed"]["batches"]

    assert text.exit_code == 0, text.output
    assert f"run in {batches} batches" in text.output
    assert f"<b>{batches}</b>batches under this plan" in page.read_text()
    assert content["schema"] == 1


def test_static_runs_nothing(edbc, workspace: Path) -> None:
    """With `--static` even a model file that would fail to import does no harm."""
    (workspace / "models" / "tree_lstm.py").write_text("raise RuntimeError('executed')\n")
    result = edbc("explain", workspace / "plans" / "tree_lstm.yaml", "--static")

    assert result.exit_code == 0
    assert "executed" not in result.output
    assert "the model was not run" in result.output


def test_a_data_file_takes_the_place_of_made_up_instances(edbc, compiled: Path, trees: Path) -> None:
    """`--input` explains the first instances of a file: three trees of 3, 1 and 5 nodes."""
    plan = compiled / "plans" / "tree_lstm.yaml"
    content = json.loads(edbc("explain", plan, "--input", trees, "--format", "json").stdout)

    assert content["observed"]["instances"] == 3
    assert content["observed"]["nodes"] == 2 * (3 + 1 + 5)


def test_equal_nodes_are_counted_as_a_run_counts_them(edbc, compiled: Path, tmp_path: Path) -> None:
    """Of 16 copies of a tree of 3 nodes with an output each, 15 are shared, by the front end that the text names."""
    plan, copies = compiled / "plans" / "tree_lstm.yaml", tmp_path / "copies.txt"
    copies.write_text("(3 (2 good) (3 fun))\n" * 16)
    front_end = ("--front-end", "record", "--format", "json")
    shared = json.loads(edbc("run", plan, "--input", copies, *front_end).stdout)["shared_nodes"]
    told = " ".join(edbc("explain", plan, "--input", copies).output.split())

    assert shared == 15 * 2 * 3
    assert f"{shared} of 96 nodes equal another one; a run by --front-end record computes them once" in told


def test_an_input_that_is_named_must_be_readable(edbc, compiled: Path, tmp_path: Path) -> None:
    """What `edbc run` says of a file, in the same words, and exit 3: nothing there, a folder, a broken line.
    With a model that cannot run, too."""
    plan, broken = compiled / "plans" / "tree_lstm.yaml", tmp_path / "broken.txt"
    broken.write_text("((bad\n")
    for path in (tmp_path / "none.txt", tmp_path, broken):
        told = edbc("explain", plan, "--input", path)
        assert (told.exit_code, told.stdout) == (3, "")
        assert told.stderr.splitlines() == edbc("run", plan, "--input", path).stderr.splitlines()
    assert edbc("explain", plan, "--model", tmp_path / "none.py", "--input", tmp_path / "none.txt").exit_code == 3


def test_a_model_that_cannot_run_is_a_note_with_inputs_too(edbc, compiled: Path, trees: Path, tmp_path: Path) -> None:
    """`explain` shows what the plan holds where its model is missing, whatever instances are named."""
    result = edbc("explain", compiled / "plans" / "tree_lstm.yaml", "--model", tmp_path / "none.py", "--input", trees)

    assert result.exit_code == 0
    assert "the model was not run" in " ".join(result.output.split())


@pytest.mark.long
def test_a_model_file_is_compiled_in_memory(edbc, workspace: Path) -> None:
    """`edbc explain MODEL.py` explains without a plan and writes none."""
    before = sorted(workspace.rglob("*.yaml"))
    result = edbc("explain", workspace / "models" / "tree_fc.py", "--set", "hidden_size=4")
    text = " ".join(result.output.split())

    assert result.exit_code == 0, result.output
    assert text.startswith("tree_fc.py: with ")
    assert "made-up instances (the model's sample, seed 0), back end" in text
    assert "no plan was written" in text
    assert sorted(workspace.rglob("*.yaml")) == before


def test_what_is_no_plan_is_refused(edbc, tmp_path: Path) -> None:
    """A broken plan exits 3 with one line."""
    file = tmp_path / "plan.yaml"
    file.write_text("hello")
    result = edbc("explain", file)

    assert result.exit_code == 3
    assert "Traceback" not in result.output


@pytest.mark.long
def test_compile_writes_the_page_of_what_it_learned(edbc, workspace: Path) -> None:
    """`edbc compile --report` gives the same page as `edbc explain --html`, figures of time apart."""
    model, plan = workspace / "models" / "tree_fc.py", workspace / "plans" / "tree_fc.yaml"
    page = workspace / "page.html"
    result = edbc("compile", model, "-o", plan, "--set", "hidden_size=8", "--encoding", "sort", "--report", page, "-q")

    assert result.exit_code == 0, result.output
    assert f"<h1>{plan.name}</h1>" in page.read_text()
    assert "batches under this plan" in page.read_text()


@pytest.mark.long
def test_from_python_as_from_the_command_line(edbc, workspace: Path) -> None:
    """`edbc.compile` takes the command's options and writes the same bytes; a guard's tolerance survives both."""
    import edbc as package

    model, plan = workspace / "models" / "tree_fc.py", workspace / "plans" / "tree_fc.yaml"
    edbc("compile", model, "-o", plan, "--set", "hidden_size=8", "--policy", "depth", "--seed", 3, "-q")
    written = plan.read_text().replace("tolerance: 0", "tolerance: 2", 1)
    plan.write_text(written)
    loaded = package.compile(model, plan, config={"hidden_size": 8}, policy="depth", seed=3)

    assert plan.read_text() == written
    assert loaded.plan.policy.kind == "depth"
    assert "by the table" not in loaded.explain().html()  # there is none


def test_another_size_is_explained_as_it_runs(edbc, compiled: Path) -> None:
    """`--set` binds the plan to a larger model and says so; a key that the model does not have exits 3."""
    plan = compiled / "plans" / "tree_lstm.yaml"
    result = edbc("explain", plan, "--set", "hidden_size=24")
    wrong = edbc("explain", plan, "--set", "hiden_size=24")

    assert "note: run with hidden_size=24" in result.output
    assert wrong.exit_code == 3
    assert "did you mean 'hidden_size'" in wrong.output


def test_graphs_are_written_where_asked(edbc, compiled: Path, tmp_path: Path) -> None:
    """`--dot FOLDER` writes the files, names them on stderr, and prints no text."""
    result = edbc("explain", compiled / "plans" / "tree_lstm.yaml", "--static", "--dot", tmp_path / "dots")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "cell-internal.dot: written" in result.stderr
    assert (tmp_path / "dots" / "cell-internal.dot").read_text().startswith("digraph")
