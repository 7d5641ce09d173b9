"""Define-by-run capture: the user's `forward(instance)` runs on stand-ins and leaves a record of its nodes.

The programming model is DyNet's (Neubig et al., "On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS
2017, section 2): Python runs per instance, so recursion, loops and any code over the input's structure work; what it
builds is a graph. Two things differ from DyNet: a module marked as a cell is one node (Cavs's vertex function, Xu et
al., 2018), and look-ups, constants and views are operands instead of nodes.

A recorder is used by one thread at a time. Its hot path, a call of a cell with recorded tensors, is a dictionary
look-up by slots, two list appends per node and one small object per output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from edbc.errors import EdbcError, UnsupportedError
from edbc.graph import ValueClass
from edbc.trace import rules
from edbc.trace.source import assigned_name, user_location
from edbc.trace.table import Entry, Hole, Operation, SharedRef, TypeTable, View, fill
from edbc.trace.values import Rows, Shared, Slot, Value, class_of, refuse


@dataclass(frozen=True, eq=False)
class Recording:
    """What the instances of one mini-batch did, as flat lists; `trace.build` makes a Graph of it."""

    table: TypeTable
    entries: list[int]
    """Entry of each node."""
    refs: list[int]
    """Operands of all nodes, node after node: `ref` of values (see `trace.values`)."""
    external_source: list[int]
    external_index: list[int]
    external_slot: list[Slot]
    constants: dict[int, list[torch.Tensor]]
    """Constants by source."""
    results: list[Any]
    """What each instance's forward returned, with Values in it."""
    names: dict[int, str]
    """Local variable that each node's first output was assigned to, where recorded (inside cells only)."""


