"""What forward leaves behind: tensors that it keeps on the caller's objects, as eager execution does.

While recording, `tree.state = h` keeps a stand-in. Once the mini-batch has run, the real tensor takes its place.

Definitions.

(1) A *survivor* is a stand-in that somebody still has when forward has run and what it returned has been collected.
    Nearly no model has any, so nobody looks for them: every stand-in refers to its recorder, and `references` are
    counted before and after. A parameter's stand-in outlives recordings, so its own references are counted.
(2) Only where the counts differ are the instances and the attributes of the model walked (`standins.objects`). What is
    found becomes further results of the mini-batch, and a *place* is where each stood.
(3) A survivor that is not found (in a global variable, a closure) is an ended stand-in (`standins.ended`); so are those
    that are found, until their mini-batch has run.

An attribute of the model is kept on the copy of the model that records. Once the mini-batch has run, the user's model
has it too, unless it is an object with parameters or modules in it: these are the copy's. Plain values and
tensors that no operation has made (`self.n = len(xs)`, `self.given = xs`) it has at once.

A captured instance (`capture.captured`) is no part of the caller's objects: what forward keeps on the instance it lets
go, and what it assigns to attributes of the model comes with its results (`Assigned`).
"""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbc.capture.code.automatic import module_at
from edbc.capture.code.mark import is_closed
from edbc.capture.forward.forward import record
from edbc.capture.forward.returned import Collected, Result, Stacked, collect_results, filled
from edbc.capture.forward.states import leave
from edbc.capture.ragged.expand import expanded
from edbc.capture.record.functionalise import computed_of
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.recording import Recording
from edbc.capture.semantics.shapes import flat
from edbc.capture.standins.ended import ENDED, OLDEST, end, end_stand_ins
from edbc.capture.standins.made import Made
from edbc.capture.standins.nests import is_plain, rebuilt
from edbc.capture.standins.objects import ENTRIES, Place, Sought, walked
from edbc.capture.standins.standin import Copied, Lazy, Shared, Slot, Symbol, Value
from edbc.capture.standins.unread import Returned

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView

_UNHELD = 3
"""References to a description that nobody has: of the list of all, and of asking for them."""
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def references(recorder: Recorder) -> tuple[int, list[int]]:
    """Definition (1): of the recorder, but for those that stay; and of the stand-ins of its parameters."""
    return sys.getrefcount(recorder) - recorder.standing, list(map(sys.getrefcount, recorder.shared))


class Attribute(NamedTuple):
    """Of the model: path and name, the module that recorded, and the user's."""

    path: str
    module: nn.Module
    of_user: nn.Module
    name: str


@dataclass(frozen=True, eq=False)
class Left:
    """Definition (2), of one mini-batch."""

    places: list[Place]
    """Of stand-ins, and of tuples and frozen sets with some in them."""
    tensors: dict[int, tuple[Any, Result | Stacked | torch.Tensor | partial[torch.Tensor]]]
    """By the identity of a stand-in, which is kept alive: the place of the result that takes its place, the tensor that
    does, or what makes it, in each place anew: a parameter, or a function of some."""
    attributes: list[Attribute]
    first: int = 0
    """What numbers of results are counted from."""

    def assigned(self) -> list[tuple[str, str, Any]]:
        """Path, name and nest of each attribute, places of results where stand-ins are."""
        return [(path, name, self._nest(module.__dict__[name])) for path, module, _, name in self.attributes]

    def _nest(self, item: Any) -> Any:
        kind = type(item)
        known = self.tensors.get(id(item))
        if known is not None and isinstance(known[1], Result | Stacked):
            return known[1]
        if kind is list or kind is tuple or issubclass(kind, Returned):
            return kind([self._nest(x) for x in item])
        return {key: self._nest(x) for key, x in item.items()} if kind is dict else item

    def moved(self, offset: int) -> Left:
        """The same as part of a larger mini-batch, whose results before it are so many."""
        return replace(self, first=self.first + offset)

    def write(self, results: Sequence[torch.Tensor]) -> None:
        """Let the results stand in all places where the stand-ins still do."""
        made: dict[int, Any] = {}
        for holding, of, key, nest in self.places:
            if holding.get(of, key) is nest:
                holding.put(of, key, self._filled(nest, results, made))
        for _, module, of_user, name in self.attributes:
            leave(of_user, name, module.__dict__[name])

    def _filled(self, item: Any, results: Sequence[torch.Tensor], made: dict[int, Any]) -> Any:
        known = self.tensors.get(id(item))
        if known is not None:
            return known[1]() if isinstance(known[1], partial) else filled(known[1], results, self.first, None)
        kind: Any = type(item)
        if not issubclass(kind, tuple | frozenset):
            return item
        if id(item) not in made:
            parts = [self._filled(part, results, made) for part in item]
            is_same = all(map(operator.is_, parts, item))
            is_read = isinstance(item, Returned)
            made[id(item)] = kind(parts).read() if is_read else item if is_same else _rebuilt(item, parts)
        return made[id(item)]


