"""`CapturedDataset`: a data set whose instances are captured when they are first used.

    data = edbc.CapturedDataset(dataset, net)
    for batch in DataLoader(data, batch_size=32, shuffle=True, collate_fn=list):
        outputs = net(batch)

(1) What forward does to an item is taken to be the same whenever the item is asked for. That is checked on the first
    item that comes again, and on a sample of those after it (`structurecache.Sample`): captured anew, or where that
    differs run anew, it must give the same bits.
(2) Each mode of the net (training, evaluation) has captured instances of its own. Items that cannot be captured are
    given as they are, and so are those beyond the limit of bytes, and all of them where the plan says `run: eager` and
    captured instances do not gain either.
(3) A worker that is killed says nothing. So workers note which items they are at in memory that they share with this
    process (`Posts`), and take it back after.
(4) This process hears of a death by SIGCHLD, whose handler of torch's raises an error that knows worker and no item.
    One handler around it adds the items as a note. It may be raised anywhere in the main thread, also while no loader
    is asked for anything, so nothing that stands around a loader would do.
"""

from __future__ import annotations

import operator
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch.utils.data import Dataset, get_worker_info

from edbc.base.files import found_at, require_target
from edbc.capture.captured.instance import Captured
from edbc.capture.captured.store import Store, write_store
from edbc.capture.captured.structurecache import Sample
from edbc.capture.standins.standin import bits_of
from edbc.errors import EdbcError, InputError, UnsupportedError

if TYPE_CHECKING:
    from edbc.run.session import Net

LIMIT = 1 << 30
WORKERS, ITEMS = 64, 62
"""Workers that note what they are at, and how many items each notes at most."""
_ALL: WeakSet[Posts] = WeakSet()
_listening = threading.Event()
_NUMBA = tuple(
    folder + os.sep
    for name in ("numba", "llvmlite")
    for folder in find_spec(name).submodule_search_locations or ()  # type: ignore[union-attr]
)
AGAIN_S = 0.05
"""Until a handler that came at a bad moment comes again."""


