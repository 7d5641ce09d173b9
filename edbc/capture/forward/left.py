"""What forward leaves behind: tensors that it keeps on the caller's objects, as eager execution does.

While recording, `tree.state = h` keeps a stand-in. Once the mini-batch has run, the real tensor takes its place.

Definitions.

(1) A *survivor* is a stand-in that somebody still has when forward has run and what it returned has been collected.
    Nearly no model has any, so nobody looks for them: every stand-in refers to its recorder, and `references` are
    counted before and after. A parameter's stand-in outlives recordings, so its own references are counted.
(2) Only where the counts differ are the instances and the attributes of the model walked (`trace.objects`). What is
    found becomes further results of the mini-batch, and a *place* is where each stood.
(3) A survivor that is not found (in a global variable, a closure) is an ended stand-in (`trace.ended`); so are those
    that are found, until their mini-batch has run.

An attribute of the model is kept on the copy of the model that records. Once the mini-batch has run, the user's model
has it too.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from edbc.capture.forward.forward import record
from edbc.capture.forward.returned import Collected, collect_results
from edbc.capture.ragged.expand import expanded
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.recording import Recording
from edbc.capture.standins.ended import ENDED, OLDEST, end, end_stand_ins
from edbc.capture.standins.made import Made
from edbc.capture.standins.nests import rebuilt
from edbc.capture.standins.objects import Entries, Place, walked
from edbc.capture.standins.standin import Lazy, Shared, Slot, Symbol, Value

_UNHELD = 3
"""References to a description that nobody has: of the list of all, and of asking for them."""
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def references(recorder: Recorder) -> tuple[int, list[int]]:
    """Definition (1): of the recorder, but for those that stay; and of the stand-ins of its parameters."""
    return sys.getrefcount(recorder) - recorder.standing, list(map(sys.getrefcount, recorder.shared))


@dataclass(frozen=True, eq=False)
class Left:
    """Definition (2), of one mini-batch."""

    places: list[Place]
    """Of stand-ins, and of tuples and frozen sets with some in them."""
    tensors: dict[int, tuple[Any, int | torch.Tensor]]
    """By the identity of a stand-in, which is kept alive: the number of the result that takes its place, or the
    parameter that does."""
    attributes: list[tuple[nn.Module, nn.Module, str]]
    """Attributes of the model: the module that recorded, the user's, and the name."""
    first: int = 0
    """What numbers of results are counted from."""

    def moved(self, offset: int) -> Left:
        """The same as part of a larger mini-batch, whose results before it are so many."""
        return replace(self, first=self.first + offset)

    def write(self, results: Sequence[torch.Tensor]) -> None:
        """Let the results stand in all places where the stand-ins still do."""
        made: dict[int, Any] = {}
        for holder, key, nest in self.places:
            if holder.get(key) is nest:
                holder.put(key, self._filled(nest, results, made))
        for module, of_user, name in self.attributes:
            of_user.__dict__[name] = module.__dict__[name]

    def _filled(self, item: Any, results: Sequence[torch.Tensor], made: dict[int, Any]) -> Any:
        known = self.tensors.get(id(item))
        if known is not None:
            return results[self.first + known[1]] if isinstance(known[1], int) else known[1]
        if not issubclass(type(item), tuple | frozenset):
            return item
        if id(item) not in made:
            parts = [self._filled(part, results, made) for part in item]
            is_same = all(a is b for a, b in zip(parts, item, strict=True))
            made[id(item)] = item if is_same else _rebuilt(item, parts)
        return made[id(item)]


def _rebuilt(nest: Any, parts: list[Any]) -> Any:
    return rebuilt(nest, parts) if isinstance(nest, tuple) else type(nest)(parts)


def joined_left(parts: Sequence[Left]) -> Left | None:
    """What several parts of a mini-batch left, as one."""
    if not parts:
        return None
    numbered = [
        (key, (item, number + part.first if isinstance(number, int) else number))
        for part in parts
        for key, (item, number) in part.tensors.items()
    ]
    return Left([p for part in parts for p in part.places], dict(numbered), [a for p in parts for a in p.attributes])


