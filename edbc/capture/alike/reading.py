"""What tells the instances of a mini-batch apart, read column by column.

Definitions.

(1) A *leaf* is a tensor or array of floating numbers in an instance, or a mask: a tensor of truth values. *Numbers* are
    its integers, those in tensors and arrays of 64-bit integers too, and its floats. Where it is told so, masks are no
    leaves but plain values.
(2) An instance is *keyed* when it is a nest of tuples, lists, dicts and objects (`code.closed.Closed.fields`) of
    leaves, numbers and plain values. Its *pattern* says all of that but for the numbers, and of a leaf its shape, its
    dtype, and which earlier one it is. Which earlier one an object is it says too: forward may look for it in a list,
    or look something up by it. Arrays that show the same memory are one leaf.
(3) A *column* is what stands in one place of many nests. Items of one class are taken apart together, by calls that
    loop in C, where a function that calls itself for each part took two to three times as long. What is found of an
    item does not depend on the others, but that a nest as large as many, or deep, is not keyed.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from edbc.capture.standins.nests import is_named, is_of_texts, places_once
from edbc.capture.standins.standin import PLAIN

DEEPEST = 8
"""Levels of an instance that is keyed: deeper ones are structures that code recurses on."""
MOST_ITEMS = 512
"""Items of its nests, and its numbers."""
MOST_LEAVES = 64
"""Of one instance."""
FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))

_STRIDED, _TENSOR = {torch.strided}, torch.Tensor
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool))
_NOT_TORCHS = frozenset(("f16", "u2", "u4", "u8"))
_NUMBERS = ({int}, {float})
_dtype, _shape, _layout, _is_cpu = map(attrgetter, ("dtype", "shape", "layout", "is_cpu"))
_requires_grad, _is_nested = attrgetter("requires_grad"), attrgetter("is_nested")
_facts = attrgetter("dtype", "layout", "is_cpu", "requires_grad", "is_nested")

Fields = Callable[[type], "frozenset[str] | None"]
"""The attributes that are read of objects of a class; None for one whose objects are not keyed."""


class Column(NamedTuple):
    """What is found of each item of a column: what tells it from others, its leaves, and its numbers."""

    patterns: Sequence[Any]
    """None for one that is not keyed."""
    leaves: Sequence[Sequence[torch.Tensor]] | None = None
    """None where no item has any."""
    numbers: Sequence[Sequence[Any]] | None = None
    """The same, in the order of the items' parts."""
    objects: Sequence[Sequence[int]] | None = None
    """The same, of the addresses of objects."""


def read(instances: Sequence[Any], fields: Fields, leaves_masks: bool = True) -> Column:
    """The instances of a mini-batch; each leaf of one once. Linear in the items of their nests."""
    leaf_dtypes = FLOATS | {torch.bool} if leaves_masks else FLOATS
    reader = _Reader(fields, 4 * MOST_ITEMS * max(len(instances), 1), leaf_dtypes)
    found = reader.column(instances, DEEPEST)
    dtype, leaves, numbers = torch.get_default_dtype(), found.leaves, found.numbers
    patterns: Any = [*zip(itertools.repeat(dtype), found.patterns, strict=False)]
    if None in found.patterns:
        patterns = [pattern if pattern[1] is not None else None for pattern in patterns]
    if found.objects is not None:
        patterns = [*map(_with_objects, patterns, found.objects)]
    if leaves is not None and (most := max(map(len, leaves))) > 1:
        address = memory_of if reader.has_arrays else id
        addresses = [*map(address, itertools.chain.from_iterable(leaves))]
        if most > MOST_LEAVES or len({*addresses}) < len(addresses):
            each_once = map(_with_each_once, patterns, leaves, itertools.repeat(address))
            patterns, leaves = zip(*each_once, strict=True)
    if numbers is not None and max(map(len, numbers)) > MOST_ITEMS:
        patterns = [pattern if len(of) <= MOST_ITEMS else None for pattern, of in zip(patterns, numbers, strict=True)]
    return Column(patterns, leaves, numbers)


def _with_objects(pattern: Any, addresses: Sequence[int]) -> Any:
    """A pattern that says which objects are one, where some are."""
    places = places_once(addresses)
    return (*pattern, object, *places) if pattern and places else pattern


def memory_of(leaf: torch.Tensor) -> Any:
    """What tells the memory that a leaf shows from other memory."""
    return leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype


def _with_each_once(pattern: Any, leaves: Sequence[torch.Tensor],
                    address: Callable[[torch.Tensor], Any]) -> tuple[Any, Sequence[torch.Tensor]]:  # fmt: skip
    """A pattern that says which leaves are one, and each of them once."""
    once = {address(leaf): leaf for leaf in leaves}
    if len(once) > MOST_LEAVES:
        return None, leaves
    if len(once) == len(leaves):
        return pattern, leaves
    return pattern and (*pattern, *places_once([*map(address, leaves)])), tuple(once.values())