def _rebuilt(nest: Any, parts: list[Any]) -> Any:
    return rebuilt(nest, parts) if isinstance(nest, tuple) else type(nest)(parts)


class Assigned(NamedTuple):
    """What a captured instance's forward assigned to attributes of the model: nests of its results."""

    view: ModelView
    nests: Sequence[tuple[str, str, Any]]
    """See `Left.assigned`."""
    first: int
    """Which of the mini-batch's results is the instance's first."""

    def write(self, results: Sequence[torch.Tensor]) -> None:
        """Let the user's model have them."""
        for path, name, nest in self.nests:
            leave(module_at(self.view.model, path), name, filled(nest, results, self.first, None))


@dataclass(eq=False)
class Search:
    """A walk for survivors. `values` are those found that are to become results."""

    recorder: Recorder
    places: list[Place] = field(default_factory=list)
    in_stacks: bool = False
    """Whether rows may leave as one tensor without becoming a node."""
    values: dict[int, tuple[Any, Value | tuple[Sequence[int], Slot, int]]] = field(default_factory=dict)
    """By the identity of what was found: itself, and the value that it stands for, or its rows."""
    parameters: dict[int, tuple[Any, torch.Tensor | partial[torch.Tensor]]] = field(default_factory=dict)
    """And descriptions: what has a tensor already."""
    attributes: list[Attribute] = field(default_factory=list)
    is_on_instances: bool = False
    """Whether there was something to let go."""
    _seen: set[int] = field(default_factory=set)
    _of_model: bool = False
    """Whether it is an attribute that the model had that is walked, where stand-ins of parameters belong."""
    _holding: dict[int, tuple[Any, bool]] = field(default_factory=dict)
    """By the identity of a tuple: itself, and whether it has a survivor in it."""

    def run(self, shadow: nn.Module, instances: Iterable[Any]) -> None:
        """Definition (2). What is found has ended then. Where instances are captured, what they hold is let go."""
        self._walk(instances)
        if self.recorder.captures:
            self.is_on_instances = bool(self.places)
            for found in (self.places, self.values, self.parameters, self._holding):
                found.clear()
        modules = dict(self.recorder.tracer.model.named_modules(remove_duplicate=False))
        for path, module, name in list(_plain_attributes(shadow)):
            before, is_cache = len(self.places), (module, name) in self.recorder.caches
            if is_cache and _shows_parameter(self.recorder, module.__dict__[name]):
                continue  # the user's model makes its own, which follows the parameter
            self._of_model = not is_cache and (path, name) not in self.recorder.tracer.written
            if self._holds(module.__dict__[name]):
                self.places.append((ENTRIES, module.__dict__, name, module.__dict__[name]))
            self._walk([module.__dict__[name]])
            # what a cache holds, others may say something of
            if len(self.places) > before or is_cache or self._is_without_now(path, name, module.__dict__[name]):
                of_user = modules.get(path)
                if of_user is None:  # a module that forward has made: the user's model is to have no others
                    continue
                if _has_of_model(module.__dict__[name], set()):  # the copy's own: the user's object has the model's
                    continue
                self.recorder.tracer.note_assigned(path, name)
                self.attributes.append(Attribute(path, module, of_user, name))
                if self.recorder.captures:
                    self._bring(module.__dict__[name])
        for item, value in self.values.values():
            if isinstance(value, Value):
                value.rec = ENDED
            if item is not value and type(item) not in (Made, Shared):
                _end(item)

    def bring_plain(self, attributes: Iterable[Attribute]) -> None:
        """Let a captured instance hold plain values that its forward assigns, and tensors of its own."""
        brought = {attribute[:2] for attribute in self.attributes}
        for attribute in attributes:
            if attribute[:2] not in brought:
                self.recorder.tracer.note_assigned(attribute.path, attribute.name)
                self.attributes.append(attribute)
                self._bring(attribute.module.__dict__[attribute.name])

    def _bring(self, nest: Any) -> None:
        """Let a captured instance hold what its forward keeps that no operation has made: tensors, and what is computed
        of parameters. (A parameter itself would be another tensor than the model's.)"""
        for item in flat(nest):
            if type(item) is torch.Tensor:
                self.values.setdefault(id(item), (item, self.recorder.constant(item)))
            elif type(item) is Shared and item.ref.views:
                self.values.setdefault(id(item), (item, self.recorder.whole(item)))

    def _is_without_now(self, path: str, name: str, item: Any) -> bool:
        """Whether an attribute that had other instances' tensors has plain values after this captured one."""
        return self.recorder.captures and self.recorder.tracer.has_assigned(path, name) and is_plain(item)

    def left(self, refs: list[int], slots: list[Slot], stacks: list[tuple[int, int]]) -> Left | None:
        """What was found; None for nothing. Values become further results, unless they are results already that leave
        alone, and so do rows."""
        stacked = {number for start, stop in stacks for number in range(start, stop)}
        pairs = enumerate(zip(refs, slots, strict=True))
        known: dict[Any, int] = {pair: number for number, pair in pairs if number not in stacked}
        tensors: dict[int, tuple[Any, Any]] = dict(self.parameters)
        values: dict[int, tuple[Any, Any]] = self.values
        for key, (item, value) in values.items():
            if type(value) is tuple:
                rows, slot, at = value
                stacks.append((len(refs), len(refs) + len(rows)))
                refs += rows
                slots += [slot] * len(rows)
                tensors[key] = item, Stacked(*stacks[-1], at)
                continue
            pair: Any = key if type(value.ref) is Copied else (value.ref, value.slot)  # a copy's memory is its own
            number = known.setdefault(pair, len(refs))
            tensors[key] = item, Result(number)
            if number == len(refs):
                refs.append(value.ref)
                slots.append(value.slot)
        return Left(self.places, tensors, self.attributes) if self.places or self.attributes else None

    def _walk(self, roots: Iterable[Any]) -> None:
        found = walked(roots, self._seen, _MAY_HOLD)
        self.places += [place for place in found if self._holds(place[3])]

    def _holds(self, item: Any) -> bool:
        """Whether an item is a survivor, or a tuple with one in it."""
        kind = type(item)
        if kind is Value and item.rec is self.recorder:
            self.values[id(item)] = item, item
            return True
        if issubclass(kind, Symbol) or kind is torch.Tensor:
            return id(item) in self.values or id(item) in self.parameters or self._note(item)
        if not issubclass(kind, tuple | frozenset):
            return False
        known = self._holding.get(id(item))
        if known is None:
            known = self._holding[id(item)] = item, True in [self._holds(part) for part in item]
        return known[1]

    def _note(self, item: Any) -> bool:
        recorder = self.recorder
        found = item if recorder.books is None else recorder.books.stand_in(item)
        if type(found) is Made:
            if self.recorder.captures:
                self.values[id(item)] = item, self.recorder.constant(found.real())
            else:
                self.parameters[id(item)] = item, found.real()
        elif not issubclass(type(found), Symbol) or found.rec is not recorder:
            return False
        elif type(found) is not Shared:
            rows = found.rows() if self.in_stacks and issubclass(type(found), Lazy) else None
            self.values[id(item)] = item, rows or (found.materialise() if issubclass(type(found), Lazy) else found)
        elif not self._of_model:
            self.parameters[id(item)] = item, partial(recorder.tracer.shared, found.ref)
        return id(item) in self.values or id(item) in self.parameters


