"""What each field of a plan may hold: one table, which the reader and the editors' JSON Schema both follow.

Definitions.

(1) A *kind* says which YAML values a field accepts and bounds them: numbers in range, texts in length and characters,
    lists and mappings in count. Every kind has a bound, so the table bounds a whole plan.
(2) A *record* is a mapping with fixed keys, one per field of a dataclass, in the dataclass's order.

What must hold between fields is not here but in `edbc.plan.verify`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edbc.plan.oplines import LARGEST_INTEGER
from edbc.plan.plan import (
    BatchCost,
    FileRef,
    Guard,
    ModelRef,
    Plan,
    PlanCell,
    PlanPolicy,
    PlanType,
    PlanWaves,
    RunAs,
    TrainedOn,
)


@dataclass(frozen=True)
class Text:
    """Printable text on one line, fully matched by `pattern`; `what` describes it in errors."""

    what: str
    pattern: str = ""
    longest: int = 1_000
    shortest: int = 1
    matches: Callable[[str], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern; without one, any printable text matches."""
        object.__setattr__(self, "matches", re.compile(self.pattern).fullmatch if self.pattern else str.isprintable)


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Integer:
    """An integer in a closed range."""

    low: int = 0
    high: int = LARGEST_INTEGER


@dataclass(frozen=True)
class Number:
    """A finite integer or float in a closed range."""

    low: float = -1e300
    high: float = 1e300


@dataclass(frozen=True)
class AnyScalar:
    """An integer, finite float, boolean or text."""


@dataclass(frozen=True)
class AnyValue:
    """A scalar, or lists and mappings of them, nested at most `depth` deep with at most `most` items each."""

    depth: int = 3
    most: int = 1_000


@dataclass(frozen=True)
class Nullable:
    """`null`, or what `kind` accepts."""

    kind: Text


@dataclass(frozen=True)
class ListOf:
    """A list of `least` to `most` items of one kind."""

    item: Kind
    most: int
    least: int = 0
    block: bool = False
    """Written with a line per item, however short."""


@dataclass(frozen=True)
class MapOf:
    """A mapping from free keys to values of one kind."""

    key: Text
    value: Kind
    most: int
    least: int = 0


@dataclass(frozen=True)
class Record:
    """Definition (2)."""

    build: Callable[..., Any]
    fields: dict[str, Kind]
    optional: tuple[str, ...] = ()
    """Fields that the dataclass has a default for, and a plan may leave out."""
    flow: bool = False
    """Written on one line."""


Kind = Text | Choice | Integer | Number | AnyScalar | AnyValue | Nullable | ListOf | MapOf | Record

TYPE_NAME = Text("a type name", r"[A-Za-z_][A-Za-z0-9_.]*", 200)
LONGEST_NAME = 500
"""Characters of a dotted name, with the rows and columns of a block."""
METHOD_NAME = Text("a method's dotted name", longest=LONGEST_NAME)
VARIABLE = Text("a variable name", r"[A-Za-z_][A-Za-z0-9_]*", 200)
CONFIG_NAME = Text("a name", r"[A-Za-z_][A-Za-z0-9_.-]*", 200)
METRIC = Text("a metric name", r"[A-Za-z_][A-Za-z0-9_./ -]*", 200)
SHA256 = Text("64 lower-case hexadecimal digits", r"[0-9a-f]{64}", 64)
STATE = Text("a state of printable ASCII", r"[ -~]+", 4_000)
POLICY_WORD = Text("the name of an encoding or a rule", r"[A-Za-z_][A-Za-z0-9_.,:;+*()=/-]*", 200)

VERSION = Text("a version", r"[0-9][0-9A-Za-z.+-]*", 50)

FILE = Record(FileRef, {"name": Text("a file name", longest=255), "sha256": SHA256})

MODEL = Record(
    ModelRef,
    {
        "path": Text("a relative path"),
        "sha256": SHA256,
        "config": MapOf(CONFIG_NAME, AnyScalar(), 1_000),
        "seed": Integer(),
        "weights": FILE,
    },
    optional=("weights",),
)