@dataclass(eq=False)
class Search:
    """A walk for survivors. `values` are those found that are to become results."""

    recorder: Recorder
    places: list[Place] = field(default_factory=list)
    values: dict[int, tuple[Any, Value]] = field(default_factory=dict)
    """By the identity of what was found: itself, and the value that it stands for."""
    parameters: dict[int, tuple[Any, torch.Tensor]] = field(default_factory=dict)
    """And descriptions: what has a tensor already."""
    attributes: list[tuple[nn.Module, nn.Module, str]] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _of_model: bool = False
    """Whether it is attributes of the model that are walked, where stand-ins of parameters belong."""
    _holding: dict[int, tuple[Any, bool]] = field(default_factory=dict)
    """By the identity of a tuple: itself, and whether it has a survivor in it."""

    def run(self, shadow: nn.Module, instances: Iterable[Any]) -> None:
        """Definition (2). What is found has ended then."""
        self._walk(instances)
        self._of_model = True
        for path, module, name in list(_plain_attributes(shadow)):
            before = len(self.places)
            if self._holds(module.__dict__[name]):
                self.places.append((Entries(module.__dict__), name, module.__dict__[name]))
            self._walk([module.__dict__[name]])
            if len(self.places) > before:
                self.recorder.tracer.note_assigned(path, name)
                self.attributes.append((module, self.recorder.tracer.model.get_submodule(path), name))
        for item, value in self.values.values():
            value.rec = ENDED
            if item is not value:
                _end(item)

    def left(self, refs: list[int], slots: list[Slot], stacks: Sequence[tuple[int, int]]) -> Left | None:
        """What was found; None for nothing. Values become further results, unless they are results already that leave
        alone."""
        stacked = {number for start, stop in stacks for number in range(start, stop)}
        pairs = enumerate(zip(refs, slots, strict=True))
        known = {pair: number for number, pair in pairs if number not in stacked}
        tensors: dict[int, tuple[Any, int | torch.Tensor]] = dict(self.parameters)
        for key, (item, value) in self.values.items():
            pair = value.ref, value.slot
            number = known.setdefault(pair, len(refs))
            tensors[key] = item, number
            if number == len(refs):
                refs.append(value.ref)
                slots.append(value.slot)
        return Left(self.places, tensors, self.attributes) if self.places else None

    def _walk(self, roots: Iterable[Any]) -> None:
        found = walked(roots, self._seen, _MAY_HOLD)[1]
        self.places += [place for place in found if self._holds(place[2])]

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
            self.parameters[id(item)] = item, found.real()
        elif not issubclass(type(found), Symbol) or found.rec is not recorder:
            return False
        elif type(found) is not Shared:
            self.values[id(item)] = item, found.materialise() if issubclass(type(found), Lazy) else found
        elif not self._of_model:
            self.parameters[id(item)] = item, recorder.tracer.shared(found.ref)
        return id(item) in self.values or id(item) in self.parameters


class _MayHold(dict[type, bool]):
    """Whether objects of a class may be survivors, or tuples of them."""

    def __missing__(self, kind: type) -> bool:
        may = self[kind] = kind is torch.Tensor or issubclass(kind, Symbol | tuple | frozenset)
        return may


_MAY_HOLD = _MayHold()


def _end(item: Any) -> None:
    """Let what stands for a value by way of others end, and those."""
    for part in (item, *getattr(item, "items", ())):
        if issubclass(type(part), Symbol):
            part.rec = ENDED


def _plain_attributes(shadow: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """What modules have besides parameters, buffers and other modules: path, module and name."""
    for path, module in shadow.named_modules():
        own = {*_OF_EVERY_MODULE, *module._parameters, *module._buffers, *module._modules}
        yield from ((path, module, name) for name in module.__dict__ if name not in own)


def recorded(
    shadow: nn.Module, recorder: Recorder, instances: Sequence[Any], settles: bool = False
) -> tuple[Recording, Collected]:
    """Run `forward` for each instance, and collect what they returned and what they left (`trace.forward.record`). The
    recording has ended then, whatever happens."""
    before = references(recorder)
    try:
        recording = record(shadow, recorder, instances, settles)
        collected = collect_results(recording.results, not recorder.reads and recorder.recorded_reads is None)
        recording.results.clear()
        recorder.forget_externals()
        if references(recorder) != before:
            gc.collect(0)  # a local function that calls itself is garbage in a circle, and stand-ins in its variables
        is_made_left = any(sys.getrefcount(made) > _UNHELD for made in recorder.descriptions)
        if recorder.books is not None or is_made_left or references(recorder) != before:
            collected = _with_left(collected, shadow, recorder, instances)
            recorder.books = None
            for age in range(1 + OLDEST):
                if references(recorder)[0] != before[0]:
                    end_stand_ins(recorder, age)
    except BaseException:
        end_stand_ins(recorder)
        raise
    finally:
        end(recorder)
    return expanded(recorder, recording, collected)


def _with_left(collected: Collected, shadow: nn.Module, recorder: Recorder, instances: Sequence[Any]) -> Collected:
    """With survivors as further results."""
    search = Search(recorder)
    search.run(shadow, instances)
    refs, slots = collected.refs.tolist(), list(collected.slots)
    left = search.left(refs, slots, collected.stacks)
    return collected._replace(refs=np.array(refs, np.int64), slots=slots, left=left)
