"""Weights that a plan records: by a plain name beside it and sha256, read whole, held against both before they load."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from edbc.errors import StaleError
from edbc.plan import FileRef, Plan, plan_text, read_plan
from edbc.plan.verify import is_weights_name
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.run.weights.weightsfile import recorded_weights, weights_for


def write_weights(path: Path, value: float) -> Path:
    """Weights of the chain model, all of one value."""
    state = import_model_file(path.parent / "chain.py").build({}, 0).state_dict()
    save_file({name: torch.full_like(tensor, value) for name, tensor in state.items()}, path)
    return path


@pytest.fixture
def recorded(edbc, chain: Path) -> Path:
    """The chain's plan, compiled again with weights beside it."""
    weights = write_weights(chain.parent / "chain.safetensors", 0.125)
    result = edbc("compile", chain.with_suffix(".py"), "-o", chain, "--policy", "critical", "--weights", weights)
    assert result.exit_code == 0, result.output
    return chain


def outputs_of(edbc, plan: Path, *arguments: object) -> torch.Tensor:
    """What `edbc run` writes for three made-up chains."""
    target = plan.parent / "outputs"
    result = edbc("run", plan, "--limit", 3, "--verify", "--output", target, *arguments)
    assert result.exit_code == 0, result.output
    return load_file(target)["h"]


def test_recorded_weights_are_what_runs(edbc, recorded: Path) -> None:
    """Without an option the plan's weights run, not seeded ones; `--weights` takes others, from anywhere."""
    plan = read_plan(recorded)
    assert plan.model.weights == FileRef("chain.safetensors", recorded_weights(recorded, plan).reference.sha256)
    other = write_weights(recorded.parent / "other.safetensors", 0.25)
    (recorded.parent / "elsewhere").mkdir()
    moved = other.rename(recorded.parent / "elsewhere" / "other.safetensors")

    ours, theirs = outputs_of(edbc, recorded), outputs_of(edbc, recorded, "--weights", moved)
    assert torch.equal(ours[:, :1].expand_as(ours), ours)
    assert not torch.equal(ours, theirs)


def test_recorded_weights_survive_compiling_again(edbc, recorded: Path) -> None:
    """The same bytes of plan without `--weights`, seeded weights only by asking for them; `check` reads them too."""
    before = recorded.read_bytes()
    again = ("compile", recorded.with_suffix(".py"), "-o", recorded, "--policy", "critical")

    assert edbc("check", recorded).exit_code == 0
    assert edbc(*again).exit_code == 0
    assert recorded.read_bytes() == before
    assert edbc(*again, "--weights", "none").exit_code == 0
    assert read_plan(recorded).model.weights is None
    recorded.write_text("no plan")
    assert weights_for(recorded, None) is None


def changed(path: Path) -> None:
    write_weights(path, 0.5)


def missing(path: Path) -> None:
    path.unlink()


def link_to_the_same(path: Path) -> None:
    path.rename(path.with_name("real.safetensors"))
    path.symlink_to("real.safetensors")


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing.safetensors")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


HOSTILE: dict[Callable[[Path], None], str] = {
    changed: "expected the weights that the plan records (sha256 ",
    truncated: "expected the weights that the plan records (sha256 ",
    missing: "expected a safetensors file, got: No such file or directory",
    link_to_the_same: "expected a safetensors file, got: a symbolic link",
    link_to_nothing: "expected a safetensors file, got: a symbolic link",
    folder: "expected a safetensors file, got: Is a directory",
    pipe: "expected a safetensors file, got no regular file",
}


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_other_weights_than_the_recorded_are_refused(attack: Callable[[Path], None], edbc, recorded: Path) -> None:
    """Exit 4, what was expected, what is there and what to do, from every command that needs the weights; none reads
    through a link or waits for a pipe."""
    attack(recorded.parent / "chain.safetensors")
    model = recorded.with_suffix(".py")
    for command in (("run", recorded), ("check", recorded), ("bench", recorded), ("train", model, recorded),
                    ("compile", model, "-o", recorded), ("explain", recorded, "--set", "hidden_size=8")):  # fmt: skip
        result = edbc(*command)
        assert result.exit_code == 4, result.output
        told = result.output + result.stderr
        assert HOSTILE[attack] in told
        assert "--weights" in told
        assert "Traceback" not in told
    told = edbc("explain", recorded)
    assert (told.exit_code, "the model was not run" in told.output) == (0, True)
    assert edbc("run", recorded, "--weights", "none").exit_code == 0


