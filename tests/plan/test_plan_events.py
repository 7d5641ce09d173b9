"""Claims about the layer between bytes and reader: characters, and places found by a second pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hostile_plans import VALID
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.errors import PlanError
from edbc.plan.events import CHUNK, check_characters, locate


def nodes_with_paths(node: yaml.Node, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, yaml.Node]]:
    """Every value of a composed document and its path."""
    yield path, node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from nodes_with_paths(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            yield from nodes_with_paths(value, (*path, position))


def test_every_value_is_located() -> None:
    """For every value of a plan, the place found equals the mark of yaml's composed node."""
    found = list(nodes_with_paths(yaml.compose(VALID, yaml.SafeLoader)))
    assert len(found) > 100
    for path, node in found:
        mark = node.start_mark
        assert locate(VALID.encode(), path) == (mark.line + 1, mark.column + 1), path


@pytest.mark.parametrize("path", [("none",), ("model", "none"), ("types", 2), ("edbc", "x"), ("types", 0, "name", 1)])
def test_places_that_do_not_exist_are_not_found(path: tuple[str | int, ...]) -> None:
    """A path that leads nowhere gives None rather than a wrong place."""
    assert locate(VALID.encode(), path) is None


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.binary(max_size=20), st.integers(-25, 25))
def test_utf8_is_judged_as_python_does_across_chunks(data: bytes, shift: int) -> None:
    """Bytes around the border of a chunk are refused exactly when the whole does not decode, at the same byte."""
    whole = b"a" * (CHUNK + shift) + data
    try:
        text = whole.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(PlanError, match=rf"got (byte 0x{whole[error.start]:02x}|character)"):
            check_characters(whole, "x")
        return
    if text[CHUNK + shift :].isprintable():
        check_characters(whole, "x")


@pytest.mark.parametrize(
    "before", ["", "a" * (CHUNK - 1), "é" * CHUNK, "a" + "é" * CHUNK, "é\n" * (CHUNK // 3), "\n" * (CHUNK + 5)]
)
@pytest.mark.parametrize("bad", [b"\xff", b"\x00", b"\xe2\x80\xa8", b"\xc3"])
def test_place_of_a_bad_character(before: str, bad: bytes) -> None:
    """Line and column count characters, wherever the chunks of the check end."""
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    with pytest.raises(PlanError, match=f"^x:{line}:{column}: expected"):
        check_characters(before.encode() + bad, "x")
