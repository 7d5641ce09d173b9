"""Tensors that change in place, recorded as new values: functionalisation.

Recorded values never change; names do. In eager PyTorch a tensor is a name for memory, and several may share it. So
what a change in place does is to compute the new value, and to let every name of that memory show it.

Definitions.

(1) A *name* is a stand-in in the user's hands. Names that are one Python object change together by themselves: the
    object's `ref` and `slot` become those of the new value.
(2) A *memory* is the value of a whole tensor, its content, and the names that show it, each through a chain of views.
    A change through a chain writes into a new content, at the positions that the chain shows; then all names show the
    new content through their chains.
(3) A *fresh* tensor is a real one that forward makes (`torch.zeros(n)`). What is written into it may be recorded; from
    then on a stand-in stands in its place wherever torch gets it, the tensors that eager made views of it included.

(4) A name is *alone* where no other shows its memory: it is a copy, or stands for the result of a node whose function
    makes memory of its own, or a view of one; no function that may give a view has read it; and nobody else holds its
    `ref`, the integer that a name shares with its views. So it is told without a list of names: by the references to
    one integer, and by the nodes that were recorded since.

Keeping books of views costs a little at each of them, so nobody does before a name changes that is not alone: then the
instance (or the cell) is recorded again, and all later ones of the recorder keep books. Vertex functions cannot.

Refused are changes of parameters and of tensors that the caller brought or that a cell was given (others hold them),
through `.detach()`, and, where gradients are switched off, of what requires one (eager's tensor would keep the gradient
of its old value).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from edbc.capture.ragged.program import size_of
from edbc.capture.ragged.value import NotRagged, Ragged
from edbc.capture.record.draws import DRAWN
from edbc.capture.record.excerpts import EXCERPT
from edbc.capture.record.table import Entry, Hole, Operation, SharedRef, View, through
from edbc.capture.semantics import rules
from edbc.capture.semantics.shapes import filled_by, flat, take_views
from edbc.capture.standins.made import FILLS_BY_CHANCE, MOST_ROWS, Buffer, Made, listed, turned_buffer
from edbc.capture.standins.nests import mapped
from edbc.capture.standins.source import user_location
from edbc.capture.standins.standin import (
    Copied,
    Lazy,
    Shared,
    Slot,
    Symbol,
    Value,
    as_python_has_it,
    refuse,
    turned,
    value_of,
)

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView
    from edbc.capture.record.recorder import Recorder

MOST_SINCE = 512
"""Nodes since a name's own that are looked through, to tell whether it is alone."""
MOST_JOINED = 8
"""Ranges of columns, of values of one class, that are written by types of their own."""
_ONLY_IN_BOOKS = 4
"""References to a fresh tensor that nobody has: two tables, a variable, and the asking."""
_STATISTICS = frozenset("num_batches_tracked running_mean running_var".split())
"""Buffers of torch's norms, which training changes."""
_OF_EACH_INSTANCE = (
    "a norm that trains keeps statistics of the mini-batch, which an instance does not see: call eval() on the "
    "layer (after model.train(), too), or normalise each instance by itself (nn.LayerNorm, nn.GroupNorm)"
)
_NORMS: dict[Any, tuple[int, str, bool]] = {
    functional.batch_norm: (1, "training", False),
    functional.instance_norm: (1, "use_input_stats", True),
    torch.batch_norm: (3, "training", False),
    torch.instance_norm: (3, "use_input_stats", True),
}
"""Where they are given statistics to keep, and the name of the sixth argument, which says whether they do."""
_HELD = 3
"""References to a name that only the books hold: its memory, the table of names, and the asking."""


class MustKeepBooks(BaseException):
    """A tensor is changed in place, and nobody knows which names share its memory: record the instance again. Its
    argument is the class of what was to change, where it may be one of torch's own."""


