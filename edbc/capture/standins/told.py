"""Integers that an instance brings, as forward gets them whose record is to serve other instances.

Python may hand them around, put them into tensors and look rows of parameters up by them. Whoever wants to know one
(`if word == END`, `range(count)`) gives the attempt up, and is noted: instances are told apart by that number then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.symbols import METHODS, Index
from edbc.capture.standins.standin import Shared, Value

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


class Watch(Protocol):
    """Who shows integers, and is told what becomes of them."""

    def ask(self, places: Sequence[int]) -> NoReturn:
        """Somebody wants to know them."""

    def row_of(self, table: Shared, place: int) -> Value:
        """The row of a table by the integer."""

    def note(self, constant: Value, places: torch.Tensor) -> None:
        """A constant holds them."""


class Number:
    """An integer, number `place` of its instance's."""

    __slots__ = ("place", "rec", "value", "watch")

    def __init__(self, rec: Recorder, watch: Watch, place: int, value: int):
        self.rec, self.watch, self.place, self.value = rec, watch, place, value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def row_of(self, table: Shared) -> Value:
        """The row of a parameter."""
        return self.watch.row_of(table, self.place)


def _asked(name: str) -> Callable[..., Any]:
    def ask(self: Number, *_: Any) -> NoReturn:
        self.watch.ask([self.place])

    return ask


for _name in (*METHODS, *"matmul rmatmul rdivmod complex rlshift rrshift reduce_ex".split()):
    setattr(Number, f"__{_name}__", _asked(f"__{_name}__"))


class Told(Index):
    """A tensor of integers, those of `places`."""

    __slots__ = ("places", "watch")

    def __init__(self, rec: Recorder, watch: Watch, tensor: torch.Tensor, places: torch.Tensor):
        super().__init__(rec, tensor, (), -1)
        self.watch, self.places = watch, places

    def _seen(self, see: Callable[[torch.Tensor], torch.Tensor]) -> Told:
        return Told(self.rec, self.watch, see(self.tensor), see(self.places))

    def _shape(self) -> tuple[Any, ...]:
        return self.tensor.shape

    def numel(self) -> int:
        """See torch."""
        return self.tensor.numel()

    def dim(self) -> int:
        """See torch."""
        return self.tensor.ndim

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self.tensor))])

    def __getitem__(self, index: Any) -> Any:
        parts = index if type(index) is tuple else (index,)
        if not all(type(i) in (int, slice, type(None), type(Ellipsis)) for i in parts):
            raise CannotKeep
        return self._seen(lambda tensor: tensor[index])

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """See torch."""
        count = self.tensor.shape[dim]
        return tuple(
            Told(self.rec, self.watch, self.tensor.select(dim, i), self.places.select(dim, i)) for i in range(count)
        )

    def item(self) -> Any:
        """The number itself."""
        if self.tensor.numel() != 1:
            raise CannotKeep
        return self._numbers(self.tensor.reshape(()), self.places.reshape(()))

    def tolist(self) -> Any:
        """The numbers themselves."""
        return self._numbers(self.tensor, self.places)

    def _numbers(self, tensor: torch.Tensor, places: torch.Tensor) -> Any:
        if tensor.ndim:
            return [self._numbers(*pair) for pair in zip(tensor, places, strict=True)]
        return Number(self.rec, self.watch, int(places), int(tensor))

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter by these numbers."""
        from edbc.capture.record.lookup import look_up_of

        if not self.rec.flows or not self.tensor.numel():
            raise CannotKeep
        if not self.tensor.ndim:
            return self.rec.copied(self.item().row_of(table))
        if self.tensor.ndim == 1:
            return table._many(self.tolist())
        row = getattr(look_up_of(table.ref), "padding_index", None)
        options = {} if row is None else {"padding_idx": row}
        embedding: Any = torch.nn.functional.embedding
        return embedding(self.materialise(), table, **options)

    def make(self) -> Value:
        """The constant that holds them."""
        constant = self.rec.constant(self.tensor.clone())
        self.watch.note(constant, self.places)
        return constant

    def _meta(self) -> torch.Tensor:  # type: ignore[override]
        return torch.empty_like(self.tensor, device="meta")

    def _read(self) -> NoReturn:
        self.watch.ask(self.places.flatten().tolist())


def _both(name: str) -> Callable[..., Any]:
    """A method that takes of numbers and of places the same."""
    method = getattr(torch.Tensor, name)

    def both(self: Told, *args: Any, **kwargs: Any) -> Told:
        return self._seen(lambda tensor: method(tensor, *args, **kwargs))

    return both


for _name in "unsqueeze squeeze view reshape flatten t expand permute transpose select narrow flip".split():
    setattr(Told, _name, _both(_name))
Told.T = property(lambda self: self.t())


def told(data: Any) -> Number | None:
    """The first such integer in lists of any depth. Linear in their items."""
    kind = type(data)
    if kind is Number:
        return data
    if kind is not list and kind is not tuple:
        return None
    return next((found for found in map(told, data) if found is not None), None)


def tensor_of(first: Number, data: Any) -> Told:
    """`torch.tensor(data)`. Raises CannotKeep where others than these integers are in it."""
    return Told(first.rec, first.watch, torch.tensor(_each(data, "value")), torch.tensor(_each(data, "place")))


def _each(data: Any, name: str) -> Any:
    if type(data) is Number:
        return object.__getattribute__(data, name)
    if type(data) is not list and type(data) is not tuple:
        raise CannotKeep
    return [_each(item, name) for item in data]
