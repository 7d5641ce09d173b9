"""`edbc run`: its report, its files, and how it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from edbc.api import load
from edbc.run.modelfile import import_model_file
from edbc.run.session import Seconds
from edbc.tools.report.figures import size_text


def test_json_report_is_one_object_with_the_documented_keys(edbc, compiled: Path, trees: Path) -> None:
    """`--format json` prints one object on stdout; three trees of known shape have known counts."""
    result = edbc("run", compiled / "plans" / "tree_lstm.yaml", "--input", trees, "--verify", "--format", "json")
    report = json.loads(result.stdout)

    assert result.exit_code == 0
    assert {"instances", "nodes", "batches", "lower_bound", "unseen_states", "unseen_types", "seconds", "backend",
            "instances_per_second", "max_error", "eager_error"} <= report.keys()  # fmt: skip
    assert set(report["seconds"]) == {"construction", "scheduling", "execution", "total"}
    assert (report["instances"], report["nodes"]) == (3, 2 * (3 + 1 + 5))
    assert report["batches"] == report["lower_bound"] == 1 + 2 + 1
    assert report["max_error"] < 1e-5


KEY = """

def structure_key(tree):
    return repr(tree)
"""


def test_repeated_structures_are_counted_without_the_warm_up(edbc, workspace: Path, trees: Path) -> None:
    """Four trees, two of them equal, are three structures and one repeat, in JSON, in text and after binding."""
    with (workspace / "models" / "tree_lstm.py").open("a") as file:
        file.write(KEY)
    plan = workspace / "plans" / "tree_lstm.yaml"
    again = workspace / "again.txt"
    again.write_text(trees.read_text() + "(1 bad)\n")
    options = ("run", plan, "--input", again, "--trust-changed-model")
    report = json.loads(edbc(*options, "--format", "json").stdout)
    net = load(plan).bind(import_model_file(workspace / "models" / "tree_lstm.py").build({"hidden_size": 16}, 0))

    assert report["structures"] == {"hits": 1, "misses": 3, "checked": 0, "hit_rate": 0.25}
    assert "25.0 % of 4 captures were repeats" in edbc(*options).stdout
    assert net.cache is not None


def test_memory_is_said_before_execution(edbc, compiled: Path, trees: Path) -> None:
    """What a mini-batch will take stands on stderr first, as the report says afterwards; `--quiet` hides it."""
    options = ("run", compiled / "plans" / "tree_lstm.yaml", "--input", trees, "--format", "json")
    result = edbc(*options)
    taken = json.loads(result.stdout)["arena_bytes"]

    assert f"memory: {size_text(taken)} for a mini-batch of 3, " in result.stderr
    assert "memory" not in edbc(*options, "--quiet").stderr


def test_more_memory_is_said_before_it_is_taken(edbc, compiled: Path, trees: Path, tmp_path: Path) -> None:
    """A mini-batch that takes much more than the ones before is announced, the last line is of the largest, and others
    are not."""
    grown = tmp_path / "grown.txt"
    grown.write_text("(1 bad)\n(1 bad)\n" + trees.read_text())
    options = ("--batch-size", 1, "--format", "json")
    result = edbc("run", compiled / "plans" / "tree_lstm.yaml", "--input", grown, *options)
    told = [line for line in result.stderr.splitlines() if "memory:" in line]

    assert 1 < len(told) < 5
    assert f"memory: {size_text(json.loads(result.stdout)['arena_bytes'])} for" in told[-1]


def test_batches_and_bounds_are_summed_over_mini_batches(edbc, compiled: Path, trees: Path) -> None:
    """With mini-batches of one instance, counts are the sums over instances."""
    result = edbc("run", compiled / "plans" / "tree_lstm.yaml", "--input", trees, "--batch-size", 1, "--format", "json")
    report = json.loads(result.stdout)

    assert report["nodes"] == 18
    assert report["lower_bound"] == (1 + 1 + 1) + (1 + 1) + (1 + 2 + 1)


def test_output_file_holds_rows_in_input_order(edbc, compiled: Path, trees: Path, tmp_path: Path) -> None:
    """`--output` writes one tensor per output name and its offsets, equal to eager, instance after instance."""
    target = tmp_path / "out.safetensors"
    result = edbc("run", compiled / "plans" / "tree_lstm.yaml", "--input", trees, "--output", target, "--batch-size", 2)
    assert result.exit_code == 0, result.output
    tensors = load_file(target)

    file = import_model_file(compiled / "models" / "tree_lstm.py")
    config = file.config({"hidden_size": 16, "vocab_size": 64})
    model = file.build(config, 0)
    with torch.no_grad():
        eager = [model(tree)["logits"] for tree in file.load([trees], config)]

    assert result.exit_code == 0
    assert tensors["logits.offsets"].tolist() == [0, 3, 4, 9]
    torch.testing.assert_close(tensors["logits"], torch.cat(eager))


def test_limit_takes_the_first_instances(edbc, compiled: Path, trees: Path) -> None:
    """`--limit 2` runs two instances; `--limit 0` none, without an error."""
    plan = compiled / "plans" / "tree_lstm.yaml"
    two = edbc("run", plan, "--input", trees, "--limit", 2, "--format", "json")
    none = edbc("run", plan, "--input", trees, "--limit", 0, "--format", "json")

    assert json.loads(two.stdout)["instances"] == 2
    assert (none.exit_code, json.loads(none.stdout)["instances"]) == (0, 0)


def test_outputs_without_tensors_are_told(edbc, workspace: Path, trees: Path, tmp_path: Path) -> None:
    """A forward that returns none (a forgotten return) leaves a file without outputs: a warning says so."""
    plan, target = workspace / "plans" / "tree_lstm.yaml", tmp_path / "out.safetensors"
    options = ("run", plan, "--input", trees, "--trust-changed-model", "--output", target)
    assert "hold no tensors" not in edbc(*options).stderr
    with (workspace / "models" / "tree_lstm.py").open("a") as file:
        file.write("\n\nplain = TreeLSTM.forward\nTreeLSTM.forward = lambda self, tree: plain(self, tree) and None\n")
    assert f"Warning: {target}: results hold no tensors, so nothing is in it" in edbc(*options).stderr


def test_of_no_instances_nothing_is_claimed(edbc, compiled: Path) -> None:
    """No figures, and no parity of outputs that are not there."""
    plan = compiled / "plans" / "tree_lstm.yaml"
    told = [edbc("run", plan, "--limit", 0, *options).stdout.splitlines()[1:] for options in ((), ("--verify",))]

    assert told == [["  nothing ran"], ["  nothing ran, so nothing was compared"]]


def test_a_slow_start_does_not_stand_for_what_comes_later(compiled: Path) -> None:
    """Where the first mini-batches take most of the time, the median is told too, and how it compares with eager."""
    report = load(compiled / "plans" / "tree_lstm.yaml").run(limit=8, batch_size=2, verify=True)
    slow, even, eager = [9.0, 0.5, 0.25, 0.5], [2.0] * 4, [1.0] * 4

    def told(spent: list[float]) -> str:
        stats = replace(report.stats, seconds=Seconds(execution=sum(spent)))
        return str(replace(report, stats=stats, spent=spent, eager_spent=eager))

    assert len(report.spent) == len(report.eager_spent) == 4
    assert sum(report.spent) == pytest.approx(report.stats.seconds.total)
    assert "throughput   1 instances/s; 4 in the median mini-batch: the first meet what is new\n" in told(slow)
    assert "edbc is 0.39 times as fast, 2.0 in the median mini-batch\n" in told(slow)
    assert "throughput   1 instances/s\n" in told(even)
    assert "edbc is 0.5 times as fast\n" in told(even)


def test_weights_are_used(edbc, compiled: Path, trees: Path, tmp_path: Path) -> None:
    """`--weights` replaces the seeded weights: with all zero weights every logit is zero."""
    file = import_model_file(compiled / "models" / "tree_lstm.py")
    model = file.build(file.config({"hidden_size": 16, "vocab_size": 64}), 0)
    weights, target = tmp_path / "zero.safetensors", tmp_path / "out.safetensors"
    save_file({name: torch.zeros_like(t) for name, t in model.state_dict().items()}, weights)
    edbc("run", compiled / "plans" / "tree_lstm.yaml", "--input", trees, "--weights", weights, "--output", target)

    assert load_file(target)["logits"].abs().max() == 0


def test_weights_of_another_shape_are_stale(edbc, compiled: Path, trees: Path, tmp_path: Path) -> None:
    """Weights that do not fit exit 4 and say which, with both shapes."""
    weights = tmp_path / "other.safetensors"
    save_file({"embedding.weight": torch.zeros(3, 3)}, weights)
    result = edbc("run", compiled / "plans" / "tree_lstm.yaml", "--input", trees, "--weights", weights)

    assert result.exit_code == 4
    assert "'embedding.weight': expected float32 (64, 16) from the model, got float32 (3, 3)" in result.output


def test_a_changed_model_is_refused_with_both_hashes(edbc, workspace: Path, trees: Path) -> None:
    """Editing the model file makes the plan stale, exit 4, unless the change is trusted aloud."""
    model = workspace / "models" / "tree_lstm.py"
    model.write_text(model.read_text() + "\n# edited\n")
    plan = workspace / "plans" / "tree_lstm.yaml"
    refused = edbc("run", plan, "--input", trees)
    trusted = edbc("run", plan, "--input", trees, "--trust-changed-model")

    assert refused.exit_code == 4
    assert refused.output.count("...") >= 2
    assert trusted.exit_code == 0
    assert "Warning" in trusted.output


def test_line_ends_do_not_make_a_plan_stale(edbc, workspace: Path, trees: Path) -> None:
    """A checkout with Windows line ends runs the same plan."""
    model = workspace / "models" / "tree_lstm.py"
    model.write_bytes(model.read_bytes().replace(b"\n", b"\r\n"))

    assert edbc("run", workspace / "plans" / "tree_lstm.yaml", "--input", trees).exit_code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_gpu_is_an_environment_error(edbc, compiled: Path) -> None:
    """`--device cuda` where there is none exits 4 with a remedy."""
    result = edbc("run", compiled / "plans" / "tree_lstm.yaml", "--device", "cuda")

    assert result.exit_code == 4
    assert "--device cpu" in result.output


@pytest.mark.parametrize(
    ("name", "content"),
    [("empty.yaml", ""), ("text.yaml", "hello"), ("code.yaml", "import torch\n"), ("binary.yaml", "\x00\x01")],
)
def test_what_is_no_plan_is_refused(edbc, tmp_path: Path, name: str, content: str) -> None:
    """A file that is not a plan exits 3 with one line that names it."""
    file = tmp_path / name
    file.write_text(content)
    result = edbc("run", file)

    assert result.exit_code == 3
    assert str(file) in result.output
    assert "Traceback" not in result.output


def test_an_output_that_cannot_be_written_leaves_nothing(edbc, compiled: Path, trees: Path, tmp_path: Path) -> None:
    """A folder that does not exist is one line and exit 3, and no temporary file stays."""
    target = tmp_path / "missing" / "out.safetensors"
    result = edbc("run", compiled / "plans" / "tree_lstm.yaml", "--input", trees, "--output", target)

    assert result.exit_code == 3
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_verify_fails_when_numbers_differ(edbc, compiled: Path, trees: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--verify` exits 1 when batched outputs are not eager's: here every result is shifted by a thousandth."""
    from edbc.run import execution
    from edbc.run.cpu import atonce

    honest = execution.collect

    def shifted(*given):
        return [{"logits": r["logits"] + 1e-3} for r in honest(*given)]

    for road in (execution, atonce):
        monkeypatch.setattr(road, "collect", shifted)
    result = edbc("run", compiled / "plans" / "tree_lstm.yaml", "--input", trees, "--verify")

    assert result.exit_code == 1
    assert "differs from eager" in result.output


