"""What threads do together in a walk: a part each of one step for all rows of a block, then the next step.

One thread leads: it writes down a step, says for how many threads it is, does the first part itself and waits for the
others. Helpers that have enlisted by then take the other parts. Nobody waits for a thread that has not begun, so one
may come late, or never. Of a product, or of outer products, a part is some columns, so that every core keeps panels of
its own in its cache; of a pass it is some rows. An element's bits do not depend on who computes it.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edbc.cells.kernels import outer, steps
from edbc.cells.kernels.outer import OUTER_FIELDS, OuterField
from edbc.cells.kernels.steps import SCRATCH, STEP_FIELDS, StepField
from edbc.native import pointers
from edbc.native.kernelcache import INNER, UNCOUNTED, njit
from edbc.native.kinds import checksum
from edbc.native.pointers import add_shared, call_at, load, load_shared, store, store_shared

NEXT, ENLISTED, ARRIVED, LATE, TASK = 0, 64, 128, 192, 256
"""What a team shares, in cache lines of their own, as offsets in bytes: the number of the task and for how many threads
it is, -1 at the end; helpers that have come; parts that are done; whether one took too long, so that the leader goes on
alone; and the task."""
TEAM_BYTES = 384
_KIND, _KERNEL, _AT, _SLOTS, _ROWS, _STEP, _PIECES, _SHARES, WIDTH, PANEL = range(10)
"""Words of the task, of which the last two stay: bytes of an element, and columns of a panel."""
PASS, PRODUCT, OUTER = 0, 1, 2
MOST = 64
"""Threads of a team, at most."""
FEWEST, LEAST = 8, 1 << 17
"""Rows of a pass, and multiplications of a product, that a thread does alone."""
PATIENCE, OF_LOOK = 200_000, 64
"""Looks at what others have done (some 0.2 ms) after which they are too late, and one more for every so many
multiplications, which take at least as long: then something else holds their cores."""
_LONG = np.int64(0)
_KERNEL_FIELD, _TARGET, _INPUTS, _COLUMNS, _WEIGHT, _BIAS, _ADDEND = map(int, (
    StepField.KERNEL, StepField.TARGET, StepField.ROWS, StepField.COLUMNS, StepField.WEIGHT, StepField.BIAS,
    StepField.ADDEND))  # fmt: skip
_OUTER_ROWS, _OUTER_D, _OUTER_TARGET, _OUTER_INPUTS, _OUTER_COLUMNS = map(int, (
    OuterField.ROWS, OuterField.D, OuterField.TARGET, OuterField.INPUTS, OuterField.COLUMNS))  # fmt: skip
_flags: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_jit = njit(**INNER, **UNCOUNTED, **_flags)


@_jit
def call_step(step, pieces, at, slots, rows, scratch, team, splits):
    """All of a step, whose fields and pieces are at addresses, for `rows` rows of the table at `at`; `splits` tells
    whether rows of a pass may run at one time."""
    kernel = load(step, _KERNEL_FIELD, _LONG)
    columns = load(step, _COLUMNS, _LONG)
    if team != 0 and load(team, LATE // 8, _LONG) == 0:
        if columns > 0:
            multiplications = rows * columns * load(step, _INPUTS, _LONG)
            parts = columns // load(team, TASK // 8 + PANEL, _LONG) if multiplications >= LEAST else 1
        else:
            multiplications, parts = 0, rows // FEWEST if splits else 1
        if parts > 1:
            _together(PRODUCT if columns > 0 else PASS, parts, multiplications, kernel, at, slots, rows, step, pieces,
                      team)  # fmt: skip
            return
    call_at(kernel, at, slots, rows, step, pieces, scratch, _LONG)


@_jit
def call_outer(kernel, fields, team):
    """Outer products with these fields."""
    columns = load(fields, _OUTER_COLUMNS, _LONG)
    if team != 0 and load(team, LATE // 8, _LONG) == 0:
        multiplications = load(fields, _OUTER_ROWS, _LONG) * columns * load(fields, _OUTER_INPUTS, _LONG)
        if multiplications >= LEAST and columns >= 2 * FEWEST:
            _together(OUTER, columns // FEWEST, multiplications, kernel, _LONG, _LONG, _LONG, fields, _LONG, team)
            return
    call_at(kernel, fields, _LONG, _LONG, _LONG, _LONG, _LONG, _LONG)


@_jit
def _together(kind, parts, multiplications, kernel, at, slots, rows, step, pieces, team):
    """A task in at most so many parts, with all helpers that are there."""
    threads = min(load_shared(team + ENLISTED) + 1, parts, MOST - 1)
    task = team + TASK
    store(task, _KIND, _LONG + kind)
    store(task, _KERNEL, kernel)
    store(task, _AT, at)
    store(task, _SLOTS, slots)
    store(task, _ROWS, rows)
    store(task, _STEP, step)
    store(task, _PIECES, pieces)
    if threads > 1:
        store_shared(team + NEXT, (load(team, NEXT // 8, _LONG) // MOST + 1) * MOST + threads)
    _part(team, 0, threads, _LONG)
    shares = load(task, _SHARES, _LONG) + threads - 1
    store(task, _SHARES, shares)
    looks, patience = 0, PATIENCE + multiplications // OF_LOOK
    while load_shared(team + ARRIVED) < shares:
        looks += 1
        if looks == patience:
            store(team, LATE // 8, _LONG + 1)


@_jit
def _part(team, number, threads, scratch):
    """One of the parts of a task; a helper works in memory of its own."""
    task = team + TASK
    kind, kernel = load(task, _KIND, _LONG), load(task, _KERNEL, _LONG)
    if kind == PASS:
        at, slots, rows = load(task, _AT, _LONG), load(task, _SLOTS, _LONG), load(task, _ROWS, _LONG)
        first, last = rows * number // threads, rows * (number + 1) // threads
        if scratch != 0:
            for row in range(first, last):
                store(at, row * slots + SCRATCH, scratch)
        step, pieces = load(task, _STEP, _LONG), load(task, _PIECES, _LONG)
        call_at(kernel, at + first * slots * 8, slots, last - first, step, pieces, _LONG, _LONG)
    elif kind == PRODUCT:
        _part_of_product(task, kernel, number, threads)
    else:
        _part_of_outer(task, kernel, number, threads)


@_jit
def _part_of_product(task, kernel, number, threads):
    """Some panels: the step with other columns, in the task's own place for this thread."""
    step, width, panel = load(task, _STEP, _LONG), load(task, WIDTH, _LONG), load(task, PANEL, _LONG)
    columns, inputs = load(step, _COLUMNS, _LONG), load(step, _INPUTS, _LONG)
    panels = -(-columns // panel)
    first, last = panels * number // threads * panel, min(panels * (number + 1) // threads * panel, columns)
    own = task - TASK + TEAM_BYTES + number * _OWN_BYTES
    for field in range(STEP_FIELDS):
        store(own, field, load(step, field, _LONG))
    store(own, _COLUMNS, last - first)
    store(own, _TARGET + 1, load(step, _TARGET + 1, _LONG) + first * width)
    store(own, _ADDEND + 1, load(step, _ADDEND + 1, _LONG) + first * width)
    store(own, _WEIGHT, load(step, _WEIGHT, _LONG) + first * inputs * width)
    if load(step, _BIAS, _LONG) != 0:
        store(own, _BIAS, load(step, _BIAS, _LONG) + first * width)
    at, slots, rows = load(task, _AT, _LONG), load(task, _SLOTS, _LONG), load(task, _ROWS, _LONG)
    call_at(kernel, at, slots, rows, own, load(task, _PIECES, _LONG), _LONG, _LONG)


@_jit
def _part_of_outer(task, kernel, number, threads):
    """Some columns."""
    fields, width = load(task, _STEP, _LONG), load(task, WIDTH, _LONG)
    columns = load(fields, _OUTER_COLUMNS, _LONG)
    first, last = columns * number // threads, columns * (number + 1) // threads
    own = task - TASK + TEAM_BYTES + number * _OWN_BYTES
    for field in range(OUTER_FIELDS):
        store(own, field, load(fields, field, _LONG))
    store(own, _OUTER_COLUMNS, last - first)
    store(own, _OUTER_D, load(fields, _OUTER_D, _LONG) + first * width)
    store(own, _OUTER_TARGET, load(fields, _OUTER_TARGET, _LONG) + first * load(fields, _OUTER_INPUTS, _LONG) * width)
    call_at(kernel, own, _LONG, _LONG, _LONG, _LONG, _LONG, _LONG)


_OWN_BYTES = 128
"""Of a thread's place for fields, in cache lines of its own."""
ALL_BYTES = TEAM_BYTES + MOST * _OWN_BYTES


def _build(stamp: int) -> Callable[..., None]:
    """`help_team`; see NOTE: [Stale caches] in `runtime.walk`."""

    @njit(cache=True, **UNCOUNTED, **_flags)
    def help_team(team, scratch):
        """Parts of tasks until the end; `team` is the address of ALL_BYTES, zeros at first but for WIDTH and PANEL."""
        seen = _LONG + (stamp & 0)
        number = add_shared(team + ENLISTED, _LONG + 1) + 1
        while True:
            word = load_shared(team + NEXT)
            if word < 0:
                return
            if word != seen:
                seen = word
                if number < word % MOST:
                    _part(team, number, word % MOST, scratch)
                    add_shared(team + ARRIVED, _LONG + 1)

    return help_team


COMPILED_IN = (outer, pointers, steps)
help_team = _build(checksum(*COMPILED_IN))