def refuse_statistics(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a norm that changes the statistics of a module, which depend on the order of instances and of calls."""
    if func not in _NORMS:
        return
    at, name, default = _NORMS[func]
    kept = args[at] if len(args) > at else kwargs.get("running_mean")
    if kept is not None and (args[5] if len(args) > 5 else kwargs.get(name, default)):
        refuse(f"statistics that the model keeps are changed in place by '{func.__name__}'", _OF_EACH_INSTANCE)


def show(rec: Recorder, name: Value, ref: int) -> None:
    """Let a name stand for another value, which moves with it when a segment has run (`forward.cutting`)."""
    if rec.made is not None and name.ref < 0:
        rec.made.append(name)
    name.ref = ref


class Memory:
    """Definition (2)."""

    def __init__(self, value: Value):
        self.content = value_of(value.rec, value.ref, value.slot)
        self.names: dict[int, tuple[Value, tuple[View, ...]]] = {id(value): (value, ())}
        """By their identity, each with the views through which it shows the content."""
        self._shown: dict[int, Slot] = {}
        """By name, the slot of the content of which its own was made."""
        self.is_held = False
        """Whether others hold it, who would not see a change."""
        self.is_row = False
        """Whether it is a row of a ragged value, which shows it too."""
        self.requires_none: bool | None = None
        """Whether it requires no gradient, as far as that is known; None where its content has not changed."""

    def path(self, name: Value) -> tuple[View, ...]:
        """The chain of views through which a name shows the content."""
        return self.names[id(name)][1]

    def show(self, value: Value) -> None:
        """Let all names show another content."""
        rec, ref, slot = value.rec, value.ref, value.slot
        self.content = value_of(rec, ref, slot)
        for key, (name, path) in self.names.items():
            show(rec, name, ref)
            if self._shown.get(key) is not slot:
                self._shown[key] = slot
                name.slot = rec.table.slot(slot.base, (*slot.views, *path), name.slot.meta()) if path else slot

    def forget(self, key: int) -> None:
        """A name, by its identity."""
        del self.names[key]
        self._shown.pop(key, None)

    def turn(self, name: Value, seen: Value) -> None:
        """Let a name show the content as another one does, and forget that."""
        self.names[id(name)] = name, self.path(seen)
        self._shown.pop(id(name), None)
        self.forget(id(seen))
        name.slot = seen.slot


class Changes:
    """The books of one recording."""

    def __init__(self, rec: Recorder):
        self.rec = rec
        self._memories: dict[int, tuple[Value, Memory]] = {}
        """By the identity of a name, which it keeps alive."""
        self._fresh: dict[int, torch.Tensor] = {}
        self._of_storage: dict[int | None, torch.Tensor] = {}
        """The fresh tensor whose memory it is."""
        self._stand_ins: dict[int, tuple[torch.Tensor, Value]] = {}

    # --- what shares memory ----------------------------------------------------------------------------------------

    def is_view(self, entry: Entry) -> bool:
        """Whether what is recorded as a node of its own shares memory in eager (`view_as_real`): what does
        is not told apart, so none of it may change."""
        known = self.rec.is_view.get(entry.index)
        if known is None:
            known = self.rec.is_view[entry.index] = not makes_memory(entry.operation, self.rec.shared_meta)
        return known

    def hold(self, values: Sequence[Any]) -> None:
        """Others hold these: rows of parameters, operands of a cell."""
        for value in values:
            if type(value) is Value:
                self.memory_of(value).is_held = True

    def memory_of(self, name: Value) -> Memory:
        """The memory that a name shows."""
        known = self._memories.get(id(name))
        if known is None:
            known = self._memories[id(name)] = name, Memory(name)
        return known[1]

    def share(self, name: Value, other: Value, steps: Sequence[View]) -> None:
        """`other` is a view of `name`, by these steps."""
        memory = self.memory_of(name)
        path = (*memory.path(name), *steps)
        key = memory.content.slot, other.slot
        is_seen = self.rec.seen_in_place.get(key)
        if is_seen is None:
            is_seen = self.rec.seen_in_place[key] = _is_seen_in_place(memory.content, path)
        if not is_seen:
            return
        memory.names[id(other)] = other, path
        self._memories[id(other)] = other, memory

    # --- changes ---------------------------------------------------------------------------------------------------

    def assign(self, name: Any, new: Any, overwrites: bool = False) -> None:
        """Let what `name` shows become `new`. Raises RuntimeError, as eager, for shapes and dtypes that do not fit.

        Where `new` is not computed from what was there (it `overwrites` it), that has a gradient nevertheless: zeros.
        """
        self._refuse_held(name)
        memory = self.memory_of(name)
        if memory.path(name) and _overlaps(self.rec, tuple(memory.content.shape), memory.path(name)):
            raise RuntimeError(
                f"{user_location()}: one element of the tensor that is changed stands in several places; change a copy "
                "(x = x.clone())"
            )
        new = _fitting(self.rec, name, new)
        path, requires_none = memory.path(name), self._requires_none(memory)
        needs_none = requires_none and (not self.rec.flows or self.rec.requires_none(new))
        if any(view.detaches for view in path) and not needs_none:
            refuse("a tensor was changed in place through .detach()", "change a copy (.detach().clone())")
        memory.requires_none = (requires_none and self.rec.requires_none(new)) or (False if self.rec.flows else None)
        if path or (overwrites and memory.content.ref >= 0):
            new = self._written(memory.content, path, new)
        self._forget_unheld(memory)
        memory.show(new)

    def _requires_none(self, memory: Memory) -> bool:
        known = memory.requires_none
        return self.rec.requires_none(memory.content) if known is None else known

    def turn(self, name: Value, seen: Value) -> Value:
        """Let `name` show its memory as `seen` does, a view of it."""
        self.memory_of(name).turn(name, seen)
        return name

    def is_same(self, one: Any, other: Any) -> bool:
        """Whether two names show the same part of one memory, as after `h[i] += 1`."""
        if type(other) is not Value or self.memory_of(one) is not self.memory_of(other):
            return False
        return self.memory_of(one).path(one) == self.memory_of(one).path(other)

    def _forget_unheld(self, memory: Memory) -> None:
        """A loop over rows makes a name for each, and holds one at a time."""
        for name in [key for key, pair in memory.names.items() if sys.getrefcount(pair[0]) <= _HELD]:
            memory.forget(name)
            del self._memories[name]

    def _refuse_held(self, name: Any) -> None:
        if type(name) is Shared:
            computed = computed_of(self.rec.tracer, name.ref)
            if computed is not None and computed not in self.rec.tracer.changing:
                self.rec.tracer.changing.add(computed)
                raise MustKeepBooks
            is_statistic = name.ref.name.rpartition(".")[2] in _STATISTICS
            refuse(
                f"a parameter or buffer of the model was changed in place, {name.ref}",
                _OF_EACH_INSTANCE if is_statistic else "compute a new tensor from it",
            )
        if self.memory_of(name).is_row:
            raise NotRagged
        if self.memory_of(name).is_held:
            refuse(
                "a tensor that others hold was changed in place (a row of a parameter, what a cell was given, or what "
                "shares memory by a function that is not known as a view)",
                "change a copy (x = x.clone())",
            )
        if not self.rec.flows and not self._requires_none(self.memory_of(name)):
            refuse(
                "a recorded tensor that requires a gradient was changed in place where gradients are switched off",
                "compute a new tensor (h = h + x)",
            )

    def _written(self, content: Value, path: tuple[View, ...], new: Value) -> Value:
        if not path:
            return _instead(self.rec, content, new)
        key = content.slot, path
        if key not in self.rec.joined and sum(slot is content.slot for slot, _ in self.rec.joined) < MOST_JOINED:
            self.rec.joined[key] = _columns(path, tuple(content.shape))
        columns = self.rec.joined.get(key)
        if columns is not None:
            return _joined(self.rec, content, *columns, new)
        known = self.rec.positions.get(key)
        if known is None:
            found = _shown_by_numbers(path, content)
            known = self.rec.positions[key] = found or (None, _positions(path, tuple(content.shape)))
        shape, where = known
        if shape is None:
            return self.rec.function(written, (content, where, new), {}, "written")
        return self.rec.function(replaced, (content, where, new, shape), {}, "replaced")

    # --- fresh tensors ---------------------------------------------------------------------------------------------

    def made(self, result: Any, args: Any) -> None:
        """Note what a torch function made: fresh tensors, unless they are its arguments."""
        for tensor in (result,) if type(result) is torch.Tensor else flat(result):
            if type(tensor) is torch.Tensor and tensor._base is None and not _is_among(tensor, args):
                storage = _memory(tensor)  # in the mode, which is not asked
                if storage is not None and self._of_storage.setdefault(storage, tensor) is tensor:
                    self._fresh[id(tensor)] = tensor

    def _base(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fresh tensor of which eager made another one a view, or that has its memory (`x.data`); else itself."""
        with torch._C.DisableTorchFunction():  # or the mode is asked
            known = self._of_storage.get(_memory(tensor))
            return known if known is not None else tensor if tensor._base is None else tensor._base

    def _adopts(self, tensor: torch.Tensor) -> bool:
        """Let what has a fresh tensor's memory be that, unless it is a view."""
        with torch._C.DisableTorchFunction():
            memory = _memory(tensor)
            if tensor._base is None and memory is not None:
                self._of_storage[memory] = self._fresh[id(tensor)] = tensor
            return tensor._base is None and memory is not None

    def stand_in(self, tensor: Any) -> Any:
        """The stand-in for a fresh tensor into which recorded values were written, or for a view of one; any other
        object is returned as it is."""
        if not self._stand_ins or type(tensor) is not torch.Tensor:
            return tensor
        known = self._stand_ins.get(id(tensor))
        if known is not None:
            return known[1]
        base = self._stand_ins.get(id(self._base(tensor)))
        if base is not None and type(base[1]) is Ragged:
            raise NotRagged
        return tensor if base is None else self._stand_for_view(tensor, base[1])

    def shown(self, result: Any) -> Any:
        """What forward returns, with stand-ins in the place of fresh tensors."""
        return mapped(self.stand_in, result) if self._stand_ins else result

    def has_stand_in(self, arguments: Iterable[Any]) -> bool:
        """Whether some real tensor among the arguments, or in their nests, has a stand-in."""
        for item in arguments if self._stand_ins else ():
            kind = type(item)
            if kind is torch.Tensor:
                if id(item) in self._stand_ins or id(self._base(item)) in self._stand_ins:
                    return True
            elif kind in (list, tuple, dict) and self.has_stand_in(item.values() if kind is dict else item):
                return True
        return False

    def is_fresh(self, tensor: torch.Tensor) -> bool:
        """Whether a real tensor is one that forward has made, and no view of one."""
        return id(tensor) in self._fresh

    def stand_for(self, tensor: torch.Tensor, name: Any) -> None:
        """Let a stand-in stand in a fresh tensor's place."""
        self._stand_ins[id(tensor)] = tensor, name

    def name_of(self, item: Any) -> Any:
        """The name that is changed when torch is told to change `item`."""
        if type(item) is Ragged:
            raise NotRagged
        if type(item) is not torch.Tensor:
            return item
        known = self.stand_in(item)
        if known is not item:
            return known
        base = self._base(item)
        if base is not item and sys.getrefcount(base) <= _ONLY_IN_BOOKS and self._adopts(item):
            base = item  # Variable(torch.zeros(n))
        if id(base) not in self._fresh:
            refuse(
                "recorded values were written into a tensor that forward did not make",
                "write into a copy (x = x.clone()): what the caller holds cannot hold what is not yet computed",
            )
        value = self.rec._new_constant(base.detach().clone())
        self._stand_ins[id(base)] = base, value
        return value if base is item else self._stand_for_view(item, value)

    def _stand_for_view(self, tensor: torch.Tensor, whole: Value) -> Value:
        with torch._C.DisableTorchFunction():
            base = self._base(tensor)
            offset = tensor.storage_offset() - base.storage_offset()
            template: Any = ((Hole(0), tuple(tensor.shape), tensor.stride(), offset), {})
            is_view, is_in_order = tensor._base is not None and tensor._base is base, base.is_contiguous()
        if not is_in_order:
            refuse(
                "recorded values were written into a tensor that is no row after row in memory, of which there is a "
                "view",
                "write into a tensor of its own (torch.zeros(x.shape))",
            )
        _, (meta,), steps = take_views(_strided, "as_strided", template, whole.slot.meta())
        slot = whole.slot
        seen = value_of(self.rec, whole.ref, self.rec.table.slot(slot.base, (*slot.views, *steps), meta))
        self.share(whole, seen, steps)
        if not is_view:  # that autograd knows
            seen = seen.detach()
        self._stand_ins[id(tensor)] = tensor, seen
        return seen


def _strided(whole: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A view of a tensor, its first element so many behind the tensor's own: where that stands in its storage is known
    when it is computed, as results of a mini-batch share one."""
    return whole.as_strided(shape, stride, whole.storage_offset() + offset)


def makes_memory(operation: Operation, shared_meta: Callable[[SharedRef], torch.Tensor]) -> bool:
    """Whether each result of a torch function is memory of its own, which no operand and no other result shows. Where
    it takes no zeros (a singular matrix, a mask that shows less than what is written), as its schema tells."""
    args, kwargs = filled_by(torch.zeros, operation.template, operation.slots, shared_meta)
    given = {x.untyped_storage()._cdata for x in flat((args, kwargs)) if isinstance(x, torch.Tensor)}
    try:
        made = flat(operation.call(*args, **kwargs))  # type: ignore[misc]
    except Exception:
        return rules.makes_memory(operation.name)
    memory = [x.untyped_storage()._cdata for x in made if isinstance(x, torch.Tensor)]
    return given.isdisjoint(memory) and len({*memory}) == len(memory)


def computed_of(tracer: ModelView, ref: SharedRef) -> SharedRef | None:
    """What a function of parameters shows, as far as it is memory of its own; None where it shows a parameter."""
    tensor, num_steps = tracer.shared(SharedRef(ref.name)).detach(), 0
    for number, view in enumerate(ref.views, 1):
        given = [tensor]

        def shared(other: SharedRef, given: list[torch.Tensor] = given) -> torch.Tensor:
            given.append(tracer.shared(other).detach())
            return given[-1]

        tensor = view.apply(tensor, shared)
        if tensor.untyped_storage()._cdata not in {x.untyped_storage()._cdata for x in given}:
            num_steps = number
    return ref._replace(views=ref.views[:num_steps]) if num_steps else None


def is_apart(operation: Operation, tracer: ModelView) -> bool:
    """Whether what a node of an operation gives is memory of its own; where that is not known, no."""
    if operation.members or operation.name in _PARTS:
        return False
    return tracer.makes_memory(operation) if operation.call is None else makes_memory(operation, tracer.shared)


def has_own_memory(rec: Recorder, entry: Entry) -> bool:
    """`is_apart` of an entry's nodes, asked once."""
    known = rec.is_apart.get(entry.index)
    if known is None:
        known = rec.is_apart[entry.index] = is_apart(entry.operation, rec.tracer)
    return known


def _moves(rec: Recorder) -> bool:
    """Whether code is run that moves operations (`code.regions`), maybe across the change, or that is kept."""
    return rec.before_books is not None or bool(rec.keeping) or rec.symbolic


def is_alone(rec: Recorder, name: Any) -> bool:
    """Definition (4); no where that is not known. Linear in the nodes since the name's own, of which it sees
    MOST_SINCE."""
    if type(name) is not Value or rec.before_books is not None:
        return False
    if rec.reading is not None and not name.slot.floats:  # it may be read later (`standins.unread`)
        return False
    ref = name.ref
    if ref in rec.shown_wholes:
        return False
    wholes = rec.wholes.get(id(ref), ())
    if not all(whole.is_forgotten(is_alone) for whole in wholes if any(one is ref for one in whole.refs)):
        return False
    is_copy, others = type(ref) is Copied, sys.getrefcount(ref) - _ALONE
    if is_copy and not others:
        return True
    if not is_copy and (ref < rec.first_value or ref <= rec.last_stacked):
        return False
    if name.slot.views and _overlaps(rec, name.slot.base.shape, name.slot.views):
        return False
    value, place = rec.next_value, len(rec.refs)
    for index in reversed(rec.entries[-MOST_SINCE:]):
        if index < 0:  # a run (`capture.ragged`), which reads what it had when rows were last put side by side
            program = rec.table.programs[-1 - index]
            end, place = place, place - 3 * program.num_args
            sizes = rec.refs[place + 2 : end : 3]
            value -= sum(size_of(count, sizes) for count in program.counts)
            if value <= ref:
                return False
            continue
        entry = rec.table.entries[index]
        value -= len(entry.output_slots)
        if value <= ref:
            return not others and has_own_memory(rec, entry)
        if others:
            end, place = place, place - entry.num_operands
            uses = sum(operand is ref for operand in rec.refs[place:end])
            if uses and not has_own_memory(rec, entry):
                return False
            others -= uses
            if is_copy and not others:
                return True
    return False


def _references_of_one() -> int:
    """References that `is_alone` counts to the ref of a name that nobody else holds."""
    name = Value()
    name.ref = 1 << 60
    ref = name.ref + 1
    name.ref = ref
    del ref
    return _count(name)


def _count(name: Value) -> int:
    ref = name.ref
    return sys.getrefcount(ref)


_ALONE = _references_of_one()
_PARTS = frozenset(("select", EXCERPT))
"""Nodes that show a part of their operand's memory, in eager."""


class KeepsBooks(TorchFunctionMode):
    """Sees the torch functions that forward calls on real tensors, definition (3)."""

    def __init__(self, rec: Recorder):
        super().__init__()
        self.rec = rec

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        changes, kwargs = self.rec.books, kwargs or {}
        if changes is None or func in _OF_DEVICE:
            return func(*args, **kwargs)
        if changes.has_stand_in((args, kwargs)):
            args, kwargs = mapped(changes.stand_in, (args, kwargs))
            if func is torch.Tensor.__getitem__:
                args = args[0], as_python_has_it(args[1])
            return self.rec.function(func, args, kwargs, rules.name_of(func))
        if func in FILLS_BY_CHANCE and self.rec.tracer.may_draw and changes.is_fresh(args[0]):
            return self.rec.function(func, args, kwargs, rules.name_of(func))
        result = func(*args, **kwargs)
        if func in _UNSET:  # as what memory holds by chance is no graph that comes twice
            with torch._C.DisableTorchFunction():
                result.zero_()
        if type(result) in _MADE:
            copied = func is torch.Tensor.__deepcopy__  # into a memo that holds what it makes
            changes.made(result, (args[:1] if copied else args, kwargs))
        return result


_OF_DEVICE = frozenset((
    *[getattr(torch.Tensor, name).__get__ for name in ("device", "is_cpu", "is_meta", "dtype", "layout")],
    torch.Tensor.get_device, torch.Tensor.is_floating_point,
))  # fmt: skip
"""What a fresh tensor tells though a stand-in stands in its place, whose shape and dtype are a meta tensor's."""
_UNSET = (torch.empty, torch.empty_like, torch.Tensor.new_empty)
_MADE = (torch.Tensor, tuple, list)
"""What functions return that make tensors: most that see every call of torch's tell sizes and dtypes."""


def _memory(tensor: torch.Tensor) -> int | None:
    """What names a tensor's memory; nothing of a sparse one, which has several."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None


def _is_among(tensor: torch.Tensor, tree: Any) -> bool:
    """Whether a tensor itself is in a nest; nothing is made where it is flat."""
    for item in tree.values() if type(tree) is dict else tree:
        if item is tensor:
            return True
        if type(item) in (tuple, list, dict) and item and _is_among(tensor, item):
            return True
    return False


def written(whole: torch.Tensor, positions: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """`whole` with the elements at some positions, counted in the order of its elements, replaced."""
    return whole.reshape(-1).scatter(0, positions.reshape(-1), new.reshape(-1)).view(whole.shape)


def replaced(whole: torch.Tensor, is_shown: torch.Tensor, new: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The same where of each dimension one number is shown or all, which `is_shown`, 0 elsewhere, tells: element-wise,
    and so native. `shape` is that of what is shown, with its dimensions of one."""
    return torch.where(is_shown != 0, new.reshape(shape), whole)


def _shown_by_numbers(path: tuple[View, ...], content: Value) -> tuple[tuple[int, ...], torch.Tensor] | None:
    """What `replaced` is given of a single step of indexing that shows one number of some dimensions, else None."""
    if len(path) != 1 or path[0].function is not torch.Tensor.__getitem__ or not content.dtype.is_floating_point:
        return None
    index = path[0].template[0][1]
    steps, sizes = index if type(index) is tuple else (index,), tuple(content.shape)
    if len(steps) > len(sizes) or not {*map(type, steps)} <= {int, slice}:
        return None
    cut = [d for d, step in enumerate(steps) if step != slice(None)]
    if any(isinstance(step := steps[d], slice) and len(range(*step.indices(sizes[d]))) != 1 for d in cut):
        return None
    is_shown = torch.zeros([size if d in cut else 1 for d, size in enumerate(sizes)], dtype=content.dtype)
    is_shown[tuple(steps)] = 1
    return tuple(1 if d in cut else size for d, size in enumerate(sizes)), is_shown


def _columns(path: tuple[View, ...], shape: tuple[int, ...]) -> tuple[int, range] | None:
    """The dimension behind the first of which a single step of indexing shows a range, and all of the others."""
    if len(path) != 1 or path[0].function is not torch.Tensor.__getitem__:
        return None
    index = path[0].template[0][1]
    steps = index if type(index) is tuple else (index,)
    cut = [d for d, step in enumerate(steps) if step != slice(None)]
    if len(cut) != 1 or not cut[0] or {*map(type, steps)} != {slice} or len(steps) > len(shape):
        return None
    numbers = range(*steps[cut[0]].indices(shape[cut[0]]))
    return (cut[0], numbers) if numbers and numbers.step == 1 else None


def _joined(rec: Recorder, content: Value, dim: int, numbers: range, new: Value) -> Value:
    """The content with another part, put together of what is before it, the part, and what is after it."""
    pieces = ((0, numbers.start), None, (numbers.stop, content.shape[dim] - numbers.stop))
    parts = [
        new if piece is None else rec.function(torch.narrow, (content, dim, *piece), {})
        for piece in pieces
        if piece is None or piece[1]
    ]
    if len(parts) == 1:
        return _instead(rec, content, new)
    result: Value = rec.as_value(rec.function(torch.cat, (parts, dim), {}))
    return result


def _positions(path: tuple[View, ...], shape: tuple[int, ...]) -> torch.Tensor:
    elements = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return through(path, elements).contiguous()


def _is_seen_in_place(content: Value, path: tuple[View, ...]) -> bool:
    """Whether a chain of views shows the content itself, where some (`reshape`, `contiguous`) may show a copy."""
    whole = torch.empty(tuple(content.shape), device="meta")
    seen = through(path, whole, content.rec.shared_meta)
    return seen.untyped_storage()._cdata == whole.untyped_storage()._cdata


def _overlaps(rec: Recorder, shape: tuple[int, ...], views: tuple[View, ...]) -> bool:
    """Whether a chain of views of a tensor of some shape shows one element in several places (`expand`)."""
    key = shape, views
    known = rec.overlaps.get(key)
    if known is None:
        seen = through(views, torch.empty(shape, device="meta"), rec.shared_meta)
        known = rec.overlaps[key] = any(n > 1 and not s for n, s in zip(seen.shape, seen.stride(), strict=True))
    return known


_OPERATORS = {
    "iadd": torch.add, "isub": torch.sub, "imul": torch.mul, "idiv": torch.true_divide,
    "ifloordiv": torch.floor_divide, "imod": torch.remainder, "ipow": torch.pow, "iand": torch.bitwise_and,
    "ior": torch.bitwise_or, "ixor": torch.bitwise_xor, "ilshift": torch.bitwise_left_shift,
    "irshift": torch.bitwise_right_shift,
}  # fmt: skip
_SEEN_OTHERWISE = frozenset("t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_".split())
"""They change how one name shows its memory, not what is in it."""


class OfChange(NamedTuple):
    """A call that changes each element alone, with the function of the same name that computes them `anew`."""

    anew: Any
    func: Any
    name: str


def changed_alone(rec: Recorder, name: Any, new: Any) -> Any:
    """A name that is alone, which shows from now on what was computed of it."""
    if type(new) is Value and new.slot is name.slot and rec.flows:
        show(rec, name, new.ref)
        return name
    rec.books = Changes(rec)
    try:
        return rec.change(name, new)
    finally:
        rec.books = None


def is_filled_by_chance(rec: Recorder, func: Any, args: tuple[Any, ...]) -> bool:
    """Whether what nobody has looked at yet is to hold random numbers."""
    return func in FILLS_BY_CHANCE and rec.tracer.may_draw and type(args[0]) is Made and args[0].is_its_own()


def change_in_place(
    rec: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any = None
) -> Any:
    """Record a torch function that changes a tensor: the same function out of place, and the names that show it. Where
    the name is alone, the call is known by `key` from then on."""
    if is_filled_by_chance(rec, func, args):
        return turned(args[0], DRAWN[name](rec, name, *args, **kwargs))
    anew: Any = _OPERATORS.get(name) or (getattr(torch.Tensor, name[:-1], None) if rules.is_pointwise(name) else None)
    target = _name_alone(rec, args[0]) if rec.books is None and anew is not None and not kwargs else None
    if target is not None:
        result = changed_alone(rec, target, rec.function(anew, (target, *args[1:]), {}))
        if key is not None and target is args[0]:
            rec.functions[key] = OfChange(anew, func, name)
        return result
    if rec.books is None and kwargs.get("inplace") is True and is_alone(rec, args[0]):
        return changed_alone(rec, args[0], rec.function(func, args, {**kwargs, "inplace": False}))
    out = kwargs.get("out")
    with changing(rec, args[0] if out is None else out) as target:
        if out is not None:
            rest = {key: value for key, value in kwargs.items() if key != "out"}
            return rec.change(target, rec.function(func, args, rest), overwrites=True)
        return _changed(rec, func, name, (target, *args[1:]), kwargs)


def _name_alone(rec: Recorder, item: Any) -> Any:
    """The name of what torch is told to change, where it is alone; None where it is not."""
    if issubclass(type(item), Lazy) and not _moves(rec):
        return item.name_of_its_own(is_alone)
    return item if is_alone(rec, item) else None


@contextmanager
def changing(rec: Recorder, item: Any) -> Iterator[Any]:
    """The name that is changed when torch is told to change `item`, and books in which it may change: those that are
    kept, or some for this change where it is alone. Raises MustKeepBooks where it is not."""
    if rec.books is not None:
        yield rec.books.name_of(item)
        return
    name = _name_alone(rec, item)
    if name is None:
        raise MustKeepBooks(type(item))
    rec.books = Changes(rec)
    try:
        yield name
    finally:
        rec.books = None


def _changed(rec: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = args[0]
    if kwargs.get("inplace") is True:
        return rec.change(target, rec.function(func, args, {**kwargs, "inplace": False}))
    if name == "setitem":
        return _set_item(rec, target, as_python_has_it(args[1]), args[2])
    if name in _SEEN_OTHERWISE:
        seen = rec.function(getattr(torch.Tensor, name[:-1]), args, kwargs)
        return rec.open_books().turn(target, seen)
    _refuse_reading_what_changes(rec, name, target, args[1:], kwargs)
    new = _out_of_place(rec, name, args, kwargs)
    return rec.change(target, new, overwrites=name in DRAWN or name in ("zero_", "fill_", "copy_"))


def _refuse_reading_what_changes(rec: Recorder, name: str, target: Any, args: Any, kwargs: Any) -> None:
    """What eager reads of a tensor that it is changing depends on the order of its loops, unless each element depends
    on its own alone."""
    if type(target) is not Value or name in _OPERATORS or name == "copy_" or rules.is_pointwise(name):
        return
    books = rec.open_books()
    memory = books.memory_of(target)
    if any(type(x) is Value and books.memory_of(x) is memory for x in flat(args, kwargs)):
        refuse(f"'{name}' was told to read the tensor that it changes", "give it a copy (x.clone())")


def _out_of_place(rec: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, *rest = args
    if name == "zero_":
        return rec.function(torch.zeros_like, (target,), {})
    if name == "fill_":
        return _filling(rec, target, *rest, **kwargs)
    if name == "copy_":
        return rec.function(torch.broadcast_to, (rest[0], tuple(target.shape)), {})
    if name in DRAWN and rec.tracer.may_draw:
        return DRAWN[name](rec, name, *args, **kwargs)
    function: Any = _OPERATORS.get(name) or getattr(torch.Tensor, name.removesuffix("_"), None)
    if function is None or not (name in _OPERATORS or name.endswith("_")):
        refuse(f"a recorded tensor was changed in place ({name})", "write the result to a new variable (h = h + x)")
    return rec.function(function, args, kwargs)


def _filling(rec: Recorder, target: Any, value: Any) -> Any:
    """A tensor like `target` with one value, which may be recorded."""
    if isinstance(value, torch.Tensor):
        value = rec.function(torch.Tensor.to, (rec.as_value(value), target.dtype), {})
        return rec.function(torch.Tensor.expand, (value, tuple(target.shape)), {})
    return rec.function(torch.full_like, (target, value), {})


def assign_item(rec: Recorder, buffer: Buffer, index: tuple[Any, ...], value: Any) -> None:
    """`buffer[index] = value`: the rows that it shows become others. Linear in these."""
    by_rows = _by_rows(index, len(buffer.items), value)
    if by_rows is None:
        change_in_place(rec, torch.Tensor.__setitem__, "setitem", (buffer, index, value), {})
    elif _moves(rec) or not rec.flows:
        raise MustKeepBooks
    else:
        _assign(rec, buffer, by_rows, value)


def _by_rows(index: tuple[Any, ...], count: int, value: Any) -> tuple[Any, ...] | None:
    """An index of so many rows by integers and ranges, by a list of integers, or by a mask of the instance's; None for
    others, and for a list that names a row more than once: eager gives a gradient to all that is written there, though
    the last one stays."""
    if len(index) == 1 and type(index[0]) is int:
        return index
    mask: Any = index[0] if len(index) == 1 and type(index[0]) is torch.Tensor else None
    if mask is not None and mask.dtype is torch.bool and mask.shape == (count,):
        return (mask.nonzero().reshape(-1).tolist(),)
    numbers = listed(index[0]) if len(index) == 1 else None
    if numbers is not None:
        is_once = not isinstance(value, torch.Tensor) or len({n % count for n in numbers if count}) == len(numbers)
        return (numbers,) if is_once else None
    is_plain = {*map(type, index)} <= _PLAIN and all(getattr(step, "step", None) in (None, 1) for step in index)
    return index if is_plain else None


def assigns_rows(rec: Recorder, rows: Ragged, index: Any, value: Any) -> bool:
    """`rows[index] = value` where that makes a buffer of these: nobody else shows their memory, by ranges and integers.
    False where it is for the books, or for who keeps what is recorded."""
    is_view = rows.at or rows.of is not None
    if is_view or rec.keeping or rec.symbolic or rec.books is not None or not rec.flows or len(rows.refs) > MOST_ROWS:
        return False
    index = as_python_has_it(index)
    by_rows = _by_rows(index if type(index) is tuple else (index,), len(rows.refs), value)
    if by_rows is None or not (rows.is_own or (rows.taken is not None and _are_unseen(rec, rows.taken))):
        return False
    are_listed = type(by_rows[0]) is list and rows.is_own and type(value) is Ragged
    if are_listed and len({*by_rows[0]}) < len(rows.refs):  # of all, what they were has a gradient nevertheless
        return not by_rows[0]  # they get one name together (`ragged.across`), and no rows of their own
    rec.has_buffers = True
    assign_item(rec, turned_buffer(rows), by_rows, value)
    return True


def _are_unseen(rec: Recorder, refs: list[int]) -> bool:
    """Whether no name has any of these refs, and no node that may show its operand's memory: as `is_alone`."""
    held = {id(ref): sys.getrefcount(ref) - _IN_A_LIST for ref in refs}
    place = len(rec.refs)
    for index in reversed(rec.entries[-MOST_SINCE:]):
        if not any(held.values()):
            return True
        if index < 0:
            place -= 3 * rec.table.programs[-1 - index].num_args
            continue
        entry = rec.table.entries[index]
        end, place = place, place - entry.num_operands
        for operand in rec.refs[place:end]:
            if id(operand) in held and has_own_memory(rec, entry):
                held[id(operand)] -= 1
    return not any(held.values())


_IN_A_LIST = 3
"""References to what a list holds: its own, the loop's variable, and the asking."""


_PLAIN = {int, slice}


def _assign(rec: Recorder, buffer: Buffer, index: Sequence[Any], value: Any) -> None:
    while True:
        if buffer.showing is not None and not buffer.showing.is_forgotten(is_alone):
            raise MustKeepBooks
        if type(index[0]) is not int:
            _assign_rows(rec, buffer, index, value)
            return
        number, index = index[0], index[1:]
        row = buffer.row(number) if not index or all(step == slice(None) for step in index) else None
        if row is not None and type(row) is not Buffer:
            _assign_row(rec, buffer, row, value)
            return
        is_span = row is None and type(buffer.items[number]) is not Buffer and _is_span(buffer, index, value)
        part = None if is_span else buffer.split(number, is_alone) if row is None else row
        if part is None:
            with changing(rec, buffer.row(number)) as target:
                _set_item(rec, target, tuple(index), value)
            return
        buffer, index = part, index or (slice(None),)


def _is_span(buffer: Buffer, index: Sequence[Any], value: Any) -> bool:
    """Whether many elements of a row from its start on, or up to its end, become a recorded vector (`out[t, :size] =
    h`): one node, of a type for each of the vector's, where elements would be a node each."""
    if len(index) != 1 or type(index[0]) is not slice or type(value) is not Value or value.ndim != 1:
        return False
    size = buffer.described.shape[1:]
    places = range(*size)[index[0]] if len(size) == 1 else range(0)
    is_at_an_end = bool(places) and (places[0] == 0 or places[-1] == size[0] - 1)
    return is_at_an_end and len(places) == value.shape[0] >= MANY


MANY = 8
"""Elements from which on they are no nodes of their own."""


def _assign_rows(rec: Recorder, buffer: Buffer, index: Sequence[Any], value: Any) -> None:
    numbers, has_rows = index[0] if type(index[0]) is list else range(len(buffer.items))[index[0]], False
    sizes = buffer.described.shape[1:]
    steps = [*zip(sizes, index[1:], strict=False)]
    if len(steps) < len(index) - 1 or any(type(step) is int and not -size <= step < size for size, step in steps):
        buffer._meta()[tuple(index)]  # which raises
    seen = (
        len(numbers), *[len(range(size)[step]) for size, step in steps if type(step) is slice], *sizes[len(steps) :]
    )  # fmt: skip
    if isinstance(value, torch.Tensor):
        are_rows = issubclass(type(value), Lazy) and value.rows() is not None  # type: ignore[attr-defined]
        value = value if are_rows else rec.as_value(value)
        while value.ndim > len(seen) and value.shape[0] == 1:
            value = value.squeeze(0)
        if tuple(value.shape) != seen:
            torch.broadcast_to(value._meta(), seen)
        has_rows = value.ndim == len(seen)
    if has_rows and value.shape[0] == 1:  # no node, as an element would be
        value, has_rows = value.squeeze(0), False
    for k, number in enumerate(numbers):
        row = value[k] if has_rows else value
        _assign(rec, buffer, (number, *index[1:]), row)


def _assign_row(rec: Recorder, buffer: Buffer, row: Any, value: Any) -> None:
    if value is row:  # after `buffer[i] += x`
        return
    row = row if type(row) is Value else row.materialise()  # a buffer that has changed as a whole
    if not is_alone(rec, row):
        raise MustKeepBooks
    new = value if type(value) is Value and value.slot is row.slot else _fitting(rec, row, _as_part(rec, row, value))
    if not buffer.is_blank(row):
        new = _instead(rec, row, new)
    show(rec, row, Copied(new.ref))
    row.slot = new.slot


def _instead(rec: Recorder, old: Value, new: Value) -> Value:
    """A new value where another was, which has a gradient nevertheless: zeros."""
    no, key = rec.shared_constant(_instead, partial(torch.zeros, ())), (_instead, old.slot, new.slot)
    known = rec.functions.get(key)
    if known is not None:
        return rec.emit(known, (no.ref, old.ref, new.ref))
    return rec.node(instead, (no, old, new), {}, key=key)


def instead(no: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """What `_instead` records, of a number that is not positive: kernels read numbers, not truth values."""
    return torch.where(no > 0, old, new)


def _fitting(rec: Recorder, name: Value, new: Any) -> Value:
    """What a name may become. Raises RuntimeError, as eager, for shapes and dtypes that do not fit."""
    if type(new) is Value and new.slot is name.slot:
        return new
    if tuple(new.shape) != tuple(name.shape):
        raise RuntimeError(f"output with shape {list(name.shape)} doesn't match the broadcast shape {list(new.shape)}")
    if new.dtype is not name.dtype:
        if not torch.can_cast(new.dtype, name.dtype):
            raise RuntimeError(f"result type {new.dtype} can't be cast to the desired output type {name.dtype}")
        new = rec.function(torch.Tensor.to, (new, name.dtype), {})
    return new if type(new) is Value else rec.as_value(new)


def _set_item(rec: Recorder, target: Any, index: Any, value: Any) -> None:
    """`target[index] = value`."""
    if rules.is_constant_index(index):
        part = target[index]
        if value is not part and not rec.open_books().is_same(part, value):
            rec.change(part, _as_part(rec, part, value), overwrites=True)
        return
    indices = tuple(
        torch.tensor(i, dtype=None if i else torch.long) if isinstance(i, list) else i
        for i in (index if type(index) is tuple else (index,))
    )
    if not all(isinstance(i, torch.Tensor) for i in indices):
        where: Any = torch.arange(target.shape.numel()).reshape(target.shape)
        are_recorded = any(isinstance(i, Symbol) for i in indices)
        where = (
            rec.function(torch.Tensor.__getitem__, (rec.constant(where), index), {}) if are_recorded else where[index]
        )
        new = rec.function(torch.Tensor.to, (_scalar(rec, target, value), target.dtype), {})
        new = rec.function(torch.broadcast_to, (new, tuple(where.shape)), {})
        rec.change(target, rec.function(written, (target, where, new), {}, "written"))
        return
    if len(indices) == 1 and indices[0].dtype is torch.bool and indices[0].shape == target.shape:
        new = _scalar(rec, target, value)
        if not new.shape.numel():
            return  # what a mask shows that shows nothing
        if new.shape.numel() > 1:  # one for each place that the mask shows, in their order
            rec.change(target, rec.function(torch.masked_scatter, (target, indices[0], new), {}))
        else:
            rec.change(target, rec.function(torch.where, (indices[0], new.reshape(()), target), {}))
        return
    value = rec.function(torch.Tensor.to, (_scalar(rec, target, value), target.dtype), {})
    rec.change(target, rec.function(torch.index_put, (target, indices, value), {}))


def _scalar(rec: Recorder, target: Any, value: Any) -> Any:
    return rec.as_value(value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=target.dtype))


def _as_part(rec: Recorder, part: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return rec.function(torch.full_like, (part, value), {})
    value = rec.as_value(value)
    while value.ndim > part.ndim and value.shape[0] == 1:
        value = value[0]
    return value if value.shape == part.shape else rec.function(torch.broadcast_to, (value, tuple(part.shape)), {})
