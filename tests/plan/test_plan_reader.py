"""Claims about reading plans: what is refused, how, and at which cost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hostile_plans import LARGE, SMALL, VALID, edited
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_examples import small_plan

from edbc.errors import EdbcError, PlanError, StaleError
from edbc.plan import parse_plan, plan_text, read_plan
from edbc.plan.events import MAX_BYTES
from edbc.plan.plan import Plan

LOADERS = [pytest.param(yaml.SafeLoader, id="python")]
if hasattr(yaml, "CSafeLoader"):
    LOADERS.append(pytest.param(yaml.CSafeLoader, id="libyaml"))

PLACE = re.compile(r"x\.yaml:[1-9][0-9]*:[1-9][0-9]*: expected .*, got .*; .*")


def refusal(data: bytes, loader: type | None = None) -> str:
    """The message of the one PlanError that `data` must give."""
    with pytest.raises(PlanError) as caught:
        parse_plan(data, "x.yaml", *([loader] if loader else []))
    return str(caught.value)


def outcome(data: bytes) -> Plan | str:
    """The plan or the message; any other exception fails the test."""
    try:
        return parse_plan(data, "x.yaml")
    except (PlanError, StaleError) as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 1_000
    return message


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", SMALL)
def test_hostile_plans_are_refused_in_one_line_with_line_and_column(name: str, loader: type) -> None:
    """Every small hostile file gives one PlanError on one line, which names place and fault, with either loader."""
    data, words = SMALL[name]
    message = refusal(data, loader)
    assert words in message
    assert message.isprintable()
    assert PLACE.fullmatch(message) or (loader is yaml.SafeLoader and "beyond Unicode" in message)


@pytest.mark.parametrize("name", LARGE)
def test_large_hostile_plans_are_refused_within_memory(name: str) -> None:
    """Files that attack time or memory are refused with less than 100 MB of Python objects beside their own bytes."""
    make, words = LARGE[name]
    data = make()
    tracemalloc.start()
    try:
        message = refusal(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words in message
    assert message.isprintable()
    assert len(message) < 1_000
    assert peak < 100e6


def test_whole_small_plan_is_read() -> None:
    """The plan that the hostile ones were made from is itself valid."""
    assert parse_plan(VALID, "x.yaml") == small_plan()


@pytest.mark.parametrize("loader", LOADERS)
def test_both_loaders_read_the_same(loader: type) -> None:
    """A plan means the same with libyaml and without."""
    assert parse_plan(VALID, "x.yaml", loader) == small_plan()


def test_truncated_plans_are_refused() -> None:
    """No proper beginning of a plan is a plan, but for the one that lacks only the last line break."""
    data = VALID.encode()
    accepted = [length for length in range(len(data)) if isinstance(outcome(data[:length]), Plan)]
    assert accepted == [len(data) - 1]


def test_plans_without_any_one_line_are_refused_or_differ() -> None:
    """Leaving out a line is noticed, unless it is an entry of a free mapping or list, or a field with a default."""
    lines = VALID.splitlines(keepends=True)
    for number, line in enumerate(lines):
        result = outcome("".join(lines[:number] + lines[number + 1 :]).encode())
        if isinstance(result, Plan):
            assert result != small_plan(), line


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_a_plan_or_one_error(data: bytes) -> None:
    """No bytes make the reader raise anything but PlanError or StaleError."""
    outcome(data)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(st.sampled_from(list("abe01.:-,[]{}&*!|>'\"%@`? \n\t#~<=")), max_size=60), st.integers(0, len(VALID)))
def test_any_text_in_a_plan_gives_a_plan_or_one_error(text: str, position: int) -> None:
    """Neither does YAML's punctuation, anywhere in a plan."""
    outcome((VALID[:position] + text + VALID[position:]).encode())


@settings(derandomize=True, max_examples=500, deadline=None)
@given(
    st.sampled_from(("delete", "replace", "insert", "swap lines", "repeat line")),
    st.integers(0, len(VALID) - 1),
    st.integers(0, len(VALID) - 1),
    st.integers(0, 255),
)
def test_single_mutations_give_a_plan_that_can_be_written_or_an_error(
    kind: str, first: int, second: int, byte: int
) -> None:
    """A plan with one change is refused, or is a plan that survives a round trip."""
    result = outcome(mutated(VALID.encode(), kind, first, second, byte))
    if isinstance(result, Plan):
        assert parse_plan(plan_text(result), "x.yaml") == result


def mutated(data: bytes, kind: str, first: int, second: int, byte: int) -> bytes:
    """`data` with one change."""
    if kind == "delete":
        return data[:first] + data[first + 1 :]
    if kind in ("replace", "insert"):
        return data[:first] + bytes([byte]) + data[first + (kind == "replace") :]
    lines = data.splitlines(keepends=True)
    i, j = first % len(lines), second % len(lines)
    if kind == "repeat line":
        return b"".join([*lines[: i + 1], *lines[i:]])
    lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


