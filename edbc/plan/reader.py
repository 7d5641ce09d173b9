"""Reads plans strictly: a Plan, or one PlanError on one line, and nothing else.

The text is read event by event (`edbc.plan.events`) against one table of what may come (`edbc.plan.schema`), and what
must hold between fields is checked last (`edbc.plan.verify`). Nothing in a plan is imported, evaluated or executed.

Beyond the table:

(1) `format_version` is the first key, so that a plan of a later version is told from a broken one before anything
    else is looked at. It is a StaleError (exit code 4).
(2) No key twice, no merge key, no unknown key.
(3) The last line is `...`, YAML's end of a document. A truncated plan lacks it.
(4) Unquoted words mean one thing only (`edbc.plan.scalars`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml

from edbc._version import __version__
from edbc.base.files import found_at, one_line
from edbc.errors import PlanError, StaleError
from edbc.plan.events import DEFAULT_LOADER, MAX_BYTES, REMEDY, Events, locate
from edbc.plan.oplines import LARGEST_INTEGER
from edbc.plan.plan import FORMAT_VERSION, Plan, Scalar
from edbc.plan.scalars import plain_value, shorten
from edbc.plan.schema import (
    CONFIG_NAME,
    PLAN,
    AnyScalar,
    AnyValue,
    Choice,
    Integer,
    Kind,
    ListOf,
    MapOf,
    Nullable,
    Number,
    Record,
    Text,
    describe,
)
from edbc.plan.verify import Place, verify_plan

_STATIC_LINE = re.compile(rb"^static:", re.MULTILINE)
LONGEST_VALUE = 2_000
"""Characters of a text whose field sets no limit of its own: config and training values."""


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file, verified.

    Raises PlanError, or StaleError when a later edbc wrote it.
    """
    where = one_line(path)
    data = read_bytes(path, where)
    if is_static(data):
        raise PlanError(
            f"{where}: expected a plan of batches, got one of stages, of a static model; 'edbc run', 'edbc explain' "
            "and 'edbc check' take it"
        )
    return parse_plan(data, where)


def is_static(data: bytes) -> bool:
    """Whether a document says that it is the plan of a static model (`edbc.plan.static`)."""
    return _STATIC_LINE.search(data) is not None


def parse_plan(text: bytes | str, where: str, loader: type = DEFAULT_LOADER) -> Plan:
    """The plan that `text` states, verified; `where` names it in errors. Raises as `read_plan` does."""
    plan: Plan = parse_as(text, where, PLAN, "a plan", loader)
    return verify_plan(plan, place_in(text, where, loader))