def test_a_load_that_gives_nothing_is_said(edbc, workspace: Path, tmp_path: Path) -> None:
    """A run over no instances at all warns and names the input."""
    (tmp_path / "empty.txt").write_text("")
    result = edbc("run", workspace / "plans" / "tree_lstm.yaml", "--input", tmp_path / "empty.txt")

    assert result.exit_code == 0
    assert "empty.txt: the model file's load gave no instances" in result.stderr


def test_a_load_without_a_signature_is_called(edbc, workspace: Path, trees: Path) -> None:
    """`load = iter`, a built-in function without known parameters, is called; the path's characters are none."""
    model = workspace / "models" / "tree_lstm.py"
    model.write_text(model.read_text() + "\nload = iter\n")
    result = edbc("run", workspace / "plans" / "tree_lstm.yaml", "--input", trees, "--trust-changed-model")

    assert result.exit_code == 3
    assert "load: expected instances, got the characters of a string" in " ".join(result.stderr.split())


def test_a_changed_model_names_the_files_that_its_hash_covers(edbc, workspace: Path, trees: Path) -> None:
    """A change in an imported file is not told as one of the model file alone."""
    model, helper = workspace / "models" / "tree_lstm.py", workspace / "models" / "shapes_of_trees.py"
    helper.write_text("SIZE = 1\n")
    model.write_text(model.read_text() + "\nimport shapes_of_trees\n")
    refused = edbc("run", workspace / "plans" / "tree_lstm.yaml", "--input", trees)

    assert refused.exit_code == 4
    assert "shapes_of_trees.py" in refused.stderr
    assert "which it imports: any of them may have changed" in " ".join(refused.stderr.split())
