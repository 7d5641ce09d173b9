"""Caches: what was made, by all that it was made of.

One rule. A key holds everything that an entry depends on, so an entry is never stale and nothing has to be told of a
change: what is asked for afterwards has another key. Where a key is the identity of an object the entry holds the
object, so that its number is no other's. Entries that nobody asks for any more are forgotten by number: at `most`
entries the one added longest ago goes, or, where entries are asked for through `of`, the one used longest ago.

What has no such key (weights, which change in place; names in a model's functions) is in docs/architecture.md, with
how a change is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(dict[K, V], Generic[K, V]):
    """Entries by key, `most` at once; `gone` is told the key of each that goes. Threads may share it.

    A dict, so that a hit costs `get`. Pickles and copies are empty.

    >>> squares = Kept(2)
    >>> [squares.of(x, lambda: x * x) for x in (1, 2, 1, 3)]
    [1, 4, 1, 9]
    >>> list(squares)
    [1, 3]
    """

    def __init__(self, most: int, gone: Callable[[K], object] | None = None):
        super().__init__()
        self.most = most
        self._gone = gone
        self._lock = RLock()

    def add(self, key: K, value: V) -> V:
        """Keep a new entry, and return it."""
        with self._lock:
            self[key] = value
            while len(self) > self.most:
                oldest = next(iter(self))
                del self[oldest]
                if self._gone is not None:
                    self._gone(oldest)
        return value

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The entry, made where there is none: by one thread, while others wait. It is the one used last."""
        with self._lock:
            return self.add(key, self.pop(key) if key in self else make())

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, (self.most, self._gone)


class Once(dict[K, V], Generic[K, V]):
    """What is made of each key, when it is first asked for."""

    def __init__(self, make: Callable[[K], V]):
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        return self.setdefault(key, self._make(key))