class CapturedDataset(Dataset[Any]):
    """The items of a map-style data set with their instances captured. See the module's docstring.

    An item is an instance, or a tuple, list or dict with one at the position or key `instance`: the rest of such an
    item comes from the data set each time, as labels do. At most `limit` bytes of words and constants are kept. `file`
    is read where it stands, and written by `save`.
    """

    def __init__(self, dataset: Any, net: Net, *, instance: int | str | None = None, limit: int = LIMIT,
                 file: str | Path | None = None, at: torch.Tensor | None = None):  # fmt: skip
        self.dataset = dataset
        self.net = net
        self.instance = instance
        self.limit = limit
        self.file = None if file is None else Path(file)
        self.hits = self.misses = self.checked = self.plain = self.nbytes = 0
        self.is_read_beside = False
        """Whether somebody looks at the instances themselves, as a loss may: those on which forward keeps tensors stay
        plain then."""
        self._kept: dict[Any, dict[int, Captured | None]] = {}
        """By lexicon, that is by mode, and item: None for what cannot be captured."""
        self._stored: dict[Any, Store] = {}
        self._sample = Sample()
        self._lock = threading.RLock()
        self._posts = Posts(at)
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise InputError(
                "CapturedDataset: expected a map-style data set, with a length and items by number, got "
                f"{type(dataset).__name__}; put its items in a list"
            )
        if limit < 0:
            raise InputError(f"CapturedDataset: expected a limit of 0 bytes or more, got {limit}; 0 keeps nothing")
        if self.file is not None and found_at(self.file) == "nothing":
            require_target(self.file, "captured instances", "name another file")
        elif self.file is not None:
            lexicon = net.in_mode().lexicon
            self._stored[lexicon] = Store(self.file, lexicon, self._learn, len(dataset))

    def __reduce__(self) -> Any:
        """For workers that are not forks: nothing that is captured, and a net without weights."""
        anew = partial(CapturedDataset, instance=self.instance, limit=self.limit, file=self.file, at=self._posts.shared)
        return anew, (self.dataset, self.net.skeleton)

    def as_json(self) -> dict[str, int]:
        """Items captured, given again, checked, and given as they are; and bytes."""
        return {name: getattr(self, name) for name in ("misses", "hits", "checked", "plain", "nbytes")}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, item: int) -> Any:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[Any]:
        """Several items, those that are new captured together. Raises IndexError for one that is not there."""
        count = len(self)
        items = [item + count if item < 0 else item for item in map(operator.index, items)]
        if not all(0 <= item < count for item in items):
            raise IndexError(f"a data set of {count:,} items has no item {max(items, key=abs)}")
        given: dict[int, Any] = {}
        try:
            if not self.net.captures:
                return [self._read(item, given) for item in items]
            with self._lock:
                return self._given(items, given)
        finally:
            self._posts.note([])

    @property
    def in_workers(self) -> dict[int, list[int]]:
        """The items that workers are at, or were when they died, by process."""
        return self._posts.items

    def _given(self, items: Sequence[int], given: dict[int, Any]) -> list[Any]:
        kept = self._kept.setdefault(self.net.in_mode().lexicon, {})
        stored = self._stored.get(self.net.in_mode().lexicon, ())
        kept.update({item: stored[item] for item in items if item in stored and item not in kept})
        captured = {item: kept[item] for item in items if item in kept}
        new = [item for item in dict.fromkeys(items) if item not in captured]
        of_new = dict(zip(new, self._capture(new, given), strict=True))
        for item, found in of_new.items():
            self.misses += 1
            self.plain += found is None
            self._keep(item, found, kept)
        for item, known in captured.items():
            self.hits += 1
            if known is not None and self._sample.takes_next():
                captured[item] = kept[item] = self._checked(item, known, given)
        captured |= of_new
        return [self._item(item, captured[item], given) for item in items]

    def _keep(self, item: int, found: Captured | None, kept: dict[int, Captured | None]) -> None:
        size = 0 if found is None else found.nbytes
        if self.nbytes + size <= self.limit:
            self.nbytes += size
            kept[item] = found

    def _read(self, item: int, given: dict[int, Any]) -> Any:
        """An item of the data set, once per call."""
        if item not in given:
            self._posts.note([item])
            given[item] = self.dataset[item]
        return given[item]

    def _instance(self, item: int, given: dict[int, Any]) -> Any:
        whole = self._read(item, given)
        try:
            return whole if self.instance is None else whole[self.instance]
        except (LookupError, TypeError):
            raise InputError(
                f"item {item} of the data set: expected an instance at {self.instance!r}, got "
                f"{type(whole).__name__} without; say where it is (CapturedDataset(..., instance=0))"
            ) from None

    def _capture(self, items: Sequence[int], given: dict[int, Any]) -> list[Captured | None]:
        if self._stay_plain():
            return [None] * len(items)
        instances = [self._instance(item, given) for item in items]
        self._posts.note(items)
        try:
            found = self.net.capture_each(instances)
        except Exception as error:
            if len(items) > 1:  # which of them?
                return [one for item in items for one in self._capture([item], given)]
            where = f"item {items[0]} of the data set"
            if isinstance(error, EdbcError):
                raise type(error)(f"{where}: {error}") from error
            error.add_note(where)
            raise
        stay_plain = self._stay_plain()  # what capturing them has shown
        return [None if stay_plain or isinstance(one, UnsupportedError) else one for one in found]

    def _stay_plain(self) -> bool:
        return self.is_read_beside and bool(self.net.in_mode().lexicon.keeps_on_instances)

    def _learn(self, items: Sequence[int]) -> None:
        self._capture(items, {})

    def _item(self, item: int, captured: Captured | None, given: dict[int, Any]) -> Any:
        """What stands for an item: captured where it can be."""
        if self.instance is None:
            return self._read(item, given) if captured is None else captured
        whole = self._read(item, given)
        if captured is None:
            return whole
        if isinstance(whole, dict):
            return {**whole, self.instance: captured}
        parts = list(whole)
        parts[self.instance] = captured  # type: ignore[index]
        return parts if isinstance(whole, list) else tuple(parts)

    def _checked(self, item: int, known: Captured, given: dict[int, Any]) -> Captured:
        """Definition (1): the item as it is captured now. How forward's numbers are recorded depends on those met
        before, so graphs may differ where results do not."""
        self.checked += 1
        (now,) = self._capture([item], given)
        if now is None or (now != known and self._results(now) != self._results(known)):
            raise InputError(
                f"item {item} of the data set: expected the instance that it was when it was captured, got another "
                "one; use the data set itself (--recapture) where items change, or draw what changes in forward"
            )
        return now

    def _results(self, captured: Captured) -> Any:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            torch.manual_seed(0)
            (result,) = self.net([captured])
        from edbc.run.outputs import named_tensors

        return [(name, t.shape, t.dtype, bits_of(t.cpu()).numpy().tobytes()) for name, t, _ in named_tensors(result)]

    def save(self, file: str | Path | None = None) -> Path:
        """Write what is captured in the present mode to a file, whole or not at all, and say where."""
        target = self.file if file is None else Path(file)
        if target is None:
            raise InputError("CapturedDataset.save: expected a file to write, got none; name one")
        lexicon = self.net.in_mode().lexicon
        kept, stored = self._kept.get(lexicon, {}), self._stored.get(lexicon, ())
        whole = {item: stored[item] for item in stored} | {item: x for item, x in kept.items() if x is not None}
        write_store(target, whole, lexicon)
        return target


