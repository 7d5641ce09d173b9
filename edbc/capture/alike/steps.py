"""What forward computes of an instance's tensors and numbers alone, as steps that run again for other instances.

Where instances are recorded, that is torch's at once, and nodes begin where parameters do. So it is where the record is
to serve others (`alike.alike`): the calls are kept, and run for each of these.

Definitions.

(1) The *values* of an instance are its leaves and then the results of its steps. A step's arguments are values, numbers
    of the instance, tensors of them or filled by them (`standins.told`), and what is the same for all.
(2) Steps are kept where what they give is told by shapes: none draws or changes a tensor. One that makes a shape of
    values (`bincount`), or reads some, is *checked* where it runs again: other instances are recorded as they are
    unless it gives them the same shapes. A mask makes others nearly always, so what takes one so is not kept.
(3) Integers and truth values that steps give may be *read* (`int(lengths.max())`, `if mask.any():`, `score > 0.5` of
    floats of the instance): what they are is part of an instance's key then.
(4) A *run* of a leaf is a view of it whose elements stand one after the other in its memory, where the leaf's do: a
    row, a slice, an element. Those of all instances are copied in one call, and no step makes them.

So a constant that such calls made has the bits that it has in an instance that is recorded as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.capture.ragged.program import CannotKeep
from edbc.capture.record.table import Hole, fill
from edbc.capture.semantics import autocast, rules
from edbc.capture.semantics.randomness import Dispatched
from edbc.capture.semantics.shapes import flat, split_outputs
from edbc.capture.standins.made import CODES, Made
from edbc.capture.standins.standin import Symbol
from edbc.capture.standins.told import NUMBERS, Fill, Filled, Fills, Known, Leaf, Real, Told, filled

if TYPE_CHECKING:
    from edbc.capture.alike.alike import Shows

OF_INSTANCE = frozenset((Leaf, Told, Filled))
_AT_ONCE = OF_INSTANCE | {Made}
_OF_SLICES = frozenset((int, NoneType))
_INTEGERS = frozenset((torch.int64, torch.int32))
_READ = _INTEGERS | {torch.bool}
MOST_READ, MOST_READS = 64, 16
"""Elements of a value that is read, and such values of an instance."""
_FAILED = object()


class Place(NamedTuple):
    """A number of the instance."""

    place: int


class OfNumbers(NamedTuple):
    """A tensor of numbers of the instance, and of others."""

    places: Sequence[int | Known]
    shape: torch.Size
    dtype: torch.dtype

    def of(self, numbers: Sequence[Any]) -> list[Any]:
        """Those of an instance with these."""
        return [numbers[place] if type(place) is int else place.value for place in self.places]  # type: ignore[union-attr]


class Step(NamedTuple):
    """A call: of Holes, which are values, of what Place, OfNumbers and Fill tell, and of what is the same for all."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    first: int
    """The number of its first result, and how many there are."""
    size: int
    shapes: tuple[torch.Size, ...] | None = None
    """What it has to give, where it is checked."""


def _same(made: torch.Tensor) -> torch.Tensor:
    return made