TRAINED_ON = Record(
    TrainedOn,
    {
        "source": Choice(("sample", "file", "memory")),
        "files": ListOf(FILE, 1_000),
        "instances": Integer(),
        "seed": Integer(),
        "nodes": Integer(),
    },
)

TYPE = Record(
    PlanType,
    {
        "name": TYPE_NAME,
        "signature": Text("a signature", longest=10_000),
        "source": Text("a file and line", shortest=0),
    },
)

POLICY = Record(
    PlanPolicy,
    {
        "kind": POLICY_WORD,
        "encoding": Nullable(POLICY_WORD),
        "fallback": POLICY_WORD,
        "beside": POLICY_WORD,
        "table": MapOf(STATE, TYPE_NAME, 100_000),
        "training": MapOf(CONFIG_NAME, AnyValue(), 1_000),
    },
    optional=("beside",),
)

WAVES = Record(
    PlanWaves, {"table": MapOf(STATE, TYPE_NAME, 100_000), "training": MapOf(CONFIG_NAME, AnyValue(), 1_000)}
)

RUN = Record(
    RunAs, {"eager": Text("a reason", longest=1_000), "captured": Choice(("batched",))}, optional=("captured",)
)

COST = Record(BatchCost, {"fixed_us": Number(low=0, high=1e9), "row_us": Number(low=0, high=1e9)}, flow=True)

CELL = Record(
    PlanCell,
    {
        "operations": ListOf(Text("an operation", r"[ -~]+", 4_000), 10_000, least=1, block=True),
        "batches": ListOf(ListOf(VARIABLE, 10_000, least=1), 10_000, block=True),
        "layout": ListOf(VARIABLE, 10_000),
        "weights": ListOf(Text("a parameter's name", longest=LONGEST_NAME), 10_000),
        "copies": Integer(),
        "eager": ListOf(VARIABLE, 10_000),
    },
    optional=("eager",),
)

GUARD = Record(
    Guard,
    {"value": Number(), "tolerance": Number(low=0), "direction": Choice(("lower", "higher"))},
    optional=("tolerance", "direction"),
    flow=True,
)

REQUIREMENT = Text(
    "a requirement such as torch>=2.8", r"[A-Za-z][A-Za-z0-9_.-]*[<>=!~]=[0-9][0-9A-Za-z.,<>=!~*+]*", 200
)

RAGGED = Text("a class of n rows such as f32[n,64]", r"[a-z]+[0-9]*\[([0-9]{1,9},){0,20}n(,[0-9]{1,9}){0,20}\]", 200)

MEMBERS = ListOf(Text("a member of a pattern", r"[ -~]+", 4_000), 64, least=2, block=True)

PLAN = Record(
    Plan,
    {
        "format_version": Integer(low=1),
        "edbc": VERSION,
        "model": MODEL,
        "trained_on": TRAINED_ON,
        "requirements": ListOf(REQUIREMENT, 100),
        "types": ListOf(TYPE, 10_000, least=1),
        "policy": POLICY,
        "waves": WAVES,
        "run": RUN,
        "alone": Choice(("eager",)),
        "automatic": MapOf(METHOD_NAME, Text("a file and line"), 10_000, least=1),
        "fused": MapOf(TYPE_NAME, MEMBERS, 1_000, least=1),
        "ragged": ListOf(RAGGED, 1_000, least=1),
        "reads": ListOf(Text("a file and line"), 10_000, least=1),
        "costs": MapOf(TYPE_NAME, COST, 10_000, least=1),
        "cells": MapOf(TYPE_NAME, CELL, 10_000, least=1),
        "guards": MapOf(METRIC, GUARD, 1_000, least=1),
    },
    optional=("waves", "run", "alone", "automatic", "fused", "ragged", "reads", "costs"),
)
"""The kind of a whole plan."""


def describe(kind: Kind) -> str:
    """What `kind` accepts, to follow "expected"."""
    match kind:
        case Text():
            return kind.what
        case Choice():
            return " or ".join(map(repr, kind.words))
        case Integer():
            return "an integer"
        case Number():
            return "a number"
        case AnyScalar():
            return "a number, true, false or text"
        case AnyValue():
            return "a value, a list or a mapping"
        case Nullable():
            return f"null or {describe(kind.kind)}"
        case ListOf():
            return "a list"
    return "a mapping"
