"""The passes of a mini-batch: what each makes, who is told between them, and faults told where they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from bound import RandomTreeModel, net_for, random_trees

from edbc.errors import GraphError, ScheduleError
from edbc.run.passes.minibatch import MADE_BY, MiniBatch, Pass, Passes
from edbc.run.session import Net
from edbc.schedule.schedule import Schedule

NAMES = ["capture", "share", "schedule", "parts", "place", "execute"]
TREES = random_trees(3, 4)


@pytest.fixture(scope="module")
def net() -> Net:
    """Of trees of random cells, on whichever back end there is."""
    return net_for(RandomTreeModel(3, 4), TREES)


def checked(net: Net, name: str, spoil: Callable[[MiniBatch], MiniBatch]) -> Passes:
    """The net's passes with their checks on, one of them spoiled."""
    passes = [
        Pass(each.name, (lambda b, e=each: spoil(e.run(b))) if each.name == name else each.run, each.verify)
        for each in net.passes
    ]
    return Passes(passes, verifies=True)


def given(net: Net) -> MiniBatch:
    """The trees before any pass."""
    return MiniBatch(instances=TREES, first=0, segments=None)


def test_passes_have_names_and_observers_are_told_between_them(net: Net) -> None:
    """An observer hears of every pass in order, with what has been made by then."""
    heard: list[tuple[str, set[str]]] = []
    net.passes(given(net), lambda name, batch: heard.append((name, {n for n in MADE_BY if batch.has(n)})))

    assert [name for name, _ in heard] == NAMES
    assert [made - before for (_, before), (_, made) in zip(heard, heard[1:], strict=False)] == [
        set(), {"schedule"}, set(), {"placement", "demand", "boundary"}, {"results"}]  # fmt: skip


def test_no_pass_changes_what_it_is_given(net: Net) -> None:
    """Every pass leaves its mini-batch as it was, and what one makes cannot be set from outside."""
    batch = given(net)
    for each in net.passes:
        before = dict(batch.__dict__)
        after = each.run(batch)

        assert {k: v for k, v in batch.__dict__.items() if k != "segment"} == before
        batch = after
    with pytest.raises(AttributeError, match="does not change"):
        batch.schedule = batch.schedule


def test_what_no_pass_has_made_is_told_with_the_pass_that_makes_it(net: Net) -> None:
    """Asking too early names the pass, and what there is prints."""
    batch = net.passes.span("capture", "schedule")(given(net))

    with pytest.raises(AttributeError, match="no placement yet: pass 'place' makes it"):
        _ = batch.placement
    assert repr(batch) == "<MiniBatch: capture, schedule>"
    text = batch.text()
    assert text.count("batch ") == batch.schedule.num_batches
    assert len(batch.text(2).splitlines()) == 2 * (1 + 2 + 1)


def reversed_schedule(batch: MiniBatch) -> MiniBatch:
    """Its batches from the last to the first."""
    old = batch.schedule
    sizes = np.diff(old.batch_ptr)[::-1]
    nodes = np.concatenate([nodes for _, nodes in list(old.batches())[::-1]])
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(old.batch_ptr.dtype)
    return batch.changed(schedule=Schedule(old.graph, old.batch_type[::-1].copy(), ptr, nodes))


def one_row_for_two(batch: MiniBatch) -> MiniBatch:
    """Two nodes of a batch stand in one place of it."""
    position = batch.placement.position.copy()
    _, nodes = max(batch.schedule.batches(), key=lambda item: len(item[1]))
    position[nodes[0]] = position[nodes[1]]
    return batch.changed(placement=replace(batch.placement, position=position))


def beyond_the_arena(batch: MiniBatch) -> MiniBatch:
    """Arenas one row too short."""
    return batch.changed(placement=replace(batch.placement, class_rows=batch.placement.class_rows - 1))


def uncounted(batch: MiniBatch) -> MiniBatch:
    """A node more is said to be shared than is missing."""
    return batch.changed(capture=batch.capture.changed(num_shared=batch.capture.num_shared + 1))


def fewer_results(batch: MiniBatch) -> MiniBatch:
    """The last instance returns nothing."""
    return batch.changed(results=batch.results[:-1])


SPOILED: dict[str, tuple[str, Callable[[MiniBatch], MiniBatch], type[Exception], str]] = {
    "reversed": ("schedule", reversed_schedule, ScheduleError, "before it is computed"),
    "one_row": ("place", one_row_for_two, GraphError, "two values in one"),
    "short": ("place", beyond_the_arena, GraphError, "expected a row"),
    "uncounted": ("share", uncounted, GraphError, "pass share"),
    "fewer": ("execute", fewer_results, GraphError, "pass execute"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_fault_is_told_at_the_pass_that_made_it(net: Net, name: str) -> None:
    """With its checks on, the list stops behind the spoiled pass; without, or unspoiled, it runs on."""
    where, spoil, kind, message = SPOILED[name]
    heard: list[str] = []

    with pytest.raises(kind, match=message):
        checked(net, where, spoil)(given(net), lambda told, _: heard.append(told))
    assert heard == NAMES[: NAMES.index(where)]
    assert len(checked(net, "none", spoil)(given(net)).results) == len(TREES)


def test_debugging_switches_checks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """EDBC_DEBUG, when a plan is bound."""
    model = RandomTreeModel(1, 4)
    assert not net_for(model, TREES).passes.verifies
    monkeypatch.setenv("EDBC_DEBUG", "1")
    assert net_for(model, TREES).passes.verifies