class _Reader:
    """Columns of one mini-batch; one with more than `most` items is not keyed."""

    def __init__(self, fields: Fields, most: int, leaf_dtypes: frozenset[torch.dtype]):
        self.fields, self.most, self.leaf_dtypes = fields, most, leaf_dtypes
        self.has_arrays = False

    def column(self, items: Sequence[Any], depth: int) -> Column:
        """Any items. Each kind of pattern begins in its own way."""
        kinds = {*map(type, items)}
        if len(kinds) == 1:
            return self.of_kind(kinds.pop(), items, depth)
        return _by_group(items, map(type, items), lambda of: self.of_kind(type(of[0]), of, depth))

    def of_kind(self, kind: type, items: Sequence[Any], depth: int) -> Column:
        """Items of one class."""
        if kind is _TENSOR:
            return _tensors(items, self.leaf_dtypes)
        if kind is int or kind is float:
            return Column([kind] * len(items), None, [*zip(items)])
        if kind in PLAIN:
            return Column([(kind, item) for item in items])
        if kind is np.ndarray:
            self.has_arrays = True
            return _arrays(items)
        if not depth:
            return _not_keyed(items)
        if kind is dict:
            return self.dicts(items, depth)
        if kind is tuple or kind is list or is_named(kind):
            return self.sequences(kind, items, depth)
        fields = self.fields(kind)
        return _not_keyed(items) if fields is None else self.objects(kind, fields, items, depth)

    def dicts(self, items: Sequence[Any], depth: int) -> Column:
        """With keys that are all texts, or tuples of them, or all integers. Others are not compared: they may be
        tensors."""
        names: list[Any] = [*map(tuple, items)]
        kinds = {*map(type, itertools.chain.from_iterable(items))}
        if kinds - {str, int}:
            are_named = [all(type(key) is int or is_of_texts(key) for key in of) for of in names]
            if not all(are_named):
                return _by_group(items, are_named, lambda of: self.dicts(of, depth))
        if kinds - {str}:
            names = [(*of, *map(type, of)) for of in names]
        if names.count(names[0]) < len(names):
            return _by_group(items, names, lambda of: self.dicts(of, depth))
        keys = tuple(items[0])
        if len(keys) > MOST_ITEMS or (int in (of_keys := {*map(type, keys)}) and len(of_keys) > 1):
            return _not_keyed(items)
        columns = [self.column([item[key] for item in items], depth - 1) for key in keys]
        return _joined((dict, *names[0]), columns, len(items))

    def objects(self, kind: type, fields: frozenset[str], items: Sequence[Any], depth: int) -> Column:
        """Of a class, whose attributes of these names are read."""
        spaces = [*map(vars, items)]
        names = [*map(tuple, spaces)]
        if names.count(names[0]) < len(names):
            return _by_group(items, names, lambda of: self.objects(kind, fields, of, depth))
        read = [name for name in names[0] if name in fields]
        columns = [self.column([space[name] for space in spaces], depth - 1) for name in read]
        found = _joined((kind, *read), columns, len(items))
        own = [*zip(map(id, items))]
        return found._replace(objects=own if found.objects is None else [*map(operator.add, own, found.objects)])

    def sequences(self, kind: type, items: Sequence[Any], depth: int) -> Column:
        """Tuples and lists."""
        sizes = [*map(len, items)]
        if max(sizes) > MOST_ITEMS or sum(sizes) > self.most:
            is_large = [size > MOST_ITEMS for size in sizes]
            if all(is_large) or not any(is_large):
                return _not_keyed(items)
            return _by_group(items, is_large, lambda of: self.sequences(kind, of, depth))
        flat = [*itertools.chain.from_iterable(items)]
        kinds = {*map(type, flat)}
        if not kinds:
            return Column([(kind,)] * len(items))
        if kinds in _NUMBERS:
            (of,) = kinds
            patterns_of = {size: (kind, *(of,) * size) for size in {*sizes}}
            return Column([*map(patterns_of.__getitem__, sizes)], None, items)
        if kind is not list and sizes.count(sizes[0]) == len(sizes):
            return _joined(kind, [self.column(of, depth - 1) for of in zip(*items, strict=True)], len(items))
        found = self.column(flat, depth - 1)
        rest = iter(found.patterns)
        patterns: Any = [(kind, *itertools.islice(rest, size)) for size in sizes]
        if None in found.patterns:
            patterns = [None if None in pattern else pattern for pattern in patterns]
        others: list[Any] = [of and [*map(_chained, _parts(of, sizes))] for of in found[1:]]
        return Column(patterns, *others)


def _parts(items: Sequence[Any], sizes: Sequence[int]) -> Iterator[Iterator[Any]]:
    """Runs of items of these sizes, each to be taken before the next."""
    return map(itertools.islice, itertools.repeat(iter(items)), sizes)


