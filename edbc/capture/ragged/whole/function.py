"""Run functions: functions of whole runs of rows, whatever their lengths, as expressions of torch functions.

Definitions.

(1) A *leaf* is a run, a tensor whose row k stands along one dimension (its place). Its *symbol* says which leaves are
    equally long: symbol 0 is the result's.
(2) An expression applies torch functions to leaves, constants and each other. Values of two ragged dimensions (scores
    of attention) are inside of expressions alone: no node has one as its result, nothing stores them.
(3) Rows by pairs of the rows of others are leaves too: their symbol is a *product* of two.
(4) A *run function* is an expression whose result is n rows, along dimension `at`, or one value (`at` is -1).

`cells.rows.segmented` runs them, node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from edbc.capture.record.signature import item_text
from edbc.capture.record.table import Hole
from edbc.capture.standins.nests import inside

_WITH_NUMBERS = frozenset("eq ne lt le gt ge logical_not bitwise_not to bool float mul sub add rsub".split())
"""Functions of each element of a tensor and numbers."""
CHUNK = 64
"""Elements of a row of a packed constant."""


Products = tuple[tuple[int, int, int], ...]
"""Symbols that are products, and of which two."""


class _Call(NamedTuple):
    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Apply(_Call):
    """Definition (2): a function of a template, whose holes are leaves. What it is made of is asked of each value that
    is computed of it, and told once."""

    @cached_property
    def text(self) -> str:
        """How it is written."""
        arguments = [_text(a) for a in self.args] + [f"{k}={_text(v)}" for k, v in self.kwargs.items()]
        return f"{self.name}({', '.join(arguments)})"

    @cached_property
    def functions(self) -> tuple[Any, ...]:
        """Its own, and those of the expressions in it: with the text they say what it computes."""
        return self.function, *[f for part in (*self.args, *self.kwargs.values()) for f in _functions_of(part)]

    def __repr__(self) -> str:
        return self.text


def _text(item: Any) -> str:
    if type(item) is Hole:
        return f"_{item.index}"
    if type(item) in (tuple, list):
        inner = ", ".join(map(_text, item))
        return f"[{inner}]" if type(item) is list else f"({inner})"
    return item.text if type(item) is Apply else item_text(item)


def evaluated(item: Any, leaves: Sequence[Any], call: Callable[..., Any] | None = None) -> Any:
    """An expression of these leaves; `call(function, args, kwargs)` calls in the place of the functions themselves."""
    if type(item) is Hole:
        return leaves[item.index]
    if type(item) is Apply:
        args, kwargs = evaluated((item.args, item.kwargs), leaves, call)
        return item.function(*args, **kwargs) if call is None else call(item.function, args, kwargs)
    return inside(lambda x: evaluated(x, leaves, call), item)


def renumbered(item: Any, numbers: Sequence[int]) -> Any:
    """The expression with leaf `numbers[i]` in the place of leaf i."""

    def anew(item: Any) -> Any:
        if type(item) is Hole:
            return Hole(numbers[item.index])
        if type(item) is Apply:
            return Apply(item.function, item.name, *anew((item.args, item.kwargs)))
        return inside(anew, item)

    return item if all(i == number for i, number in enumerate(numbers)) else anew(item)


def has_numbers(item: Any) -> bool:
    """Whether there is an integer in an expression that may be how many there are of something."""
    if type(item) is Apply:
        return has_numbers((item.args, tuple(item.kwargs.values())))
    if type(item) is slice:
        return has_numbers((item.start, item.stop, item.step))
    return any(map(has_numbers, item)) if type(item) in (tuple, list) else type(item) is int and abs(item) > 1


def _functions_of(item: Any) -> tuple[Any, ...]:
    if type(item) is Apply:
        return item.functions
    return tuple([f for part in item for f in _functions_of(part)]) if type(item) in (tuple, list) else ()


@dataclass(frozen=True, eq=False)
class RunFunction:
    """Definition (4). With leaves of several symbols the last operand says of each item which of them it has, as bits
    of a number."""

    root: Any
    places: tuple[int, ...]
    symbols: tuple[int, ...]
    at: int
    products: Products = ()

    @property
    def has_marks(self) -> bool:
        """Whether there is that last operand."""
        return max(self.symbols) > 0

    @property
    def text(self) -> str:
        """All that a signature says of it."""
        root, holes = self.root, tuple(map(Hole, range(len(self.places))))
        is_plain = type(root) is Apply and root.args == holes and not root.kwargs
        parts = ["" if is_plain else ", ".join(_text(root).removeprefix(root.name).removeprefix("(")[:-1].split("\n"))]
        parts += [f"along {self.places}"] if any(self.places) else []
        parts += [f"lengths {self.symbols}"] if self.has_marks else []
        parts += [f"length {s} is {a} x {b}" for s, a, b in self.products]
        return "; ".join(filter(None, [*parts, f"rows at {self.at}" if self.at > 0 else ""]))

    def __call__(self, *fields: torch.Tensor) -> torch.Tensor:
        """Of the fields of a node, (items, ...): (n, ...) or a value."""
        lengths = [len(fields[0])]
        if self.has_marks:
            lengths = [int((fields[-1] >> s & 1).sum()) for s in range(max(self.symbols) + 1)]
        return self.at_lengths(lengths, fields[: len(self.places)])

    def at_lengths(self, lengths: Sequence[int], fields: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same, told how long each symbol's leaves are."""
        leaves = [x[: lengths[s]].movedim(0, p) for x, p, s in zip(fields, self.places, self.symbols, strict=True)]
        result: torch.Tensor = evaluated(self.root, leaves)
        return result if self.at < 0 else result.movedim(self.at, 0)