def parse_as(text: bytes | str, where: str, kind: Record, noun: str, loader: type = DEFAULT_LOADER) -> Any:
    """The document of a kind that `text` states, as the kind alone checks it; `noun` is what errors call it."""
    try:
        return _Reader(Events(_bytes(text), where, loader), kind, noun).document()
    except UnicodeEncodeError as error:
        raise PlanError(f"{where}: expected text that UTF-8 can hold, got {error.reason}; {REMEDY}") from None
    except (MemoryError, RecursionError) as error:
        raise PlanError(f"{where}: expected {noun}, got one too large to read ({type(error).__name__})") from None


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def read_bytes(path: str | os.PathLike[str], where: str, what: str = "plan") -> bytes:
    """The bytes of a file, one more than a document may have at most. Raises PlanError."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise PlanError(f"{where}: expected a {what} file, got {found_at(path)}; check the path")
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PlanError(f"{where}: expected a readable {what}, got: {error.strerror}; check the path") from None
    except ValueError:
        raise PlanError(f"{where}: expected a path, got one with a null character; check the path") from None


def place_in(text: bytes | str, where: str, loader: type = DEFAULT_LOADER) -> Place:
    """Where values stand in a document that has been read."""
    data = _bytes(text)

    def place(*path: str | int) -> str:
        position = locate(data, path, loader)
        return where if position is None else f"{where}:{position[0]}:{position[1]}"

    return place


class _Reader:
    """One pass over the events of a document. Methods take the first event of a value, and the name of its field."""

    def __init__(self, events: Events, kind: Record, noun: str) -> None:
        self._events = events
        self._next = events.next
        self._kind = kind
        self._noun = noun

    def document(self) -> Any:
        self._next()  # the stream's start
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            self._fail(event, self._noun, "nothing")
        top = self._next()
        found = self._record(self._kind, top, self._noun.removeprefix("a "))
        self._end()
        return found

    def _end(self) -> None:
        event = self._next()
        if not event.explicit:
            self._fail(
                event, f"the line '...' that ends {self._noun}", "the end of the text", "it was truncated: " + REMEDY
            )
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            self._fail(event, "one document", "a second one", "remove what follows '...'")

    def _read(self, kind: Kind, event: Any, field: str) -> Any:
        return _READ[type(kind)](self, kind, event, field)

    def _record(self, kind: Record, event: Any, field: str) -> Any:
        values: dict[str, Any] = {}
        for key in self._keys(kind, event, field, values):
            name = key.value
            if kind is self._kind and not values and name != "format_version":
                self._fail(key, "'format_version' as the first key", shorten(name))
            if name not in kind.fields:
                self._fail_unknown(key, kind, field)
            value = self._next()
            values[name] = self._read(kind.fields[name], value, name)
            if name == "format_version":
                self._check_version(value, values[name])
        for name in kind.fields:
            if name not in values and name not in kind.optional:
                self._fail(event, f"the key {name!r} in {field!r}", "none")
        return kind.build(**values)

    def _check_version(self, event: Any, version: int) -> None:
        if version > FORMAT_VERSION:
            raise StaleError(
                f"{self._events.place(event)}: expected plan format version {FORMAT_VERSION}, which edbc {__version__} "
                f"reads, got version {version}; upgrade edbc, or run 'edbc compile' again with this one"
            )

    def _keys(self, kind: Kind, event: Any, field: str, values: dict[str, Any]) -> Iterator[Any]:
        """The events of a mapping's keys, each checked to be a text that `values` lacks."""
        if not isinstance(event, yaml.MappingStartEvent):
            self._fail_kind(kind, event, field)
        while True:
            key = self._next()
            if isinstance(key, yaml.MappingEndEvent):
                return
            if not isinstance(key, yaml.ScalarEvent):
                self._fail(key, f"a key of {field!r}", _got(key))
            if key.value == "<<" and key.implicit[0]:
                self._fail(key, f"a key of {field!r}", "the merge key '<<'", "write the keys out")
            if key.value in values:
                self._fail(key, f"each key of {field!r} once", f"{shorten(key.value)} again", "remove one of the two")
            yield key

    def _mapping(self, kind: MapOf, event: Any, field: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key in self._keys(kind, event, field, values):
            name = self._text(kind.key, key, field)
            values[name] = self._read(kind.value, self._next(), name)
            if len(values) > kind.most:
                self._fail(key, f"at most {kind.most:,} keys in {field!r}", "more")
        if len(values) < kind.least:
            self._fail(event, f"at least {kind.least} key in {field!r}", "none")
        return values

    def _items(self, kind: Kind, event: Any, field: str, most: int) -> Iterator[Any]:
        """The first events of a list's items."""
        if not isinstance(event, yaml.SequenceStartEvent):
            self._fail_kind(kind, event, field)
        for _ in range(most + 1):
            item = self._next()
            if isinstance(item, yaml.SequenceEndEvent):
                return
            yield item
        self._fail(item, f"at most {most:,} items in {field!r}", "more")

    def _list(self, kind: ListOf, event: Any, field: str) -> tuple[Any, ...]:
        items = tuple([self._read(kind.item, item, field) for item in self._items(kind, event, field, kind.most)])
        if len(items) < kind.least:
            self._fail(event, f"at least {kind.least} item in {field!r}", "none")
        return items

    def _text(self, kind: Text, event: Any, field: str) -> str:
        value = self._scalar(kind, event, field)
        if type(value) is not str:
            self._fail_kind(kind, event, field)
        if not kind.shortest <= len(value) <= kind.longest:
            limit = f"at most {kind.longest:,} characters" if value else f"{kind.what}, not empty,"
            self._fail(event, f"{limit} for {shorten(field)}", f"{len(value):,}")
        if not kind.matches(value):
            self._fail_kind(kind, event, field)
        return value

    def _choice(self, kind: Choice, event: Any, field: str) -> str:
        value = self._scalar(kind, event, field)
        if type(value) is not str or value not in kind.words:
            self._fail_kind(kind, event, field)
        return value

    def _number(self, kind: Integer | Number, event: Any, field: str) -> Any:
        value: Any = self._scalar(kind, event, field)
        if type(value) is not int and (type(value) is not float or isinstance(kind, Integer)):
            self._fail_kind(kind, event, field)
        if not kind.low <= value <= kind.high:
            self._fail(event, f"{describe(kind)} from {kind.low} to {kind.high} for {shorten(field)}", event.value[:40])
        return value

    def _any_scalar(self, kind: Kind, event: Any, field: str) -> Scalar:
        value = self._scalar(kind, event, field)
        if value is None:
            self._fail_kind(kind, event, field)
        if type(value) is int and abs(value) > LARGEST_INTEGER:
            self._fail(event, f"an integer of at most {LARGEST_INTEGER} for {shorten(field)}", event.value[:40])
        if type(value) is str and not (value.isprintable() and len(value) <= LONGEST_VALUE):
            self._fail(
                event, f"printable text of at most {LONGEST_VALUE:,} characters for {shorten(field)}", _got(event)
            )
        return value

    def _any_value(self, kind: AnyValue, event: Any, field: str) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._any_scalar(kind, event, field)
        if kind.depth == 0:
            self._fail(event, f"a scalar this deep in {shorten(field)}", _got(event))
        inner = AnyValue(kind.depth - 1, kind.most)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(MapOf(CONFIG_NAME, inner, kind.most), event, field)
        return self._list(ListOf(inner, kind.most), event, field)

    def _nullable(self, kind: Nullable, event: Any, field: str) -> Any:
        is_null = isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == "null"
        return None if is_null else self._text(kind.kind, event, field)

    def _scalar(self, kind: Kind, event: Any, field: str) -> Scalar | None:
        """The value of a scalar event: its text when quoted, else the meaning of the word."""
        if not isinstance(event, yaml.ScalarEvent):
            self._fail_kind(kind, event, field)
        if not event.implicit[0]:
            return str(event.value)
        try:
            return plain_value(event.value)
        except ValueError as error:
            self._fail(event, f"{describe(kind)} for {shorten(field)}", str(error))

    def _fail(self, event: Any, expected: str, got: str, remedy: str = REMEDY) -> NoReturn:
        self._events.fail(event, expected, got, remedy)

    def _fail_kind(self, kind: Kind, event: Any, field: str) -> NoReturn:
        self._fail(event, f"{describe(kind)} for {shorten(field)}", _got(event))

    def _fail_unknown(self, key: Any, kind: Record, field: str) -> NoReturn:
        close = get_close_matches(key.value[:100], kind.fields, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"its keys are {', '.join(kind.fields)}"
        self._fail(key, f"a key of {field!r}", shorten(key.value), remedy)


_READ: dict[type, Callable[..., Any]] = {
    Record: _Reader._record,
    MapOf: _Reader._mapping,
    ListOf: _Reader._list,
    Text: _Reader._text,
    Choice: _Reader._choice,
    Integer: _Reader._number,
    Number: _Reader._number,
    AnyScalar: _Reader._any_scalar,
    AnyValue: _Reader._any_value,
    Nullable: _Reader._nullable,
}


def _got(event: Any) -> str:
    if isinstance(event, yaml.ScalarEvent):
        return shorten(event.value) if event.value else "nothing"
    if isinstance(event, yaml.MappingStartEvent):
        return "a mapping"
    return "a list" if isinstance(event, yaml.SequenceStartEvent) else "nothing"
