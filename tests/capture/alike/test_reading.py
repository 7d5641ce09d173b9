"""What tells instances apart: columns of many find what a function that calls itself for each part finds of one."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edbc.capture.alike.reading import DEEPEST, FLOATS, MOST_ITEMS, MOST_LEAVES, Column, read


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Node:
    word: Any
    children: Any = ()
    unread: Any = None


def fields(kind: type) -> frozenset[str] | None:
    return frozenset(("word", "children")) if kind in (Node, SimpleNamespace) else None


def shows(leaf: torch.Tensor) -> Any:
    return leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype


def told(item: Any, leaves: list[Any], numbers: list[Any], masks: bool, depth: int = DEEPEST,
         objects: list[Any] | None = None) -> Any:  # fmt: skip
    """What tells an item from others; None for one that is not keyed. The reference. Masks are leaves or not."""
    kind, objects = type(item), [] if objects is None else objects
    if kind is np.ndarray:
        of_array = told(torch.from_numpy(item), leaves, numbers, False)
        return of_array and ("array", of_array)
    if kind is torch.Tensor:
        if item.requires_grad or item.is_sparse or item.is_complex():
            return None
        if item.dtype in FLOATS or (masks and item.dtype is torch.bool):
            same = [i for i, leaf in enumerate(leaves) if shows(leaf) == shows(item)]
            leaves += [] if same else [item]
            return "leaf", item.dtype, item.shape, item.stride() if not item.is_contiguous() else (), *same
        if item.numel() > MOST_ITEMS:
            return None
        numbers += item.flatten().tolist() if item.dtype is torch.int64 else []
        return "integers", item.dtype, item.shape, None if item.dtype is torch.int64 else item.numpy().tobytes()
    if kind is int or kind is float:
        numbers.append(item)
        return kind
    if item is None or kind in (str, bool):
        return kind, item
    if not depth:
        return None
    if kind is dict:
        keys = {*map(type, item)}
        names = (*item, *keys)
        parts: Any = [*item.values()] if keys in ({str}, {int}, set()) else [object()]
    elif kind in (tuple, list, Pair):
        names, parts = (), item if len(item) <= MOST_ITEMS else [object()]
    elif fields(kind) is None:
        return None
    else:
        same = [i for i, other in enumerate(objects) if other is item]
        objects.append(item)
        names = *same[:1], *[name for name in vars(item) if name in ("word", "children")]
        parts = [value for name, value in vars(item).items() if name in names]
    found = [told(part, leaves, numbers, masks, depth - 1, objects) for part in parts]
    return None if None in found else (kind, names, *found)


ONE, ARRAY = Node(1), np.array([1.0, 2.0])
SHOWN = torch.from_numpy(ARRAY)
SHARED = [torch.ones(2), torch.ones(2), torch.ones(2, 2)]
PLAIN = st.sampled_from([0, 1, 1.0, 0.0, -0.0, True, False, None, "a", "1"])
TENSORS = st.sampled_from(
    [
        *SHARED,
        torch.ones(2, 2).t(),
        torch.ones(2, 1).t(),
        torch.ones(3, dtype=torch.float64),
        torch.tensor([1, 2]),
        torch.tensor([2, 1]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([True, False]),
        torch.tensor([False, True]),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.ones(2, requires_grad=True),
        torch.ones(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64),
        torch.zeros(MOST_ITEMS + 1, dtype=torch.int64),
        np.array([1.0, 2.0]),
        np.array([1, 2]),
        np.array([[1, 2]]),
        {torch.ones(2): 1},
        {torch.ones(2): 1},
        Node("a", [0.5]),
        Node("a", [0.5]),
    ]
)
INTEGERS, REALS = st.lists(st.integers(0, 3), max_size=3), st.lists(st.sampled_from([0.0, -0.0, 0.5]), max_size=3)
ROWS = st.lists(st.one_of(st.tuples(st.integers(0, 3), st.integers(0, 3)), INTEGERS), max_size=3)
KEYS = st.sampled_from(["a", "b", 0, 1, True])
NESTS = st.recursive(
    st.one_of(PLAIN, TENSORS, INTEGERS, REALS, ROWS, st.lists(REALS, max_size=2)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(KEYS, inner, max_size=2),
        st.builds(Node, inner, st.lists(inner, max_size=2), inner),
        st.builds(lambda word: SimpleNamespace(other=object(), word=word), inner),
    ),
    max_leaves=6,
)


def by_item(column: Column, count: int) -> list[Any]:
    """Pattern, leaves and numbers of each."""
    leaves, numbers = column.leaves or [()] * count, column.numbers or [()] * count
    each = zip(column.patterns, leaves, numbers, strict=True)
    return [None if p is None else (p, [*map(id, of)], [*map(repr, ns)]) for p, of, ns in each]


def without_arrays(found: Any) -> Any:
    """Tensors of arrays' memory are made anew each time."""
    return None if found is None else (found[0], len(found[1]), found[2])


