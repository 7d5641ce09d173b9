"""YAML's events, and only those of plain data: what stands between the bytes of a plan and its reader.

yaml's safe loader would compose a tree first, in which an alias can stand for a billion nodes. Here its parser is
asked for one event at a time, so nothing is composed, constructed or resolved, and whatever reads the events bounds
what is kept. Checks, in this order:

(1) size: at most MAX_BYTES;
(2) characters: UTF-8 without a byte order mark, and no character that YAML forbids or takes for a line break where
    editors see none;
(3) per event: no anchor, alias, tag or directive, and at most MAX_NODES nodes.

Depth needs no cap here: a reader that knows what may come next stops at the first list that may not.
Every failure is one PlanError that names line and column.
"""

from __future__ import annotations

import codecs
import re
from typing import Any, NoReturn

import yaml

from edbc.errors import PlanError
from edbc.plan.scalars import shorten

MAX_BYTES = 12 << 20
"""Some four times an honest plan of 50,000 states. One text of this size takes seven times its bytes for a moment."""

MAX_NODES = 300_000
CHUNK = 1 << 16

_FORBIDDEN = re.compile("[^\t\n\r -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")

DEFAULT_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, or the one in Python, some thirty times slower, where libyaml is absent."""

Path = tuple[str | int, ...]
"""Keys and positions from the top of the plan to a value."""


class Events:
    """The events of one plan, checked. `where` names the file in errors; `loader` is DEFAULT_LOADER but in tests."""

    def __init__(self, data: bytes, where: str, loader: type = DEFAULT_LOADER) -> None:
        self.where = where
        self._nodes = 0
        self._data = data
        check_characters(data, where)
        self._loader = loader(data if loader is not yaml.SafeLoader else data.decode())

    def next(self) -> Any:
        """The next event. Raises PlanError where the text is not YAML, or (3) does not hold."""
        try:
            event = self._loader.get_event()
        except yaml.MarkedYAMLError as error:
            self._fail_marked(error)
        except yaml.reader.ReaderError as error:
            raise PlanError(f"{self.where}: expected YAML, got {error.reason}; {REMEDY}") from None
        except (ValueError, OverflowError):  # yaml's own scanner, where libyaml is absent
            raise PlanError(f"{self.where}: expected YAML, got an escape beyond Unicode; {REMEDY}") from None
        if isinstance(event, yaml.NodeEvent):
            self._check_node(event)
        elif isinstance(event, yaml.DocumentStartEvent) and (event.version or event.tags):
            self.fail(event, "a plan without directives", "a line that begins with %", "remove it")
        return event

    def _check_node(self, event: Any) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self.fail(event, f"at most {MAX_NODES:,} values", "more", REMEDY)
        if isinstance(event, yaml.AliasEvent):
            name = shorten(event.anchor or "")
            self.fail(event, "a value", f"the alias {name}", "aliases are not allowed; write the value out")
        if event.anchor is not None:
            self.fail(event, "a value", f"the anchor {shorten(event.anchor)}", "anchors are not allowed; remove it")
        if event.tag is not None:
            self.fail(event, "a value", f"the tag {shorten(event.tag)}", "tags are not allowed; remove it")

    def fail(self, event: Any, expected: str, got: str, remedy: str) -> NoReturn:
        """Raise the PlanError that an event deserves."""
        raise PlanError(f"{self.place(event)}: expected {expected}, got {got}; {remedy}")

    def place(self, event: Any) -> str:
        """`plans/x.yaml:41:7`."""
        return f"{self.where}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"

    def _fail_marked(self, error: yaml.MarkedYAMLError) -> NoReturn:
        mark = error.problem_mark or error.context_mark
        place = f"{self.where}:{mark.line + 1}:{mark.column + 1}" if mark else self.where
        context = f" {error.context}" if error.context else ""
        reason = " ".join(f"{error.problem}{context}".split())
        raise PlanError(f"{place}: expected YAML, got an error in it: {reason[:200]}; {REMEDY}") from None


REMEDY = "correct it, or run 'edbc compile' again"


def check_characters(data: bytes, where: str) -> None:
    """Checks (1) and (2), in memory of one chunk."""
    if len(data) > MAX_BYTES:
        raise PlanError(f"{where}: expected at most {MAX_BYTES:,} bytes, got more; {REMEDY}")
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), CHUNK):
        end = start + CHUNK
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data[start:end], final=end >= len(data))
        except UnicodeDecodeError as error:
            _fail_at(data, start - pending + error.start, where, "UTF-8", f"byte 0x{error.object[error.start]:02x}")
        forbidden = _FORBIDDEN.search(text)
        if forbidden:
            offset = start - pending + len(text[: forbidden.start()].encode())
            _fail_at(data, offset, where, "printable text", f"character U+{ord(forbidden[0]):04X}")


def _fail_at(data: bytes, offset: int, where: str, expected: str, got: str) -> NoReturn:
    line = data.count(b"\n", 0, offset) + 1
    start = data.rfind(b"\n", 0, offset) + 1
    column = len(data[start:offset].decode(errors="replace")) + 1
    raise PlanError(f"{where}:{line}:{column}: expected {expected}, got {got}; save the plan as plain UTF-8")


def locate(data: bytes, path: Path, loader: type = DEFAULT_LOADER) -> tuple[int, int] | None:
    """Line and column, from 1, of the value at `path` in a plan that has been read; None where there is none.

    A second pass over the text, made only to report a failure, so that reading need not keep a mark per value.
    """
    events = Events(data, "", loader)
    event = events.next()
    while not isinstance(event, yaml.CollectionStartEvent):
        event = events.next()
    for step in path:
        found = _enter(events, event, step)
        if found is None:
            return None
        event = found
    return event.start_mark.line + 1, event.start_mark.column + 1


def _enter(events: Events, start: Any, step: str | int) -> Any:
    """The first event of the child `step` of the collection that `start` opened, or None."""
    is_mapping = isinstance(start, yaml.MappingStartEvent)
    position = 0
    while True:
        event = events.next()
        if isinstance(event, yaml.CollectionEndEvent) or not isinstance(start, yaml.CollectionStartEvent):
            return None
        key = event.value if is_mapping else position
        child = events.next() if is_mapping else event
        if key == step:
            return child
        _skip(events, child)
        position += 1


def _skip(events: Events, event: Any) -> None:
    depth = 0
    while True:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth == 0:
            return
        event = events.next()
