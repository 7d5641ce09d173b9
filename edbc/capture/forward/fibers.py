"""Fibers: a forward that reads a value waits for it, and the other instances of the mini-batch go on.

Definitions.

(1) A *read* asks for the numbers of a recorded tensor: `.item()`, `int(t)`, `if a > b`, `.tolist()`, `max(key=...)`.
    Where they do not exist yet the instance is suspended in the middle of whatever it runs, recursion, a generator, a
    callback of a library: each instance runs as a greenlet, on a stack of its own.
(2) A *segment* is what they wait for when all unfinished instances wait, and what that is computed from. It is built,
    scheduled and executed as a mini-batch of its own, and all go on. What is left when none waits any more is the
    mini-batch that `capture` gives.
(3) A value of an executed segment is *carried* where some stand-in for it is alive: it is a result of its segment, and
    from then on an external. So nobody needs to know which later segment reads it, gradients flow through it as through
    any tensor that requires one, and no segment's memory outlives it. `forward.cutting` does the cutting.

A stand-in is alive where anybody but the list of those that were made refers to it: references are counted.

(4) Instances interleave, and take turns in one thread. What forward assigns to attributes of the model each has for
    itself (`forward.states`), and the model what its last instance left. One that *holds a lock* where it reads
    (`standins.locks`) goes on before any other does, by segments of its own: whoever waited for the lock would keep it
    from giving it back.

A model that does not read has no fibers: the first read of a recorder's life has the mini-batch recorded anew with
them, as it is when tensors turn out to change in place. A plan that knows of reads spares that.
"""

from __future__ import annotations

import contextvars
import ctypes
import gc
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from sys import _getframe, getrefcount
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import torch

from edbc.capture.forward.carried import Carried, Table, copy_to_host
from edbc.capture.forward.cutting import Cutting, RunSegment, Segment
from edbc.capture.forward.existing import Existing, existing
from edbc.capture.forward.states import Own, OwnAttributes
from edbc.capture.ragged.program import CannotKeep
from edbc.capture.record.table import through
from edbc.capture.semantics.autocast import entered
from edbc.capture.semantics.gradmode import watched_by, watcher_of_thread
from edbc.capture.semantics.torchstate import Away, default_dtype, infers, kept_as, leave, num_modes, torch_state
from edbc.capture.standins.locks import holds_lock, takes_locks
from edbc.capture.standins.source import location_of, user_frame, user_location
from edbc.capture.standins.standin import Symbol, Value
from edbc.capture.standins.unread import LIST, Later, Site, settle
from edbc.errors import UnsupportedError
from edbc.native.memory import require_memory

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

MAX_READS = 10_000
"""Reads of an instance before it is taken for an endless loop, unless the caller says otherwise."""
CUTS_BETWEEN_COLLECTIONS = 256
"""Recursive local functions are garbage in a circle, with what they hold; nobody else collects while recording."""
_OWN_REFERENCES = 3
"""To a stand-in that nobody else has while it is looked at: a list's, a variable's and an argument's."""
FRAMES = 16 << 10
"""Bytes of Python's own stack that each suspended instance takes beside what it has of the C stack."""
T = TypeVar("T")
_OWN_FILES = os.path.join(Path(__file__).resolve().parents[2], "")
MOST_CANCELLED = 100
"""Reads in `finally` blocks, or in loops around `except BaseException`, of an instance that is being cancelled, before
it is left where it is."""
_LEFT: list[Fiber] = []
"""Those that nothing ends, and the torch that they left (`_abandon`)."""


class MustSuspend(BaseException):
    """An instance reads a value, and instances run one after the other: record the mini-batch again with fibers."""


class MustAsk(Exception):
    """Forward changes torch's state without telling: record the mini-batch anew, and ask at each switch."""


class Read(NamedTuple):
    """What an instance has read: where, and the numbers. The tensor shares memory with nothing that changes."""

    site: str
    tensor: torch.Tensor | None
    """None where nobody has looked at the numbers (`standins.unread`)."""


