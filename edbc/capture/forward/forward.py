"""Running the user's `forward` over the instances of a mini-batch.

Three things of the user's code show only while it runs and are looked after here:

(1) Recursion deeper than Python's limit: the instance runs again on a large stack, and so do all later ones. What the
    first attempt recorded stays (the user's objects may refer to it) unless nothing uses it.
(2) Random numbers: what eager execution would draw is not what a recording draws once, so drawing any is refused, but
    for random operations on recorded tensors, whose numbers are drawn later (`record.draws`).
(3) Exceptions: they pass, with a note that names the instance; edbc's own name it too. One that eager execution of the
    instance does not raise is no mistake of the user's but a function that cannot take stand-ins: UnsupportedError.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from edbc.capture.code.rebind import Everywhere
from edbc.capture.forward.deep import run_on_large_stack, too_deep
from edbc.capture.forward.fibers import Fibers, MustAsk, MustSuspend, until_first_read
from edbc.capture.forward.returned import settled
from edbc.capture.forward.states import OwnAttributes, attributes_unchanged
from edbc.capture.ragged.together.forwards import Forwards, note_sizes
from edbc.capture.ragged.value import NotRagged
from edbc.capture.record.functionalise import Changes, KeepsBooks, MustKeepBooks
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.recording import Recording
from edbc.capture.semantics import checkpoints  # noqa: F401, takes its place in torch
from edbc.capture.semantics.advice import advice_for
from edbc.capture.semantics.autocast import entered
from edbc.capture.semantics.gradmode import watched_by
from edbc.capture.semantics.randomness import DRAW_REMEDY, NoRandomNumbers, state_of_generator
from edbc.capture.semantics.torchstate import give
from edbc.capture.standins.source import location_of_function, raised_at
from edbc.capture.standins.standin import refuse, require_none_caught
from edbc.capture.standins.unread import comes_of_reading, settle
from edbc.errors import EdbcError, ModelError, UnsupportedError, described


def record(shadow: nn.Module, recorder: Recorder, instances: Sequence[Any], settles: bool = False) -> Recording:
    """Run `forward` for each instance; see `forward.build.capture`. Where it `settles`, the nodes of what an instance
    returns are made with its others, not when all have run."""
    recorder.begin()
    with entered(recorder.home):
        recorder.switch_autocast()
        if recorder.needs_deep_stack:
            return run_on_large_stack(lambda: _record(shadow, recorder, instances, settles))
        return _record(shadow, recorder, instances, settles)


def _record(shadow: nn.Module, recorder: Recorder, instances: Sequence[Any], settles: bool) -> Recording:
    forward = _with_books(recorder, shadow) if recorder.keeps_books else _of_rows(recorder, shadow, instances)
    at_once = forward.at_once() if type(forward) is Forwards and not settles else None
    if at_once is not None:
        recorder.tracer.require_unchanged()
        ends = [] if at_once[1] else [*range(1, len(instances) + 1)]
        return recorder.finish([], ends).changed(collected=at_once[0], programs=at_once[1])
    if recorder.run_segment is None:
        return _record_in_turn(shadow, recorder, instances, settles, forward)
    try:
        if not recorder.reads:
            return until_first_read(recorder, lambda: _record_in_turn(shadow, recorder, instances, settles, forward))
    except MustSuspend:
        pass
    finally:
        recorder.reading = None
    if recorder.ragged and not recorder.tracer.leaves_own:  # of the instance's own tensors, perhaps
        recorder.tracer.leaves_own, recorder.reads = True, False
        recorder.begin()
        return _record(shadow, recorder, instances, settles)
    return _record_reading(shadow, recorder, instances)


def _record_in_turn(shadow: nn.Module, recorder: Recorder, instances: Sequence[Any], settles: bool,
                    forward: Callable[[Any], Any]) -> Recording:  # fmt: skip
    """One instance after the other. Raises MustSuspend where one reads a value, and values can be read."""
    results: list[Any] = []
    ends: list[int] = []
    aborted = (0, 0)
    has_large_stack = recorder.needs_deep_stack
    random_state = _random_state()
    named = Recorded("forward", "instance", recorder.first_instance, None)
    view = recorder.tracer
    with watched_by(recorder), ExitStack() as modes:
        if view.is_everywhere:
            modes.enter_context(Everywhere(recorder))
        with named:
            for number, instance in enumerate(instances):
                recorder.next_instance(number)
                named.which, named.retried = recorder.first_instance + number, (recorder, instance)
                is_deep = False
                while True:
                    try:
                        made = [_on_large_stack(recorder, forward, instance) if is_deep else forward(instance)]
                        if recorder.unread:
                            settle(recorder.unread, made)
                        result = made.pop()
                        require_none_caught(recorder.refused)
                        break
                    except MustKeepBooks as error:
                        is_of_other_code = error.args == (torch.Tensor,) and not recorder.keeps_books
                        if is_of_other_code and view.is_everywhere is not False and not recorder.modes:
                            view.is_everywhere = True
                            modes.enter_context(Everywhere(recorder))
                        else:
                            recorder.keep_books()
                        if recorder.keeps_books:
                            forward = _with_books(recorder, shadow)
                        elif type(forward) is Forwards:
                            forward.function = type(shadow).forward
                        else:
                            forward = shadow.forward
                    except NotRagged:
                        drop_ragged(recorder)
                        recorder.books = Changes(recorder) if recorder.keeps_books else None
                    except RecursionError:
                        if has_large_stack or is_deep:
                            raise too_deep() from None
                        recorder.needs_deep_stack = is_deep = True
                        recorder.mend()
                    except Exception as error:
                        if comes_of_reading(error, recorder.unread):
                            recorder.reads_at_once = True
                        else:
                            may_be_of_mode = recorder.modes > 0 and not isinstance(error, EdbcError)
                            modes.close()
                            if not may_be_of_mode or not _runs_eagerly(recorder, instance):
                                raise
                            view.is_everywhere = False
                    recorder.next_instance(number)
                    recorder.refused.clear()
                    aborted = (ends[-1] if ends else 0, len(recorder.entries))
                if settles:
                    recorder.returned = location_of_function(shadow.forward)
                    result = settled(result, recorder.as_value if recorder.captures else None)
                    recorder.returned = ""
                if recorder.reads and recorder.run_segment is not None:  # forward has caught the exception
                    raise MustSuspend
                results.append(result)
                ends.append(len(recorder.entries))
        were_drawn = random_state != _random_state()
        is_to_come = were_drawn and view.may_draw and view.is_everywhere is None
        if were_drawn and not is_to_come:
            _refuse_random(recorder, forward, instances)
    if is_to_come:  # recorded from now on
        view.is_everywhere = True
        torch.default_generator.set_state(torch.frombuffer(bytearray(random_state), dtype=torch.uint8))
    if were_drawn:  # by another thread, or to come; what the search for them recorded is left behind
        recorder.begin()
        return _record(shadow, recorder, instances, settles)
    recorder.tracer.require_unchanged()
    recorder.returned = location_of_function(shadow.forward)
    return recorder.finish(results, ends, aborted)


def _record_reading(shadow: nn.Module, recorder: Recorder, instances: Sequence[Any]) -> Recording:
    """All instances at once, each of which may wait for values."""
    if recorder.ragged or recorder.num_runs:  # runs of a first attempt too: a segment has none
        drop_ragged(recorder)
        recorder.begin()
    random_state = _random_state()
    fibers, results = _run_fibers(shadow, recorder, instances)
    if random_state != _random_state():
        with NoRandomNumbers():  # raises where they were drawn; when nothing is drawn now, it was another thread
            fibers, results = _run_fibers(shadow, recorder, instances)
    recorder.tracer.require_unchanged()
    recorder.recorded_reads = fibers.reads
    recorder.returned = location_of_function(shadow.forward)
    return recorder.finish(results, [], (0, fibers.aborted))


def _run_fibers(shadow: nn.Module, recorder: Recorder, instances: Sequence[Any]) -> tuple[Fibers, list[Any]]:
    """What forward returns for each instance. What an attempt recorded before that did not get to the end stays where
    it is, unless nothing uses it."""
    recorder.put_caches_back()
    recorder.refused.clear()
    attributes = OwnAttributes(shadow, recorder.tracer)
    fibers = Fibers(recorder, recorder.run_segment, _OfFiber, len(recorder.entries), attributes)
    forward = _with_books(recorder, shadow) if recorder.keeps_books else shadow.forward
    try:
        with watched_by(recorder):
            results = fibers.run(forward, instances)
            require_none_caught(recorder.refused)
            return fibers, results
    except MustKeepBooks:
        recorder.keep_books()
    except MustAsk:
        give(fibers.home)
    except RecursionError:
        if recorder.needs_deep_stack:
            with Recorded("forward", "instance", recorder.first_instance + recorder.instance):
                raise too_deep() from None
        recorder.needs_deep_stack = True
        recorder.mend()
        return run_on_large_stack(lambda: _run_fibers(shadow, recorder, instances))
    except Exception as error:
        if not comes_of_reading(error, recorder.unread):
            raise
        recorder.reads_at_once = True
    return _run_fibers(shadow, recorder, instances)


def _of_rows(recorder: Recorder, shadow: nn.Module, instances: Sequence[Any]) -> Callable[[Any], Any]:
    """`forward`; as runs where its code is closed, and its instances bring rows (`ragged.together`)."""
    if recorder.shows is not None:
        return recorder.shows.forward_of(shadow.forward)
    if not (recorder.ragged or recorder.sizes is not None) or recorder.tracer.closed.left_by_forward is None:
        return shadow.forward
    if recorder.sizes is not None:
        note_sizes(recorder, instances)
    return Forwards(recorder, shadow, instances) if recorder.ragged else shadow.forward


def drop_ragged(recorder: Recorder) -> None:
    """From now on no class is ragged: forward does what rows cannot follow, or reads values."""
    recorder.ragged = frozenset()
    recorder.is_of_ragged.clear()
    recorder.leaf_kinds.clear()


def _random_state() -> bytes:
    """What tells whether random numbers were drawn. Bytes compare in a sixth of the time of tensors."""
    return state_of_generator().numpy().tobytes()


def _with_books(recorder: Recorder, shadow: nn.Module) -> Callable[[Any], Any]:
    """`forward` where it is known which tensors share memory; see `record.functionalise`."""

    def run(instance: Any) -> Any:
        with KeepsBooks(recorder):
            result = shadow.forward(instance)
        return recorder.open_books().shown(result)

    return run if recorder.shows is None else recorder.shows.forward_of(run)


def _on_large_stack(recorder: Recorder, forward: Callable[[Any], Any], instance: Any) -> Any:
    """`forward` of an instance on another thread, with changes of the gradient mode noted there too."""

    def run() -> Any:
        with watched_by(recorder):
            return forward(instance)

    return run_on_large_stack(run)


class Recorded:
    """Names what is recorded in exceptions of the user's code: `Recorded("forward", "instance", 3)`. `retried` are what
    records and the instance, where eager execution can be asked whether it raises too."""

    __slots__ = ("function", "retried", "what", "which")

    def __init__(self, function: str, what: str, which: object, retried: tuple[Recorder, Any] | None = None):
        self.function, self.what, self.which, self.retried = function, what, which, retried

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, MustSuspend):
            return
        where = f"while recording {self.what} {self.which}"
        if isinstance(error, EdbcError):
            raise type(error)(f"{error} ({where})") from error
        if not isinstance(error, Exception | KeyboardInterrupt | GeneratorExit):  # sys.exit()
            raise ModelError(f"{self.function} raised {described(error)} ({where})") from error
        if isinstance(error, Exception) and self.retried is not None and _runs_eagerly(*self.retried):
            called, remedy = advice_for(error)
            raise UnsupportedError(
                f"{raised_at(error)}: {called} runs in eager PyTorch but cannot take recorded tensors; {remedy} "
                f"({where}; {textwrap.shorten(described(error), 160)})"
            ) from error
        error.add_note(where)


class _OfFiber(Recorded):
    """An instance that runs as a fiber."""

    def __init__(self, recorder: Recorder, number: int, instance: Any):
        super().__init__("forward", "instance", recorder.first_instance + number, (recorder, instance))
        self.recorder = recorder

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        is_recorded_anew = error is not None and comes_of_reading(error, self.recorder.unread)
        if not is_recorded_anew and not isinstance(error, MustKeepBooks | RecursionError):
            super().__exit__(kind, error, traceback)


def _runs_eagerly(recorder: Recorder, instance: Any) -> bool:
    """True when the model runs an instance without an exception."""
    with torch.random.fork_rng(devices=()), attributes_unchanged(recorder.tracer.model):
        try:
            recorder.tracer.model(instance)
        except Exception:
            return False
    return True


def _refuse_random(recorder: Recorder, forward: Callable[[Any], Any], instances: Sequence[Any]) -> None:
    """Find the line that drew random numbers by running again. When nothing is drawn now, it was another thread that
    did."""
    random_state = _random_state()
    with NoRandomNumbers():
        for number, instance in enumerate(instances):
            recorder.next_instance(number)
            forward(instance)
    if random_state != _random_state():
        refuse("forward draws random numbers", DRAW_REMEDY)