@pytest.mark.parametrize("version", [2, 3, 9007199254740992])
def test_later_format_version_is_stale(version: int) -> None:
    """A later version is a StaleError that names both versions, whatever else the plan holds."""
    for data in (edited("format_version: 1", f"format_version: {version}"), f"format_version: {version}\n@".encode()):
        with pytest.raises(
            StaleError, match=rf"x\.yaml:1:17: expected plan format version 1, .* got version {version}"
        ):
            parse_plan(data, "x.yaml")


def test_line_ends_of_other_systems_are_read() -> None:
    """A plan checked out with CR LF is the same plan."""
    assert parse_plan(VALID.replace("\n", "\r\n"), "x.yaml") == small_plan()


def test_comments_and_other_styles_are_read() -> None:
    """What people do by hand is read: comments, other quotes, flow and block lists, an explicit start."""
    data = "# ours\n---\n" + VALID.replace("requirements: [torch>=2.8]", "requirements:\n  - 'torch>=2.8'  # why")
    assert parse_plan(data, "x.yaml") == small_plan()


def test_guard_without_tolerance_and_direction_is_read() -> None:
    """A guard written by hand needs only its value."""
    data = edited("batches: {value: 19, tolerance: 0, direction: lower}", "batches: {value: 19}")
    assert parse_plan(data, "x.yaml") == small_plan()


@pytest.mark.parametrize(
    ("old", "new", "there"),
    [
        ("  seed: 0", "  seed: abc", "abc"),
        ("    out: out\n", "    out: exit\n", "exit"),
        ("u = tanh(v2)", "u = tanh(zz)", "u = tanh(zz)"),
        ("[x, v1, v2,", "[x, v1, v2, zz,", "zz, i, u, c"),
        ("weights: [weight]", "weights: [weight, weight]", "weight]"),
        ("- name: out\n", "- name: leaf\n", "name: leaf\n  signature: torch"),
        ("    - [u]\n    - [c]\n", "    - [c]\n    - [u]\n", "[c]\n    - [u]"),
        ("    out: out\n", '    out: out\n    "out": leaf\n', '"out": leaf'),
        ("  seed: 0\n", "", "path: "),
        ("guards:\n", "guard:\n", "guard:"),
    ],
    ids=["type", "action", "operation", "layout", "weight", "name", "batch", "key", "missing", "unknown"],
)
def test_errors_name_line_and_column(old: str, new: str, there: str) -> None:
    """Faults found while reading and faults found afterwards both point at the text that is wrong."""
    text = edited(old, new).decode()
    _, line, column, _ = refusal(text.encode()).split(":", 3)
    rest = "".join(text.splitlines(keepends=True)[int(line) - 1 :])[int(column) - 1 :]
    assert rest.startswith(there)


def test_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe and an impossible name give one PlanError each, and nothing hangs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, words in [
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "got a folder"),
        (pipe, "got a pipe"),
        (tmp_path / "a\0b", "null character"),
        (tmp_path / ("x" * 5000), "too long"),
    ]:
        with pytest.raises(PlanError, match=words) as caught:
            read_plan(path)
        assert str(caught.value).isprintable()


def test_error_names_a_strange_path_on_one_line(tmp_path: Path) -> None:
    """A line break in the plan's own path does not break the error in two."""
    path = tmp_path / "a\nb.yaml"
    path.write_bytes(b"")
    with pytest.raises(PlanError, match=r"a\\nb\.yaml:1:1: expected a plan"):
        read_plan(path)


def test_file_larger_than_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    """A sparse file of 8 GB is refused after the first MAX_BYTES."""
    path = tmp_path / "x.yaml"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(PlanError, match=f"at most {MAX_BYTES:,} bytes"):
        read_plan(path)


def test_text_that_is_no_unicode_is_refused() -> None:
    """A str with a lone surrogate is refused like bytes that are not UTF-8."""
    with pytest.raises(PlanError, match="UTF-8"):
        parse_plan("edbc: \ud800", "x.yaml")


def test_nothing_heavy_is_imported() -> None:
    """Reading a plan, policy and all, imports neither torch, numba nor numpy."""
    code = (
        "import sys; from hostile_plans import VALID; from edbc.plan import parse_plan; parse_plan(VALID, 'x');"
        "sys.exit(bool({'torch', 'numba', 'numpy', 'networkx'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


def test_every_error_is_an_edbc_error() -> None:
    """What the command line catches covers what the reader raises."""
    assert issubclass(PlanError, EdbcError)
    assert (PlanError.exit_code, StaleError.exit_code) == (3, 4)
