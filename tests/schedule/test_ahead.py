"""Learning's kernels ahead of time: a second process makes those that learning needs, and only where none are kept."""

from __future__ import annotations

from typing import Any

import pytest
from strategies import random_graph

from edbc.native import secondprocess
from edbc.schedule.learn import ahead
from edbc.schedule.learn.beam import beam_sequence
from edbc.schedule.learn.search import beam
from edbc.schedule.learn.train import CHECK, select


@pytest.mark.compiled
def test_what_is_learned_ahead_is_what_learning_needs() -> None:
    """After `learn_something`, learning and searching on another graph compile no further signature."""
    from edbc.schedule.learn.qlearn import learn

    ahead.learn_something()
    before = len(beam_sequence.signatures), len(learn.signatures)
    graph = random_graph(3)
    beam(graph)
    select([graph], [graph], trials=CHECK)

    assert (len(beam_sequence.signatures), len(learn.signatures)) == before
    assert before[0] == 1


def test_a_process_starts_only_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels in the cache, on one core, or while one runs, none starts; `join` waits for the one that did."""
    started: list[Any] = []

    class Process:
        def __init__(self, *_args: Any, **_options: Any):
            started.append(self)
            self.waited = False

        def wait(self) -> None:
            self.waited = True

        def kill(self) -> None:
            pass

    kept = {"empty": False}

    class Fresh:
        signatures = ()

        class _cache:  # noqa: N801
            is_empty = staticmethod(lambda: kept["empty"])

    monkeypatch.setattr(secondprocess.subprocess, "Popen", Process)
    monkeypatch.setattr("edbc.schedule.learn.beam.beam_sequence", Fresh)
    for empty, cores, expected in ((False, 2, 0), (True, 1, 0), (True, 2, 1), (True, 2, 1)):
        kept["empty"] = empty
        monkeypatch.setattr(secondprocess, "num_cores", lambda cores=cores: cores)
        ahead.begin()
        assert len(started) == expected
    ahead.SECOND.join()
    assert started[0].waited
