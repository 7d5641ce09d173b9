"""Streams: the graph of the next mini-batch is made while this one executes.

    for result in net.stream(read_trees(path), batch_size=32): ...

(1) A worker thread takes `batch_size` instances at a time from the iterable, whose length nobody needs to know, and
    captures, schedules and places them. Mini-batches that are ready wait in a queue of `ahead`, then the worker waits.
(2) The thread that iterates executes them and yields one result per instance, in the order of the iterable. Native
    code runs without Python's lock, which is when the worker gets on. But where to execute is to issue work to a
    device, both are Python, and two threads that want its lock at once take longer than one. So there the worker only
    reads, and the thread that iterates prepares and issues what was read before it yields the results of the mini-batch
    before, with which the device goes on meanwhile. It does not wait for instances while it has results to yield.
(3) An exception comes where its instance's result would have come, after the results of all mini-batches before it:
    with the instance's number in the stream where the iterable or the model's code raised it, with the numbers of its
    mini-batch where execution did. An iterable that fails in the middle of a mini-batch costs no instance before it.
    With `on_error="record"` the stream goes on: an instance on which preparing raises, nearly always the user's code,
    yields the exception. It is found by halves, so the others of its mini-batch are prepared again, in
    O(log batch_size) smaller mini-batches for each that fails.
(4) Closing the iterator, or leaving it for the garbage collector, stops the worker: it finishes the mini-batch it is
    making and reads nothing more.

Results are not connected to autograd. Several streams may share one net.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from edbc.base.arguments import require_count, require_name

if TYPE_CHECKING:
    from edbc.run.passes.minibatch import MiniBatch
    from edbc.run.session import Net


@dataclass(frozen=True, eq=False)
class _Read:
    """The instances of a mini-batch, and the number of the first of them."""

    first: int
    instances: list[Any]


@dataclass(frozen=True, eq=False)
class _Ready:
    """A mini-batch before it executes; `first` is the number of its first instance."""

    first: int
    instances: list[Any]
    prepared: MiniBatch


@dataclass(frozen=True, eq=False)
class _Failed:
    error: BaseException


@dataclass(frozen=True, eq=False)
class _Lost:
    """An instance that yields its exception."""

    error: Exception


OnError = Literal["fail", "record"]
"""What becomes of an instance's exception; see definition (3)."""


_END = object()


def stream(net: Net, instances: Iterable[Any], batch_size: int = 32, ahead: int = 1,
           on_error: OnError = "fail") -> Iterator[Any]:  # fmt: skip
    """What the model returns for each instance, in order; see the module's docstring."""
    require_name("on_error", on_error, get_args(OnError))
    for name, value in (("batch_size", batch_size), ("ahead", ahead)):
        require_count(f"stream: {name}", value)
    return _results(_Worker(net.in_mode(), iter(instances), batch_size, ahead, on_error == "record"))


def _results(worker: _Worker) -> Iterator[Any]:
    worker.start()
    try:
        yield from _executed(worker) if worker.prepares else _issued(worker)
    finally:
        worker.stop()


def _executed(worker: _Worker) -> Iterator[Any]:
    """What the worker has prepared, executed one by one."""
    while (item := worker.next(waits=True)) is not _END:
        yield from _results_of(worker.net, item)


def _issued(worker: _Worker) -> Iterator[Any]:
    """What the worker has read, prepared and issued before what was issued before is given out."""
    issued: list[Any] = []
    while True:
        item = worker.next(waits=not issued)
        before, issued, failure = issued, [], None
        if isinstance(item, _Read):
            try:
                with torch.no_grad():
                    for ready in worker.prepared(item.instances, item.first):
                        issued += _results_of(worker.net, ready)
            except Exception as error:  # comes behind all results before it
                failure = error
        yield from before
        if item is _END:
            return
        if failure is not None:
            yield from issued
            raise failure
        if isinstance(item, _Failed):
            raise item.error


def _results_of(net: Net, item: _Ready | _Lost | _Failed) -> list[Any]:
    if isinstance(item, _Failed):
        raise item.error
    if isinstance(item, _Lost):
        return [item.error]
    with _numbers_told(item.first, len(item.instances)):
        again = lambda: net.execute(net.prepare(item.instances, first=item.first))  # noqa: E731
        return net.presuming(lambda: net.execute(item.prepared), again)


@contextmanager
def _numbers_told(first: int, count: int) -> Iterator[None]:
    """What is raised says of which mini-batch."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the mini-batch of instances {first} to {first + count - 1} of the stream")
        raise


class _Worker:
    """Definition (1)."""

    def __init__(self, net: Net, instances: Iterator[Any], batch_size: int, ahead: int, goes_on: bool):
        self.net = net
        self.instances = instances
        self.batch_size = batch_size
        self.goes_on = goes_on
        self.prepares = not net.backend.issues
        """Whether it does more than to read, (2)."""
        self.queue: queue.Queue[Any] = queue.Queue(ahead)
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="edbc-stream", daemon=True)

    def next(self, waits: bool) -> Any:
        """What comes next; None where it is not there and nobody waits for it."""
        try:
            return self.queue.get(block=waits)
        except queue.Empty:
            return None

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Definition (4). Emptying the queue wakes a worker that waits for room."""
        self._stopped = True
        while self._thread.is_alive():
            try:
                self.queue.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def _work(self) -> None:
        try:
            with torch.no_grad():
                self._prepare_all()
        except BaseException as error:
            self.queue.put(_Failed(error))
        else:
            self.queue.put(_END)

    def _prepare_all(self) -> None:
        first = 0
        while not self._stopped:
            batch, failure = self._read(first)
            if batch:
                for item in self.prepared(batch, first) if self.prepares else [_Read(first, batch)]:
                    self.queue.put(item)
            if failure is not None:
                raise failure
            if len(batch) < self.batch_size:
                return
            first += len(batch)

    def _read(self, first: int) -> tuple[list[Any], BaseException | None]:
        """The next instances, and what the iterable raised after them."""
        batch: list[Any] = []
        try:
            for instance in itertools.islice(self.instances, self.batch_size):
                batch.append(instance)
        except Exception as error:
            error.add_note(f"while reading instance {first + len(batch)} of the stream")
            return batch, error
        return batch, None

    def prepared(self, batch: list[Any], first: int) -> Iterator[_Ready | _Lost]:
        """A mini-batch, or the smaller ones of definition (3)."""
        try:
            with _numbers_told(first, len(batch)):
                ready = _Ready(first, batch, self.net.prepare(batch, first=first))
            yield ready
        except Exception as error:
            if not self.goes_on:
                raise
            middle = len(batch) // 2
            if not middle:
                yield _Lost(error)
                return
        else:
            return
        yield from self.prepared(batch[:middle], first)
        yield from self.prepared(batch[middle:], first + middle)
