"""The text of signatures: constants, keywords, shared parameters and views, so that equal text means equal work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from edbc.base.graph import NodeType, ValueClass
from edbc.capture.standins.standin import Slot, class_of

if TYPE_CHECKING:
    from edbc.capture.record.table import Operation


def item_text(item: Any) -> str:
    """One argument. Places of operands print as `_`, parameters by name."""
    if isinstance(item, slice):
        parts = ["" if x is None else str(x) for x in (item.start, item.stop)]
        return ":".join(parts) + (f":{item.step}" if item.step is not None else "")
    if isinstance(item, tuple | list) and not hasattr(item, "_fields"):
        inner = ", ".join(map(item_text, item))
        return f"[{inner}]" if isinstance(item, list) else f"({inner})"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{key}: {item_text(value)}" for key, value in item.items()) + "}"
    if item is Ellipsis:
        return "..."
    if callable(item):
        return getattr(item, "__qualname__", type(item).__name__)
    return str(item) if isinstance(item, torch.dtype) else repr(item)


def arguments_text(template: Any) -> str:
    """Arguments and keywords of a call."""
    args, kwargs = template
    return ", ".join([*map(item_text, args), *(f"{k}={item_text(v)}" for k, v in kwargs.items())])


def constants_text(template: Any, slots: tuple[Slot, ...], plain_call: bool = False) -> str:
    """Canonical text of what is in a signature besides the classes of its operands; empty when there is nothing."""
    text = arguments_text(template)
    plain = ", ".join(["_"] * len(slots))
    views = "; ".join(f"{i}{slot.text.removeprefix(str(slot.base))}" for i, slot in enumerate(slots) if slot.views)
    if text == plain and (plain_call or slots):
        text = ""
    return "; ".join(part for part in (text, views) if part)


def written(operation: Operation) -> tuple[Any, ...]:
    """What operations of several tables have in common that compute the same."""
    slots = tuple(slot.text for slot in operation.slots)
    text = arguments_text(operation.template)
    return operation.kind, operation.name, operation.call, text, slots, operation.draws, operation.autocast


def view_text(name: str, template: Any) -> str:
    """A step of a chain of views, as it is written after what it is taken of."""
    args, kwargs = template
    if name == "getitem":
        index = args[1]
        inner = ", ".join(map(item_text, index)) if isinstance(index, tuple) else item_text(index)
        return f"[{inner}]"
    if args and type(args[0]).__name__ == "Hole":
        args = args[1:]
    rest = ", ".join([*map(item_text, args), *(f"{k}={item_text(v)}" for k, v in kwargs.items())])
    return f".{name}({rest})"


def call_type(
    path: str,
    kind: str,
    template: Any,
    slots: tuple[Slot, ...],
    classes: tuple[ValueClass, ...],
    drawn: int = 0,
) -> NodeType:
    """The type of a call of a cell or a module of torch.nn; the last slots are `drawn` random ones."""
    passed = slots[: len(slots) - drawn]
    return NodeType(_short_name(path), f"{kind} {path}", tuple(slot.base for slot in slots), classes,
                    constants_text(template, passed, plain_call=True), drawn=drawn)  # fmt: skip


def _short_name(path: str) -> str:
    """A module's dotted name from the last part on that begins with a letter, so that numbers follow their list's name.
    What a plan's names may not hold (any text can be the key of an nn.ModuleDict) is an underscore."""
    parts = re.sub(r"[^A-Za-z0-9_.]", "_", path).split(".")
    first = max((i for i, part in enumerate(parts) if re.match("[A-Za-z_]", part)), default=None)
    return "_".join(parts[first:] if first is not None else ["model", *filter(None, parts)])


def function_type(name: str, template: Any, slots: Sequence[Slot], metas: Sequence[torch.Tensor]) -> NodeType:
    """The type of a torch function."""
    return NodeType(name, f"torch.{name}", tuple(slot.base for slot in slots), tuple(map(class_of, metas)),
                    constants_text(template, tuple(slots)))  # fmt: skip
