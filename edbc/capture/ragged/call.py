"""A call some of whose arguments are ragged, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from edbc.capture.ragged.value import Ragged, each_row

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


class Call(NamedTuple):
    """Function, its name without decoration, arguments, and how many of them are ragged."""

    rec: Recorder
    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    num_ragged: int

    def given(self, position: int, keyword: str, default: Any) -> Any:
        """An argument by position or keyword. Further positional numbers, as in `x.view(3, 4)`, are not told apart."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(keyword, default)

    def with_argument(self, position: int, keyword: str, value: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with another in that place."""
        if len(self.args) > position:
            return [*self.args[:position], value, *self.args[position + 1 :]], self.kwargs
        return list(self.args), {**self.kwargs, keyword: value}

    def of_rows(self, args: Sequence[Any], kwargs: dict[str, Any], at: int | Callable[[Any], int],
                func: Callable[..., Any] | None = None) -> Any:  # fmt: skip
        """The call, or one of another function, of every row of the ragged ones among arguments of its own."""
        rows: list[Ragged] = []
        template = [_collected(a, rows) for a in args]
        named = {key: _collected(value, rows) for key, value in kwargs.items()}
        if any(len(row.refs) != len(rows[0].refs) for row in rows):
            return NotImplemented
        rec, function = self.rec, func or self.func

        def call(*values: Any) -> Any:
            filled = tuple(_filled(a, values) for a in template)
            return rec.function(function, filled, {k: _filled(v, values) for k, v in named.items()})

        return each_row(rec, rows, call, at)


def _collected(item: Any, rows: list[Ragged]) -> Any:
    """An argument with a place for each ragged value, which goes to `rows`."""
    if type(item) is Ragged:
        rows.append(item)
        return _Row(len(rows) - 1)
    return type(item)([_collected(x, rows) for x in item]) if type(item) in (list, tuple) else item


class _Row(NamedTuple):
    """Place of a row among arguments."""

    number: int


def _filled(item: Any, values: Sequence[Any]) -> Any:
    if type(item) is _Row:
        return values[item.number]
    if type(item) in (list, tuple):
        return type(item)([_filled(x, values) for x in item])
    return item


Rule = Callable[[Call], Any]