@example(instances=[[ONE, ONE], [ONE, Node(1)], [Node(1), Node(1)], [{"a": ONE}, (ONE, 1)]], masks=True)
@example(instances=[(ARRAY, ARRAY, SHOWN), (ARRAY, SHOWN, ARRAY + 1), (ARRAY, ARRAY + 1, SHOWN)], masks=True)
@given(instances=st.lists(NESTS, min_size=1, max_size=6), masks=st.booleans())
@settings(max_examples=400)
def test_columns_find_what_a_recursive_reader_finds(instances: list[Any], masks: bool) -> None:
    """The same leaves and numbers in the same order; equal patterns exactly where the reference has equal ones; and of
    an instance the same in all company."""
    found = by_item(read(instances, fields, masks), len(instances))
    references = []
    for instance, one in zip(instances, found, strict=True):
        leaves: list[Any] = []
        numbers: list[Any] = []
        pattern = told(instance, leaves, numbers, masks)
        references.append(pattern)
        assert (one is None) == (pattern is None)
        if one is not None:
            assert one[2] == [*map(repr, numbers)]
            assert len(one[1]) == len(leaves)
            kept = [id(leaf) for leaf in leaves if leaf._base is None and any(leaf is x for x in SHARED)]
            assert [x for x in one[1] if x in map(id, SHARED)] == kept
        assert without_arrays(by_item(read([instance], fields, masks), 1)[0]) == without_arrays(one)
    for a, of_a in zip(found, references, strict=True):
        for b, of_b in zip(found, references, strict=True):
            if a is not None and b is not None:
                assert (a[0] == b[0]) == (of_a == of_b)


@pytest.mark.parametrize(
    ("instance", "is_keyed"),
    [
        ([torch.ones(1) for _ in range(MOST_LEAVES)], True),
        ([torch.ones(1) for _ in range(MOST_LEAVES + 1)], False),
        ([torch.ones(1)] * (MOST_LEAVES + 1), True),
        ([0] * MOST_ITEMS, True),
        ([0] * (MOST_ITEMS + 1), False),
        (["a"] * (MOST_ITEMS + 1), False),
        ([[0] * 300, [1] * 300], False),
        ([["a"] * 400] * 400, False),
        ({str(i): 0 for i in range(MOST_ITEMS + 1)}, False),
        ({("a", "b"): 0, "a": torch.ones(1)}, True),
        ({("a", 1): 0, "a": 1}, False),
        ({"a": 0, 1: 0}, False),
        (torch.ones(1).to("meta"), False),
        (torch.nn.Parameter(torch.ones(1)), False),
        (object(), False),
        (b"bytes", False),
        (np.ones(3, np.uint16), False),
        (np.ones((2, 2)).T, False),
    ],
)
def test_what_is_too_large_or_something_else_is_not_keyed(instance: Any, is_keyed: bool) -> None:
    """Alone, and in company that is keyed."""
    assert (read([instance], fields).patterns[0] is not None) == is_keyed
    in_company = read([[torch.ones(1)], instance, [0], instance], fields).patterns
    assert [pattern is not None for pattern in in_company] == [True, is_keyed, True, is_keyed]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_not_keyed() -> None:
    """They have no shape to ask for."""
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    patterns = read([nested, torch.ones(1), torch.ones(2)], fields).patterns
    assert [pattern is not None for pattern in patterns] == [False, True, True]


def test_nests_that_are_deep_are_not_keyed() -> None:
    """As many levels as are read, and one more; objects that hold themselves end there too."""
    nest: Any = "end"
    for _ in range(DEEPEST):
        nest = [nest]
    assert read([nest], fields).patterns[0] is not None
    assert read([[nest]], fields).patterns[0] is None
    circle = Node(1)
    circle.children = [circle, circle, circle]
    assert read([circle, circle], fields).patterns == [None, None]


def test_the_default_dtype_is_in_every_pattern() -> None:
    """What forward makes is of it."""
    (one,) = read([1], fields).patterns
    torch.set_default_dtype(torch.float64)
    try:
        (other,) = read([1], fields).patterns
    finally:
        torch.set_default_dtype(torch.float32)
    assert one != other