class Recorder:
    """Records mini-batches of one model. `name_values` also notes the user's variable names, for cells."""

    def __init__(self, table: TypeTable, device: torch.device | None = None, name_values: bool = False):
        self.table = table
        self.device = device or torch.device("cpu")
        self.name_values = name_values
        self._functions: dict[Any, Entry] = {}
        self._view_slots: dict[Any, Any] = {}
        self._shared_views: dict[Any, Any] = {}
        self._calls: dict[str, dict[Any, Entry]] = {}
        self._sums: dict[Slot, Entry] = {}
        self._tracer: CellTracer | None = None
        self.begin()

    def begin(self) -> None:
        """Forget the last mini-batch."""
        self.entries: list[int] = []
        self.refs: list[int] = []
        self.num_values = 0
        self.external_source: list[int] = []
        self.external_index: list[int] = []
        self.external_slot: list[Slot] = []
        self.constants: dict[int, list[torch.Tensor]] = {}
        self._constant_of_id: dict[int, tuple[torch.Tensor, Value]] = {}
        self._whole: dict[int, Value] = {}
        self.names: dict[int, str] = {}

    def finish(self, results: list[Any]) -> Recording:
        """The record of what has run since `begin`."""
        return Recording(self.table, self.entries, self.refs, self.external_source, self.external_index,
                         self.external_slot, self.constants, results, self.names)  # fmt: skip

    # --- externals -------------------------------------------------------------------------------------------------

    def external(self, source: int, index: int, slot: Slot) -> Value:
        """A new external: item `index` of a source."""
        self.external_source.append(source)
        self.external_index.append(index)
        self.external_slot.append(slot)
        return Value(self, -len(self.external_source), slot)

    def constant(self, tensor: torch.Tensor) -> Value:
        """The external for a tensor that the instance or the user's code brought; one per tensor and mini-batch."""
        known = self._constant_of_id.get(id(tensor))
        if known is not None:
            return known[1]
        value_class = class_of(tensor)
        source = self.table.constant_source(value_class)
        pool = self.constants.setdefault(source, [])
        pool.append(tensor.detach())
        value = self.external(source, len(pool) - 1, self.table.slot(value_class))
        self._constant_of_id[id(tensor)] = (tensor, value)
        return value

    def whole(self, shared: Shared) -> Value:
        """The external for a parameter passed as an operand (a learned initial state)."""
        value = self._whole.get(id(shared))
        if value is None:
            source = self.table.source(shared.ref(), shared.tensor, kind="whole")
            value = self.external(source, 0, self.table.slot(class_of(shared.tensor)))
            self._whole[id(shared)] = value
        return value

    # --- nodes -----------------------------------------------------------------------------------------------------

    def emit(self, entry: Entry, operands: Sequence[int]) -> Any:
        """Append a node and return what the user's call returns."""
        if self.name_values:
            name = assigned_name()
            if name is not None:
                self.names[len(self.entries)] = name
        self.entries.append(entry.index)
        self.refs.extend(operands)
        first = self.num_values
        self.num_values = first + len(entry.output_slots)
        values = [Value(self, first + i, slot) for i, slot in enumerate(entry.output_slots)]
        return values[0] if type(entry.outputs) is Hole else fill(entry.outputs, values)

    def add(self, left: Any, right: Any) -> Any:
        """`left + right`; adding nothing (`sum(list)` starts with 0) is no node."""
        if type(left) is Value and type(right) is Value and left.slot is right.slot:
            entry = self._sums.get(left.slot)
            if entry is not None:
                return self.emit(entry, (left.ref, right.ref))
        for zero, other in ((left, right), (right, left)):
            if type(zero) in (int, float) and zero == 0 and type(other) is Value and other.is_floating_point():
                return other
        return self.function(torch.add, (left, right), {})

    def call(self, path: str, kind: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the call of a cell or leaf module whose arguments are not all plain recorded values."""
        operands: list[int] = []
        slots: list[Slot] = []
        key, template = self._describe((args, kwargs), operands, slots, shared_as_operand=True)
        calls = self._calls.setdefault(path, {})
        entry = calls.get(key)
        if entry is None:
            entry = self._new_call(path, kind, module, template, tuple(slots))
            calls[key] = entry
        return self.emit(entry, operands)

    def function(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                 name: str | None = None) -> Any:  # fmt: skip
        """Record a torch function or tensor method."""
        operands: list[int] = []
        slots: list[Slot] = []
        key, template = self._describe((args, kwargs), operands, slots)
        key = (func, key)
        entry = self._functions.get(key)
        if entry is not None:
            return self.emit(entry, operands)
        name = name or rules.name_of(func)
        self._refuse_what_cannot_be_batched(func, name, args, kwargs)
        special = self._special(func, name, args, kwargs)
        if special is not NotImplemented:
            return special
        if name in rules.VIEWS and self._is_view(name, args):
            return self._view(func, name, key, template, args)
        entry = self._new_function(func, name, template, tuple(slots))
        self._functions[key] = entry
        return self.emit(entry, operands)

    # --- describing arguments --------------------------------------------------------------------------------------

    def _describe(self, tree: Any, operands: list[int], slots: list[Slot], shared_as_operand: bool = False) -> Any:
        """A hashable key and a template of (nested) arguments; values go to `operands` and `slots` as they are met."""

        def walk(item: Any) -> tuple[Any, Any]:
            kind = type(item)
            if kind is Value:
                operands.append(item.ref)
                slots.append(item.slot)
                return item.slot, Hole(len(slots) - 1)
            if kind is Shared:
                return walk(self.whole(item)) if shared_as_operand else (item, item.ref())
            if kind is Rows:
                return walk(item.materialise())
            if kind is tuple or kind is list:
                pairs = [walk(x) for x in item]
                return (kind, *[k for k, _ in pairs]), kind([t for _, t in pairs])
            if kind is dict:
                pairs = [walk(x) for x in item.values()]
                return (dict, *item, *[k for k, _ in pairs]), dict(zip(item, [t for _, t in pairs], strict=True))
            if kind is slice:
                return (slice, item.start, item.stop, item.step), item
            if isinstance(item, torch.Tensor):
                return walk(self.constant(item))
            if kind in (int, float, bool):
                return (kind, item), item
            try:
                hash(item)
            except TypeError:
                refuse(f"an operation got a {kind.__name__}", "pass tensors, numbers, strings and lists of them")
            return item, item

        return walk(tree)

    # --- new types -------------------------------------------------------------------------------------------------

    def _new_call(self, path: str, kind: str, module: nn.Module, template: Any, slots: tuple[Slot, ...]) -> Entry:
        operation = Operation(kind, path, None, template, slots)
        if self._tracer is None:
            raise UnsupportedError(f"{user_location()}: module {path} was called where only tensors are recorded")
        outputs, output_classes = self._tracer.output_classes(operation)
        constants = _constants_text(template, slots, plain_call=True)
        index = self.table.add_type(path.rsplit(".", 1)[-1] if path else "model", f"{kind} {path}",
                                    tuple(slot.base for slot in slots), output_classes, constants,
                                    source=user_location())  # fmt: skip
        return self.table.add_entry(index, operation, tuple(map(self.table.slot, output_classes)), outputs)

    def _new_function(self, func: Callable[..., Any], name: str, template: Any, slots: tuple[Slot, ...]) -> Entry:
        operation = Operation("function", name, func, template, slots)
        outputs, metas = split_outputs(run_on_meta(func, template, slots, self._shared_meta), name)
        classes = tuple(class_of(meta) for meta in metas)
        is_sum = (
            name == "add" and len(slots) == 2 and slots[0] is slots[1] and not slots[0].views
            and template == ((Hole(0), Hole(1)), {})
        )  # fmt: skip
        if is_sum:
            index = self.table.add_type("sum", "sum", (slots[0].base,), classes, variadic=True, source=user_location())
        else:
            index = self.table.add_type(name, f"torch.{name}", tuple(slot.base for slot in slots), classes,
                                        _constants_text(template, slots), source=user_location())  # fmt: skip
        entry = self.table.add_entry(index, operation, tuple(map(self.table.slot, classes)), outputs, is_sum)
        if is_sum:
            self._sums[slots[0]] = entry
        return entry

    def _shared_meta(self, ref: SharedRef) -> torch.Tensor:
        assert self._tracer is not None
        return self._tracer.shared(ref).to("meta")

    # --- what is not a node ----------------------------------------------------------------------------------------

    def _refuse_what_cannot_be_batched(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if rules.changes_in_place(func, name, kwargs):
            refuse(f"a recorded tensor was changed in place ({name})",
                   "another name may share the tensor; write the result to a new variable (h = h + x)")  # fmt: skip
        if name in rules.LOOKS:
            refuse(f"'{name}' asks for the value of a tensor while recording",
                   "the graph of a mini-batch must not depend on values; compute with the tensor (torch.where, gather), "
                   "move the decision into a cell, or take it from the instance")  # fmt: skip
        if name in rules.RANDOM and not (name in rules.ONLY_IN_TRAINING and not _is_training(args, kwargs)):
            refuse(f"'{name}' draws random numbers",
                   "its result would differ from eager execution; call model.eval(), or draw outside of forward")  # fmt: skip

    def _special(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Functions that are no node, or another node, in some cases."""
        if name in rules.ONLY_IN_TRAINING:
            return args[0]
        if name in rules.CASTS and type(args[0]) is Value:
            meta = args[0].slot.meta()
            if func(meta, *args[1:], **_without_device(kwargs)).dtype is meta.dtype:
                return args[0]
        if name == "embedding" and len(args) == 2 and type(args[1]) is Shared and type(args[0]) is torch.Tensor \
                and args[0].ndim <= 1 and not any(kwargs.get(k) for k in ("max_norm", "scale_grad_by_freq")):  # fmt: skip
            return args[1][args[0]]
        return NotImplemented

    def _is_view(self, name: str, args: tuple[Any, ...]) -> bool:
        if name == "getitem":
            return rules.is_constant_index(args[1])
        return type(args[0]) in (Value, Shared, Rows) and not any(type(a) in (Value, Shared, Rows) for a in args[1:])

    def _view(self, func: Any, name: str, key: Any, template: Any, args: tuple[Any, ...]) -> Any:
        value = args[0].materialise() if type(args[0]) is Rows else args[0]
        if name in rules.IDENTITIES:
            return value
        if type(value) is Shared:
            template = _replace_shared(template)
            outputs, shared = value.viewed(key, lambda tensor: _take_views(func, name, template, tensor))
            return fill(outputs, shared)
        known = self._view_slots.get(key)
        if known is None:
            slot = value.slot
            outputs, metas, views = _take_views(func, name, template, slot.meta())
            known = outputs, [
                self.table.slot(slot.base, (*slot.views, view), meta)
                for view, meta in zip(views, metas, strict=True)
            ]
            self._view_slots[key] = known
        outputs, slots = known
        values = [Value(self, value.ref, slot) for slot in slots]
        return values[0] if type(outputs) is Hole else fill(outputs, values)


class CellTracer:
    """What a recorder asks about cells and parameters; `trace.shadow.Shadow` implements it."""

    def output_classes(self, operation: Operation) -> tuple[Any, tuple[ValueClass, ...]]:
        """Template of the outputs of a cell or module and the class of each."""
        raise NotImplementedError

    def shared(self, ref: SharedRef) -> torch.Tensor:
        """The model's parameter or buffer behind a reference, with its views taken."""
        raise NotImplementedError


def run_on_meta(func: Callable[..., Any], template: Any, slots: Iterable[Slot],
                shared: Callable[[SharedRef], torch.Tensor]) -> Any:  # fmt: skip
    """What `func` returns for tensors without data; where it has no such form, for tensors of ones."""
    slots = list(slots)
    args, kwargs = fill(template, [slot.meta() for slot in slots], shared)
    try:
        return func(*args, **kwargs)
    except NotImplementedError:
        ones = [torch.ones(slot.shape, dtype=slot.dtype) for slot in slots]
        args, kwargs = fill(template, ones, lambda ref: torch.ones_like(shared(ref), device="cpu"))
        return func(*args, **kwargs)


def split_outputs(result: Any, name: str) -> tuple[Any, list[Any]]:
    """A template of a call's result and its tensors in order."""
    tensors: list[Any] = []

    def walk(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            return Hole(len(tensors) - 1)
        if isinstance(item, tuple) and type(item) is not tuple:  # torch.return_types, named tuples
            return tuple(map(walk, item)) if not hasattr(item, "_fields") else type(item)(*map(walk, item))
        if isinstance(item, tuple | list):
            return type(item)(map(walk, item))
        if isinstance(item, dict):
            return {key: walk(value) for key, value in item.items()}
        return item

    template = walk(result)
    if not tensors:
        refuse(f"{name} returned no tensor", "an operation on recorded tensors must return tensors")
    return template, tensors


def _take_views(func: Any, name: str, template: Any, tensor: torch.Tensor) -> tuple[Any, list[Any], list[View]]:
    """The views of a tensor that a call returns: template of the result, tensors, and the step that makes each."""
    args, kwargs = fill(template, [tensor])
    outputs, tensors = split_outputs(func(*args, **kwargs), name)
    single = type(outputs) is Hole
    text = _view_text(name, template)
    steps = [View(func, template, None if single else i, text + ("" if single else f"[{i}]"))
             for i in range(len(tensors))]  # fmt: skip
    return outputs, tensors, steps


def _replace_shared(template: Any) -> Any:
    """A template for a view of a parameter: the parameter itself becomes the hole."""
    args, kwargs = template
    return (Hole(0), *args[1:]), kwargs


def _is_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    flag = kwargs.get("training", args[2] if len(args) > 2 else True)
    return bool(flag) and kwargs.get("p", args[1] if len(args) > 1 else 0.5) != 0.0


def _without_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking")}


def _item_text(item: Any) -> str:
    if isinstance(item, slice):
        parts = ["" if x is None else str(x) for x in (item.start, item.stop)]
        return ":".join(parts) + (f":{item.step}" if item.step is not None else "")
    if isinstance(item, tuple | list) and not hasattr(item, "_fields"):
        inner = ", ".join(map(_item_text, item))
        return f"[{inner}]" if isinstance(item, list) else f"({inner})"
    if item is Ellipsis:
        return "..."
    return str(item) if isinstance(item, torch.dtype) else repr(item)


def _arguments_text(template: Any) -> str:
    args, kwargs = template
    return ", ".join([*map(_item_text, args), *(f"{k}={_item_text(v)}" for k, v in kwargs.items())])


def _constants_text(template: Any, slots: tuple[Slot, ...], plain_call: bool = False) -> str:
    """Canonical text of what is in a signature besides the classes of its operands; empty when there is nothing."""
    text = _arguments_text(template)
    plain = ", ".join(["_"] * len(slots))
    views = "; ".join(f"{i}{slot.text.removeprefix(str(slot.base))}" for i, slot in enumerate(slots) if slot.views)
    if text == plain and (plain_call or slots):
        text = ""
    return "; ".join(part for part in (text, views) if part)


def _view_text(name: str, template: Any) -> str:
    args, kwargs = template
    if name == "getitem":
        index = args[1]
        inner = ", ".join(map(_item_text, index)) if isinstance(index, tuple) else _item_text(index)
        return f"[{inner}]"
    rest = ", ".join([*map(_item_text, args[1:]), *(f"{k}={_item_text(v)}" for k, v in kwargs.items())])
    return f".{name}({rest})"


def call_user_code(what: str, function: Callable[[], Any]) -> Any:
    """Run the user's code; an exception of theirs keeps its traceback and gets a note that says which instance."""
    try:
        return function()
    except EdbcError as error:
        raise type(error)(f"{error} (while recording {what})") from error
    except Exception as error:
        error.add_note(f"while recording {what}")
        raise