# --- functions that expressions have beside torch's ----------------------------------------------------------------


def pick(results: Any, index: int) -> Any:
    """One of several results."""
    return results[index]


def only(rows: torch.Tensor) -> torch.Tensor:
    """What all rows are."""
    return rows[0]


def length(leaf: torch.Tensor, place: int) -> int:
    """Of a run."""
    return leaf.shape[place]


def triangle(like: torch.Tensor, n: int, m: int, diagonal: int, inside: float, outside: float,
             dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    """(n, m) where `like` is: `inside` up to a diagonal, `outside` above."""
    if inside == outside:
        return torch.full((n, m), inside, dtype=dtype, device=like.device)
    below = torch.ones(n, m, dtype=torch.bool, device=like.device).tril(diagonal)
    if dtype is torch.bool and inside:
        return below
    return torch.full((n, m), outside, dtype=dtype, device=like.device).masked_fill(below, inside)


def told(root: Apply) -> Apply:
    """A function of each element of a triangle as the triangle that it gives: `mask[:n, :n] == 0`."""
    inner, *others = root.args or (None,)
    is_plain = root.name in _WITH_NUMBERS and not root.kwargs and type(inner) is Apply
    if not is_plain or not all(isinstance(x, int | float | torch.dtype) for x in others):
        return root
    if inner.name == "reshape":
        made = told(root._replace(args=(inner.args[0], *others)))
        return inner._replace(args=(made, *inner.args[1:])) if made.function is triangle else root
    if inner.function is not triangle:
        return root
    *first, inside, outside, dtype = inner.args
    found = root.function(torch.tensor([inside, outside], dtype=dtype), *others)
    return inner._replace(args=(*first, *found.tolist(), found.dtype))


def packed(*tensors: torch.Tensor) -> torch.Tensor:
    """Tensors as rows of CHUNK elements, the last one of each filled up."""
    zeros = tensors[0].new_zeros(CHUNK)
    return torch.cat([part for x in tensors for part in (x.reshape(-1), zeros[: -x.numel() % CHUNK])]).view(-1, CHUNK)


def unpacked(rows: torch.Tensor, *shape: int) -> torch.Tensor:
    """What `packed` has packed."""
    count = 1
    for size in shape:
        count *= size
    return rows.reshape(-1)[:count].view(shape)
