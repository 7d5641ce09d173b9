"""Recorded calls of cells and leaf modules, unrolled: a function written for the arguments that a module gets.

A module is nearly always called with arguments of one form, so what is done per call need not be found out per call.

Definitions.

(1) The *form* of a call is the nest of its arguments with a hole per operand: `(_, (_, _))` for `lstm(x, (h, c))`,
    `({"h": _, "c": _}, x=None)` for `cell(state, x=None)`, `(_, 2)` for `step(x, 2)`: constants are part of it; a
    parameter that is a matrix is no operand (`record.keys`), and may be another in each call.
(2) The *unrolled* call of a form is Python code without a loop: it takes the arguments as they are given, compares the
    operands' slots and the matrices with those of the last call (then with those of all known ones), appends one node,
    and makes one Value per output. The first form's stands in the method's place and gives other forms to theirs, until
    one of these is met more often: lists of children have a form for each number of them.
(3) The *general* call, `Recorder.call`, serves everything: new forms, parameters as operands. Its first answer of a
    form that can be unrolled makes the unrolled call. Floats are constants as others until `record.numbers` makes
    operands of them, as which unrolled calls take them from then on.

All leave the same recording (a test compares them). Measured on two operands and one output: 1.0 microsecond general
before there was this file, 0.3 unrolled, and 0.1 more where the call site is looked at; a list of two operands as
second form 9 general, 1.1 unrolled.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from keyword import iskeyword
from typing import Any, NamedTuple

import torch
from torch import nn

from edbc.capture.code.automatic import NotACell, SharesMemory, is_cellable, is_tensor, leaves_of
from edbc.capture.ragged.kept import NO_ROWS, KeptCall, again_at_once, shared, whole_call
from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.rows import cell_rows, regrouped
from edbc.capture.ragged.rules import adopted_all, has_ragged
from edbc.capture.ragged.symbols import Amount, Index, Mask, Size
from edbc.capture.ragged.value import each_row
from edbc.capture.ragged.whole.runs import Pairs
from edbc.capture.ragged.whole.worked import Worked
from edbc.capture.record.numbers import with_floats_lifted
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.table import Entry, Hole, SharedRef
from edbc.capture.semantics.sequences import Several, is_packed, on_rows
from edbc.capture.standins.made import Made
from edbc.capture.standins.standin import AsksForValue, Lazy, Rows, Shared, Slot, Symbol, Value, is_matrix
from edbc.capture.standins.told import Leaf

MAX_OPERANDS = 16
"""Calls of more operands are not unrolled: what a loop costs is little beside them."""
MAX_OPENED = 1024
"""Calls of one module that are known to be no cells: an integer may be another in each."""
OFTEN = 32
"""Calls of another form than the first until that form is the first, and twice as many until the next one is. In loops
the first call is often unlike all others (`total = 0`, `state = None`)."""
MAX_FORMS = 32
"""Of one module: numbers of children, of which there are few."""
_Call = Callable[..., Any]
_OPERANDS = (Shared, Lazy, torch.Tensor)
"""What `Recorder.as_operand` makes operands of, beside those that are."""
_AT_ONCE = frozenset((torch.Tensor, Made, Leaf))
"""Of tensors that eager code has at once."""
_ABSENT = object()
"""Stands for an argument that a call of fewer does not have."""
_NESTS = (tuple, list, dict, torch.Size)
_CONSTANTS = frozenset((type(None), bool, int, str, torch.dtype, torch.device))
_ONE_OBJECT = frozenset((type(None), bool, torch.dtype))
"""Of these classes equal constants are one object."""
_NAMES = frozenset(
    "self rest kwargs recorder known general Value Shared Rows Made getframe absent index sites found site first make "
    "call key x type dict tuple list int float str repr torch TypeError AttributeError ValueError CannotKeep".split()
)
_NUMBERED = re.compile("[xwvsomak][0-9].*")


def recorded_call(recorder: Recorder, path: str, kind: str, become: Callable[[_Call], None],
                  otherwise: _Call | None = None, inside: _Call | None = None) -> _Call:  # fmt: skip
    """What `__call__` of the module at `path` is while it records; `become` puts an unrolled call in its place. Of an
    automatic cell `otherwise` serves calls that are none (`code.automatic`). A call with ragged arguments runs what is
    `inside`, whose operations are recorded row by row (`capture.ragged`); so does one that asks for the value of a
    tensor that its caller has: nn.TransformerEncoder looks whether its mask is causal."""
    forms: dict[Any, _Form] = {}
    glances: dict[Any, _Form | None] = {}
    opened: dict[Any, str] = {}
    lifted: set[tuple[int, ...]] = set()
    """Places of floats that have become operands (`record.numbers`), and `numbers`, which operands these are."""
    numbers: set[int] = set()
    asks, often = False, OFTEN

    def forget() -> None:
        recorder.standing -= len(forms)
        forms.clear()
        glances.clear()
        opened.clear()
        become(first)

    recorder.forget_calls.append(forget)

    def unroll(form: _Form) -> None:
        is_first = next(iter(forms.values())) is form
        looks = "".join(_NUMBER_AS_VALUE.format(i=i) for i in sorted(numbers) if i < form.texts[3]) + form.looks
        make = _unroll(*form.texts, looks, form.guards)
        fallback = of_another_form if is_first else general
        form.call = make(recorder, form.known, fallback, Value, Shared, Rows, Made, sys._getframe, _ABSENT)
        if is_first:
            become(form.call)

    def put_first(form: _Form) -> None:
        nonlocal often
        before, others = next(iter(forms.values())), {key: other for key, other in forms.items() if other is not form}
        key = (forms.keys() - others.keys()).pop()
        forms.clear()
        forms.update({key: form, **others})
        often *= 2
        for other in forms.values():
            other.met = 0
        unroll(before)
        unroll(form)

    def as_written(why: str, self: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = otherwise or inside
        assert run is not None
        recorder.no_nodes[path, why] += 1
        return run(self, *args, **kwargs)

    def of_another_form(self: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        form = None
        if recorder.ragged:
            result = (
                again_at_once(recorder, [KeptCall, path, self.training], args, kwargs) if not kwargs else NotImplemented
            )
            if result is not NotImplemented and result is not NO_ROWS:
                return shared(result, args)
        if not kwargs:
            glance = _glance(args)
            form = glances.get(glance)
            if form is None and opened and (why := opened.get((glance, _slots_of(args)))):
                return as_written(why, self, args, kwargs)
        if form is None:
            form = forms.get(_form_of((args, kwargs)))
        if form is None or form is next(iter(forms.values())):
            return general(self, args, kwargs)
        form.met += 1
        if form.met == often:
            put_first(form)
        return form.call(self, *args, **kwargs)

    def general(self: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal asks
        places = tuple([i for i, item in enumerate(args) if type(item) is float]) if float in map(type, args) else ()
        if places in lifted:
            args = with_floats_lifted(recorder, args)
        if is_packed(self, args):
            if type(args[0].data) in (Value, Several):  # as an unrolled call has made of the states before it came here
                args, kwargs = _each(recorder.as_operand, (args, kwargs))
            return on_rows(lambda *rows: general(self, rows, {}), *args, *kwargs.values())
        run = inside or otherwise
        may_be_own = recorder.tracer.leaves_own and path not in recorder.of_more
        if may_be_own and otherwise is not None and not _has_recorded((args, kwargs)):
            result = otherwise(self, *args, **kwargs)
            if _has_recorded((result,)):
                recorder.of_more.add(path)
            return result
        written = own = args
        if recorder.ragged:
            args = adopted_all(recorder, own)
            written = own if recorder.tracer.leaves_own else _as_written(own, args)
        if recorder.ragged and has_ragged(args, kwargs):
            rows = cell_rows(recorder, self, args) if inside and not kwargs else None
            if rows is not None:
                one = lambda *values: general(self, regrouped(args, values), {})  # noqa: E731
                run = lambda *_: each_row(recorder, rows, one, 0)  # noqa: E731
            elif inside is None:
                recorder.taken.add(path)
            assert run is not None
            return whole_call(recorder, path, run, self, args, kwargs, written)
        if recorder.symbolic and any(issubclass(type(x), _OF_SIZES) for x in _leaves((args, kwargs), _NESTS)):
            assert run is not None
            return run(self, *written, **kwargs)
        if inside and kind == "module":
            tensors = [x for x in _leaves((args, kwargs), _NESTS) if isinstance(x, (Value, *_OPERANDS))]
            if tensors and all(map(is_matrix, tensors)):  # a function of parameters alone, not a node of each instance
                return inside(self, *written, **kwargs)
        key = _form_of((args, kwargs))
        form = forms.get(key)
        recorded = None
        if form is not None:
            leaves = list(_leaves((args, kwargs), _NESTS))
            kinds = set(map(type, leaves))
            is_at_once = not kinds.isdisjoint(_AT_ONCE)
            gets = _TENSOR_AS_VALUE if is_at_once and not form.demands else _ROWS_AS_VALUE if Rows in kinds else ""
            if gets and form.gets != gets and form.gets != _TENSOR_AS_VALUE:
                form.gets = gets
                unroll(form)
            recorded = _recorded(args, kwargs) if is_at_once and form.demands else None
            if recorded is not None and form.takes(recorded):
                unroll(form)
            if any(issubclass(type(x), _OPERANDS) and not is_matrix(x) for x in leaves) and form.is_met_by(recorded):
                given = _each(recorder.as_operand, (args, kwargs))
                if recorded is None or form.knows(given):
                    return form.call(self, *given[0], **given[1])
        why = ""
        if otherwise is None:
            try:
                if asks:
                    return inside(self, *written, **kwargs)  # type: ignore[misc]
                result = recorder.call(path, kind, self, args, kwargs)
            except AsksForValue:
                if asks or inside is None or kind == "cell":
                    raise
                asks = True
                return inside(self, *written, **kwargs)
            except SharesMemory as shares:
                why = str(shares)
        elif is_cellable(args, kwargs):
            try:
                result = recorder.call(path, kind, self, args, kwargs, _recorded(args, kwargs))
            except NotACell as no_cell:
                why = str(no_cell)
                if not kwargs and len(opened) < MAX_OPENED and (slots := _slots_of(args)):
                    opened[_glance(args), slots] = why
        else:
            why = "it is given more than tensors, nests of them, numbers and texts"
        if why:  # only now: an exception keeps what the call held
            return as_written(why, self, written, kwargs)
        entry = recorder.table.entries[recorder.entries[-1]]
        if places and places not in lifted and float not in map(type, entry.operation.template[0]):
            lifted.add(places)
            numbers.update(entry.operation.template[0][place].index for place in places)
            forget()
            return result
        if form is None and len(forms) < MAX_FORMS and is_unrollable(entry):
            form = forms[key] = _Form(entry)
            glance = _glance(args)
            glances[glance] = None if glance in glances else form
            recorder.standing += 1
            unroll(form)
        if form is not None and form.shape == _shape(entry):
            if not form.demands.issuperset(entry.demands):
                form.gets = _ROWS_AS_VALUE if form.gets else ""
                form.demands.update(entry.demands)
                form.real = form.real if form.may_be_real(form.real) else frozenset()
                unroll(form)
            matrices = filter(is_matrix, _leaves((args, kwargs), _NESTS))
            found = entry.index, recorder.sites[entry.index], *entry.output_slots
            form.known[(*entry.given, *matrices)] = found
        return result

    def first(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return of_another_form(self, args, kwargs)

    return first


class _Matrix(NamedTuple):
    """Place of a matrix in a template."""

    index: int  # type: ignore[assignment]


class _Form:
    """What is known of calls of one form: definition (2)."""

    call: _Call

    def __init__(self, entry: Entry):
        self.shape = _shape(entry)
        self.texts = _texts(entry)
        self.known: dict[tuple[Slot | Shared, ...], tuple[Any, ...]] = {}
        """By the operands' slots, then the matrices."""
        self.met = 0
        """Calls of it that another form was asked for first."""
        self.gets = ""
        """What calls that met other operands than values look for first."""
        self.demands: set[frozenset[int]] = set()
        """Those of all its entries."""
        self.real: frozenset[int] = frozenset()
        """Operands of which calls met tensors of the instance's, where the others are enough to be recorded."""

    @property
    def looks(self) -> str:
        """The lines of an unrolled call that look for other operands than values: first of all, as the general call is
        to get them as they came, that those are values which are to be recorded."""
        numbers = range(self.texts[3])
        if not self.real:
            return "".join(self.gets.format(i=i) for i in numbers)
        recorded = "".join((self.gets + _IS_VALUE).format(i=i) for i in numbers if i not in self.real)
        return recorded + "".join(_TENSOR_AS_VALUE.format(i=i) for i in self.real)

    @property
    def guards(self) -> str:
        """The lines that leave descriptions, which are not recorded, to the general call where it asks for what is."""
        return "".join(_NOT_MADE.format(i=i) for i in range(self.texts[3])) if self.demands and not self.real else ""

    def may_be_real(self, real: frozenset[int]) -> bool:
        """Whether these operands may be tensors of the instance's, all at once."""
        return all(demand - real for demand in self.demands)

    def takes(self, recorded: frozenset[int]) -> bool:
        """Whether calls of which no more are recorded are unrolled from now on, where they were not."""
        count, num_matrices = self.texts[3], self.texts[4]
        real = self.real | (frozenset(range(count)) - recorded)
        if real == self.real or num_matrices or not self.may_be_real(real):
            return False
        self.real = real
        return True

    def is_met_by(self, recorded: frozenset[int] | None) -> bool:
        """Whether these operands, or all, are enough to be recorded."""
        return recorded is None or all(map(recorded.intersection, self.demands))

    def knows(self, given: Any) -> bool:
        """Whether calls of operands like these were met."""
        leaves = [x for x in _leaves(given, _NESTS) if not _is_fixed(x)]
        slots = [getattr(x, "slot", None) for x in leaves if not is_matrix(x)]
        return (*slots, *filter(is_matrix, leaves)) in self.known


