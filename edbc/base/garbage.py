"""The garbage collector, made to wait."""

from __future__ import annotations

import gc


class NoGarbageCollection:
    """A context for what makes many small objects and no cycles: the collector would walk all of the process's objects
    for them (measured: up to three quarters of the time of a mini-batch; a tenth to a quarter of that of joining and
    placing a small one)."""

    __slots__ = ("was_enabled",)

    def __enter__(self) -> None:
        self.was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.was_enabled:
            gc.enable()
