"""Kernels of learning that a first compilation needs, compiled by a second process while this one records a model.

With nothing in the cache of kernels, compiling waits some 25 s for numba, and a quarter of that is for
functions that learn and search, which run last and do not depend on the model. Where there is a second core, a process
of its own learns something small from the moment on at which compiling begins, which leaves them in the cache;
learning waits for it. A process that finds them there starts nothing. `edbc.run.cpu.ahead` does the same for what runs
mini-batches.
"""

from __future__ import annotations

from edbc.native.secondprocess import SecondProcess

SECOND = SecondProcess("from edbc.schedule.learn.ahead import learn_something; learn_something()")


def begin() -> None:
    """Start compiling what the cache lacks, where that pays."""
    from edbc.schedule.learn.beam import beam_sequence

    cache = getattr(beam_sequence, "_cache", None)
    if cache is None:  # nothing is compiled: NUMBA_DISABLE_JIT=1
        return
    if not beam_sequence.signatures and getattr(cache, "is_empty", bool)():
        SECOND.begin()


def learn_something() -> None:
    """What the second process does: learning and searching, once through."""
    from edbc.base.graph import Graph
    from edbc.schedule.learn.search import beam
    from edbc.schedule.learn.train import CHECK, affordable, select

    graph = Graph.build(["a", "b"], [("a", []), ("b", [0]), ("b", [0]), ("a", [1, 2])])
    beam(graph)
    affordable([graph], 1, CHECK)
    select([graph], [graph], trials=CHECK)