Noted = tuple[str, Sequence[torch.Tensor], int, tuple[Any, ...]]
"""A Read of which nobody has made a tensor yet: where, and row so many of some, seen by some views; row -1 of those at
which nobody has looked."""


def _read_of(noted: Noted) -> Read:
    """With the tensor."""
    site, rows, at, views = noted
    return Read(site, None if at < 0 else through(views, rows[at].detach()))


class Cut(NamedTuple):
    """A segment that was executed for reads, and when, by `time.perf_counter`."""

    live: int
    """Instances that waited for it."""
    nodes: int
    begin: float
    executed: float
    copied: float
    """When what is read was on the host: at once, where it was computed there."""
    copied_bytes: int


@dataclass(eq=False)
class Reads:
    """The reads of a mini-batch."""

    noted: list[list[Noted]]
    """By instance."""
    cuts: list[Cut] = field(default_factory=list)
    """The segments that were executed for them."""
    suspended_bytes: int = 0
    """What suspended instances take, estimated: the most at once."""

    @property
    def segments(self) -> int:
        """How many were executed for them."""
        return len(self.cuts)

    @cached_property
    def of_instance(self) -> list[list[Read]]:
        """What each instance has read, in order."""
        return [list(map(_read_of, each)) for each in self.noted]

    def sites(self) -> dict[str, int]:
        """How many reads there are of each line."""
        return dict(Counter(site for site, _, at, _ in itertools.chain.from_iterable(self.noted) if at >= 0))


def until_first_read(recorder: Recorder, run: Callable[[], T]) -> T:
    """`run()`. Raises MustSuspend where forward reads a value, also where it catches that again and again."""
    module = greenlet_module()
    if module is None:
        recorder.reading = lambda *_: require_greenlet()
        return run()
    getcurrent = module.getcurrent
    home, flows, hub, caught = torch_state(), recorder.flows, getcurrent(), 0

    def first_read(symbol: Symbol, as_number: bool = False, place: int = -1, site: Site | None = None) -> NoReturn:
        nonlocal caught
        if recorder.keeping:  # what runs for all instances cannot; as it is written it may do without
            raise CannotKeep
        recorder.reads = True
        caught += 1
        if caught > MOST_CANCELLED and getcurrent() is attempt:
            hub.switch()
        raise MustSuspend

    recorder.reading = first_read
    attempt = module.greenlet(run, hub)
    attempt.gr_context = hub.gr_context
    try:
        with watched_by(watcher_of_thread()):
            result: T = attempt.switch()
    except Exception:
        if not caught:
            raise
        raise MustSuspend from None  # it comes of the read that was not answered
    if not attempt.dead:
        left = Fiber(attempt, -1, None)
        left.away = None if kept_as(home)() else leave(home)
        _abandon(left)
        if recorder.flows is not flows:
            recorder.switch_gradients(flows)
        raise MustSuspend
    return result


def _abandon(fiber: Fiber) -> None:
    """Leave one where it is, for ever: what catches every exception would also catch the one that ends a greenlet to
    which nobody refers, as when the process ends."""
    _LEFT.append(fiber)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(fiber.greenlet))


def require_greenlet() -> Any:
    """The module. Raises UnsupportedError, with the user's line, where it is not installed."""
    module = greenlet_module()
    if module is None:
        raise UnsupportedError(
            f"{user_location()}: forward reads the value of a tensor, for which instances are suspended by greenlet, "
            "which is not installed; install edbc[fibers]"
        )
    return module


@cache
def greenlet_module() -> Any | None:
    """None where it is not installed, for which the interpreter looks 33 microseconds each time."""
    try:
        import greenlet
    except ImportError:
        return None
    return greenlet