def _chained(parts: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    return (*itertools.chain.from_iterable(parts),)


def _not_keyed(items: Sequence[Any]) -> Column:
    return Column([None] * len(items))


def _by_group(items: Sequence[Any], groups: Any, column: Callable[[list[Any]], Column]) -> Column:
    """The columns of items of each group, put together in the items' order; items that are all of one are not keyed."""
    places: dict[Any, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    if len(places) < 2:
        return _not_keyed(items)
    patterns = [None] * len(items)
    others: list[list[Any]] = [[()] * len(items) for _ in Column._fields[1:]]
    for at in places.values():
        found = column([items[place] for place in at])
        for of, own in zip((patterns, *others), found, strict=True):
            for place, one in zip(at, own or (), strict=False):
                of[place] = one
    return Column(patterns, *[of if any(of) else None for of in others])


def _joined(head: Any, columns: Sequence[Column], count: int) -> Column:
    """Items whose parts these columns are."""
    if not columns:
        return Column([head] * count)
    of_parts = [column.patterns for column in columns]
    patterns: Any = [*zip(itertools.repeat(head), *of_parts, strict=False)]
    if any(None in of for of in of_parts):
        patterns = [None if None in pattern else pattern for pattern in patterns]
    of_columns = zip(*[column[1:] for column in columns], strict=True)
    return Column(patterns, *[_together([*filter(None, of)]) for of in of_columns])


def _together(columns: Sequence[Sequence[Sequence[Any]]]) -> Sequence[Sequence[Any]] | None:
    """What the parts of each item have, in their order."""
    return [*map(_chained, zip(*columns, strict=True))] if len(columns) > 1 else columns[0] if columns else None


def _tensors(items: Sequence[torch.Tensor], leaf_dtypes: frozenset[torch.dtype]) -> Column:
    """Leaves, and tensors of integers; what is neither is not keyed."""
    dtypes = [*map(_dtype, items)]
    kinds = {*dtypes}
    is_plain = all(map(_is_cpu, items)) and {*map(_layout, items)} == _STRIDED
    if not is_plain or len(kinds) > 1 or any(map(_is_nested, items)) or any(map(_requires_grad, items)):
        return _by_group(items, [*map(_facts, items)], lambda of: _tensors(of, leaf_dtypes))
    (dtype,) = kinds
    patterns: list[Any] = [*zip(dtypes, map(_shape, items), strict=True)]
    if dtype in leaf_dtypes:
        if not all(map(_TENSOR.is_contiguous, items)):
            patterns = [
                of if item.is_contiguous() else (*of, item.stride()) for of, item in zip(patterns, items, strict=True)
            ]
        return Column(patterns, [*zip(items)])
    if dtype not in _INTEGERS:
        return _not_keyed(items)
    if max(map(_TENSOR.numel, items)) > MOST_ITEMS:
        patterns = [of if item.numel() <= MOST_ITEMS else None for of, item in zip(patterns, items, strict=True)]
    if dtype is torch.int64:
        return Column(patterns, None, [item.flatten().tolist() for item in items])
    found = zip(patterns, items, strict=True)
    return Column([of and (*of, item.numpy().tobytes()) for of, item in found])


def _arrays(items: Sequence[np.ndarray]) -> Column:
    """Arrays of NumPy's, as tensors of their memory."""
    tensors = [*map(tensor_of_array, items)]
    if any(tensor is None for tensor in tensors):
        return _by_group(items, [tensor is None for tensor in tensors], _arrays)
    found = _tensors(tensors, FLOATS)  # type: ignore[arg-type]
    return found._replace(patterns=[pattern and (np.ndarray, *pattern) for pattern in found.patterns])


def tensor_of_array(array: np.ndarray) -> torch.Tensor | None:
    """Of an array's memory; None where torch has none without a warning."""
    flags = array.flags
    is_known = flags.c_contiguous and flags.writeable and array.dtype.isnative and array.dtype.kind in "fiub"
    return torch.from_numpy(array) if is_known and array.dtype.str[1:] not in _NOT_TORCHS else None


def names(item: Any, fields: Fields, name: tuple[Any, ...] | None = ()) -> Iterator[tuple[Any, ...] | None]:
    """Names of the numbers in an instance, in their order: the attributes, keys and places in tuples that lead to each;
    None for those in lists and tensors."""
    kind, known = type(item), None
    if kind is int or kind is float:
        yield name
    elif kind is torch.Tensor or kind is np.ndarray:
        yield from [None] * (torch.as_tensor(item).numel() if item.dtype in (torch.int64, np.int64) else 0)
    elif kind is list:
        for part in item:
            yield from names(part, fields, None)
    elif kind is dict or issubclass(kind, tuple) or (known := fields(kind)) is not None:
        of_names = item if kind is dict else vars(item) if known is not None else None
        for key, part in enumerate(item) if of_names is None else of_names.items():
            if known is None or key in known:
                yield from names(part, fields, None if name is None else (*name, key))
