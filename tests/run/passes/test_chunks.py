"""Room for hand-overs: within the share of memory, enough for the largest batches, and for nobody else's sake."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.run.passes import chunks
from edbc.run.passes.chunks import Need, find_room


@st.composite
def needs(draw: st.DrawFn) -> list[Need]:
    """Up to five types."""
    found = []
    for kind in range(draw(st.integers(0, 5))):
        nodes = draw(st.integers(1, 200))
        found.append(Need(kind, nodes, draw(st.integers(1, 64)), draw(st.integers(1, nodes))))
    return found


@settings(derandomize=True, deadline=None, max_examples=200)
@given(needs=needs(), output_bytes=st.integers(0, 100_000))
def test_room_is_within_the_share_of_memory(needs: list[Need], output_bytes: int) -> None:
    """All rows together fit; every type with room has it for its largest batch and for no more than its nodes; and no
    type is left without room that has the smallest needs of all and fits alone."""
    room = find_room(needs, output_bytes)
    of_kind = {need.kind: need for need in needs}

    assert sum(rows * of_kind[kind].row_bytes for kind, rows in room.items()) <= chunks.SHARE * output_bytes
    for kind, rows in room.items():
        assert of_kind[kind].least <= rows <= of_kind[kind].nodes
    if needs:
        smallest = min(needs, key=lambda need: need.least * need.row_bytes)
        fits = smallest.least * smallest.row_bytes <= int(chunks.SHARE * output_bytes)
        assert bool(room) == fits


def test_memory_for_everything_is_room_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory for all hand-overs every type gets all its rows, however they differ."""
    monkeypatch.setattr(chunks, "SHARE", 1.0)
    wanted = [Need(0, 10, 8, 3), Need(1, 200, 16, 200), Need(2, 7, 4, 1)]

    assert find_room(wanted, 80 + 3200 + 28) == {0: 10, 1: 200, 2: 7}