class Fiber:
    """One instance, and what was the state of its recording and of torch when it was suspended."""

    __slots__ = (
        "away", "cancelled", "flows", "greenlet", "holds_lock", "instance", "noted", "number", "own", "result",
        "unread", "wanted",
    )  # fmt: skip

    def __init__(self, greenlet: Any, number: int, instance: Any):
        self.greenlet = greenlet
        self.noted: list[Noted] = []
        """What it has read."""
        self.unread: list[Later] = []
        """Integers that it may look at."""
        self.number = number
        self.instance = instance
        self.own: Own = {}
        """What it has assigned to attributes of the model."""
        self.away: Away | None = None
        self.cancelled = 0
        """Reads since its mini-batch has ended."""
        self.flows = True
        self.holds_lock = False
        """Definition (4)."""
        self.wanted: Value | None = None
        """What it waits for."""
        self.result: Any = None


class Fibers:
    """Runs the instances of one mini-batch. `guarded` is a context that names an instance in exceptions."""

    def __init__(self, recorder: Recorder, run_segment: RunSegment, guarded: Callable[[Recorder, int, Any], Any],
                 aborted: int, attributes: OwnAttributes):  # fmt: skip
        self.recorder = recorder
        self.attributes = attributes
        self.run_segment = run_segment
        self._run_again = getattr(run_segment, "again", None)
        self.guarded = guarded
        self.aborted = aborted
        """Nodes of an earlier attempt that nobody has executed."""
        self.greenlet = require_greenlet()
        self.home = torch_state()
        self.is_home = kept_as(self.home)
        if self.home.modes or self.home.autocast[0] or self.home.autocast[2]:
            recorder.changes_state = True
        self.home_flows = recorder.flows
        self.fibers: list[Fiber] = []
        self.running: Fiber | None = None
        self.is_cancelled = False
        self.strayed: UnsupportedError | None = None
        """What was told to a thread or greenlet of forward's own, which may keep it to itself."""
        self.outermost: CodeType | None = None
        """Where the user's frames end."""
        self.reads = Reads([])
        self._cutting = Cutting(recorder)
        self._unwatched = watched_by(None)
        self._getcurrent = self.greenlet.getcurrent

    def run(self, forward: Callable[[Any], Any], instances: Sequence[Any]) -> list[Any]:
        """What forward returns for each instance.

        Raises what forward raises; no fiber is left then, the others' `finally` blocks have run.
        """
        rec, hub = self.recorder, self.greenlet.getcurrent()
        rec.reading, rec.note_unread, rec.made = self.reader(hub.switch), self.note_unread, []

        def run_one(instance: Any) -> Any:
            results = [forward(instance)]
            assert self.running is not None
            if self.running.unread:
                settle(self.running.unread, results)
            return results.pop()

        self.outermost = run_one.__code__
        try:
            for number, instance in enumerate(instances):
                greenlet = self.greenlet.greenlet(run_one, hub)
                greenlet.gr_context = contextvars.copy_context()
                fiber = Fiber(greenlet, number, instance)
                fiber.flows = self.home_flows
                self.fibers.append(fiber)
                self.reads.noted.append(fiber.noted)
                self._go_on(fiber, instance)
                if fiber.holds_lock:
                    self._give_lock_back(fiber)
                if number & (number + 1) == 0 or number + 1 == len(instances):
                    self._require_memory(len(instances))
            waiting = self.fibers
            while waiting := [fiber for fiber in waiting if not fiber.greenlet.dead]:
                self._cut(waiting)
                for fiber in waiting:
                    self._go_on(fiber)
                    if fiber.holds_lock:
                        self._give_lock_back(fiber)
            for fiber in self.fibers:
                self.attributes.enter(fiber.own)
            return [fiber.result for fiber in self.fibers]
        finally:
            self._cancel()
            rec.reading = rec.note_unread = rec.made = None

    def _require_memory(self, count: int) -> None:
        """Raise DeviceError where so many instances, suspended like those so far, take more memory than there is."""
        suspended = [fiber.greenlet for fiber in self.fibers if not fiber.greenlet.dead]
        stacks = sum(greenlet._stack_saved + FRAMES for greenlet in suspended)
        estimate = stacks * count // len(self.fibers)
        self.reads.suspended_bytes = max(self.reads.suspended_bytes, stacks)
        require_memory(estimate, f"{count:,} instances that wait for values")

    # --- switching -------------------------------------------------------------------------------------------------

    def _give_lock_back(self, fiber: Fiber) -> None:
        """Let an instance go on until it ends, or reads and holds no lock."""
        while fiber.holds_lock and not fiber.greenlet.dead:
            self._cut([fiber])
            self._go_on(fiber)

    def _go_on(self, fiber: Fiber, *started_with: Any) -> None:
        """Let an instance run until it reads or ends. Whether torch's state is still that of the mini-batch is asked
        for where forward has told of a change; asking each time took 7 % of recording."""
        rec, greenlet, attributes = self.recorder, fiber.greenlet, self.attributes
        self.running, rec.instance, rec.unread = fiber, fiber.number, fiber.unread
        if fiber.away is not None or rec.flows is not fiber.flows:
            self._come_back(fiber)
        if fiber.own:
            attributes.enter(fiber.own)
        try:
            result = greenlet.switch(*started_with)
            if greenlet.dead:
                fiber.result = result
                if self.strayed is not None:
                    raise self.strayed
            elif result:  # an error of `_stop`
                raise result
        except BaseException as error:
            self._leave(fiber)
            with self.guarded(rec, fiber.number, fiber.instance):
                if self.strayed is not None and error is not self.strayed:
                    raise self.strayed from error
                raise
        finally:
            if not attributes.is_idle:
                fiber.own = attributes.leave()
        if rec.flows is self.home_flows and (
            (
                not rec.changes_state
                and not num_modes()
                and infers() is self.home.inference
                and default_dtype() is self.home.dtype
            )
            or self.is_home()
        ):
            self.running, fiber.flows = None, self.home_flows
        else:
            self._leave(fiber)

    def _come_back(self, fiber: Fiber) -> None:
        rec = self.recorder
        if fiber.away is not None:
            fiber.away.come_back()
            fiber.away = None
            rec.switch_autocast()
        if rec.flows is not fiber.flows:
            rec.switch_gradients(fiber.flows)

    def _leave(self, fiber: Fiber) -> None:
        rec = self.recorder
        self.running = None
        fiber.flows = rec.flows
        if not self.is_home():
            fiber.away = leave(self.home)
            rec.switch_autocast()
        if rec.flows is not self.home_flows:
            rec.switch_gradients(self.home_flows)

    def _cancel(self) -> None:
        """End all fibers that wait."""
        self.is_cancelled = True
        for fiber in self.fibers:
            while not fiber.greenlet.dead and fiber.cancelled <= MOST_CANCELLED:
                self.running, self.recorder.instance = fiber, fiber.number
                self._come_back(fiber)
                self.attributes.enter(fiber.own)
                try:
                    fiber.greenlet.throw()
                except BaseException:  # of a `finally` block: what ended the mini-batch is what is told
                    continue
                finally:
                    fiber.own = self.attributes.leave()
                    self._leave(fiber)
            if not fiber.greenlet.dead:
                _abandon(fiber)
        self.fibers = []

    # --- reading ---------------------------------------------------------------------------------------------------

    def reader(self, suspend: Callable[[], Any]) -> Callable[..., Any]:
        """What gives the tensor that a stand-in stands for, once it exists; where it is of one element, that
        `as_number`, which is told where its class is known to be of one; a vector as a list where `as_number` is LIST,
        and it stands on the host. `place` is that of an integer that was not read yet. `suspend` lets others go on.

        A function of what stays in a mini-batch: looking that up took as long as reading.
        """
        rec, getcurrent, read_sites = self.recorder, self._getcurrent, self.recorder.read_sites
        constants, sources, indices = rec.constants, rec.external_source, rec.external_index
        before_first, most, is_on_host = -1 - rec.first_external, rec.max_reads, rec.device.type == "cpu"
        met: set[int] = set()

        def read(symbol: Symbol, as_number: Any = False, place: int = -1, site: Site | None = None) -> Any:
            fiber = self.running
            if fiber is None or getcurrent() is not fiber.greenlet or self.is_cancelled:
                self._refuse_reader()
            noted = fiber.noted
            if place < 0:
                if site is None:
                    frame = _getframe(2)  # of what the user calls: nearly always it is the user's own
                    site = read_sites.get((id(frame.f_code), frame.f_lasti)) or self._new_site(frame)
                if len(noted) >= most:
                    self._stop(fiber, site.where)
            value: Value = symbol if type(symbol) is Value else rec.as_value(symbol)
            if value.ref >= 0:
                if is_on_host and (as_number is True or place >= 0) and rec.entries[-1] not in met:
                    found = existing(rec, value, met)
                    if found is not None:
                        one = Existing(found, value.slot)
                        if place < 0:
                            noted.append((site.where, one, 0, ()))  # type: ignore[union-attr]
                        else:
                            noted[place] = noted[place][0], one, 0, ()
                        return found if as_number else one[0]
                fiber.wanted = value
                if rec.takes_locks or not noted:
                    self._look_for_locks(fiber)
                suspend()
                fiber.wanted = None
            number = before_first - value.ref
            rows: Any = constants.get(sources[number])
            index, views = indices[number], value.slot.views
            is_known = as_number and not views and type(rows) is Carried
            if is_known and (rows.are_numbers or (as_number is LIST and is_on_host)):
                if place < 0:
                    noted.append((site.where, rows, index, views))  # type: ignore[union-attr]
                else:
                    noted[place] = noted[place][0], rows, index, views
                found = rows.numbers[index]
                found = rows.number(index) if found is None else found
                return found if as_number is True else [found] if rows.are_numbers else list(found)
            if rows is None:
                rows, index = [self._parameter(number)], 0
            elif type(rows) is Carried and not is_on_host:
                rows, index = [rows.on_host(index)], 0
            if place >= 0:
                noted[place] = noted[place][0], rows, index, views
            else:
                noted.append((site.where, rows, index, views))  # type: ignore[union-attr]
            return _read_of(noted[place]).tensor

        return read

    def note_unread(self) -> tuple[int, Site]:
        """The place of a read at which somebody may look later (`standins.unread`), and where it stands; -1 where all
        that were read there were looked at before anything else was recorded."""
        fiber = self.running
        if self.is_cancelled or fiber is None or self._getcurrent() is not fiber.greenlet:
            self._refuse_reader()
        frame = _getframe(3)
        while frame.f_code.co_filename.startswith(_OWN_FILES) and frame.f_back is not None:
            frame = frame.f_back
        site = self.recorder.read_sites.get((id(frame.f_code), frame.f_lasti)) or self._new_site(frame)
        if site.at_once:
            return -1, site
        if len(fiber.noted) >= self.recorder.max_reads:
            self._stop(fiber, site.where)
        fiber.noted.append((site.where, (), -1, ()))
        return len(fiber.noted) - 1, site

    def _look_for_locks(self, fiber: Fiber) -> None:
        """Note whether an instance holds a lock where it is about to wait."""
        rec = self.recorder
        rec.takes_locks = rec.takes_locks or takes_locks(_getframe(2), self.outermost)
        if rec.takes_locks:
            fiber.holds_lock = holds_lock(_getframe(2), self.outermost)

    def _refuse_reader(self) -> NoReturn:
        """End an instance of a mini-batch that has ended, or tell somebody else that it may not read."""
        fiber = self.running
        if self.is_cancelled and fiber is not None:
            self._refuse(fiber)
        self.strayed = UnsupportedError(
            f"{user_location()}: a value was read by a thread or greenlet of forward's own; read it where forward runs"
        )
        raise self.strayed

    def _new_site(self, frame: FrameType) -> Site:
        """The user's line from which a frame was called."""
        sites, user = self.recorder.read_sites, user_frame(start=frame)
        key = (0, 0) if user is None else (id(user.f_code), user.f_lasti)
        found = sites.get(key)
        if found is None:
            found = sites.add(key, Site(location_of(user), None if user is None else user.f_code))
            found.at_once = found.where in self.recorder.reading_at_once
            self.recorder.takes_locks |= takes_locks(frame, self.outermost)
        return found

    def _refuse(self, fiber: Fiber) -> NoReturn:
        """End an instance whose mini-batch has ended; where it catches that again and again, leave it."""
        fiber.cancelled += 1
        if fiber.cancelled > MOST_CANCELLED:
            fiber.greenlet.parent.switch()
        raise self.greenlet.GreenletExit

    def _stop(self, fiber: Fiber, site: str) -> NoReturn:
        """End an instance that reads too often."""
        error = UnsupportedError(
            f"{site}: forward has read {len(fiber.noted):,} values of one instance; if this is no endless loop, allow "
            "more (--max-reads)"
        )
        fiber.greenlet.parent.switch(error)
        raise self.greenlet.GreenletExit

    def _parameter(self, number: int) -> torch.Tensor:
        """What an external is that is no mini-batch's own."""
        rec = self.recorder
        told = rec.table.sources[rec.external_source[number]]
        assert told.ref is not None
        tensor = rec.tracer.shared(told.ref)
        return tensor[rec.external_index[number]] if told.kind == "row" else tensor

    # --- segments --------------------------------------------------------------------------------------------------

    def _cut(self, waiting: Sequence[Fiber]) -> None:
        """Execute what is needed of what has been recorded (`forward.cutting`)."""
        rec, live = self.recorder, self._live()
        wanted = [fiber.wanted.ref for fiber in waiting if fiber.wanted is not None and fiber.wanted.ref >= 0]
        if not wanted:  # computed with a segment of one that held a lock
            return
        if not rec.changes_state and not self.is_home():
            rec.changes_state = True
            raise MustAsk
        segment = self._cutting.cut(live, wanted, self.aborted)
        self.aborted = 0
        begin = time.perf_counter()
        with self._unwatched:
            if rec.home is None:
                tables = self._tables_of(segment)
            else:
                with entered(None):
                    tables = self._tables_of(segment)
        executed = copied = time.perf_counter()
        for pool, table in zip(segment.pools, tables, strict=True):
            pool.add(table)
        rec.made = made = []
        for value, ref in zip(live, segment.moved, strict=True):
            value.ref = ref
            if ref >= 0:
                made.append(value)
        copied_bytes = 0
        if rec.device.type != "cpu":
            copied_bytes = self._copy([fiber.wanted.ref for fiber in waiting if fiber.wanted is not None])
            copied = time.perf_counter()
        self.reads.cuts.append(Cut(len(waiting), segment.known.num_nodes, begin, executed, copied, copied_bytes))

    def _tables_of(self, segment: Segment) -> Sequence[Table]:
        tables = None if self._run_again is None else self._run_again(segment)
        return self.run_segment(segment.capture()) if tables is None else tables

    def _copy(self, refs: Sequence[int]) -> int:
        """What is read crosses to the host: how many bytes."""
        rec, wanted = self.recorder, []
        for ref in refs:
            number = -1 - (ref + rec.first_external)
            rows = rec.constants.get(rec.external_source[number])
            if type(rows) is Carried:
                wanted.append((rows, rec.external_index[number]))
        return copy_to_host(wanted)

    def _live(self) -> list[Value]:
        """Stand-ins for values of the recording that somebody has."""
        rec = self.recorder
        first, made = rec.first_value, rec.made
        assert made is not None
        if self.aborted:  # what an attempt made before that did not note them; its frames may be garbage in circles
            made.clear()
            gc.collect(1)  # the youngest: looking at all objects of a process took longer than recording
            return [x for x in gc.get_objects() if type(x) is Value and x.rec is rec and x.ref >= first]
        if len(self.reads.cuts) % CUTS_BETWEEN_COLLECTIONS == CUTS_BETWEEN_COLLECTIONS - 1:
            gc.collect(0)
        return [value for value in made if getrefcount(value) > _OWN_REFERENCES and value.ref >= first]