def test_every_command_runs_the_recorded_weights(edbc, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What bench and explain bind, and what train starts from: all of 0.125; seeded ones for `none` alone."""
    bound: list[torch.nn.Module] = []
    original = Net.__init__

    def bind(net: Net, plan: Plan, model: torch.nn.Module, **options: object) -> None:
        bound.append(model)
        original(net, plan, model, **options)

    monkeypatch.setattr(Net, "__init__", bind)
    steps = ("--lr", "1e-12", "--optimizer", "sgd", "--epochs", 1, "--limit", 2, "--quiet", "--output")
    out = recorded.parent / "out"
    commands = [
        ("run", recorded, "--limit", 2),
        ("bench", recorded, "--limit", 2, "--rounds", 1),
        ("train", recorded.with_suffix(".py"), recorded, *steps, out),
    ]
    assert edbc("explain", recorded).exit_code == 0
    assert has_recorded(bound)
    for command in commands:
        bound.clear()
        result = edbc(*command)
        assert result.exit_code == 0, result.output
        assert has_recorded(bound), command
    for command in [*commands[:2], (*commands[2][:-1], out.with_name("other"))]:
        bound.clear()
        assert edbc(*command, "--weights", "none").exit_code == 0
        assert bound
        assert not has_recorded(bound), command
    result = edbc("bench", recorded, "--limit", 2, "--set", "hidden_size=9")
    assert (result.exit_code, "or seeded ones with --weights none" in result.stderr) == (4, True), result.stderr


def has_recorded(models: list[torch.nn.Module]) -> bool:
    """True when there are models, all with the plan's weights."""
    every = [p for model in models for p in model.parameters()]
    return bool(every) and all(bool(((p - 0.125).abs() < 1e-9).all()) for p in every)


def test_a_plan_s_hash_of_weights_that_are_no_weights(edbc, recorded: Path) -> None:
    """A hash that fits makes no pickle a safetensors file: exit 3; weights of another model: exit 4, both sides."""
    path = recorded.parent / "chain.safetensors"
    good = read_plan(recorded).model.weights.sha256
    torch.save({"start": torch.zeros(8)}, path)
    pickled = record_anew(recorded, path, good)
    result = edbc("run", recorded)
    assert (result.exit_code, "expected a safetensors file, got" in result.stderr) == (3, True)

    save_file({"start": torch.zeros(9)}, path)
    record_anew(recorded, path, pickled)
    result = edbc("run", recorded)
    assert result.exit_code == 4
    assert "'start': expected float32 (8,) from the model, got float32 (9,)" in result.stderr


def record_anew(plan: Path, path: Path, old: str) -> str:
    """Put the hash of what is in the file now into the plan, in the place of the old one; returns it."""
    new = weights_for(plan, path).reference.sha256
    plan.write_text(plan.read_text().replace(old, new))
    return new


def test_the_bytes_that_were_hashed_are_loaded(recorded: Path) -> None:
    """Exchanging the file after its hash was compared changes nothing."""
    plan = read_plan(recorded)
    weights = recorded_weights(recorded, plan)
    write_weights(recorded.parent / "chain.safetensors", 0.5)
    model = import_model_file(recorded.with_suffix(".py")).build({}, 0)
    weights.load(model)

    assert all(bool((value == 0.125).all()) for value in model.state_dict().values())
    with pytest.raises(StaleError):
        recorded_weights(recorded, plan)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sub/w.safetensors", "expected weights beside the plan"),
        ("w.pt", "expected a plain name that ends in .safetensors"),
        ("link.safetensors", "got: a symbolic link; give a file of its own"),
        ("none.safetensors", "got: No such file or directory"),
    ],
)
def test_only_weights_beside_the_plan_are_recorded(name: str, words: str, edbc, chain: Path) -> None:
    """Compiling refuses what no plan may hold, and leaves the plan that stood there."""
    (chain.parent / "sub").mkdir()
    for path in ("sub/w.safetensors", "w.pt", "real.safetensors"):
        write_weights(chain.parent / "chain.safetensors", 0.5).rename(chain.parent / path)
    (chain.parent / "link.safetensors").symlink_to("real.safetensors")
    before = chain.read_bytes()
    result = edbc("compile", chain.with_suffix(".py"), "-o", chain, "--weights", chain.parent / name)

    assert result.exit_code == 3, result.output
    assert words in result.stderr
    assert chain.read_bytes() == before


@pytest.mark.parametrize("name", ["../w.safetensors", "a/w.safetensors", "a\\w.safetensors", "C:w.safetensors",
                                  ".safetensors", "w.pt", "..", "", "w\n.safetensors"])  # fmt: skip
def test_names_are_plain(name: str) -> None:
    """One rule judges names in plans and names to record."""
    assert not is_weights_name(name)
    assert is_weights_name("w.safetensors")


def test_the_record_is_one_of_text(recorded: Path) -> None:
    """The plan states it after the seed, and writing the plan again gives the same bytes."""
    text = recorded.read_text()
    sha256 = read_plan(recorded).model.weights.sha256
    assert "  seed: 0\n  weights:\n    name: chain.safetensors\n    sha256: " in text
    assert sha256 in text
    assert plan_text(read_plan(recorded)) == text