class Posts:
    """Of each worker its process, how many items it is at, and these."""

    def __init__(self, shared: torch.Tensor | None = None):
        if shared is None:
            shared = torch.zeros(WORKERS, 2 + ITEMS, dtype=torch.int64).share_memory_()
        self.shared = shared
        _ALL.add(self)
        _listen()

    def note(self, items: Sequence[int]) -> None:
        """This process is at these items, if it is a worker."""
        worker = get_worker_info()
        if worker is not None:
            post, some = self.shared.numpy()[worker.id % WORKERS], items[:ITEMS]
            post[2 : 2 + len(some)] = some
            post[0], post[1] = os.getpid(), len(some)

    @property
    def items(self) -> dict[int, list[int]]:
        """By process, of those that are at some, or were when they died."""
        return {pid: items[:count] for pid, count, *items in self.shared.tolist() if count}


def _listen() -> None:
    """Definition (4), once per process. Signals are the main thread's, and Windows has no such."""
    if _listening.is_set() or threading.current_thread() is not threading.main_thread() or os.name == "nt":
        return
    torch.utils.data._utils.signal_handling._set_SIGCHLD_handler()
    inner = signal.getsignal(signal.SIGCHLD)
    if not callable(inner):
        return
    signal.signal(signal.SIGCHLD, _telling(inner))
    _listening.set()


def _telling(inner: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
    """A handler around another one. Where numba is at work it comes again later: an exception in the middle of that
    leaves a process that compiles nothing any more."""

    def handler(number: int, frame: FrameType | None) -> None:
        at = frame
        while at is not None:
            if at.f_code.co_filename.startswith(_NUMBA):
                again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
                again.daemon = True
                again.start()
                return
            at = at.f_back
        try:
            inner(number, frame)
        except RuntimeError as error:
            for pid, items in (found for posts in list(_ALL) for found in posts.items.items()):
                if f"(pid {pid})" in str(error):
                    error.add_note(_told(pid, items))
            raise

    return handler


def _told(pid: int, items: Sequence[int]) -> str:
    which = f"item {items[0]}" if len(items) == 1 else f"items {', '.join(map(str, items))}, captured together"
    return (
        f"edbc: worker {pid} was at {which} of a CapturedDataset; ask the data set for one in this process to see what "
        "kills it (data[item])"
    )


def items_of(data: Any, items: Sequence[int]) -> list[Any]:
    """Several items of a map-style data set, at once where it can."""
    many = getattr(data, "__getitems__", None)
    return [data[item] for item in items] if many is None else list(many(items))