def _shows_parameter(recorder: Recorder, item: Any) -> bool:
    """Whether a stand-in is a view of a parameter, or a row (which a look-up gives, too)."""
    if type(item) is Shared:
        return computed_of(recorder.tracer, item.ref) is None
    number = -1 - recorder.first_external - item.ref if type(item) is Value else -1
    if number < 0 or not number < len(recorder.external_source) or type(item.ref) is Copied:
        return False
    source = recorder.table.sources[recorder.external_source[number]]
    return source.kind == "row" and source.ref is not None and computed_of(recorder.tracer, source.ref) is None


_MAY_HOLD = Sought(lambda kind: kind is torch.Tensor or issubclass(kind, Symbol | tuple | frozenset))
"""What may be a survivor, or a tuple of them."""


def _has_of_model(item: Any, seen: set[int], is_inside: bool = False) -> bool:
    """Whether an object of the user's, that is no module, has a parameter's stand-in or a module; or one that is in a
    nest."""
    kind = type(item)  # stand-ins are not asked who asks for their class
    if issubclass(kind, Shared | nn.Module):
        return is_inside
    if issubclass(kind, Symbol | torch.Tensor | type) or id(item) in seen:
        return False
    seen.add(id(item))
    if issubclass(kind, tuple | list | set | frozenset):
        return any(_has_of_model(part, seen, is_inside) for part in item)
    if issubclass(kind, dict):
        return any(_has_of_model(part, seen, is_inside) for part in item.values())
    return any(_has_of_model(part, seen, True) for part in getattr(item, "__dict__", {}).values())