class _Seen(Dispatched):
    """Sees too whether a number was read, by which there may be a shape; as an index it is none of that."""

    reads = False

    def _note(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super()._note(operator, args, kwargs)
        self.reads |= operator is torch.ops.aten._local_scalar_dense.default


class Run(NamedTuple):
    """Definition (4), by the leaf's number and the elements before it."""

    leaf: int
    offset: int


class Steps:
    """Those of one instance, while forward runs."""

    def __init__(self, watch: Shows, leaves: Sequence[torch.Tensor], numbers: Sequence[Any]):
        self.watch, self.numbers = watch, numbers
        self.steps: list[Step] = []
        self.values, self.num_leaves = [leaf.detach() for leaf in leaves], len(leaves)
        self.seen_of = list(range(len(leaves)))
        """By value, the leaf whose memory it shows; -1 for what has its own."""
        self.followed: list[int] = []
        """The values whose integers rows are looked up by: they count as further numbers of the instance."""
        self._num_numbers = len(numbers)
        self.reads: list[int] = []
        """The values that forward has read, in this order."""
        self.comparisons: dict[int, tuple[Callable[[Any, Any], bool], int, Any]] = {}
        """Those that comparing a float of the instance, by its place, with a number or a Place gives."""
        self.known: dict[Any, Leaf] = {}
        """What calls with equal arguments have given: four heads of attention compare one adjacency."""
        self.leaves = [self._leaf(number) for number in self.seen_of]
        """Until forward has run: nobody is to have a stand-in then."""

    def _leaf(self, number: int) -> Leaf:
        return Leaf(self.watch.rec, self.watch, number, self.values[number])

    def end(self) -> None:
        """Forward has run."""
        self.leaves.clear()
        self.known.clear()

    def take(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Any:
        """What a call gives, and keep it as a step; NotImplemented for one that is recorded: not of the instance alone,
        or without tensors. Raises CannotKeep for what definition (2) rules out."""
        kinds = set(map(type, flat(args, kwargs)))
        if kinds.isdisjoint(OF_INSTANCE):
            return NotImplemented
        name = name or rules.name_of(func)
        changes = rules.changes_in_place(func, name, kwargs)
        if any(issubclass(kind, Symbol) for kind in kinds - _AT_ONCE):
            if changes and not OF_INSTANCE.isdisjoint(map(type, flat([*args[:1], kwargs.get("out")]))):
                raise CannotKeep
            return NotImplemented
        if changes or name == "requires_grad_" or autocast.state() is not None:
            raise CannotKeep
        told, given = self._both((args, kwargs), name in rules.NUMERIC)
        key = _key((func, told))
        if key in self.known:
            return self.known[key]
        result, seen = _FAILED, _Seen()
        try:
            with seen:
                result = func(*given[0], **given[1])
        except Exception:  # raised again without what it holds: nobody is to look for stand-ins
            pass
        is_checked = seen.shape_by_value or (seen.reads and name != "getitem")
        if result is _FAILED or seen.draws or seen.is_foreign or (is_checked and _has_masks(given)):
            raise CannotKeep
        outputs, tensors = split_outputs(result)
        if not tensors:
            return NotImplemented
        others = {type(item) for item in flat([result])} - {torch.Tensor, NoneType}
        if others or any(tensor.requires_grad or tensor.layout is not torch.strided for tensor in tensors):
            raise CannotKeep
        taken = [item for item in flat(args, kwargs) if type(item) is Leaf]
        known = {id(leaf.tensor): leaf for leaf in taken}
        new = self._add(func, told, tensors, taken, is_checked)
        leaves = [known.get(id(tensor), leaf) for tensor, leaf in zip(tensors, new, strict=True)]
        found = leaves[0] if type(outputs) is Hole else fill(outputs, leaves)
        if key is not None and type(found) is Leaf:
            self.known[key] = found
        return found

    def tensor_of(self, places: Sequence[int | Known], values: torch.Tensor) -> Leaf:
        """A tensor of numbers at these places, and of others."""
        told = OfNumbers(places, values.shape, values.dtype)
        return self._add(_same, ((told,), {}), [values], ())[0]

    def read(self, leaf: Leaf) -> torch.Tensor:
        """Definition (3). Raises CannotKeep for others, which hardly any other instance has."""
        if leaf.number not in self.reads:
            is_few = leaf.tensor.numel() <= MOST_READ and len(self.reads) < MOST_READS
            if leaf.number < self.num_leaves or leaf.dtype not in _READ or not is_few:
                raise CannotKeep
            self.reads.append(leaf.number)
        return leaf.tensor

    def compared(self, compare: Callable[[Any, Any], bool], one: Real, other: Any) -> bool | None:
        """What comparing a float of the instance with another number gives, which is read: a value that no step
        makes. None where too many are."""
        told = compare, one.place, Place(other.place) if type(other) is Real else other
        found = compare(one.value, other.value if type(other) is Real else other)
        if told not in self.comparisons.values():
            if len(self.reads) == MOST_READS:
                return None
            self.reads.append(len(self.values))
            self.comparisons[len(self.values)] = told
            self.values.append(torch.tensor(found))
            self.seen_of.append(-1)
        return found

    def integers(self, leaf: Leaf) -> Told:
        """What a value has, as numbers that follow from the instance's. Raises CannotKeep for one that has no
        integers."""
        if leaf.dtype not in _INTEGERS:
            raise CannotKeep
        first, self._num_numbers = self._num_numbers, self._num_numbers + leaf.tensor.numel()
        self.followed.append(leaf.number)
        return Told(self.watch.rec, self.watch, leaf.tensor, torch.arange(first, self._num_numbers).view(leaf.shape))

    def _add(self, func: Any, told: Any, tensors: Sequence[torch.Tensor], taken: Sequence[Leaf],
             is_checked: bool = False) -> list[Leaf]:  # fmt: skip
        """The stand-ins for what a new step gives, of these."""
        first = len(self.values)
        args, kwargs = told
        shapes = tuple(tensor.shape for tensor in tensors) if is_checked else None
        self.steps.append(Step(func, args, kwargs, first, len(tensors), shapes))
        for tensor in tensors:
            memory = tensor.untyped_storage()._cdata
            of = {self.seen_of[x.number] for x in taken if x.tensor.untyped_storage()._cdata == memory}
            self.seen_of.append(of.pop() if len(of) == 1 else -1)
        self.values += tensors
        return [self._leaf(number) for number in range(first, len(self.values))]

    def run_of(self, number: int) -> Run | None:
        """Definition (4); None for a value that is none."""
        if self.seen_of[number] < 0:
            return None
        leaf, value = self.values[self.seen_of[number]], self.values[number]
        is_run = leaf.is_contiguous() and value.is_contiguous() and value.numel() and value.dtype is leaf.dtype
        return Run(self.seen_of[number], int(value.storage_offset() - leaf.storage_offset())) if is_run else None

    def _both(self, item: Any, is_numeric: bool) -> tuple[Any, Any]:
        """An argument as steps have it, and as this instance has it."""
        kind = type(item)
        if kind is Leaf:
            return Hole(item.number), item.tensor
        if kind is Told:
            return OfNumbers(item.places.flatten().tolist(), item.tensor.shape, item.tensor.dtype), item.tensor
        if kind is Filled:
            told = item.fill()
            return told, torch.from_numpy(told.of(self.numbers))
        if kind in NUMBERS:
            return (Place(item.place), item.value) if is_numeric else self.watch.ask([item.place])
        if kind is Made or kind is torch.Tensor:  # which forward may change from now on
            kept = (item.real() if kind is Made else item).clone()
            return kept, kept
        if kind is slice:
            if not _OF_SLICES.issuperset(map(type, (item.start, item.stop, item.step))):
                raise CannotKeep
            return item, item
        if kind is dict:
            told, given = self._both([*item.values()], is_numeric)
            return dict(zip(item, told, strict=True)), dict(zip(item, given, strict=True))
        if kind is tuple or kind is list:
            pairs = [self._both(part, is_numeric) for part in item]
            return kind(pair[0] for pair in pairs), kind(pair[1] for pair in pairs)
        return item, item


def _key(item: Any) -> Any:
    """What tells a call from others, as a dict's key; None where its arguments hold what has none."""
    kind = type(item)
    if kind is tuple or kind is list or kind is dict:
        parts = [_key(part) for part in (item.items() if kind is dict else item)]
        return None if None in parts else (kind, *parts)
    if kind in (torch.Tensor, OfNumbers, Fill, slice) or kind.__hash__ is None:
        return None
    return kind, repr(item) if kind is float else item


def _has_masks(given: Any) -> bool:
    return any(isinstance(item, torch.Tensor) and item.dtype in rules.MASKS for item in flat(given))


def needed(steps: Sequence[Step], wanted: set[int]) -> list[Step]:
    """Those of the steps that values with the wanted numbers are made by, and those that are checked. Linear in their
    arguments."""
    kept = []
    for step in reversed(steps):
        if step.shapes is not None or not wanted.isdisjoint(range(step.first, step.first + step.size)):
            kept.append(step)
            wanted.update(_holes((step.args, step.kwargs)))
    return kept[::-1]


def _holes(item: Any) -> Iterator[int]:
    kind = type(item)
    if kind is Hole:
        yield item.index
    elif kind is tuple or kind is list or kind is dict:
        for part in item.values() if kind is dict else item:
            yield from _holes(part)


class Written(NamedTuple):
    """Steps as code."""

    run: Callable[[Sequence[torch.Tensor], Sequence[Any], Sequence[torch.Tensor]], list[Any]]
    """Of an instance's leaves, numbers and filled tensors its values by number, None for those that no step makes."""
    fills: tuple[Fills, ...]
    """How each of these is filled, those that have a plan: what a mini-batch's instances have is filled together."""


def filled_each(fills: Sequence[Sequence[Fills]], numbers: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The filled tensors that steps of instances with such numbers take, those of a dtype together."""
    found: list[list[Any]] = [[None] * len(of_instance) for of_instance in fills]
    by_dtype: dict[Any, list[tuple[int, int, Fills]]] = {}
    for number, of_instance in enumerate(fills):
        for place, of in enumerate(of_instance):
            by_dtype.setdefault(of.base.dtype, []).append((number, place, of))
    for runs in by_dtype.values():
        whole = torch.from_numpy(filled([(of, numbers[number]) for number, _, of in runs]))
        for (number, place, of), part in zip(runs, whole.split([of.base.size for *_, of in runs]), strict=True):
            found[number][place] = part.view(of.base.shape[1:])
    return found


def written(steps: Sequence[Step], num_leaves: int) -> Written:
    """Steps as code without a loop, which raises what torch raises. What they call and what is the same for all is
    given to it, so that steps of one form in many sizes are compiled once. Linear in their arguments."""
    given, fills = list[Any](), list[Fills]()
    lines, made = [], dict.fromkeys(range(num_leaves), "")
    for step in steps:
        names = [f"v{number}" for number in range(step.first, step.first + step.size)]
        keywords = [f"**{{{key!r}: {_text(item, given, fills)}}}" for key, item in step.kwargs.items()]
        arguments = [*(_text(x, given, fills) for x in step.args), *keywords]
        call = f"{_name_of(step.function, given)}({', '.join(arguments)})"
        if len(names) == 1:
            lines += [f"{names[0]} = {call}", f"if type({names[0]}) is not Tensor: {names[0]}, = split({names[0]})[1]"]
        else:
            lines += [
                f"r = {call}",
                f"{', '.join(names)} = r if type(r) is tuple and len(r) == {len(names)} else split(r)[1]",
            ]
        if step.shapes is not None:
            are_others = " or ".join(
                f"{name}.shape != {_name_of(shape, given)}" for name, shape in zip(names, step.shapes, strict=True)
            )
            lines.append(f"if {are_others}: raise ValueError")
        made |= dict.fromkeys(range(step.first, step.first + step.size), "")
    last = max(made, default=-1)
    results = [f"v{number}" if number in made else "None" for number in range(num_leaves, last + 1)]
    leaves = "".join(f"v{number}, " for number in range(num_leaves))
    make = _maker(len(given), leaves, tuple(lines), ", ".join(results))
    return Written(make(given, torch.Tensor, split_outputs, torch, array), tuple(fills))


def _text(item: Any, given: list[Any], fills: list[Fills]) -> str:
    """An argument of a step for an instance."""
    kind = type(item)
    if kind is Hole:
        return f"v{item.index}"
    if kind is tuple or kind is list:
        parts = "".join(f"{_text(part, given, fills)}, " for part in item)
        return f"({parts})" if kind is tuple else f"[{parts}]"
    if kind is Place:
        return f"numbers[{item.place}]"
    if kind is OfNumbers:
        numbers = ", ".join(
            _name_of(place.value, given) if type(place) is Known else f"numbers[{place}]" for place in item.places
        )
        view = "" if len(item.shape) == 1 else f".view({_name_of(item.shape, given)})"
        dtype = _name_of(item.dtype, given)
        if item.dtype in CODES and numbers:  # a fourth of the time
            return f"torch.frombuffer(array({CODES[item.dtype]!r}, [{numbers}]), dtype={dtype}){view}"
        return f"torch.tensor([{numbers}], dtype={dtype}){view}"
    if kind is Fill and item.plan is None:
        return f"torch.from_numpy({_name_of(item.of, given)}(numbers))"
    if kind is Fill:
        fills.append(Fills([item]))
        return f"fills[{len(fills) - 1}]"
    if kind is dict:
        parts = ", ".join(f"{_name_of(key, given)}: {_text(part, given, fills)}" for key, part in item.items())
        return f"{{{parts}}}"
    return str(item) if item is None or kind is bool else _name_of(item, given)


def _name_of(item: Any, given: list[Any]) -> str:
    """The variable of what is given."""
    given.append(item)
    return f"c{len(given) - 1}"


@lru_cache(maxsize=256)
def _maker(num_given: int, leaves: str, lines: tuple[str, ...], results: str) -> Callable[..., Any]:
    code = "".join(f"        {line}\n" for line in lines)
    text = (
        f"def make(given, Tensor, split, torch, array):\n    [{', '.join(f'c{k}' for k in range(num_given))}] = given\n"
        f"    def values(leaves, numbers, fills):\n        [{leaves}] = leaves\n{code}"
        f"        return [{leaves}{results}]\n    return values\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(text, "<steps>", "exec"), scope)
    return scope["make"]


class Runs(NamedTuple):
    """Constants of one source that are runs of leaves; and of each, by the bytes of 64-bit integers, the elements that
    stand before it in all of the instance's leaves of its dtype, one leaf behind the other."""

    runs: list[Run]
    before: bytes

    @classmethod
    def of(cls, runs: list[Run], leaves: Sequence[torch.Tensor]) -> Runs:
        """Those of an instance with such leaves."""
        dtype = leaves[runs[0].leaf].dtype
        sizes = [leaf.numel() if leaf.dtype is dtype else 0 for leaf in leaves]
        begin = np.cumsum(sizes) - sizes
        return cls(runs, np.array([begin[run.leaf] + run.offset for run in runs], np.int64).tobytes())

    def each(self, leaves: Sequence[torch.Tensor], shape: torch.Size) -> list[torch.Tensor]:
        """One by one."""
        flats = {run.leaf: leaves[run.leaf].reshape(-1) for run in self.runs}
        return [flats[leaf].narrow(0, offset, shape.numel()).view(shape) for leaf, offset in self.runs]


class Memory:
    """The leaves of a mini-batch's instances, for each dtype one behind the other."""

    def __init__(self, leaves: Sequence[Sequence[torch.Tensor]]):
        self.leaves = leaves
        self._of: dict[torch.dtype, tuple[torch.Tensor, NDArray[np.int64]]] = {}

    def rows(self, dtype: torch.dtype, parts: Sequence[tuple[int, Runs]], shape: torch.Size) -> torch.Tensor:
        """Runs of a shape, those of instances by their numbers. O(elements of all leaves, and of the runs)."""
        known = self._of.get(dtype)
        if known is None:
            flats = [[leaf.reshape(-1) for leaf in leaves if leaf.dtype is dtype] for leaves in self.leaves]
            sizes = [sum(map(len, of_instance)) for of_instance in flats]
            whole = torch.cat([flat for of_instance in flats for flat in of_instance])
            known = self._of[dtype] = whole, np.cumsum(sizes) - np.array(sizes)
        whole, begin = known
        at = np.frombuffer(b"".join([runs.before for _, runs in parts]), np.int64)
        at = at + np.repeat(begin[[number for number, _ in parts]], [len(runs.runs) for _, runs in parts])
        size = shape.numel()
        windows = whole.as_strided((len(whole) - size + 1, size), (1, 1))
        return windows.index_select(0, torch.from_numpy(at)).view(len(at), *shape)