def _has_recorded(given: tuple[Any, ...]) -> bool:
    """Whether any in nests is a stand-in."""
    return any(issubclass(type(x), Symbol) for x in _leaves(given, _NESTS))


def _recorded(args: Any, kwargs: dict[str, Any]) -> frozenset[int] | None:
    """Numbers of the operands that are recorded; None where all are."""
    tensors = [x for x in leaves_of((*args, *kwargs.values())) if is_tensor(x)]
    found = frozenset(i for i, x in enumerate(tensors) if type(x) not in _AT_ONCE)
    return None if len(found) == len(tensors) else found


def _form_of(item: Any) -> Any:
    """The form of a nest, as far as it tells calls apart; zeros have signs."""
    kind = type(item)
    if kind is tuple or kind is list or kind is torch.Size:
        return (list if kind is list else tuple, *map(_form_of, item))
    if kind is dict:
        return (kind, *item, *map(_form_of, item.values()))
    return (kind, item if item or kind is not float else repr(item)) if _is_fixed(item) else Hole


def _as_written(args: tuple[Any, ...], adopted: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments for code that runs as it is written: adopted, but for lists, which it may change."""
    return tuple([x if _holds_list(x) else y for x, y in zip(args, adopted, strict=True)])


def _holds_list(item: Any) -> bool:
    return type(item) is list or (type(item) is tuple and any(map(_holds_list, item)))


def _glance(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What tells most forms apart at a glance: how long the lists and tuples among arguments are."""
    return tuple([(type(x), len(x)) if type(x) is list or type(x) is tuple else None for x in args])


def _slots_of(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Slots of arguments that are recorded, lists and tuples of such, and constants; None of others."""
    slots: list[Any] = []
    for item in args:
        for leaf in item if type(item) is list or type(item) is tuple else (item,):
            kind = type(leaf)
            if kind is Value:
                slots.append(leaf.slot)
            elif kind in _CONSTANTS:
                slots += kind, leaf
            else:
                return None
    return tuple(slots)


def _is_fixed(item: Any) -> bool:
    """Whether a leaf is part of the form: constants that a call hardly has many of, and floats, of which few are: many
    become operands (`record.numbers`)."""
    return type(item) in _CONSTANTS or (type(item) is float and math.isfinite(item))


def _shape(entry: Entry) -> Any:
    """What calls of one form have in common: their template, whatever matrices are in it, and their outputs."""
    of_all = lambda leaf: SharedRef if type(leaf) is SharedRef else leaf  # noqa: E731
    return _each(of_all, entry.operation.template, (Hole, SharedRef)), entry.outputs


def is_unrollable(entry: Entry) -> bool:
    """True when arguments are operands, matrices and constants in nests of tuples, lists and dicts by texts, and
    outputs in nests of tuples and such dicts."""
    template, outputs = entry.operation.template, entry.outputs
    leaves = list(_leaves(template, _NESTS))
    holes = [leaf for leaf in leaves if type(leaf) is not SharedRef and not _is_fixed(leaf)]
    count = len(entry.operation.slots)
    in_order = holes == [Hole(i) for i in range(count)]
    returned = list(_leaves(outputs, (tuple, dict)))
    return bool(
        in_order and 0 < count <= MAX_OPERANDS and returned and all(type(x) is Hole for x in returned)
        and all(map(_are_texts, (template, outputs))) and not any(map(_is_taken, template[1]))
    )  # fmt: skip


def _are_texts(nest: Any) -> bool:
    """Whether all keys of dicts in a nest are."""
    if type(nest) not in _NESTS:
        return True
    is_dict = type(nest) is dict
    return all(map(_are_texts, nest.values() if is_dict else nest)) and (not is_dict or {*map(type, nest)} <= {str})


def _is_taken(name: str) -> bool:
    """Whether a keyword is a name that unrolled code has itself."""
    return name in _NAMES or not name.isidentifier() or iskeyword(name) or bool(_NUMBERED.fullmatch(name))


_OF_SIZES = (Amount, Index, Mask, Pairs, Size, Worked)
"""What no call of a cell has as its argument."""


def _leaves(nest: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    if type(nest) not in kinds:
        yield nest
        return
    for item in nest.values() if type(nest) is dict else nest:
        yield from _leaves(item, kinds)


def _each(function: Callable[[Any], Any], nest: Any, kinds: tuple[type, ...] = _OPERANDS) -> Any:
    """A nest of what a function gives of its leaves of these classes; others as they are."""
    if type(nest) is dict:
        return {key: _each(function, item, kinds) for key, item in nest.items()}
    if type(nest) is tuple or type(nest) is list:
        return type(nest)([_each(function, item, kinds) for item in nest])
    return function(nest) if isinstance(nest, kinds) else nest


def _texts(entry: Entry) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], str, int, int, str, int]:
    """What the code of the unrolled call depends on."""
    count = itertools.count()
    args, kwargs = _each(lambda ref: _Matrix(next(count)), entry.operation.template, (SharedRef,))
    names, named = _names(args, "a"), _names(kwargs.values(), "k")
    unpacking = "".join((*_unpacking(args, names), *_unpacking(kwargs.values(), named)))
    keywords = tuple(zip(kwargs, named, strict=True))
    num_operands, num_outputs = len(entry.operation.slots), len(entry.output_slots)
    return names, keywords, unpacking, num_operands, next(count), _result(entry.outputs), num_outputs


def _names(nest: Iterable[Any], prefix: str) -> tuple[str, ...]:
    """Variables for the items of a nest: x0, x1, ... for operands and w0, ... for matrices, by their numbers."""
    letters = {Hole: "x", _Matrix: "w"}
    return tuple(f"{letters[type(item)]}{item.index}" if type(item) in letters else f"{prefix}{i}"
                 for i, item in enumerate(nest))  # fmt: skip


def _unpacking(nest: Iterable[Any], names: tuple[str, ...]) -> Iterator[str]:
    """Lines that take apart the nests in a nest whose items are in `names`: outermost first."""
    for name, item in zip(names, nest, strict=True):
        if type(item) in _ONE_OBJECT:
            yield f"            if {name} is not {item}: raise TypeError\n"
        elif type(item) is torch.device:
            yield f"            if type({name}) is not torch.device or {name} != torch.{item!r}: raise TypeError\n"
        elif type(item) is float and not item:
            yield f"            if type({name}) is not float or repr({name}) != '{item!r}': raise TypeError\n"
        elif _is_fixed(item):
            yield f"            if type({name}) is not {type(item).__name__} or {name} != {item!r}: raise TypeError\n"
        elif type(item) is dict:
            inner = _names(item.values(), f"{name}_")
            yield f"            if type({name}) is not dict or (*{name},) != {tuple(item)}: raise TypeError\n"
            yield f"            {', '.join(inner)}{',' if inner else '()'} = {name}.values()\n"
            yield from _unpacking(item.values(), inner)
        elif type(item) not in (Hole, _Matrix):
            inner, kinds = (
                _names(item, f"{name}_"),
                "list" if type(item) is list else "tuple and type({0}) is not torch.Size",
            )
            yield f"            if type({name}) is not {kinds.format(name)}: raise TypeError\n"
            yield f"            {', '.join(inner)}{',' if inner else '()'} = {name}\n"
            yield from _unpacking(item, inner)


def _result(outputs: Any) -> str:
    if type(outputs) is Hole:
        return f"v{outputs.index}"
    if type(outputs) is dict:
        return f"{{{', '.join(f'{key!r}: {_result(item)}' for key, item in outputs.items())}}}"
    return f"({''.join(f'{_result(item)}, ' for item in outputs)})"


_CODE = """\
def make(recorder, known, general, Value, Shared, Rows, Made, getframe, absent):
    index = sites = {outs} = None
    {slots} = absent

    def call(self, {arguments}*rest, {keywords}**kwargs):
        nonlocal index, sites, {slots_}, {outs_}
{renamed}        try:
            if rest or kwargs:
                raise TypeError
{unpacking}{tensors_as_values}\
            if {differs}:
                found = known.get(({operand_slots},))
                if found is None:
{guards}{as_values}
                    found = known.get(({operand_slots},))
                    if found is None:
                        return {general}
                index, sites, {outs_} = found
                {slots_} = {operand_slots}
        except (AttributeError, TypeError, ValueError, CannotKeep):
            return {general}
        if recorder.looks:
            site = getframe(1)
            if sites.get(site.f_lasti) is not site.f_code:
                recorder.note_site(index, site, sites)
        recorder.entries.append(index)
        recorder.refs.{keep}
        first = recorder.next_value
        recorder.next_value = first + {num_outputs}
{values}
        if recorder.made is not None:
            recorder.made += {made}
        return {result}

    return call
"""
_TENSOR_AS_VALUE = "            if type(x{i}) is not Value: x{i} = recorder.as_operand(x{i})\n"
_ROWS_AS_VALUE = "            if type(x{i}) is Rows: x{i} = x{i}.materialise()\n"
_NUMBER_AS_VALUE = "            if type(x{i}) is float: x{i} = recorder.number(x{i}, torch.get_default_dtype())\n"
_AS_VALUE = "                    if type(x{i}) is not Value: x{i} = recorder.as_operand(x{i})"
_IS_VALUE = "            if type(x{i}) is not Value: raise TypeError\n"
_NOT_MADE = "                    if type(x{i}) is Made: raise TypeError\n"
_IS_MATRIX = "                    if type(w{i}) is not Shared or not w{i}.is_matrix: raise TypeError\n"
_VALUE = "        v{i} = Value(); v{i}.rec = recorder; v{i}.ref = {ref}; v{i}.slot = o{i}"


@lru_cache(maxsize=256)
def _unroll(
    names: tuple[str, ...],
    keywords: tuple[tuple[str, str], ...],
    unpacking: str,
    num_operands: int,
    num_matrices: int,
    result: str,
    num_outputs: int,
    looks: str,
    guards: str,
) -> Callable[..., _Call]:
    """The maker of unrolled calls of one form, definition (2). What a form gets beside values they look for first:
    plain tensors, constants of the instance, one a call perhaps; or rows of one look-up."""

    def each(text: str, count: int, between: str = ", ") -> str:
        return between.join(text.format(i=i) for i in range(count))

    given, named = ", ".join(names), ", ".join(f"{key!r}: {name}" for key, name in keywords)
    named = f"{{key: x for key, x in {{{named}}}.items() if x is not absent}} | kwargs" if keywords else "kwargs"
    now = [f"x{i}.slot" for i in range(num_operands)] + [f"w{i}" for i in range(num_matrices)]
    last = [f"s{i}" for i in range(num_operands)] + [f"m{i}" for i in range(num_matrices)]
    code = _CODE.format(
        general=f"general(self, tuple([x for x in [{given}] if x is not absent]) + rest, {named})",
        arguments="".join(f"{name}=absent, " for name in names) + "/, " * bool(names),
        keywords="".join(f"{key}=absent, " for key, _ in keywords),
        renamed="".join(f"        {name} = {key}\n" for key, name in keywords),
        unpacking=unpacking,
        result=result,
        num_outputs=num_outputs,
        slots=" = ".join(last),
        outs=each("o{i}", num_outputs, " = "),
        slots_=", ".join(last),
        outs_=each("o{i}", num_outputs),
        differs=" or ".join(f"{x} is not {s}" for x, s in zip(now, last, strict=True)),
        operand_slots=", ".join(now),
        tensors_as_values=looks,
        guards=guards,
        as_values=each(_IS_MATRIX, num_matrices, "") + each(_AS_VALUE, num_operands, "\n"),
        keep="append(x0.ref)" if num_operands == 1 else f"extend(({each('x{i}.ref', num_operands)}))",
        made=f"({each('v{i}', num_outputs)},)",
        values="\n".join(_VALUE.format(i=i, ref=f"first + {i}" if i else "first") for i in range(num_outputs)),
    )
    scope: dict[str, Any] = {"torch": torch, "CannotKeep": CannotKeep}
    exec(compile(code, "<unrolled call>", "exec"), scope)
    return scope["make"]
