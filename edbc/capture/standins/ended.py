"""Recordings that have ended: their stand-ins stand for nothing any more, and whoever uses one is told so.

Between recordings a recorder is of the class `Ended`, which answers none of what stand-ins ask. A stand-in that
outlives its recording is given `ENDED` as its recorder, so that it does not come to life with the next one.
"""

from __future__ import annotations

import gc
from typing import Any, NoReturn

from edbc.base.kept import Kept
from edbc.capture.record.recorder import Recorder
from edbc.capture.standins.standin import Lazy, Value, refuse_ended

OLDEST = 2


class Ended(Recorder):
    """See the module's docstring."""

    __slots__ = ()
    has_ended = True
    reading = None


def _refuse(self: Recorder, *_: Any) -> NoReturn:
    refuse_ended()


for _name in ("add", "added", "autocast", "books", "emit", "entries", "external", "flows", "function", "made",
              "plain", "reduction", "rows", "take", "whole", "without_gradient"):  # fmt: skip
    setattr(Ended, _name, property(_refuse, _refuse))
ENDED = object.__new__(Ended)
ENDED.read_sites = Kept(1)  # where `if t` looks before it asks anything else


def end(recorder: Recorder) -> None:
    """Until it begins again, nothing is recorded."""
    recorder.forget_externals()
    recorder.books = None
    recorder.descriptions = []
    recorder.__class__ = Ended


def end_stand_ins(recorder: Recorder, age: int = OLDEST) -> None:
    """Stand-ins that anybody still has are of no recording any more: those of a generation of the garbage collector,
    and of all where it is the oldest.

    Recording keeps the collector from running, so what it made is among some thousands of young objects. To ask all of
    the process's objects takes some 50 milliseconds.
    """
    for item in gc.get_referrers(recorder) if age == OLDEST else gc.get_objects(age):
        if issubclass(type(item), Value | Lazy) and item.rec is recorder:
            item.rec = ENDED
