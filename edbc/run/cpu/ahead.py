"""Native code that a first run needs, compiled by a second process while this one records and schedules.

With nothing in the cache of kernels a first mini-batch waits for numba, one function after the other. Half of that time
goes to functions that run late, with arguments whose types are known before there is a mini-batch: `LATE`. Where there
is a second core, a process of its own compiles them from the moment on at which a back end is made, and the first
mini-batch waits for it where it needs them. A process that finds them in the cache starts nothing.
"""

from __future__ import annotations

from typing import Any

from numba import config, types

from edbc.native.secondprocess import SecondProcess

_INTS, _LONGS, _GRID = types.int32[::1], types.int64[::1], types.int64[:, ::1]
_FLAGS = types.boolean[::1]
_FIXED = types.Array(types.int32, 1, "C", readonly=True)
SECOND = SecondProcess("from edbc.run.cpu.ahead import compile_late; compile_late()")


def late() -> list[tuple[Any, tuple[Any, ...]]]:
    """Functions with the types of their arguments, in the order in which they are worth compiling."""
    from edbc.run.cpu.walk import Batches, Memory, Tables, walk
    from edbc.run.passes.placeloops import place_rows

    long = types.int64
    batches = types.NamedTuple([_INTS, _INTS, _LONGS, _LONGS, _GRID, _LONGS, _LONGS, _LONGS, _GRID], Batches)
    memory = types.NamedTuple([_LONGS] * 5 + [_GRID] * 2, Memory)
    tables = types.NamedTuple([_LONGS] * 4 + [_GRID] * 2 + [_LONGS], Tables)
    of_walk = (*[long] * 6, batches, memory, tables, types.float32, long)
    of_rows = (*[_INTS] * 3, *[_FIXED] * 4, *[_LONGS] * 3, *[_FLAGS] * 3, _GRID, _LONGS, types.boolean[:, ::1], long)
    return [(walk, of_walk), (place_rows, of_rows)]


def begin() -> None:
    """Start compiling what the cache lacks, where that pays."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return
    function, arguments = late()[0]
    cache: Any = getattr(function, "_cache", None)
    if function.signatures or not hasattr(cache, "holds") or cache.holds(arguments, function.targetctx.codegen()):
        return
    SECOND.begin()


def compile_late() -> None:
    """What the second process does: all of `late` into the cache."""
    for function, arguments in late():
        function.compile(arguments)