def _end(item: Any) -> None:
    """Let what stands for a value by way of others end, and those."""
    if issubclass(type(item), Symbol):
        item.rec = ENDED
        for part in getattr(item, "items", ()):
            _end(part)


def _plain_attributes(shadow: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """What modules have besides parameters, buffers and other modules: path, module and name."""
    for path, module in shadow.named_modules():
        own = {*_OF_EVERY_MODULE, *module._parameters, *module._buffers, *module._modules}
        yield from ((path, module, name) for name in module.__dict__ if name not in own)


def _plain_assigned(shadow: nn.Module, recorder: Recorder) -> list[Attribute]:
    """The attributes that forward assigns before it reads them, and that have plain values or tensors of the instance's
    now. What it reads first is a cache, or counts how often forward was recorded. Of modules that forward has made
    there are none, and code that is promised (`edbc.closed`) leaves nothing behind."""
    tracer, found = recorder.tracer, []
    for path, name in tracer.written:
        with suppress(KeyError, AttributeError):
            parts = path.split(".") if path else []
            if any(is_closed(module_at(tracer.model, ".".join(parts[:n]))) for n in range(len(parts) + 1)):
                continue
            pair = module_at(shadow, path), module_at(tracer.model, path)
            if name not in tracer.closed.caches and _is_told(vars(pair[0]).get(name, recorder)):
                found.append(Attribute(path, *pair, name))
    return found


def _is_told(item: Any) -> bool:
    """Whether something is plain, a tensor that no operation has made, or lists, tuples and dicts of such."""
    if type(item) is dict or isinstance(item, list | tuple):
        return all(map(_is_told, item.values() if type(item) is dict else item))
    return is_plain(item) or type(item) is torch.Tensor


def recorded(
    shadow: nn.Module, recorder: Recorder, instances: Sequence[Any], settles: bool = False
) -> tuple[Recording, Collected]:
    """Run `forward` for each instance, and collect what they returned and what they left (`forward.forward.record`).
    The recording has ended then, whatever happens."""
    before, oldest = references(recorder), [None]
    try:
        recording = record(shadow, recorder, instances, settles)
        collected = recording.collected
        if collected is None:
            collected = collect_results(recording.results, _in_stacks(recorder))
        recording.results.clear()
        recorder.let_go()
        if references(recorder) != before:
            gc.collect(0)  # a local function that calls itself is garbage in a circle, and stand-ins in its variables
        is_made_left = any(sys.getrefcount(made) > _UNHELD for made in recorder.descriptions)
        plain = _plain_assigned(shadow, recorder) if recorder.tracer.written else []
        if not recorder.captures:
            for _, module, of_user, name in plain:
                of_user.__dict__[name] = module.__dict__[name]
            plain.clear()
        survive = recorder.books is not None or is_made_left or references(recorder) != before
        if survive or plain:
            collected = _with_left(collected, shadow, recorder, instances if survive else None, plain)
        if survive:
            recorder.books = None
            for age in range(1 + OLDEST):
                if references(recorder)[0] != before[0]:
                    end_stand_ins(recorder, age)
    except BaseException:
        is_young = any(item is oldest for item in gc.get_objects(0))  # and so is all that was made since
        end_stand_ins(recorder, 0 if is_young else OLDEST)
        raise
    finally:
        recorder.refused.clear()  # their frames hold stand-ins
        end(recorder)
    return expanded(recorder, recording, collected)


def _with_left(collected: Collected, shadow: nn.Module, recorder: Recorder, instances: Sequence[Any] | None,
               plain: Sequence[Attribute]) -> Collected:  # fmt: skip
    """With survivors as further results, where there are any, and plain values that a captured instance is to bring."""
    search = Search(recorder, in_stacks=_in_stacks(recorder))
    if instances is not None:
        search.run(shadow, instances)
    search.bring_plain(plain)
    refs, slots, stacks = collected.refs.tolist(), list(collected.slots), list(collected.stacks)
    left = search.left(refs, slots, stacks)
    return collected._replace(
        refs=np.array(refs, np.int64), slots=slots, left=left, stacks=stacks, is_on_instances=search.is_on_instances
    )


def _in_stacks(recorder: Recorder) -> bool:
    """Whether rows may leave as one tensor without becoming a node: not where values are read."""
    return not recorder.reads and recorder.recorded_reads is None
