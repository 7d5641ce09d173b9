"""A call some of whose arguments are ragged, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from edbc.capture.ragged.value import Ragged, each_row
from edbc.capture.standins.nests import mapped

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

        def placed(item: Any) -> Any:
            if type(item) is not Ragged:
                return item
            rows.append(item)
            return _Row(len(rows) - 1)

        template = mapped(placed, ((*args,), kwargs))
        if any(len(row.refs) != len(rows[0].refs) for row in rows):
            return NotImplemented
        rec, function = self.rec, func or self.func

        def call(*values: Any) -> Any:
            return rec.function(function, *mapped(lambda x: values[x.number] if type(x) is _Row else x, template))

        return each_row(rec, rows, call, at)


class _Row(NamedTuple):
    """Place of a row among arguments."""

    number: int


Rule = Callable[[Call], Any]
