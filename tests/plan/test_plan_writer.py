"""Claims about writing plans: round trips, one text per plan, and files that are whole or untouched."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from plan_examples import small_plan
from plan_strategies import is_same, plans

from edbc.errors import PlanError
from edbc.plan import Guard, Plan, PlanType, parse_plan, plan_text, read_plan, write_plan


def plain(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists, without cells' empty lists of parts: what any YAML reader should see in
    a plan."""
    if hasattr(value, "__dataclass_fields__"):
        optional = ("waves", "eager", "beside", "automatic", "fused", "ragged", "reads", "costs", "run")
        fields = {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
        fields = {name: item for name, item in fields.items() if item or name not in optional}
        absent = (("weights", None), ("captured", None), ("alone", None))
        return {name: item for name, item in fields.items() if (name, item) not in absent}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


@settings(derandomize=True, max_examples=80, deadline=None)
@given(plans())
def test_round_trip_keeps_every_value_and_its_type(plan: Plan) -> None:
    """Writing and reading any valid plan gives the same plan, integers, floats and booleans told apart."""
    again = parse_plan(plan_text(plan), "x.yaml")
    assert again == plan
    assert is_same(again, plan)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(plans())
def test_text_is_ascii_and_means_the_same_to_other_readers(plan: Plan) -> None:
    """yaml's own loader, with all its implicit types, sees the values that were written."""
    text = plan_text(plan)
    assert text.isascii()
    assert text.endswith("\n...\n")
    assert is_same(yaml.safe_load(text), plain(plan))


@settings(derandomize=True, max_examples=40, deadline=None)
@given(plans())
def test_equal_plans_have_one_text(plan: Plan) -> None:
    """The order in which keys were added does not show."""
    text = plan_text(plan)
    turned = replace(
        plan,
        model=replace(plan.model, config=_turned(plan.model.config)),
        policy=replace(plan.policy, table=_turned(plan.policy.table), training=_turned(plan.policy.training)),
        cells=_turned(plan.cells),
        guards=_turned(plan.guards),
    )
    assert plan_text(turned) == text
    assert plan_text(parse_plan(text, "x.yaml")) == text


def _turned(mapping: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(mapping.items()))


def test_golden_text() -> None:
    """The text of the small plan, field by field, so that a change of format is a decision."""
    golden = Path(__file__).with_name("small_plan.yaml")
    assert plan_text(small_plan()) == golden.read_text()


def test_states_have_one_line_each_and_nothing_wraps() -> None:
    """A long state, a long list and a long operation stay on a line each."""
    plan = small_plan()
    names = tuple(f"a_rather_long_parameter_name_{i}" for i in range(40))
    cells = {**plan.cells, "out": replace(plan.cells["out"], weights=names)}
    lines = plan_text(replace(plan, cells=cells)).splitlines()
    assert [f"    - {name}" for name in names] == [line for line in lines if "rather_long" in line]
    assert sum("leaf: leaf" in line or "out: out" in line or "out<leaf" in line for line in lines) == 3


@pytest.mark.parametrize("count", [9, 10, 11, 12, 36])
def test_states_longer_than_a_yaml_key_are_read_back(count: int) -> None:
    """A state of many long names survives, on both sides of YAML's limit on keys."""
    plan = small_plan()
    names = [f"{'t' * 95}.{i:03}" for i in range(count)]
    policy = replace(plan.policy, table={"<".join(names): names[0], names[1]: names[1]})
    types = tuple(PlanType(name, "s", "x") for name in names)
    plan = replace(plan, types=types, cells=dict.fromkeys(names, plan.cells["out"]), policy=policy, costs={})
    assert parse_plan(plan_text(plan), "x.yaml") == plan


def test_written_file_is_read_back(tmp_path: Path) -> None:
    """`write_plan` and `read_plan` are inverses, over an existing file too."""
    path = tmp_path / "x.yaml"
    write_plan(small_plan(), path)
    write_plan(replace(small_plan(), edbc="9.9"), str(path))
    assert read_plan(path) == replace(small_plan(), edbc="9.9")
    assert os.listdir(tmp_path) == ["x.yaml"]


def test_permissions_are_kept(tmp_path: Path) -> None:
    """A new plan gets the permissions of any new file, and a replaced one keeps its own."""
    path, other = tmp_path / "x.yaml", tmp_path / "other"
    other.touch()
    write_plan(small_plan(), path)
    assert path.stat().st_mode == other.stat().st_mode
    path.chmod(0o640)
    write_plan(small_plan(), path)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_failed_write_leaves_the_old_plan_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A full disk is one PlanError that names path and reason; the old plan stays whole."""
    path = tmp_path / "x.yaml"
    write_plan(small_plan(), path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path if broken == "replace" else os, broken, fail)
    with pytest.raises(PlanError, match=r"x\.yaml: expected to write the plan, got: No space left on device"):
        write_plan(replace(small_plan(), edbc="9.9"), path)
    assert os.listdir(tmp_path) == ["x.yaml"]
    assert read_plan(path) == small_plan()


def test_interrupted_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C passes through, and leaves nothing behind."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_plan(small_plan(), tmp_path / "x.yaml")
    assert os.listdir(tmp_path) == []


def test_write_into_no_folder_is_one_error(tmp_path: Path) -> None:
    """A missing folder, a folder in the file's place and an impossible name are PlanErrors."""
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "none" / "x.yaml", tmp_path / "taken", tmp_path / "a\0b"):
        with pytest.raises(PlanError, match=r"check the (folder|path)"):
            write_plan(small_plan(), path)
    assert os.listdir(tmp_path) == ["taken"]
    assert os.listdir(tmp_path / "taken") == []


@pytest.mark.parametrize(
    "plan",
    [
        replace(small_plan(), guards={}),
        replace(small_plan(), guards={"batches": Guard(float("nan"))}),
        replace(small_plan(), guards={"batches": Guard(None)}),  # type: ignore[arg-type]
        replace(small_plan(), cells={}),
        replace(small_plan(), edbc="a\nb"),
        replace(small_plan(), format_version=2),
        replace(small_plan(), model=replace(small_plan().model, config={"a": object()})),
        replace(small_plan(), model=replace(small_plan().model, config={1: 2})),
        replace(small_plan(), model=replace(small_plan().model, seed=True)),
        replace(small_plan(), model=replace(small_plan().model, path="/etc/x.py")),
        replace(small_plan(), types=None),
    ],
    ids=[
        "no guards",
        "NaN",
        "None",
        "no cells",
        "line break",
        "later version",
        "object",
        "key",
        "seed",
        "path",
        "types",
    ],
)
def test_plan_that_could_not_be_read_is_not_written(tmp_path: Path, plan: Plan) -> None:
    """An invalid plan is refused before a file is touched."""
    path = tmp_path / "x.yaml"
    path.write_text("old")
    with pytest.raises(PlanError):
        write_plan(plan, path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.yaml"]
