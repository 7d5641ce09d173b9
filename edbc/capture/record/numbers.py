"""Python numbers among the arguments of a call: constants of its type, or operands.

A number is part of a signature (`0.5` in `h * 0.5`), so that true constants cost nothing. A number that differs from
node to node (an edge's weight) would make a type per value and nothing would batch. So calls that have been made with
more than `LONG` different numbers take their numbers as operands from then on; and so do, from the start, calls whose
form with operands the plan knows, and, while a plan is made, those that an earlier recording of the sample found
(`TypeTable.lifted`), lest a plan have a type for each of the first numbers. Both forms compute the same; only how nodes
batch differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from edbc.base.graph import ValueClass
from edbc.capture.record.signature import call_type, function_type
from edbc.capture.record.table import Hole, Operation
from edbc.capture.semantics import rules
from edbc.capture.semantics.shapes import run_on_meta
from edbc.capture.standins.standin import Slot, Value, class_of
from edbc.errors import UnsupportedError

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

LONG = 8
"""Different numbers that a call may have as constants; also how long a dimension is of which taking one element that
is no excerpt (`record.excerpts`) is a view: of a longer one it is a node with the index as operand."""


def lift_number(rec: Recorder, func: Callable[..., Any], name: str, args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> tuple[Any, ...] | None:  # fmt: skip
    """The arguments of `h * 0.37` with the number as an operand, or None where it stays a constant."""
    if name not in rules.NUMERIC or rec.in_cell or kwargs or len(args) != 2:
        return None
    at = 1 if type(args[0]) is Value else 0
    number, value = args[at], args[1 - at]
    if type(number) not in (int, float) or type(value) is not Value or not value.dtype.is_floating_point:
        return None
    # A tensor without dimensions does not widen the result; float32 keeps the digits that eager computes with.
    dtype = torch.float32 if value.dtype.itemsize < 4 else value.dtype

    def is_planned() -> bool:
        scalar = rec.table.slot(ValueClass((), class_of(torch.empty(0, dtype=dtype)).dtype))
        slots = (value.slot, scalar) if at else (scalar, value.slot)
        template: Any = ((Hole(0), Hole(1)), {})
        metas = [run_on_meta(func, template, slots, rec.shared_meta)]
        return rec.table.is_planned(function_type(name, template, rec.table.as_shown(slots), metas).signature)

    if not _lifts(rec, (func, at, value.slot), number, is_planned):
        return None
    operand = rec.number(number, dtype)
    return (value, operand) if at else (operand, value)


def lift_floats(rec: Recorder, path: str, kind: str, args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> tuple[Any, Any] | None:  # fmt: skip
    """The arguments of a cell's call with its floats as operands, or None where they stay constants."""
    floats = tuple(a for a in args if type(a) is float)
    if not floats or kind != "cell":
        return None

    def lifted() -> tuple[Any, Any]:
        return with_floats_lifted(rec, args), kwargs

    def is_planned() -> bool:
        slots: list[Slot] = []
        _, template = rec.describe(lifted(), [], slots, shared_as_operand=True)
        shown = rec.table.as_shown(tuple(slots))
        try:
            classes = rec.tracer.output_classes(Operation(kind, path, None, template, shown))[1]
        except UnsupportedError:  # the cell needs them as numbers
            return False
        return rec.table.is_planned(call_type(path, kind, template, shown, classes).signature)

    group, _ = rec.describe((tuple(0 if type(a) is float else a for a in args), kwargs), [], [], shared_as_operand=True)
    return lifted() if _lifts(rec, (path, group), floats, is_planned) else None


def with_floats_lifted(rec: Recorder, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with their floats as operands."""
    dtype = torch.get_default_dtype()
    return tuple([rec.number(item, dtype) if type(item) is float else item for item in args])


def lifted_calls(rec: Recorder) -> frozenset[str]:
    """The calls that take numbers as operands by now, told such that recorders of other tables know them."""
    return frozenset(text_of(group) for group, seen in rec.numbers.items() if not isinstance(seen, set))


def text_of(group: Any) -> str:
    """A group of calls by names and slots."""
    if isinstance(group, tuple):
        return f"({', '.join(map(text_of, group))})"
    return str(getattr(group, "text", None) or getattr(group, "__name__", None) or repr(group))


def _lifts(rec: Recorder, group: Any, number: Any, is_planned: Callable[[], bool]) -> bool:
    """True when calls of this group take their numbers as operands."""
    seen = rec.numbers.get(group)
    if seen is None:
        is_known = text_of(group) in rec.table.lifted or (rec.table.num_known and is_planned())
        seen = rec.numbers[group] = True if is_known else set()
    if not isinstance(seen, set):
        return True
    seen.add(number)
    if len(seen) > LONG:
        rec.numbers[group] = True
    return len(seen) > LONG
